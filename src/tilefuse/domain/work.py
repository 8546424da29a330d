"""Work: the traffic, operations and waits of one kernel or library call, whatever device does it. `domain/roofline.py` prices it."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tilefuse.base.construction import quickly_built
from tilefuse.target.fitted.stages import OverlapFigures
from tilefuse.target.launch import Launch


@quickly_built
@dataclass(frozen=True, slots=True)
class Operations:
    """Operations on one unit of a multiprocessor.

    unit        "threads", a dtype name for a large matrix product of it, or another name that `domain/roofline.py` lists
    efficiency  share of the unit's rate that this shape reaches
    """

    count: int
    unit: str = "threads"
    efficiency: float = 1.0


# Units of a multiprocessor that stages keep busy: instructions of threads, tensor cores, special functions, shared memory, port to L2.
Unit = Literal["threads", "tensor", "special", "shared", "l2", "global"]


@quickly_built
@dataclass(frozen=True, slots=True)
class StageWork:
    """Work of one stage of a thread block on one tile.

        copy of a tile      paths (("l2", 40),), (("threads", 8),)      wait 700        a copy keeps the port to L2 busy; threads issue it

    paths         cycles by unit; units of one path work one after another, paths side by side, so that the longest decides
    wait_cycles   latency of the block that comes on top of the paths
    chain_cycles  latency that passes beside the paths and keeps no unit busy, such as that of copies into slots ahead

    Units: cycles of a multiprocessor.
    """

    paths: tuple[tuple[tuple[Unit, float], ...], ...] = ()
    wait_cycles: float = 0.0
    chain_cycles: float = 0.0

    @property
    def busy_cycles(self) -> float:
        """Cycles of the longest path."""
        return max([sum([cycles for _, cycles in path]) for path in self.paths], default=0.0)

    def cycles(self, together: int = 1) -> float:
        """Cycles of the stage without `wait_cycles`, where so many blocks share the multiprocessor: their chains pass side by side."""
        return max(together * self.busy_cycles, self.chain_cycles)

    @property
    def alone_cycles(self) -> float:
        """Cycles of the stage in a block that has the multiprocessor for itself, all waits included."""
        return self.cycles() + self.wait_cycles

    def times(self, count: float) -> StageWork:
        """The work of so many such stages one after another."""
        paths = tuple(tuple((unit, cycles * count) for unit, cycles in path) for path in self.paths)
        return StageWork(paths, self.wait_cycles * count, self.chain_cycles * count)


@quickly_built
@dataclass(frozen=True, slots=True)
class BlockWork:
    """Work of the thread blocks of a kernel of stages, or of those of its parts that are alike.

    blocks    of the launch
    threads   a block
    resident  blocks that fit a multiprocessor at once, by threads, registers and shared memory
    turns     tiles that a block takes one after another
    tile      stages of one tile
    once      stages that a block runs once, however many tiles it takes
    overlap   how far blocks of a multiprocessor hide each other's waits
    """

    blocks: int
    threads: int
    resident: int
    turns: int
    tile: tuple[StageWork, ...]
    once: tuple[StageWork, ...]
    overlap: OverlapFigures

    def cycles_by_unit(self) -> dict[Unit, float]:
        """Cycles that each unit is busy, over all blocks."""
        busy: dict[Unit, float] = {}
        for stages, times in ((self.tile, self.blocks * self.turns), (self.once, self.blocks)):
            for unit, cycles in (pair for s in stages for path in s.paths for pair in path):
                busy[unit] = busy.get(unit, 0.0) + cycles * times
        return busy


@quickly_built
@dataclass(frozen=True, slots=True)
class LeastBlocks:
    """Least work of the thread blocks of a candidate whose stages are not known yet.

    blocks, threads  of the launch, and of a block
    resident         blocks that fit a multiprocessor at most
    tile, waits      cycles that a multiprocessor is busy for one tile at least, and cycles that the tile's block waits beside them
    once             cycles of the stages that a block runs once, their waits included
    overlap          how far blocks of a multiprocessor hide each other's waits

    Units: cycles of a multiprocessor.
    """

    blocks: int
    threads: int
    resident: int
    tile: float
    waits: float
    once: float
    overlap: OverlapFigures


@dataclass(frozen=True, slots=True)
class LoadChain:
    """Loads of a kernel whose text says how many are in flight, and the waits between them.

    flight_bytes      bytes of loads that one thread has in flight
    resident_blocks   blocks that a multiprocessor holds at once, registers counted
    iterations        groups of tiles that a block takes, one after the other
    wait_us           latency of a group's first load, and exchanges within the block
    start_us          latency before the first loaded element is used; loads in flight keep the memory busy meanwhile, as far as they reach

    Units: bytes; microseconds.
    """

    flight_bytes: int
    resident_blocks: int
    iterations: int
    wait_us: float
    start_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Waves:
    """Blocks of a walk whose traffic passes wave by wave.

    blocks        of the launch
    resident      blocks that fit a multiprocessor at once
    flight_bytes  bytes that a block has under way on average
    last_us       round trips of a block, one after another: the last wave takes no less, however small
    uneven_share  share of the blocks that other multiprocessors have more, in a single wave, which adds to the time

    Units: bytes; microseconds.
    """

    blocks: int
    resident: int
    flight_bytes: int
    last_us: float
    uneven_share: float


@dataclass(frozen=True, slots=True)
class Ending:
    """How a kernel's sums end beyond its traffic.

    kind      "persistent": blocks that take rows in turns end at different times; "last block": the last block to arrive adds up results
              of `arrivals` others; "last block of columns": the same for sums down columns
    """

    kind: Literal["persistent", "last block", "last block of columns"]
    arrivals: int


@quickly_built
@dataclass(frozen=True, slots=True)
class Work:
    """Work of one step of a program. Parts that move data, compute and wait hide each other; launches and `serial_us` come on top.

    launches          kernels that are started one after another
    grid              grid and block of the kernel; None for work that fills any device (library calls, copies)
    read_bytes        part of `global_bytes` that is read
    global_bytes      boundary values, each once
    l2_bytes          bytes between L2 and the multiprocessors, repeated reads counted
    shared_bytes      bytes written to and read from shared memory
    scattered_adds    elements added at places that data give
    line_adds         of these, elements added to one line of 128 bytes where they spread evenly
    line_requests     requests of warps in which these come, one after another
    partial_sectors   sectors of which a store writes a part
    operations        operations by unit; units work side by side
    energy_pj         energy of busy tensor cores and of the bytes they need: the device's power limit bounds its time from below
    endings           how the kernel's sums end, one for each part that ends in such a way
    blocks            cycles and waits of blocks of stages, one record for each part of the kernel
    waves             waves of blocks of a walk whose bytes are `global_bytes`, in place of the time of a copy
    stage_us          a latency chain, or a measured time of arithmetic, that traffic and operations hide
    serial_us         waits that nothing hides
    behind            stages of the last blocks behind all traffic: nothing hides them either
    around            stages of `blocks` before the first and behind the last of the traffic: where traffic decides, they come on top of it
    serial_bytes      bytes that move while nothing else does
    time_factor       time of all of it, launches too, over that of its parts
    traffic_factor    time of the traffic with global memory and L2, over that of a copy of as many bytes
    loads             loads in flight, where the kernel's text states them; else they follow from `read_bytes`
    flight_bytes      bytes of copies that a block has in flight, where rings of slots state them; else they follow from `read_bytes`
    resident          L2 holds the boundary values when the kernel begins, as those of a kernel that ran on them just before
    follows_another   a kernel before it ends while this one starts, as in a graph of several kernels
    starts_early      its blocks stand ready when the kernel ahead of it ends: its launch passes meanwhile
    fetches_early     and have asked for their first bytes by then, as many as `flight_bytes` says
    item_operations   operations of one thread between the loads and the stores of its elements, one after another
    exchange          waits of threads that exchange results of reductions
    thread_cycles     cycles of a thread's loads and of the operations on them, one after another; threads of other blocks go on meanwhile

    Units: bytes; microseconds; picojoules.
    """

    launches: int = 1
    grid: Launch | None = None
    read_bytes: int = 0
    global_bytes: int = 0
    l2_bytes: int = 0
    shared_bytes: int = 0
    scattered_adds: int = 0
    line_adds: int = 0
    line_requests: int = 0
    partial_sectors: int = 0
    operations: tuple[Operations, ...] = ()
    energy_pj: float = 0.0
    endings: tuple[Ending, ...] = ()
    blocks: tuple[BlockWork, ...] = ()
    waves: Waves | None = None
    stage_us: float = 0.0
    serial_us: float = 0.0
    behind: tuple[StageWork, ...] = ()
    around: tuple[StageWork, ...] = ()
    serial_bytes: int = 0
    time_factor: float = 1.0
    traffic_factor: float = 1.0
    loads: LoadChain | None = None
    flight_bytes: int = 0
    resident: bool = False
    follows_another: bool = False
    starts_early: bool = False
    fetches_early: bool = False
    item_operations: float = 0.0
    exchange: StageWork = StageWork()
    thread_cycles: float = 0.0

    def operations_on(self, unit: str) -> int:
        """Operations on one unit."""
        return sum(o.count for o in self.operations if o.unit == unit)

    def scaled(self, parts: int, whole: int) -> Work:
        """Work of `parts` units of which this work's kernel has `whole`: bytes and operations in proportion."""
        counts = {name: getattr(self, name) * parts // whole for name in COUNTS}
        return replace(self, operations=tuple(replace(o, count=o.count * parts // whole) for o in self.operations),
                       energy_pj=self.energy_pj * parts / whole, **counts)


# Fields of `Work` that add up over the parts of a kernel.
COUNTS = ("read_bytes", "global_bytes", "l2_bytes", "shared_bytes", "scattered_adds", "line_adds", "line_requests", "partial_sectors")


def summed(parts: Iterable[Work]) -> Work:
    """Work of one kernel that does the work of all parts, in one launch; it has no grid yet."""
    works = tuple(parts)
    count_by_unit: dict[tuple[str, float], int] = {}
    for o in (o for w in works for o in w.operations):
        count_by_unit[o.unit, o.efficiency] = count_by_unit.get((o.unit, o.efficiency), 0) + o.count
    return Work(operations=tuple(Operations(count, *unit) for unit, count in count_by_unit.items()),
                energy_pj=sum(w.energy_pj for w in works), endings=tuple(e for w in works for e in w.endings),
                blocks=tuple(b for w in works for b in w.blocks), item_operations=max((w.item_operations for w in works), default=0.0),
                exchange=max((w.exchange for w in works), key=lambda stage: stage.alone_cycles, default=StageWork()),
                thread_cycles=max((w.thread_cycles for w in works), default=0.0),
                **{name: sum(getattr(w, name) for w in works) for name in COUNTS})
