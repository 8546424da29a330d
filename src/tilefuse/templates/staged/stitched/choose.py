"""Tiles of a stitched kernel: every candidate is cut and placed in shared memory; the one whose work has the least price is taken."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import f32_pad
from tilefuse.domain.regions import inside, num_elements
from tilefuse.domain.roofline import Parts, least_blocks_us, price_stages, price_work
from tilefuse.domain.storage import Request, plan_shared
from tilefuse.domain.tile import Level
from tilefuse.domain.work import BlockWork, LeastBlocks, Work
from tilefuse.ir.affine import number
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.request import Price
from tilefuse.templates.staged.search import Rank, cheapest
from tilefuse.templates.staged.stitched.chained import keep_chains
from tilefuse.templates.staged.stitched.cut import Stitcher
from tilefuse.templates.staged.stitched.least import least_stages_us
from tilefuse.templates.staged.stitched.plan import Piece, Stage, StitchPlan
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.stage_work import (
    LeastCycles,
    blocks_of,
    is_many,
    least_cycles,
    least_of_cut,
    least_of_tiles,
    resident_blocks,
)
from tilefuse.templates.staged.stitched.traffic import partial_sectors, stitched_traffic


@dataclass(frozen=True)
class PricedStitch:
    """A candidate with the price of its work. Units: microseconds; `hidden_us` of its stages, which decide where traffic hides them."""

    choice: Stitched
    plan: StitchPlan
    blocks: BlockWork
    us: float
    hidden_us: float

    def is_faster(self, other: PricedStitch) -> bool:
        """Whether it is the one to take of two."""
        return (self.us, self.hidden_us) < (other.us, other.hidden_us)


def choose_stitch(graph: Graph, device: DeviceSpec, by_hand: Stitched | None = None,
                  ceiling: Price | None = None) -> PricedStitch | Rejected:
    """The stitched kernel of a pattern whose work has the least price, or why there is none. `by_hand`: tiles made by hand or a tuner.

    ceiling: as of `search.cheapest`.
    """
    stitcher = Stitcher(graph, device.fitted.stitch, by_hand.levels if by_hand is not None else ())
    refusal = stitcher.analyse() or why_no_levels(stitcher)
    if refusal is not None:
        return refusal
    # Stages that a user writes may multiply longer axes: shared memory decides.
    for contraction in stitcher.contractions.values() if by_hand is None else ():
        if contraction.inner > SEARCH.stages.inner:
            detail = f"a product over {contraction.inner} elements (more than {SEARCH.stages.inner}) is the library's"
            return Rejected(Reason.SHARED_MEMORY, detail)
    search = Search(stitcher, device, by_hand is None, ceiling)
    best = search.cheapest([by_hand] if by_hand is not None else list(_candidates(stitcher)))
    if isinstance(best, PricedStitch):
        best.plan.work, best.plan.choice = search.work(best), best.choice
    return best


class Search:
    """Prices of one pattern's candidates. `free`: whether blocks may be made to take several tiles, where that is cheaper."""

    def __init__(self, stitcher: Stitcher, device: DeviceSpec, free: bool, ceiling: Price | None = None) -> None:
        self._stitcher, self._device, self._free, self._ceiling = stitcher, device, free, ceiling
        self._boundary = boundary_work(stitcher.graph)
        self._boundary_parts = price_work(self._boundary, device)

    def cheapest(self, candidates: Sequence[Stitched]) -> PricedStitch | Rejected:
        """The cheapest candidate; those are not cut whose least work costs more."""
        stitcher, device = self._stitcher, self._device
        cycles_by_tiles: dict[tuple[int, ...], LeastCycles] = {}
        least_by_choice: dict[Stitched, LeastBlocks] = {}

        def coarse(choices: Sequence[Stitched]) -> list[Rank]:
            return [(self._boundary_parts.us_with(us), us) for us in least_stages_us(stitcher, choices, device)]

        def least(choice: Stitched) -> Rank | Rejected:
            regions = stitcher.regions(choice.tiles)
            if isinstance(regions, Rejected):
                return regions
            if choice.tiles not in cycles_by_tiles:
                surely = stitcher.shared_operands
                operands = ((v.value, num_elements(v.region) * v.dtype.itemsize) for v in regions.values if v.value in surely)
                if (too_large := _too_large(operands, device)) is not None:
                    return too_large
                cycles_by_tiles[choice.tiles] = least_cycles(stitcher, regions, device)
            blocks = least_of_tiles(cycles_by_tiles[choice.tiles], choice.threads, stitcher.least_wait, device)
            least_by_choice[choice] = blocks
            return self.least_us(blocks)

        def ranked(choice: Stitched, _bound: Rank, best: Rank | None) -> tuple[Rank, PricedStitch] | Rejected | None:
            cut = stitcher.cut(choice.tiles, choice.threads, device.kind == "cuda")
            if isinstance(cut, Rejected):
                return cut
            mapped = ((cut.pieces[k].value, cut.pieces[k].num_bytes) for s in cut.stages if s.kind == "map" for k in s.pieces)
            if (too_large := _too_large(mapped, device)) is not None:
                return too_large
            if best is not None:
                of_cut = least_of_cut(stitcher, cut, cycles_by_tiles[choice.tiles], least_by_choice[choice], device)
                if self.least_us(of_cut) > best:
                    return None
            candidate = self.priced(choice, cut)
            return candidate if isinstance(candidate, Rejected) else ((candidate.us, candidate.hidden_us), candidate)

        return cheapest(candidates, least, ranked, self._ceiling, coarse)

    def least_us(self, least: LeastBlocks) -> tuple[float, float]:
        """Lower bounds on the price of every candidate with at least this work, and on the time of its stages. Units: microseconds."""
        stages_us = least_blocks_us(least, self._device)
        return self._boundary_parts.us_with(stages_us), stages_us

    def priced(self, choice: Stitched, cut: StitchPlan) -> PricedStitch | Rejected:
        """One candidate placed and priced. The cut is used up."""
        device, tiles = self._device, prod(n for _, n in cut.grid)
        # Every block has a tile: what it copies ahead is there, and somebody waits for it.
        choice = replace(choice, groups=min(choice.groups, tiles)) if choice.groups else choice
        arrange(cut, device, choice.threads)
        takes_several = self._free and is_many(tiles, device) and any(map(cut.is_once, cut.stages))
        placed = _placed(cut, device, choice.groups > 0, choice.threads, is_last=not takes_several)
        if isinstance(placed, Rejected):
            return placed
        once = self._with_price(placed, choice)
        if not takes_several:
            return once
        persistent = _placed(cut, device, True, choice.threads, is_last=True)
        if isinstance(persistent, Rejected):
            return once
        groups = min(tiles, device.num_multiprocessors * resident_blocks(persistent, choice.threads, device))
        other = self._with_price(persistent, replace(choice, groups=groups))
        return other if other.is_faster(once) else once

    def _with_price(self, plan: StitchPlan, choice: Stitched) -> PricedStitch:
        """A placed candidate with its price. Bytes of L2 and shared memory are part of its stages' cycles."""
        blocks, plan.flops = blocks_of(self._stitcher, plan, choice, self._device)
        return PricedStitch(choice, plan, blocks, *price_stages(self._parts(plan), blocks, self._device))

    def _parts(self, plan: StitchPlan) -> Parts:
        """The price of what enters and leaves the kernel, with stores that write parts of sectors."""
        sectors = partial_sectors(plan)
        return price_work(replace(self._boundary, partial_sectors=sectors), self._device) if sectors else self._boundary_parts

    def work(self, candidate: PricedStitch) -> Work:
        """The work of a candidate, with its traffic to L2 and shared memory."""
        launch = Launch(candidate.blocks.blocks, candidate.choice.threads, 1, candidate.plan.shared_bytes)
        l2_bytes, shared_bytes = stitched_traffic(self._stitcher, candidate.plan, candidate.choice)
        return replace(self._boundary, grid=launch, blocks=(candidate.blocks,), l2_bytes=l2_bytes, shared_bytes=shared_bytes,
                       partial_sectors=partial_sectors(candidate.plan))


