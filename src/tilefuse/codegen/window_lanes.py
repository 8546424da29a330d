"""Windows of several results side by side: taps outside, lanes inside, so that each tap is one vector load.

    float sum[4] = {0, 0, 0, 0};
    for each tap: if (inside) load x_v[4];  for v < 4: sum[v] += inside ? x_v[v] : 0;
"""
from __future__ import annotations

import contextlib

from tilefuse.codegen.kernel import Assign, Comment, Declare, Reg
from tilefuse.codegen.kernel_writer import KernelWriter
from tilefuse.codegen.vector_operands import vector_operands
from tilefuse.ir.affine import Affine, number
from tilefuse.schedule.resolved import Instance, Touch, resolved_walk
from tilefuse.schedule.windows import taps_of


def windows_in_lanes(writer: KernelWriter, lane_env: dict[str, Affine], lane: str, width: int) -> None:
    """Reduces all windows of the current point for `width` lanes; `writer.lane_values` then has their results.

    Requires: `windows_fit` for the axis that the lanes walk.
    """
    writer.lane_values.clear()
    for instance in writer.domain.instances:
        if instance.serial and width > 1:
            writer.lane_values[instance.key] = _window(writer, instance, lane_env, lane, width)


def _window(writer: KernelWriter, instance: Instance, lane_env: dict[str, Affine], lane: str, width: int) -> Reg:
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
    # Windows overlap: what one thread has read the next one reads again.
    e.cache.update(dict.fromkeys((x.value for b in bodies for x in resolved_walk(b) if isinstance(x, Touch)), "keep"))
    with contextlib.ExitStack() as stack:
        for loop, extent in instance.serial:
            e.env[loop] = stack.enter_context(e.loop(loop, extent, unroll=True))
        at_tap = {loop: e.env[loop] for loop, _ in instance.serial}
        held = [writer.held(t, 1, width, True, step=True) for t in writer.touches(bodies)
                if t.offset.axes() & set(at_tap) and writer.runs(t, width, lane, lane_env | at_tap)]
        for h in held:
            writer.fill(h, number(0), lane_env | at_tap, lane)
        held += vector_operands(writer, bodies, lane_env, lane, width)
        with writer.lanes(width, lane_env, lane) as v:
            writer.bind(held, number(0), v)
            e.accumulate(instance, [Reg(p.name, p.dtype, v) for p in parts])
    e.env = saved
    e.cache.clear()
    e.cache.update(caches)
    result = e.fresh(f"{name}_all")
    dtype = instance.node.type.dtype
    with e.nested() as after, e.loop("v", width, unroll=writer.unroll) as v:
        made = e.finished(instance, [Reg(p.name, p.dtype, v) for p in parts])
        e.emit(Assign(Reg(result, dtype, v), made))
    if made == Reg(parts[0].name, parts[0].dtype, v):
        return parts[0]
    e.emit(Declare(result, dtype, width))
    e.frame.statements.extend(after.statements)
    return Reg(result, dtype)
