"""The tree of stages of a kernel: loops, stages inside them, and the memory level of every value that they pass on.

    block tile (row 128, column 256), 132 blocks take 2048 tiles in turn
      loop inner in steps of 64, 16 times
        copy %x [128, 64] shared, 4 slots, 64 KiB
        product %h [128, 256] register
      map %y [128, 256] register, written

A main loop, an axis walked between two products and tiles that persistent blocks take in turn are loops of one kind. Explanations show the
tree, and the levels of a kernel's edges are read from it. Templates of one walk have none.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tilefuse.base.construction import quickly_built
from tilefuse.domain.tile import EdgeLevel, Level
from tilefuse.domain.work import Work
from tilefuse.ir.graph import Graph
from tilefuse.templates.explained import Extents, LevelTile
from tilefuse.templates.notation import Attr

StageKind = Literal["copy", "map", "reduce", "product"]


@quickly_built
@dataclass(frozen=True, slots=True)
class TreeValue:
    """A value that a stage computes or brings on chip.

    level         where it lies while other stages read it
    tile          extents of the part that one block has, or of one slot. Units: elements
    shared_bytes  shared memory of all its slots: also of a value in registers, on its way to global memory
    slots         fillings that lie there side by side; one is read while the next ones arrive
    place         the value in whose shared memory it lies; "" for its own
    written       whether it is a result of the kernel
    offset_bytes  of its shared memory
    spread        (axis, workers that share its steps), kept axes first, then reduced ones; () for values that have no schedule of their own
    """

    value: str
    level: Level
    tile: tuple[int, ...] = ()
    shared_bytes: int = 0
    slots: int = 1
    place: str = ""
    written: bool = False
    offset_bytes: int = 0
    spread: tuple[tuple[str, Attr], ...] = ()


@quickly_built
@dataclass(frozen=True, slots=True)
class TreeStage:
    """Values computed together. by: the unit that copies or multiplies; barrier: all threads of the block meet in front of it."""

    kind: StageKind
    values: tuple[TreeValue, ...]
    by: str = ""
    barrier: bool = False


@dataclass(frozen=True, slots=True)
class TreeLoop:
    """Stages that a block runs again for each step along an axis. times: 0 where it differs from block to block; `note` then says how often
    all blocks do. Units: elements."""

    axis: str
    step: int
    times: int
    body: tuple[TreeStage | TreeLoop, ...]
    note: str = ""


# Stages and loops, in the order in which a block runs them.
Body = tuple[TreeStage | TreeLoop, ...]


@dataclass(frozen=True, slots=True)
class StageTree:
    """One kernel.

    tile      of a block
    blocks    of the launch; cluster: blocks of a cluster
    tiles     of the whole kernel, which blocks take in turn where there are more than blocks
    moved     (level, bytes) that the kernel moves there: each boundary value once in global memory, repeated reads in L2
    workers   the part of one worker of each level, from the grid down
    """

    tile: Extents
    blocks: int
    tiles: int
    body: Body
    cluster: int = 1
    moved: tuple[tuple[str, int], ...] = ()
    workers: tuple[LevelTile, ...] = ()

    def stages(self) -> Iterator[TreeStage]:
        """All stages, in the order in which a block first runs them."""
        yield from _stages(self.body)

    def values(self) -> Iterator[TreeValue]:
        """All values of all stages."""
        return (value for stage in self.stages() for value in stage.values)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of all values if none lies in another's place. Units: bytes."""
        return sum(v.shared_bytes for v in self.values() if not v.place)


def _stages(body: Body) -> Iterator[TreeStage]:
    for part in body:
        if isinstance(part, TreeLoop):
            yield from _stages(part.body)
        else:
            yield part


def edge_levels(graph: Graph, tree: StageTree) -> tuple[EdgeLevel, ...]:
    """The level of every edge inside a pattern: that of the value where its users read it.

    Values without a stage are computed in the registers of the thread that needs them.
    """
    level_by_value: dict[str, Level] = {}
    for value in tree.values():
        # A value that lies in shared memory for one of its users lies there for all.
        if level_by_value.get(value.value) is not Level.SHARED:
            level_by_value[value.value] = value.level
    inside = {n.name for n in graph.nodes}
    return tuple(EdgeLevel(v, n.name, level_by_value.get(v, Level.REGISTER)) for n in graph.nodes for v in n.reads() if v in inside)


def moved_bytes(work: Work) -> tuple[tuple[str, int], ...]:
    """Bytes that a kernel's work moves at each level of memory, as a tree shows them."""
    moved = (("global", work.global_bytes), ("L2", work.l2_bytes), ("shared", work.shared_bytes))
    return tuple((level, int(num_bytes)) for level, num_bytes in moved if num_bytes)
