"""Neighbours of packed kernels for tuning: other numbers of threads where all parts are flat walks; then each large part by itself."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.neighbours import neighbours, program_with, with_threads
from tilefuse.templates.packed.packed import Packed, regrouped
from tilefuse.templates.packed.shares import replacement_refusal
from tilefuse.templates.parts import PackedGroup


def packed_neighbours(base: Packed, device: DeviceSpec) -> tuple[Packed, ...]:
    """Choices near `base`, without it. Those whose parts are written alike count as one."""
    choice_by_texts = {tuple(g.program.notation for g in choice.groups): choice for choice in (*_near(base, device), base)}
    return tuple(choice for choice in choice_by_texts.values() if choice is not base)


def _near(base: Packed, device: DeviceSpec) -> Iterator[Packed]:
    if device.kind == "cuda" and all(g.any_size for g in base.groups):
        for threads in (128, 256, 512):
            choices = [c for g in base.groups if (c := with_threads(g.program, threads, device)) is not None]
            if len(choices) == len(base.groups):
                yield Packed(threads, tuple(regrouped(g, c) for g, c in zip(base.groups, choices, strict=True)))
    for n, group in enumerate(base.groups[:SEARCH.packing.varied_parts]):
        for other in _bodies(group, base.threads, device):
            yield Packed(base.threads, (*base.groups[:n], other, *base.groups[n + 1:]))


def _bodies(group: PackedGroup, threads: int, device: DeviceSpec) -> Iterator[PackedGroup]:
    """The parts of a group with other bodies of as many threads."""
    if group.any_size:
        yield from (regrouped(group, choice) for choice in _flat_choices(group.program, threads, device))
        return
    for near in neighbours(group.program, device)[1:]:
        body = program_with(group.program, near, device) if near.num_threads == threads else None
        if isinstance(body, TileProgram) and replacement_refusal(body, group.program) is None:
            yield PackedGroup(body, tuple(replace(p, num_blocks=body.launch.num_blocks) for p in group.parts))


def _flat_choices(body: TileProgram, threads: int, device: DeviceSpec) -> Iterator[Choice]:
    """Neighbours of a flat walk, with the packed kernel's number of threads."""
    for near in neighbours(body, device):
        choice = with_threads(replace(body, choice=near), threads, device)
        if choice is not None:
            yield choice
