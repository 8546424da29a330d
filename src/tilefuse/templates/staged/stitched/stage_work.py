"""Work of the stages of a stitched kernel: cycles of each unit, waits, and what no tiles of a candidate can go below.

`domain/roofline.py` makes time of it. Nothing here is a time, and nothing chooses.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.base.construction import quickly_built
from tilefuse.domain.contraction import product_cycles
from tilefuse.domain.regions import num_elements
from tilefuse.domain.roofline import blocks_at_once
from tilefuse.domain.work import BlockWork, LeastBlocks, StageWork, Unit
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.stages import StitchFigures
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.staged.stitched.cut import Stitcher
from tilefuse.templates.staged.stitched.items import items_together
from tilefuse.templates.staged.stitched.pattern import OutsideRead
from tilefuse.templates.staged.stitched.plan import Piece, Regions, Stage, StitchPlan
from tilefuse.templates.staged.stitched.record import Stitched


def is_many(tiles: int, device: DeviceSpec) -> bool:
    """Whether blocks that take several tiles one after another are worth a try."""
    return tiles >= device.fitted.stitch.many_tiles * device.num_multiprocessors


def cache_rate(tiles: int, device: DeviceSpec) -> float:
    """Rate of L2 for one multiprocessor where so many blocks ask. Units: bytes a cycle."""
    fitted = device.fitted.stitch
    return min(fitted.l2_port_bytes, device.fitted.traffic.l2_bytes_per_cycle * max(device.num_multiprocessors / tiles, 1.0))


def blocks_of(stitcher: Stitcher, plan: StitchPlan, choice: Stitched, device: DeviceSpec) -> tuple[BlockWork, int]:
    """(work of a placed plan's blocks, operations of the whole kernel)."""
    fitted, tiles = device.fitted.stitch, prod(n for _, n in plan.grid)
    tile: list[StageWork] = []
    once: list[StageWork] = []
    operations, copying = 0, False
    for stage in plan.stages:
        work = _StageOfBlock(stitcher, plan, stage, choice.threads, cache_rate(tiles, device), fitted)
        wait = work.wait_cycles
        if stage.kind == "copy" and (copying and not stage.barrier or plan.is_ahead(stage)):
            # Copies between two barriers are under way together, and those of the next tile while this one is computed.
            wait = 0.0
        copying = stage.kind == "copy"
        if choice.groups and plan.is_once(stage):
            once.append(StageWork(work.paths(), wait))
        else:
            tile.append(StageWork(work.paths(), wait + (fitted.barrier_cycles if stage.barrier else 0.0)))
            operations += work.operations
    blocks = choice.groups or tiles
    return BlockWork(blocks, choice.threads, resident_blocks(plan, choice.threads, device), -(-tiles // blocks), tuple(tile), tuple(once),
                     fitted.overlap), operations * tiles


class _StageOfBlock:
    """Cycles by unit, waits and operations of one stage of one block. `rate`: bytes a cycle that L2 gives it."""

    def __init__(self, stitcher: Stitcher, plan: StitchPlan, stage: Stage, threads: int, rate: float, fitted: StitchFigures) -> None:
        self._stitcher, self._plan, self._stage, self._threads, self._rate, self._fitted = stitcher, plan, stage, threads, rate, fitted
        self._cycles: defaultdict[Unit, float] = defaultdict(float)
        self.operations = 0
        self.wait_cycles = fitted.stage_cycles
        # Products of one stage share its loop: one waits while the others multiply.
        longest = max([self._product(key) for key in stage.products], default=0.0)
        self.wait_cycles += longest
        for key in stage.pieces:
            piece = plan.pieces[key]
            if stage.kind == "copy":
                self._copy(piece)
            elif piece.kind != "product":
                self._loop(piece)

    def paths(self) -> tuple[tuple[tuple[Unit, float], ...], ...]:
        """As of `StageWork`: a copy's instructions are issued while its bytes come in; everything else works in turn."""
        cycles = tuple(self._cycles.items())
        return tuple((pair,) for pair in cycles) if self._stage.kind == "copy" else (cycles,)

    @property
    def busy_cycles(self) -> float:
        """Cycles of all units of a stage that is no copy."""
        return sum(self._cycles.values())

    def _product(self, key: int) -> float:
        """Counts a product; its own wait in cycles."""
        stage, plan, piece = self._stage, self._plan, self._plan.pieces[key]
        assert stage.tiling is not None, "products have a tiling"
        contraction = plan.contractions[piece.value]
        self.operations += 2 * num_elements(piece.region) * contraction.inner
        held = any(plan.pieces[k].value == contraction.left for k in plan.held & set(plan.sources[key]))
        places, columns = num_elements(piece.region[:-1]), piece.region[-1].extent
        busy, wait = product_cycles(self._fitted.multiply, stage.tiling, places, columns, contraction.inner, self._threads, held)
        self._cycles["tensor" if stage.tiling.unit == "mma" else "threads"] += busy
        for source in plan.sources[key]:
            if not plan.pieces[source].stored and source not in plan.held:
                self._cycles["l2"] += num_elements(plan.pieces[source].region) * plan.pieces[source].dtype.itemsize / self._rate
                self.wait_cycles += self._fitted.global_cycles
        return wait

    def _copy(self, piece: Piece) -> None:
        elements = num_elements(piece.region)
        self._cycles["l2"] += elements * piece.dtype.itemsize / self._rate
        self._cycles["threads"] += elements / WARP
        self.wait_cycles = self._fitted.global_cycles

    def _loop(self, piece: Piece) -> None:
        """Counts a map or reduction."""
        stage, stitcher, fitted = self._stage, self._stitcher, self._fitted
        elements = num_elements(piece.region)
        steps = elements * stitcher.steps(piece.value)
        flops = stitcher.flops(piece.value)
        self.operations += steps * flops
        kept = piece.key in self._plan.held or stage.kind == "product" and stage.columns and not piece.stored
        access = 0 if kept else fitted.product_access_cycles if stage.kind == "product" else fitted.tile_access_cycles
        self._cycles["threads"] += steps * (flops + access) / fitted.multiply.fma_per_cycle
        if outside := stitcher.outside_reads(piece.value):
            self._outside(outside, steps, stitcher.loop_extents(piece.value, piece.region))
        if piece.kind == "map" and (itemsizes := stitcher.lookups(piece.value)):
            self._lookups(itemsizes, elements)
        if piece.kind == "reduce":
            self.wait_cycles += fitted.shuffle_cycles * stage.lanes.bit_length()
            self.wait_cycles += fitted.sum_cycles * steps / max(elements * stage.lanes, 1)

    def _outside(self, reads: Sequence[OutsideRead], steps: int, extent_of: Mapping[str, int]) -> None:
        """Counts reads of boundary values; one that is the same along an axis of the tile is read again from the first-level cache."""
        fitted = self._fitted
        for read in reads:
            different = read.different(extent_of)
            self._cycles["l2"] += min(steps, different) * read.itemsize / self._rate
            self.wait_cycles = max(self.wait_cycles, fitted.global_cycles if different >= steps else fitted.cached_cycles)

    def _lookups(self, itemsizes: Sequence[int], elements: int) -> None:
        """Counts reads at data-dependent places: each item of a thread waits for a number and then for the element there."""
        self._cycles["l2"] += elements * sum(itemsizes) / self._rate
        items = -(-elements * max(itemsizes) // (ACCESS_BYTES * self._threads))
        rounds = 1 if items <= self._fitted.unrolled_items else items // items_together(items, self._fitted)
        self.wait_cycles = max(self.wait_cycles, 2 * rounds * self._fitted.global_cycles)


# -- registers -----------------------------------------------------------------------------------------------------------------

def registers_of(plan: StitchPlan, device: DeviceSpec) -> int:
    """Registers assumed for a thread of the stage with the largest register tile. Units: registers of 32 bits."""
    fitted = device.fitted.stitch
    most = max([fitted.least_registers, *(fitted.base_registers + _register_tile(plan, s, fitted) for s in plan.stages if s.tiling)])
    return min(-(-most // 8) * 8, device.max_registers_per_thread)


def _register_tile(plan: StitchPlan, stage: Stage, fitted: StitchFigures) -> int:
    """Registers of a product's sums and operands."""
    tiling = stage.tiling
    assert tiling is not None, "products have a tiling"
    m, n = tiling.rows, tiling.columns
    if tiling.unit == "mma" and (stage.columns or tiling.arithmetic):
        # Left fragments with their halves, four right ones with theirs, addresses.
        row_values = fitted.row_value_registers if stage.columns else 0
        return 4 * len(stage.products) * m * n + fitted.left_fragment_registers * m + fitted.right_fragment_registers + row_values
    if tiling.unit == "mma":
        held, values = (2, fitted.held_operand_registers) if plan.held else (0, 0)
        return (4 * len(stage.products) + held) * m * n + 4 * m + 2 * n + values
    return m * n * len(stage.products) + (m + n) * tiling.step


def resident_blocks(plan: StitchPlan, threads: int, device: DeviceSpec) -> int:
    """Blocks that fit a multiprocessor together."""
    return max(1, blocks_at_once(threads, registers_of(plan, device), plan.shared_bytes, device))


def spare_registers(plan: StitchPlan, threads: int, blocks: int, device: DeviceSpec) -> int:
    """Registers of a thread beside those assumed, where as many blocks fit a multiprocessor as before: those of this kernel, and as many of
    the next one, which starts early."""
    together = min(resident_blocks(plan, threads, device), 2 * -(-blocks // device.num_multiprocessors))
    room = device.registers_per_multiprocessor // (threads * together) // 8 * 8
    return max(0, min(room, device.max_registers_per_thread) - registers_of(plan, device))


# -- bounds --------------------------------------------------------------------------------------------------------------------

@quickly_built
@dataclass(frozen=True, slots=True)
class LeastCycles:
    """Least cycles of every plan of some tiles, whatever threads compute them.

    `products`, `loops`, `copied`: of products, of maps and reductions, and of copies for each tile; `once`: of operands that a block brings
    once. `waits`: a tile waits for copies.
    """

    tiles: int
    products: float
    loops: float
    copied: float
    once: float
    waits: bool


def least_cycles(stitcher: Stitcher, regions: Regions, device: DeviceSpec) -> LeastCycles:
    """A bound on the work of every plan with these regions: products at the best rate of their types, operations and reads of maps and
    reductions, the bytes that every tile brings anew, and the operands of products that every block brings. One tile at least waits for
    what is brought on chip, unless blocks that take several tiles copy it ahead."""
    tiles = prod([n for _, n in regions.grid])
    rate, many = cache_rate(tiles, device), is_many(tiles, device)
    products = loops = copied = once = 0.0
    copies = False
    for v in regions.values:
        extents = tuple([s.extent for s in v.region])
        if v.kind == "copy":
            copies = True
            moved = prod(extents) * v.dtype.itemsize / rate
            is_operand = v.value in stitcher.product_operands
            # Blocks of one tile each bring all operands for it.
            if is_operand and not many or any(s.offset.terms for s in v.region):
                copied += moved
            elif is_operand:
                once += moved
        elif v.kind == "product":
            products += prod(extents) * stitcher.contractions[v.value].inner / stitcher.best_rate(v.value)
        else:
            loops += _least_of_loop(stitcher, v.value, extents, rate)
    return LeastCycles(tiles, products, loops, copied, once, copies and not many)


def _least_of_loop(stitcher: Stitcher, value: str, extents: tuple[int, ...], rate: float) -> float:
    """Cycles of a map or reduction: operations and reads of boundary values. Units: cycles."""
    operations, read_bytes = stitcher.least_of_loop(value, extents)
    return operations / stitcher.fitted.multiply.fma_per_cycle + read_bytes / rate


def least_of_tiles(cycles: LeastCycles, threads: int, least_wait: float, device: DeviceSpec) -> LeastBlocks:
    """The bound for blocks of so many threads. least_wait: cycles that the longest chain of products waits, each of which is a stage."""
    fitted = device.fitted.stitch
    once = cycles.once + (fitted.global_cycles if cycles.waits else 0.0)
    busy = cycles.products + cycles.loops + cycles.copied
    return LeastBlocks(cycles.tiles, threads, most_resident(threads, device), busy, least_wait, once, fitted.overlap)


def most_resident(threads: int, device: DeviceSpec) -> int:
    """Blocks of so many threads that fit a multiprocessor at most, wherever their tiles lie."""
    return max(1, min(device.max_threads_per_multiprocessor // threads,
                      device.registers_per_multiprocessor // (threads * device.fitted.stitch.least_registers)))


def least_of_cut(stitcher: Stitcher, cut: StitchPlan, tiles: LeastCycles, least: LeastBlocks, device: DeviceSpec) -> LeastBlocks:
    """The same once stages are known, wherever their tiles will lie. tiles: bound of the tiles. least: bound of their blocks.

    Requires: placing a cut only changes how warps share a product on the matrix unit, and which stages of rows are part of a product's.
    """
    busy, wait, rate = tiles.copied, 0.0, cache_rate(tiles.tiles, device)
    for stage in cut.stages:
        if stage.kind == "copy":
            continue
        if stage.kind != "product" and not stage.own_rows:
            work = _StageOfBlock(stitcher, cut, stage, least.threads, rate, device.fitted.stitch)
            busy, wait = busy + work.busy_cycles, wait + work.wait_cycles
            continue
        longest = 0.0
        for key in stage.products:
            assert stage.tiling is not None, "products have a tiling"
            piece = cut.pieces[key]
            inner = cut.contractions[piece.value].inner
            if stage.tiling.unit == "fma":
                own, alone = product_cycles(device.fitted.stitch.multiply, stage.tiling, num_elements(piece.region[:-1]),
                                            piece.region[-1].extent, inner, least.threads)
                busy += own
                longest = max(longest, alone)
            else:
                busy += num_elements(piece.region) * inner / stitcher.best_rate(piece.value)
        busy += sum([_least_of_loop(stitcher, p.value, tuple([s.extent for s in p.region]), rate)
                     for k in stage.pieces if (p := cut.pieces[k]).kind != "product"])
        wait += longest + (device.fitted.stitch.stage_cycles if stage.kind == "product" else 0.0)
    return LeastBlocks(least.blocks, least.threads, least.resident, busy, wait, least.once, least.overlap)
