"""The flat walk whose length is an argument, for parts of packed kernels that differ in their sizes.

    n elements in vectors of w:         item = block * threads + thread      (item + step * threads for each step)
        item < n // w                   one vector
        item < n // w + n % w           one of the last elements, which do not fill a vector
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilefuse.domain.access import is_vector
from tilefuse.emit.kernel_writer import KernelWriter, hoist_without_lane, reachable
from tilefuse.emit.vector_operands import vector_operands
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Comment, Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.flat.flat_form import FLAT
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.parts import PackedGroup

# The numbers of a part: its whole vectors, and the elements behind them.
VECTORS, REST = "num_vectors", "num_rest"


def has_rest(group: PackedGroup, choice: Pointwise) -> bool:
    """Whether some part has elements behind its last whole vector."""
    return any(p.num_elements % choice.vector for p in group.parts)


def compose_any_size(group: PackedGroup, choice: Pointwise, device: DeviceSpec, taken: set[str]) -> Kernel:
    """The kernel of a flat walk of `num_vectors` vectors and `num_rest` elements, which are names in it."""
    writer = KernelWriter(group.program, device, taken | {VECTORS, REST})
    e, domain, width = writer.emitter, writer.domain, choice.vector
    blocks = max(p.num_blocks for p in group.parts)
    sizes = [p.num_elements for p in group.parts]
    most = max(n // width for n in sizes)
    e.frame.extents |= {"block": blocks, "thread": choice.threads, VECTORS: most + 1, REST: width}
    e.hoist([key for _, key, _ in domain.outputs], frozenset())
    items = blocks * choice.threads * choice.steps

    def item(step: Affine) -> Affine:
        at = axis("block") * (choice.threads * choice.steps) + step * choice.threads + axis("thread")
        return e.let("item", at, items)

    lane = e.fresh("lane_")
    if most:
        _walk(writer, choice, width, lane, item, lambda at: at * width + axis(lane), lambda at: (Bound(axis(VECTORS) - at, 1, most + 1),))
    if has_rest(group, choice):
        e.emit(Comment("elements that do not fill a vector"))
        # Element n of the rest is item num_vectors + n.
        _walk(writer, replace(choice, unrolled=False), 1, lane, item, lambda at: axis(VECTORS) * (width - 1) + at,
              lambda at: (Bound(at - axis(VECTORS), 0, items), Bound(axis(VECTORS) + axis(REST) - at, 1, most + width)))
    kernel = writer.finish()
    return replace(kernel, launch=replace(kernel.launch, num_blocks=blocks))


def _walk(writer: KernelWriter, choice: Pointwise, width: int, lane: str, item: Callable[[Affine], Affine],
          position: Callable[[Affine], Affine], inside: Callable[[Affine], tuple[Bound, ...]]) -> None:
    """All steps of a thread, `width` elements each, from flat position `position(item)` on, where `inside(item)` holds."""
    e, domain = writer.emitter, writer.domain
    bodies = [i.body for i in reachable(domain, [key for _, key, _ in domain.outputs], set())]
    moving = [t for t in writer.touches(bodies) if FLAT in t.offset.axes()]
    probe = position(axis("item_"))
    vectors = [t for t in moving if width > 1 and is_vector(substitute(t.offset, {FLAT: probe}), lane, width)]
    held = []
    if choice.unrolled:
        held = [writer.held(t, choice.steps, width, True) for t in vectors]
        with e.loop("step", choice.steps, unroll=True) as s:
            at = item(s)
            with e.when(inside(at)):
                for h in held:
                    writer.fill(h, s, {FLAT: position(at)}, lane)
    with e.loop("step", choice.steps, unroll=choice.unrolled) as s:
        at = item(s)
        with e.when(inside(at)):
            env = {FLAT: position(at)}
            if not choice.unrolled:
                held = [writer.held(t, 1, width, True, step=True) for t in vectors]
                for h in held:
                    writer.fill(h, number(0), env, lane)
            hoist_without_lane(writer, bodies, env, lane, width, held)
            operands = vector_operands(writer, bodies, env, lane, width)
            writer.write_lanes(domain.outputs, width, [*held, *operands], s, env, lane)
