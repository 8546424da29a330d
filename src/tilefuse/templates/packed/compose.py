"""Packed kernels: the body of each group by its own template, and the parameters of all parts."""
from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tilefuse.domain.tile import TileProgram
from tilefuse.emit.kernel_writer import extent_in_memory
from tilefuse.kernel.asynchronous import AwaitEarlier
from tilefuse.kernel.early import PrefetchOnly
from tilefuse.kernel.ir import Buffer, Group, Kernel, Member
from tilefuse.kernel.writer import free_identifier, identifier
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.packed.packed import Packed, any_size_of
from tilefuse.templates.parts import PackedGroup
from tilefuse.templates.registry import kernel_template


def compose_packed(program: TileProgram, choice: Packed, device: DeviceSpec, settled: Set[str] = frozenset()) -> Kernel:
    """The kernel of a packed program: one `Group` each. Its parameters follow the groups, their members and their slots.

    settled: as of `KernelTemplate.compose`. A group fetches early the values that are settled for all its members.
    """
    taken: set[str] = set()
    parameters: list[Buffer] = []
    inside: list[Buffer] = []
    groups: list[Group] = []
    bodies: list[Kernel] = []
    first_block = 0
    for packed in choice.groups:
        if packed.any_size:
            body = any_size_of(packed.program).compose(packed, device, taken)
        else:
            body = kernel_template(packed.program.choice).compose(packed.program, device, _settled_for_all(packed, settled), taken)
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
    if any(map(_waits, groups)):
        groups = [g if _waits(g) else replace(g, body=(AwaitEarlier(), *g.body)) for g in groups]
    return Kernel(program.name, (*parameters, *inside), launch, tuple(groups), header,
                  min_blocks=max(kernel_template(g.program.choice).resources(g.program, device).min_blocks for g in choice.groups),
                  num_barriers=max(b.num_barriers for b in bodies))


def _waits(group: Group) -> bool:
    return any(isinstance(s, AwaitEarlier) for s in group.body)


def _settled_for_all(packed: PackedGroup, settled: Set[str]) -> frozenset[str]:
    """Names in the group's body of the values that are settled for each of its members."""
    own = (*(i.name for i in packed.program.graph.inputs), *packed.program.graph.results)
    names = frozenset(name for n, name in enumerate(own) if all(part.values[n] in settled for part in packed.parts))
    return PrefetchOnly(names) if isinstance(settled, PrefetchOnly) else names


def _group(program: TileProgram, packed: PackedGroup, body: Kernel, first_block: int, taken: set[str]) -> tuple[Group, list[Buffer]]:
    """The group, and the parameters of all its members."""
    values = (*(i.name for i in packed.program.graph.inputs), *packed.program.graph.results)
    place = {value: n for n, value in enumerate(values)}
    parameters: list[Buffer] = []
    members: list[Member] = []
    # Extents of the numbers that a part's size decides, by their names in the body.
    names: dict[str, int] = {}
    numbers_of_parts = any_size_of(packed.program).numbers(packed) if packed.any_size else ((),) * len(packed.parts)
    for number_of_member, (part, numbers) in enumerate(zip(packed.parts, numbers_of_parts, strict=True)):
        arguments = []
        for slot in body.parameters:
            origin = part.values[place[slot.origin]] if slot.origin else ""
            size = extent_in_memory(program, origin) if origin else slot.num_elements
            name = free_identifier(f"{slot.name}_of_{number_of_member}", taken)
            parameters.append(replace(slot, name=name, num_elements=size, origin=origin))
            arguments.append(name)
        names.update((name, max(names.get(name, 0), value + 1)) for name, value in numbers)
        members.append(Member(tuple(arguments), part.num_blocks, tuple(value for _, value in numbers)))
    return Group(first_block, body.parameters, tuple(members), body.body, tuple(names.items()), (), body.narrow), parameters
