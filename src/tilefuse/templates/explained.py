"""Facts of a kernel that explanations show: the tile of each level of the machine, stages, places in shared memory.

    grid     i 8, j 128, k 1024        all of the walked domain
    block    j 1, k 1024               the part of one block
    thread   k 4                       the part of one thread
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram

# Extents along named axes. Units: elements.
Extents = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LevelTile:
    """The part of the domain that one worker of a level takes.

    level: "grid", "cluster", "block", "warpgroup", "warp" or "thread"; num: workers in one of the level above, 0 where the launch tells.
    """

    level: str
    extents: Extents
    num: int = 0


@dataclass(frozen=True, slots=True)
class StagePiece:
    """A value that a stage computes, and the extents of its tile. kind: "copy", "map", "reduce" or "product"; stored: in shared memory."""

    value: str
    kind: str
    tile: tuple[int, ...]
    stored: bool
    written: bool


@dataclass(frozen=True, slots=True)
class StageFacts:
    """One loop nest of a block. barrier: all threads of the block meet in front of it."""

    kind: str
    barrier: bool
    pieces: tuple[StagePiece, ...]


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """Place of a value in shared memory, and the stages from its first write to its last read. Units: offset and size in bytes."""

    value: str
    offset_bytes: int
    num_bytes: int
    first_stage: int = 0
    last_stage: int = 0


@dataclass(frozen=True, slots=True)
class Staging:
    """Stages of a kernel and their places in shared memory; nothing for a kernel that is one walk.

    requested_bytes   shared memory a block if each array had a place of its own
    allocated_bytes   shared memory a block with arrays that are not alive at one time in one place
    """

    stages: tuple[StageFacts, ...] = ()
    places: tuple[SharedPlace, ...] = ()
    requested_bytes: int = 0
    allocated_bytes: int = 0


NO_STAGES = Staging()


def extents_of(domain: Domain, order: Sequence[str]) -> Extents:
    """Extents of a domain along axes."""
    return tuple((a, domain.extents[a]) for a in order)


def length_of(domain: Domain, order: Sequence[str]) -> int:
    """Points along axes together. Units: elements."""
    return prod(domain.extents[a] for a in order)


def largest_result(program: TileProgram) -> tuple[int, ...]:
    """Shape of the largest result."""
    return max((program.graph.type_of(r) for r in program.graph.results), key=lambda t: t.num_elements).shape


def numbered(shape: Sequence[int]) -> Extents:
    """Extents of the dimensions of a value: d0, d1 and so on."""
    return tuple((f"d{n}", extent) for n, extent in enumerate(shape))