def why_no_levels(stitcher: Stitcher) -> Rejected | None:
    """Why a value cannot lie at the level that the choice gives it; None where all can."""
    for value, level in stitcher.levels:
        if value in stitcher.values_with_stages or value not in stitcher.inside or level not in (Level.SHARED, Level.REGISTER):
            return Rejected(Reason.ILLEGAL_TEMPLATE, f"%{value} cannot be given the level {level.value}: it is no map inside the kernel")
    return None


def _candidates(stitcher: Stitcher) -> Iterator[Stitched]:
    """Tiles to try: leading dimensions one by one, some rows, all columns or some; without products also everything in one block."""
    shape = stitcher.graph.type_of(stitcher.anchor).shape
    if not shape:
        yield from (Stitched((), t) for t in SEARCH.stages.threads)
        return
    last = shape[-1]
    if not stitcher.contractions and prod(shape) <= SEARCH.stages.one_block_elements:
        yield from (Stitched(shape, t) for t in SEARCH.stages.one_block_threads)
    row = next((d for d in range(len(shape) - 2, -1, -1) if shape[d] > 1), None)
    columns = [last] + [c for c in SEARCH.stages.column_tiles if c < last and last % c == 0]
    rows = [1] if row is None else _row_tiles(shape[row])
    for c in columns:
        for r in rows:
            tiles = tuple(r if d == row else c if d == len(shape) - 1 else 1 for d in range(len(shape)))
            yield from (Stitched(tiles, t) for t in SEARCH.stages.threads)


