"""Windows of several adjacent results: the taps are the outer loop and the lanes the inner one, so each tap is one vector load.

    float sum[4] = {0, 0, 0, 0};
    for each tap: if (inside) load x_v[4];  for v < 4: sum[v] += inside ? x_v[v] : 0;

Values that all taps share are loaded and computed before the taps. An example is a normalisation, recomputed at each tap: its weights and
statistics are the same at all of them.
"""
from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tilefuse.domain.resolved import Instance, Resolved, Touch, resolved_walk
from tilefuse.domain.windows import taps_of
from tilefuse.emit.kernel_writer import Held, KernelWriter
from tilefuse.emit.vector_operands import vector_operands
from tilefuse.ir.affine import Affine, number, substitute
from tilefuse.ir.scalar import Bound, Call, Const, Guard
from tilefuse.kernel.ir import Assign, Comment, Declare, Reg


def windows_in_lanes(writer: KernelWriter, lane_env: dict[str, Affine], lane: str, width: int) -> None:
    """Reduces all windows of the current point for `width` lanes and stores their results in `writer.lane_values`.

    `hoist_without_lane` has already reduced the windows that are equal in all lanes. Requires: `windows_fit` for the axis of the lanes.
    """
    writer.lane_values.clear()
    writer.lane_expressions.clear()
    value_of = writer.emitter.find
    windows = [i for i in writer.domain.instances if i.serial and value_of(i.key) is None] if width > 1 else []
    shared = _shared_by_taps(writer, windows, lane_env, lane, width)
    for instance in windows:
        writer.lane_values[instance.key] = _window(writer, instance, lane_env, lane, width, shared)


def _shared_by_taps(writer: KernelWriter, windows: Sequence[Instance], lane_env: dict[str, Affine], lane: str, width: int) -> list[Held]:
    """Loads the vectors whose address is the same at all taps, including those that taps read behind a guard.

    Parts of bodies that use only such vectors are computed here too and enter `lane_expressions`."""
    e = writer.emitter
    bodies = [(tap.body, {loop for loop, _ in w.serial}) for w in windows for tap in taps_of(writer.domain, w)]

    def stays(touch: Touch, loops: set[str]) -> bool:
        if touch.dynamic or touch.offset.axes() & loops or not writer.runs(touch, width, lane, lane_env):
            return False
        first = substitute(substitute(touch.offset, lane_env, e.extents | {lane: width}), {lane: number(0)}, e.extents)
        return e.always(Bound(first, 0, e.buffers[touch.value].num_elements - width + 1))

    touches = dict.fromkeys(x for body, loops in bodies for x in resolved_walk(body) if isinstance(x, Touch) and stays(x, loops))
    parts: dict[Resolved, None] = {}

    def collect(x: Resolved) -> bool:
        """Whether `x` is the same at all taps. If it is not, its largest parts that are enter `parts`."""
        match x:
            case Touch():
                return x in touches
            case Const():
                return True
            case Call(_, args):
                same = [collect(a) for a in args]
                if not all(same):
                    parts.update((a, None) for a, is_same in zip(args, same, strict=True) if is_same and isinstance(a, Call))
                return all(same)
            case Guard(_, then, otherwise):
                for inner in (then, otherwise):
                    if collect(inner) and isinstance(inner, Call):
                        parts[inner] = None
        return False

    for body, _ in bodies:
        collect(body)
    held = [writer.held(t, 1, width, True, step=True) for t in touches]
    for h in held:
        writer.fill(h, number(0), lane_env, lane)
    shared = [p for p in parts if any(isinstance(x, Touch) for x in resolved_walk(p))]
    arrays: dict[object, Reg] = {}
    for part in shared:
        arrays[part] = Reg(e.fresh("at_all_taps"), e.dtype(part))
        e.emit(Declare(arrays[part].name, arrays[part].dtype, width))
    if shared:
        with writer.lanes(width, lane_env, lane) as v:
            writer.bind(held, number(0), v)
            for part in shared:
                e.emit(Assign(Reg(arrays[part].name, arrays[part].dtype, v), e.expression(part)))
    writer.lane_expressions.update(arrays)
    return held


def _window(writer: KernelWriter, instance: Instance, lane_env: dict[str, Affine], lane: str, width: int, shared: list[Held]) -> Reg:
    e = writer.emitter
    name = instance.node.name
    e.emit(Comment(f"%{name}: {instance.node.kind} by one thread for {width} results"))
    starts = e.identities(instance)
    parts = [Reg(e.fresh(f"{name}_{n}" if n else name), start.dtype) for n, start in enumerate(starts)]
    for part in parts:
        e.emit(Declare(part.name, part.dtype, width))
    with e.loop("v", width, unroll=writer.unroll) as v:
        for part, start in zip(parts, starts, strict=True):
            e.emit(Assign(Reg(part.name, part.dtype, v), start))
    bodies = [i.body for i in taps_of(writer.domain, instance)]
    saved, caches = dict(e.env), dict(e.cache)
    # Windows overlap: the next thread reads the same elements again.
    e.cache.update(dict.fromkeys((x.value for b in bodies for x in resolved_walk(b) if isinstance(x, Touch)), "keep"))
    with contextlib.ExitStack() as stack:
        for loop, extent in instance.serial:
            e.env[loop] = stack.enter_context(e.loop(loop, extent, unroll=True))
        at_tap = {loop: e.env[loop] for loop, _ in instance.serial}
        held = [writer.held(t, 1, width, True, step=True) for t in writer.touches(bodies)
                if all(t != h.touch for h in shared) and t.offset.axes() & set(at_tap) and writer.runs(t, width, lane, lane_env | at_tap)]
        for h in held:
            writer.fill(h, number(0), lane_env | at_tap, lane)
        held += [*shared, *vector_operands(writer, bodies, lane_env, lane, width, [h.touch for h in shared])]
        with writer.lanes(width, lane_env, lane) as v:
            writer.bind(held, number(0), v)
            e.accumulate(instance, [Reg(p.name, p.dtype, v) for p in parts])
    e.env = saved
    e.cache.clear()
    e.cache.update(caches)
    result = e.fresh(f"{name}_all")
    dtype = instance.node.type.dtype
    with e.nested() as after, e.loop("v", width, unroll=writer.unroll) as v:
        value = e.finished(instance, [Reg(p.name, p.dtype, v) for p in parts])
        e.emit(Assign(Reg(result, dtype, v), value))
    if value == Reg(parts[0].name, parts[0].dtype, v):
        return parts[0]
    e.emit(Declare(result, dtype, width))
    e.frame.statements.extend(after.statements)
    return Reg(result, dtype)
