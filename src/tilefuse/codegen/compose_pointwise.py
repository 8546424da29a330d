"""The flat walk: maps, gathers and windows in memory order, and scatters to data-dependent places.

    steps a whole number of rows apart        what all of them share (a channel's weight, and what is computed of weights alone) is
                                              loaded and computed once a thread, before the first step
"""
from __future__ import annotations

from math import prod

from tilefuse.codegen.kernel import (
    Assign,
    Atomic,
    Comment,
    Declare,
    IfValue,
    Load,
    Reg,
    Store,
)
from tilefuse.codegen.kernel_writer import Held, KernelWriter, hoist_without_lane, reachable
from tilefuse.codegen.vector_operands import vector_operands
from tilefuse.codegen.window_lanes import windows_in_lanes
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import BOOL, I64
from tilefuse.ir.scalar import Bound, Call, Const, Index, const
from tilefuse.schedule.access import flat_axes, is_vector
from tilefuse.schedule.resolved import Touch, Use, resolved_walk
from tilefuse.schedule.template import Pointwise
from tilefuse.schedule.windows import windows_fit


def compose_pointwise(writer: KernelWriter, choice: Pointwise) -> None:
    """One flat walk: block -> step -> thread -> vector lane.

        position = ((block * steps + step) * threads + thread) * vector + lane
    """
    e, domain = writer.emitter, writer.domain
    total = prod(domain.extents[a] for a in choice.order)
    width = choice.vector
    vectors, tail = total // width, total % width
    scatter = domain.scatter
    keys = [key for _, key, _ in domain.outputs]
    e.hoist(keys, frozenset())
    blocks = max(writer.program.launch.num_blocks, 1)
    e.frame.extents["block"] = blocks
    e.frame.extents["thread"] = choice.threads
    lane = e.fresh("lane_")
    windows = windows_fit(domain, choice.order[-1], width) if choice.order and width > 1 else False

    def walk(first: Affine, count: int, step_extent: int, lane_count: int, unrolled: bool, base: int) -> None:
        extents = e.extents | {lane: lane_count}
        bodies = [i.body for i in reachable(domain, keys, set())]
        if scatter is not None:
            bodies += [scatter[1], *(t for t, _, _ in scatter[2])]

        def position(step: Affine) -> Affine:
            return first + step * choice.threads

        def env_at(vector_index: Affine, extents: dict[str, int]) -> dict[str, Affine]:
            return flat_axes(choice.order, vector_index * lane_count + axis(lane) + base, domain.extents, extents)

        probe = "vector_index_"
        probe_env = env_at(axis(probe), extents | {probe: max(count, 1)})
        full = [t for t in writer.touches(bodies) if substitute(t.offset, probe_env, extents | {probe: max(count, 1)}).axes() & {lane,
                                                                                                                                 probe}]
        # A load inside the loop of a reduction by one thread stays there.
        loops = {loop for i in domain.instances for loop, _ in i.serial}
        full = [t for t in full if not t.offset.axes() & loops]
        vectorised = [t for t in full if lane_count > 1 and is_vector(substitute(t.offset, probe_env, extents | {probe: max(count, 1)}),
                                                                      lane, lane_count)]
        steps = step_extent
        once: list[Held] = []
        if unrolled and steps > 1 and scatter is None and not loops:
            once = _shared_by_steps(writer, vectorised, first, count, choice, lane, lane_count, base)
            vectorised = [t for t in vectorised if all(t != h.touch for h in once)]
        if unrolled:
            held = [writer.held(t, steps, lane_count, True) for t in vectorised]
            with e.loop("step", steps, unroll=True) as s:
                at = e.let("vector", position(s), max(blocks * choice.threads * steps, 1))
                with e.when([Bound(at, 0, count)]):
                    e.narrow_to(at, count)
                    for h in held:
                        writer.fill(h, s, env_at(at, e.extents | {lane: lane_count}), lane)
        with e.loop("step", steps, unroll=unrolled) as s:
            at = e.let("vector", position(s), max(blocks * choice.threads * steps, 1))
            with e.when([Bound(at, 0, count)]):
                e.narrow_to(at, count)
                lane_env = env_at(at, e.extents | {lane: lane_count})
                if not unrolled:
                    held = [writer.held(t, 1, lane_count, True, step=True) for t in vectorised]
                    for h in held:
                        writer.fill(h, number(0), lane_env, lane)
                hoist_without_lane(writer, bodies, lane_env, lane, [*once, *held])
                more = [*once, *vector_operands(writer, bodies, lane_env, lane, lane_count)]
                if scatter is not None:
                    _scatter_lanes(writer, lane_count, [*held, *more], s, lane_env, lane)
                else:
                    if windows and not once:
                        windows_in_lanes(writer, lane_env, lane, lane_count)
                    writer.write_lanes(domain.outputs, lane_count, [*held, *more], s, lane_env, lane)

    if vectors:
        first = axis("block") * (choice.threads * choice.steps) + axis("thread")
        walk(first, vectors, choice.steps, width, choice.unrolled, 0)
    if tail:
        e.emit(Comment(f"the last {tail} elements do not fill a vector"))
        with e.when([Bound(axis("block"), blocks - 1, blocks)]):
            if choice.threads >= tail:
                walk(axis("thread"), tail, 1, 1, False, vectors * width)
            else:
                with e.loop("rest", tail) as r:
                    walk(r, tail, 1, 1, False, vectors * width)