def _row_tiles(extent: int) -> list[int]:
    """Powers of two, and divisors where the extent has few factors of two."""
    extents = [t for t in SEARCH.stages.row_tiles if t <= extent]
    if extent <= SEARCH.stages.row_tiles[-1] or extent % 8:
        extents += [t for t in range(3, SEARCH.stages.rows + 1) if extent % t == 0 and t not in extents]
    return extents


# -- shared memory -------------------------------------------------------------------------------------------------------------

def _placed(arranged: StitchPlan, device: DeviceSpec, persistent: bool, threads: int, is_last: bool) -> StitchPlan | Rejected:
    """An arranged plan, placed. Blocks that walk tiles copy the next one ahead where as many of them still fit a multiprocessor.

    is_last: the plan is used up, because nothing else asks for it.
    """
    copies_ahead = persistent and any(s.kind == "copy" and not arranged.is_once(s) for s in arranged.stages)
    placed = place(arranged if is_last and not copies_ahead else arranged.copy(), device, persistent)
    if isinstance(placed, Rejected) or not copies_ahead:
        return placed
    ahead = place(arranged if is_last else arranged.copy(), device, True, ahead=True)
    if isinstance(ahead, Rejected):
        return placed
    return ahead if resident_blocks(ahead, threads, device) >= resident_blocks(placed, threads, device) else placed


def _too_large(tiles: Iterable[tuple[str, int]], device: DeviceSpec) -> Rejected | None:
    """A refusal of tiles that surely lie in shared memory, where one alone is too large; None otherwise. tiles: (value, bytes)."""
    limit = device.shared_bytes_per_block
    for value, num_bytes in tiles:
        if num_bytes > limit:
            detail = f"more than {limit} bytes of shared memory: %{value} {num_bytes}; a smaller tile needs less"
            return Rejected(Reason.SHARED_MEMORY, detail)
    return None


def arrange(plan: StitchPlan, device: DeviceSpec, threads: int) -> None:
    """Decides for a cut what stays in registers, how rows are padded, what is read where it lies, and the order of copies."""
    keep_chains(plan, threads)
    _exchange(plan)
    _pad(plan)
    _direct(plan, device.fitted.stitch.direct_bytes)
    _copies_first(plan)


