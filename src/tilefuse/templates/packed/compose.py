"""Packed kernels: the body of each group by its own template, and the flat walk whose length is the member's.

    flat walk of n elements in vectors of w:   item = block * threads + thread      (item + step * threads for each step)
        item < n // w                   one vector
        item < n // w + n % w           one of the last elements, which do not fill a vector
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilefuse.domain.access import is_vector
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.kernel_writer import KernelWriter, extent_in_memory, hoist_without_lane, reachable
from tilefuse.emit.vector_operands import vector_operands
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Buffer, Comment, Group, Kernel, Member
from tilefuse.kernel.writer import free_identifier, identifier
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.packed.flat import FLAT
from tilefuse.templates.packed.packed import Packed
from tilefuse.templates.parts import PackedGroup, Part
from tilefuse.templates.registry import kernel_template

# The numbers of a flat group: whole vectors of a member, and elements behind them.
VECTORS, REST = "num_vectors", "num_rest"


def compose_packed(program: TileProgram, choice: Packed, device: DeviceSpec) -> Kernel:
    """The kernel of a packed program: one `Group` each. Its parameters follow the groups, their members and their slots."""
    taken: set[str] = set()
    parameters: list[Buffer] = []
    inside: list[Buffer] = []
    groups: list[Group] = []
    bodies: list[Kernel] = []
    first_block = 0
    for packed in choice.groups:
        if packed.flat:
            body = compose_flat(packed, device, taken)
        else:
            body = kernel_template(packed.program.choice).compose(packed.program, device, taken=taken)
        taken.update(text for b in body.buffers for text in (b.name, identifier(b.name)))
        group, own = _group(program, packed, body, first_block, taken)
        parameters += own
        inside += [b for b in body.buffers if b.space == "shared"]
        groups.append(group)
        bodies.append(body)
        first_block += group.num_blocks
    shared_bytes = max(b.launch.shared_bytes for b in bodies)
    header = (program.notation, f"reads {program.bytes_read} bytes, writes {program.bytes_written} bytes",
              *(f"group {n}, {len(g.members)} members: {line}" for n, (g, b) in enumerate(zip(groups, bodies, strict=True))
                for line in b.header[:1]))
    launch = Launch(first_block, choice.threads, 1, shared_bytes, device.starts_early)
    return Kernel(program.name, (*parameters, *inside), launch, tuple(groups), header,
                  min_blocks=max(kernel_template(g.program.choice).resources(g.program, device).min_blocks for g in choice.groups))


def _group(program: TileProgram, packed: PackedGroup, body: Kernel, first_block: int, taken: set[str]) -> tuple[Group, list[Buffer]]:
    """The group, and the parameters of all its members."""
    values = (*(i.name for i in packed.program.graph.inputs), *packed.program.graph.results)
    place = {value: n for n, value in enumerate(values)}
    parameters: list[Buffer] = []
    members: list[Member] = []
    for number_of_member, part in enumerate(packed.parts):
        arguments = []
        for slot in body.parameters:
            origin = part.values[place[slot.origin]] if slot.origin else ""
            size = extent_in_memory(program, origin) if origin else slot.num_elements
            name = free_identifier(f"{slot.name}_of_{number_of_member}", taken)
            parameters.append(replace(slot, name=name, num_elements=size, origin=origin))
            arguments.append(name)
        members.append(Member(tuple(arguments), part.num_blocks, _numbers(packed, part)))
    extents = [max(column) + 1 for column in zip(*(m.numbers for m in members))]
    names = tuple(zip((VECTORS, REST), extents))
    return Group(first_block, body.parameters, tuple(members), body.body, names, (), body.narrow), parameters


def _numbers(packed: PackedGroup, part: Part) -> tuple[int, ...]:
    if not packed.flat:
        return ()
    assert isinstance(packed.program.choice, Pointwise)
    width = packed.program.choice.vector
    rests = (part.num_elements % width,) if _has_rest(packed) else ()
    return (part.num_elements // width, *rests)


def _has_rest(packed: PackedGroup) -> bool:
    assert isinstance(packed.program.choice, Pointwise)
    return any(p.num_elements % packed.program.choice.vector for p in packed.parts)


def compose_flat(packed: PackedGroup, device: DeviceSpec, taken: set[str]) -> Kernel:
    """The kernel of a flat walk of `num_vectors` vectors and `num_rest` elements, which are names in it."""
    choice = packed.program.choice
    assert isinstance(choice, Pointwise)
    writer = KernelWriter(packed.program, device, taken | {VECTORS, REST})
    e, domain, width = writer.emitter, writer.domain, choice.vector
    blocks = max(p.num_blocks for p in packed.parts)
    sizes = [p.num_elements for p in packed.parts]
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
    if _has_rest(packed):
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
            more = vector_operands(writer, bodies, env, lane, width)
            writer.write_lanes(domain.outputs, width, [*held, *more], s, env, lane)