def _shared_by_steps(writer: KernelWriter, vectorised: list[Touch], first: Affine, count: int, choice: Pointwise, lane: str, width: int,
                     base: int) -> list[Held]:
    """Vectors that lie at one place for all steps of a thread, loaded; instances made of nothing else are computed, into `lane_values`."""
    e, domain = writer.emitter, writer.domain
    step = "step_"
    extents = e.extents | {lane: width, step: choice.steps}

    def env_at(vector_index: Affine, extents: dict[str, int]) -> dict[str, Affine]:
        return flat_axes(choice.order, vector_index * width + axis(lane) + base, domain.extents, extents)

    moving = env_at(first + axis(step) * choice.threads, extents)

    def stays(index: Affine) -> bool:
        return step not in substitute(index, moving, extents).axes()

    once = [writer.held(t, 1, width, True, step=True) for t in vectorised if stays(t.offset)]
    if not once:
        return []
    touches = {h.touch for h in once}
    constant: set[int] = set()
    for i in domain.instances:
        leaves = list(resolved_walk(i.body))
        if all(x in touches if isinstance(x, Touch) else x.key in constant if isinstance(x, Use) else isinstance(x, (Call, Const))
               for x in leaves):
            constant.add(i.key)
    needed = {u for i in reachable(domain, [key for _, key, _ in domain.outputs], set()) if i.key not in constant for u in i.uses}
    made = [i for i in domain.instances if i.key in constant & needed and isinstance(i.body, Call)]
    arrays = {i.key: Reg(e.fresh(i.node.name + "_v"), e.dtype(i.body)) for i in made}
    e.emit(*(Declare(r.name, r.dtype, width) for r in arrays.values()))
    with e.when([Bound(first, 0, count)]):
        env = env_at(first, e.extents | {lane: width})
        for h in once:
            writer.fill(h, number(0), env, lane)
        if made:
            with writer.lanes(width, env, lane) as v:
                writer.bind(once, number(0), v)
                for i in made:
                    e.emit(Assign(Reg(arrays[i.key].name, arrays[i.key].dtype, v), e.value(i.key)))
    writer.lane_values = arrays
    return once


def _scatter_lanes(writer: KernelWriter, width: int, held: list[Held], chunk: Affine, lane_env: dict[str, Affine], lane: str) -> None:
    """Writes each lane's value to its data-dependent place, where that lies inside the result."""
    e = writer.emitter
    assert writer.domain.scatter is not None
    name, body, target = writer.domain.scatter
    monoid = writer.program.graph.node_by_name[name].detail
    buffer = e.buffers[name]
    with writer.lanes(width, lane_env, lane) as v:
        writer.bind(held, chunk, v)
        offset = Affine()
        dynamic = []
        inside = None
        for subscript, extent, stride in target:
            value = e.expression(subscript)
            if isinstance(value, Index):
                offset = offset + value.affine * stride
                if e.always(Bound(value.affine, 0, extent)):
                    continue
            elif not (isinstance(value, (Reg, Load, Const)) and value.dtype == I64):
                value = Call("i64", (value,))  # type: ignore[arg-type]
            held_value = e.register(value, I64, "target")
            ok = Call("logical_and", (Call("ge", (held_value, const(0, I64))), Call("lt", (held_value, const(extent, I64)))))  # type: ignore[arg-type]
            inside = ok if inside is None else Call("logical_and", (inside, ok))
            if not isinstance(value, Index):
                dynamic.append((held_value, stride))
        value = e.register(e.expression(body), buffer.dtype, name + "_x")
        if monoid == "set":
            statement: object = Store(buffer.name, offset, value, tuple(dynamic))
        else:
            statement = Atomic(monoid, buffer.name, offset, value, tuple(dynamic))
        if inside is None:
            e.emit(statement)  # type: ignore[arg-type]
        else:
            e.emit(IfValue(e.register(inside, BOOL, "inside"), (statement,)))  # type: ignore[arg-type]