def _exchange(plan: StitchPlan) -> None:
    """Gives room to the sums of every product whose inner axis several warps share: those of each warp."""
    for n, stage in enumerate(plan.stages):
        if stage.tiling is not None and stage.tiling.unit == "mma" and stage.tiling.split > 1:
            region = plan.pieces[stage.products[0]].region
            sums = num_elements(region[:-1]) * -(-region[-1].extent // MMA_COLUMNS) * MMA_COLUMNS * len(stage.products)
            plan.stages[n] = stage.but(exchange_bytes=sums * stage.tiling.split * F32.itemsize)


def place(plan: StitchPlan, device: DeviceSpec, persistent: bool = False, ahead: bool = False) -> StitchPlan | Rejected:
    """An arranged plan with barriers, and offsets for what lies in shared memory; memory is used again once nobody reads it any more.

    ahead: what is copied for each tile has two places, one for the tile that is computed and one for the next (persistent blocks).
    """
    for stage in plan.stages if ahead else ():
        if stage.kind == "copy" and not plan.is_once(stage):
            for key in stage.pieces:
                plan.pieces[key] = plan.pieces[key].but(buffers=2)
    ranges: dict[int, tuple[int, int]] = {}
    read_by = [dict.fromkeys(_read_by(plan, stage)) for stage in plan.stages]
    for n, stage in enumerate(plan.stages):
        for key in (*stage.pieces, *stage.products):
            if plan.pieces[key].stored:
                ranges.setdefault(key, (n, n))
        for key in read_by[n]:
            if plan.pieces[key].stored and key in ranges:
                ranges[key] = (ranges[key][0], n)
    if persistent:
        for stage in plan.stages:
            if plan.is_once(stage) or plan.is_ahead(stage):
                ranges |= {k: (0, len(plan.stages)) for k in stage.pieces if k in ranges}
    plan.in_place = _in_place(plan, ranges)
    for old, new in plan.in_place.items():
        first, _ = ranges.pop(old)
        ranges[new] = (first, ranges[new][1])
    requests = [Request(str(k), plan.pieces[k].num_bytes, first, last, value=plan.pieces[k].value)
                for k, (first, last) in sorted(ranges.items())]
    exchanges = {_exchange_name(n): n for n, stage in enumerate(plan.stages) if stage.exchange_bytes}
    requests += [Request(name, plan.stages[n].exchange_bytes, n, n, value=plan.pieces[plan.stages[n].products[0]].value)
                 for name, n in exchanges.items()]
    # Each piece by the last one that lies in its place.
    later: dict[int, int] = {}
    for old, new in reversed(plan.in_place.items()):
        later[old] = later.get(new, new)
    flow: dict[str, list[str]] = {}
    for n, stage in enumerate(plan.stages):
        flow |= {str(k): [str(later.get(s, s)) for s in plan.sources[k] if later.get(s) != k] for k in (*stage.products, *stage.pieces)}
        if stage.exchange_bytes:
            flow[_exchange_name(n)] = [str(k) for k in stage.products]
    placed = plan_shared(requests, flow, device.shared_bytes_per_block)
    if isinstance(placed, Rejected):
        return placed
    for key in ranges:
        plan.pieces[key] = plan.pieces[key].but(offset_bytes=placed.offset_by_name[str(key)])
    for old, last in later.items():
        plan.pieces[old] = plan.pieces[old].but(offset_bytes=plan.pieces[last].offset_bytes, pad=plan.pieces[last].pad)
    for name, n in exchanges.items():
        plan.stages[n] = plan.stages[n].but(exchange_offset=placed.offset_by_name[name])
    plan.requested_bytes, plan.shared_bytes = placed.requested_bytes, placed.allocated_bytes
    _barriers(plan, read_by, persistent)
    return plan


def _exchange_name(stage: int) -> str:
    """Name of the request for the sums that warps exchange in a stage."""
    return f"sums{stage}"


def _in_place(plan: StitchPlan, ranges: dict[int, tuple[int, int]]) -> dict[int, int]:
    """Tiles that a stage of rows reads for the last time and may overwrite: every lane has its elements in registers by then."""
    later_by_piece: dict[int, int] = {}
    for n, stage in enumerate(plan.stages):
        if stage.kind != "rows":
            continue
        for key in stage.pieces:
            p = plan.pieces[key]
            if not p.stored or not p.region or p.region[-1].extent != stage.columns:
                continue
            for old in dict.fromkeys(s for k in stage.pieces for s in plan.sources[k] if s not in stage.pieces):
                q = plan.pieces[old]
                taken = old in later_by_piece or key in later_by_piece.values() or q.kind == "copy"
                if not taken and q.stored and q.region == p.region and q.dtype == p.dtype and ranges[old][1] == n:
                    later_by_piece[old] = key
                    break
    return later_by_piece


def _pad(plan: StitchPlan) -> None:
    """Rows of product operands are made an odd number of 16-byte units, so that the rows that lanes read start in different banks."""
    for stage in plan.stages:
        for product in stage.products:
            contraction = plan.contractions[plan.pieces[product].value]
            for key in plan.sources[product]:
                piece = plan.pieces[key]
                unit = 16 // piece.dtype.itemsize
                if stage.tiling is not None and stage.tiling.arithmetic:
                    inner_last = contraction.inner_last_left if piece.value == contraction.left else contraction.inner_last_right
                    if piece.stored and piece.value != contraction.bias:
                        plan.pieces[key] = piece.but(pad=f32_pad(piece.region[-1].extent, inner_last))
                elif piece.stored and piece.region and piece.region[-1].extent % (2 * unit) == 0:
                    plan.pieces[key] = piece.but(pad=unit)


def _direct(plan: StitchPlan, direct_bytes: int) -> None:
    """Right operands from outside of more than `direct_bytes` are read where they lie, if threads multiply."""
    kept: list[Stage] = []
    for stage in plan.stages:
        if stage.kind == "copy":
            piece = plan.pieces[stage.pieces[0]]
            if piece.num_bytes <= direct_bytes:
                kept.append(stage)
                continue
            users = [s for s in plan.stages for p in s.products if piece.key in plan.sources[p]]
            right = all(plan.contractions[plan.pieces[p].value].right == piece.value for s in users for p in s.products
                        if piece.key in plan.sources[p])
            # A tile that reaches beyond the value is copied with zeros there; what is read where it lies must all be there.
            within = not inside(piece.region, (number(0),) * len(piece.region), plan.graph.type_of(piece.value).shape, dict(plan.grid))
            if right and within and all(s.tiling and s.tiling.unit == "fma" for s in users):
                plan.pieces[piece.key] = piece.but(stored=False, pad=0)
                continue
        kept.append(stage)
    plan.stages = kept


def _copies_first(plan: StitchPlan) -> None:
    """Copies before the first product come before everything else there.

        h = tanh(a), y = h * b, copy w | y @ w   ->   copy w, h = tanh(a), y = h * b | y @ w

    They are under way while maps and reductions wait for their own operands; those of the program's inputs start before the kernel ahead
    has ended. Their tiles and the others are all read at the product or before it, so few bytes of shared memory live longer.
    """
    first = next((n for n, stage in enumerate(plan.stages) if stage.products), len(plan.stages))
    plan.stages[:first] = sorted(plan.stages[:first], key=lambda s: s.kind != "copy")


def _read_by(plan: StitchPlan, stage: Stage) -> Iterator[int]:
    own = {*stage.pieces}
    for key in (*stage.pieces, *stage.products):
        yield from (s for s in plan.sources[key] if s not in own)


def _barriers(plan: StitchPlan, read_by: Sequence[Iterable[int]], persistent: bool) -> None:
    """A barrier before every stage that reads what was written since the last one, or writes where others may still read."""
    # Where tiles are copied ahead, each turn begins with a barrier behind all copies.
    ahead = any(map(plan.is_ahead, plan.stages))
    written = {k for s in plan.stages for k in s.pieces if persistent and not ahead and plan.is_once(s)}
    read: set[int] = set()
    exchanged: list[tuple[int, int]] = []  # places of the sums that warps have read since
    for n, stage in enumerate(plan.stages):
        if persistent and (plan.is_once(stage) or plan.is_ahead(stage)):
            continue
        reads = {k for k in read_by[n] if plan.pieces[k].stored}
        writes = {k for k in stage.pieces if plan.pieces[k].stored}
        before = (read | written) - writes
        clash = any(_overlap(plan.pieces[a], plan.pieces[b]) for a in writes for b in before if plan.in_place.get(b) != a)
        mine = [(stage.exchange_offset, stage.exchange_bytes)] if stage.exchange_bytes else []
        clash |= any(_meet(a, _place_of(plan.pieces[b])) for a in mine for b in before)
        clash |= any(_meet(_place_of(plan.pieces[a]), b) for a in writes for b in exchanged) or any(
            _meet(a, b) for a in mine for b in exchanged)
        if reads & written or clash:
            plan.stages[n] = stage.but(barrier=True)
            written, read, exchanged = set(), set(), []
        exchanged += mine
        written |= writes
        read |= reads


def _overlap(a: Piece, b: Piece) -> bool:
    return _meet(_place_of(a), _place_of(b))


def _place_of(piece: Piece) -> tuple[int, int]:
    """(offset, bytes) in shared memory."""
    return piece.offset_bytes, piece.num_bytes


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two places in shared memory have a byte in common."""
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]
