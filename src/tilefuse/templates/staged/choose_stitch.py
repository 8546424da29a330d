"""Tiles of a stitched kernel: every candidate is cut, placed in shared memory and estimated; the fastest estimate is taken.

Estimates count issue slots and the latency of each stage; the cost model adds traffic to memory and the launch.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import FMA_PER_CYCLE, f32_pad, product_cycles
from tilefuse.domain.regions import inside, num_elements
from tilefuse.domain.storage import Request, plan_shared
from tilefuse.ir.affine import number
from tilefuse.ir.graph import Graph
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.stages import StitchFigures
from tilefuse.templates.staged.chained import keep_chains
from tilefuse.templates.staged.record import Stitched
from tilefuse.templates.staged.stitch import Stitcher
from tilefuse.templates.staged.stitch_plan import Piece, Stage, StitchPlan, Tiled

# Contracted axes longer than this never have both operands' tiles on chip at a size worth a kernel.
MAX_INNER = 1024
ROW_TILES = (1, 2, 4, 8, 16, 32, 64, 128)
COLUMN_TILES = (8, 16, 32, 64, 128)
THREADS = (128, 256)
# Results of at most so many elements are also tried in one block, which may then hold reductions over all of them; products want more
# multiprocessors than one.
ONE_BLOCK_ELEMENTS = 1 << 14
# Relative difference of two ways to add up the same cycles, at most.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Estimate:
    """Time of a candidate. Units: microseconds, without launch and without the traffic to global memory that must be."""

    choice: Stitched
    plan: StitchPlan
    us: float


def choose_stitch(graph: Graph, device: DeviceSpec, wanted: Stitched | None = None) -> Estimate | Rejected:
    """The stitched kernel of a pattern with the least estimated time, or why there is none. `wanted`: tiles made by hand or a tuner."""
    stitcher = Stitcher(graph, device.fitted.stitch)
    found = stitcher.analyse()
    if found is not None:
        return found
    for contraction in stitcher.contractions.values():
        if contraction.inner > MAX_INNER:
            return Rejected(Reason.SHARED_MEMORY, f"a product over {contraction.inner} elements (more than {MAX_INNER}) is the library's")
    candidates = [wanted] if wanted is not None else list(_candidates(graph.type_of(stitcher.anchor).shape, bool(stitcher.contractions)))
    refused: list[tuple[int, Rejected]] = []
    tiled: list[tuple[float, int, _Least]] = []
    for n, choice in enumerate(candidates):
        found_tiles = stitcher.tiled(choice.tiles)
        if isinstance(found_tiles, Rejected):
            refused.append((n, found_tiles))
        else:
            least = _least_of_tiles(stitcher, found_tiles, choice.threads, device)
            tiled.append((least.us, n, least))
    best: tuple[float, int, Estimate] | None = None
    for least_us, n, least in sorted(tiled, key=lambda row: row[:2]):
        if best is not None and least_us > best[0]:
            # Its tiles take longer, and so do those of all that are left.
            break
        cut = stitcher.cut(candidates[n].tiles, candidates[n].threads, device.kind == "cuda")
        if isinstance(cut, Rejected):
            refused.append((n, cut))
            continue
        if best is not None and _least_of_cut(stitcher, cut, least, candidates[n].threads, device) > best[0]:
            continue
        estimate = _estimated(stitcher, candidates[n], cut, device, wanted is None)
        if isinstance(estimate, Rejected):
            refused.append((n, estimate))
        elif best is None or (estimate.us, n) < best[:2]:
            best = (estimate.us, n, estimate)
    if best is not None:
        return best[2]
    return min(refused)[1] if refused else Rejected(Reason.SHARED_MEMORY, "no tile fits")


@dataclass(frozen=True, slots=True)
class _Least:
    """Least time of a candidate, whatever its stages are. Units: microseconds; `other_cycles`: the cycles of a tile that are no product's;
    `once_cycles`: those of a block that walks tiles, for operands that all tiles share."""

    us: float
    other_cycles: float
    once_cycles: float


def _least_of_tiles(stitcher: Stitcher, tiled: Tiled, threads: int, device: DeviceSpec) -> _Least:
    """A bound on every estimate of these tiles: products at the best rate of their types, operations of maps and reductions, the bytes
    that every tile brings anew, the operands of products that every block brings, and the longest chain of products, each of which is a
    stage."""
    tiles = prod(n for _, n in tiled.grid)
    rate = _cache_rate(tiles, device)
    # Blocks of one tile each bring all operands for it.
    walks = tiles >= device.fitted.stitch.many_tiles * device.num_multiprocessors
    operands = {v for c in stitcher.contractions.values() for v in (c.left, c.right)}
    products = other = once = 0.0
    copies = False
    for piece in tiled.pieces:
        elements = num_elements(piece.region)
        if piece.kind == "copy":
            copies = True
            moved = elements * piece.dtype.itemsize / rate
            is_operand = piece.value in operands
            if any(s.offset.terms for s in piece.region) or is_operand and not walks:
                other += moved
            elif is_operand:
                once += moved
        elif piece.kind == "product":
            products += elements * stitcher.contractions[piece.value].inner / stitcher.best_rate(piece.value)
        else:
            other += elements * prod(e for _, e in stitcher.over(piece.value)) * stitcher.flops(piece.value) / FMA_PER_CYCLE
    return _Least(_least_us(products + other, stitcher.least_wait, copies, tiles, threads, device, once), other, once)


def _least_of_cut(stitcher: Stitcher, cut: StitchPlan, least: _Least, threads: int, device: DeviceSpec) -> float:
    """The same once stages are known, wherever their tiles will lie. Units: microseconds.

    Requires: placing a cut only changes how warps share a product on the matrix unit, and which stages of rows are part of a product's.
    """
    cycles, wait = least.other_cycles, 0.0
    for stage in cut.stages:
        if stage.kind not in ("copy", "rows"):
            wait += device.fitted.stitch.stage_cycles
        longest = 0.0
        for key in stage.products:
            assert stage.tiling is not None
            piece = cut.pieces[key]
            inner = cut.contractions[piece.value].inner
            if stage.tiling.unit == "fma":
                busy, alone = product_cycles(stage.tiling, num_elements(piece.region[:-1]), piece.region[-1].extent, inner, threads)
                cycles += busy
                longest = max(longest, alone)
            else:
                cycles += num_elements(piece.region) * inner / stitcher.best_rate(piece.value)
        wait += longest
    copies = any(p.kind == "copy" for p in cut.pieces)
    return _least_us(cycles, wait, copies, prod(n for _, n in cut.grid), threads, device, least.once_cycles)


def _least_us(cycles: float, wait: float, copies: bool, tiles: int, threads: int, device: DeviceSpec, once: float) -> float:
    """The least that `_microseconds` can be for tiles of so many issue slots and so much latency, and blocks that issue `once` besides.

    Units: cycles in, microseconds out.

    copies: whether something is brought on chip, for which one tile waits at least, unless blocks that walk tiles copy it ahead.
    """
    fitted = device.fitted.stitch
    resident = max(1, min(device.max_threads_per_multiprocessor // threads,
                          device.registers_per_multiprocessor // (threads * fitted.least_registers)))
    rounds = -(-tiles // (device.num_multiprocessors * resident))
    alone: float = rounds * (wait + fitted.alone_share * cycles * (256 / threads) ** 0.5)
    first = fitted.global_cycles if copies and tiles < device.fitted.stitch.many_tiles * device.num_multiprocessors else 0.0
    counted = tiles / device.num_multiprocessors * cycles + alone + first + once
    return (1 - ROUNDING) * fitted.counted_share * counted / _clock(device) * 1e6


def _cache_rate(tiles: int, device: DeviceSpec) -> float:
    """Bytes a cycle that the second-level cache gives a multiprocessor where so many blocks ask."""
    fitted = device.fitted.stitch
    return min(fitted.l2_port_bytes, device.fitted.traffic.l2_bytes_per_cycle * max(device.num_multiprocessors / tiles, 1.0))


def _clock(device: DeviceSpec) -> float:
    """Cycles a second."""
    return device.flops_per_s / (device.num_multiprocessors * 2 * FMA_PER_CYCLE)


def _estimated(stitcher: Stitcher, choice: Stitched, cut: StitchPlan, device: DeviceSpec, free: bool) -> Estimate | Rejected:
    """One candidate placed and timed; `free`: whether it may be made to walk several tiles a block. The cut is used up."""
    tiles = prod(n for _, n in cut.grid)
    # Every block has a tile: what it copies ahead is there, and somebody waits for it.
    choice = replace(choice, groups=min(choice.groups, tiles))
    placed = _placed(cut, device, choice.threads, choice.groups > 0)
    if isinstance(placed, Rejected):
        return placed
    found = Estimate(choice, placed, _microseconds(stitcher, placed, choice, device))
    many = tiles >= device.fitted.stitch.many_tiles * device.num_multiprocessors
    if not free or not many or not any(placed.is_once(s) for s in placed.stages):
        return found
    walking = _placed(cut, device, choice.threads, True)
    if isinstance(walking, Rejected):
        return found
    groups = min(tiles, device.num_multiprocessors * _resident(walking, choice.threads, device))
    walk = replace(choice, groups=groups)
    other = Estimate(walk, walking, _microseconds(stitcher, walking, walk, device))
    return other if other.us < found.us else found


def _candidates(shape: tuple[int, ...], products: bool) -> Iterator[Stitched]:
    """Tiles to try: leading dimensions one by one, some rows, all columns or some; without products also everything in one block."""
    if not shape:
        yield from (Stitched((), t) for t in THREADS)
        return
    last = shape[-1]
    if not products and prod(shape) <= ONE_BLOCK_ELEMENTS:
        yield from (Stitched(shape, t) for t in (*THREADS, 512))
    row = next((d for d in range(len(shape) - 2, -1, -1) if shape[d] > 1), None)
    columns = [last] + [c for c in COLUMN_TILES if c < last and last % c == 0]
    rows = [1] if row is None else _row_tiles(shape[row])
    for c in columns:
        for r in rows:
            tiles = tuple(r if d == row else c if d == len(shape) - 1 else 1 for d in range(len(shape)))
            yield from (Stitched(tiles, t) for t in THREADS)


def _row_tiles(extent: int) -> list[int]:
    """Powers of two, and divisors where the extent has few factors of two."""
    found = [t for t in ROW_TILES if t <= extent]
    if extent <= ROW_TILES[-1] or extent & 7:
        found += [t for t in range(3, 161) if extent % t == 0 and t not in found]
    return found


# -- shared memory -------------------------------------------------------------------------------------------------------------

def _placed(cut: StitchPlan, device: DeviceSpec, threads: int, persistent: bool) -> StitchPlan | Rejected:
    """The plan of a cut, placed. Blocks that walk tiles copy the next one ahead where as many of them still fit a multiprocessor."""
    placed = place(cut.copy(), device, threads, persistent)
    if isinstance(placed, Rejected) or not persistent:
        return placed
    ahead = place(cut.copy(), device, threads, True, ahead=True)
    if isinstance(ahead, Rejected) or not any(map(ahead.is_ahead, ahead.stages)):
        return placed
    return ahead if _resident(ahead, threads, device) >= _resident(placed, threads, device) else placed


def place(plan: StitchPlan, device: DeviceSpec, threads: int, persistent: bool = False, ahead: bool = False) -> StitchPlan | Rejected:
    """The plan with barriers, and offsets for what lies in shared memory; memory is used again once nobody reads it any more.

    ahead: what is copied for each tile has two places, one for the tile that is computed and one for the next (persistent blocks).
    """
    keep_chains(plan, threads)
    _pad(plan)
    _direct(plan, device.fitted.stitch.direct_bytes)
    _copies_first(plan)
    for stage in plan.stages if ahead else ():
        if stage.kind == "copy" and not plan.is_once(stage):
            for key in stage.pieces:
                plan.pieces[key] = plan.pieces[key].but(buffers=2)
    ranges: dict[int, tuple[int, int]] = {}
    for n, stage in enumerate(plan.stages):
        for key in (*stage.pieces, *stage.products):
            if plan.pieces[key].stored:
                ranges.setdefault(key, (n, n))
        for key in _read_by(plan, stage):
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
    requests = [Request(str(k), plan.pieces[k].num_bytes, first, last) for k, (first, last) in sorted(ranges.items())]
    # Each piece by the last one that lies in its place.
    later: dict[int, int] = {}
    for old, new in reversed(plan.in_place.items()):
        later[old] = later.get(new, new)
    flow = {str(k): [str(later.get(s, s)) for s in plan.sources[k] if later.get(s) != k]
            for stage in plan.stages for k in (*stage.products, *stage.pieces)}
    found = plan_shared(requests, flow, device.shared_bytes_per_block)
    if isinstance(found, Rejected):
        return found
    for key in ranges:
        plan.pieces[key] = plan.pieces[key].but(offset_bytes=found.offset_by_name[str(key)])
    for old, last in later.items():
        plan.pieces[old] = plan.pieces[old].but(offset_bytes=plan.pieces[last].offset_bytes, pad=plan.pieces[last].pad)
    plan.requested_bytes, plan.shared_bytes = found.requested_bytes, found.allocated_bytes
    _barriers(plan, persistent)
    return plan


def _in_place(plan: StitchPlan, ranges: dict[int, tuple[int, int]]) -> dict[int, int]:
    """Tiles that a stage of rows reads for the last time and may overwrite: every lane has its elements in registers by then."""
    found: dict[int, int] = {}
    for n, stage in enumerate(plan.stages):
        if stage.kind != "rows":
            continue
        for key in stage.pieces:
            p = plan.pieces[key]
            if not p.stored or not p.region or p.region[-1].extent != stage.columns:
                continue
            for old in dict.fromkeys(s for k in stage.pieces for s in plan.sources[k] if s not in stage.pieces):
                q = plan.pieces[old]
                taken = old in found or key in found.values() or q.kind == "copy"
                if not taken and q.stored and q.region == p.region and q.dtype == p.dtype and ranges[old][1] == n:
                    found[old] = key
                    break
    return found


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
            users = [s for s in plan.stages for p in s.products if piece.key in plan.sources[p]]
            right = all(plan.contractions[plan.pieces[p].value].right == piece.value for s in users for p in s.products
                        if piece.key in plan.sources[p])
            # A tile that reaches beyond the value is copied with zeros there; what is read where it lies must all be there.
            within = not inside(piece.region, (number(0),) * len(piece.region), plan.graph.type_of(piece.value).shape, dict(plan.grid))
            if right and within and piece.num_bytes > direct_bytes and all(s.tiling and s.tiling.unit == "fma" for s in users):
                plan.pieces[piece.key] = piece.but(stored=False, pad=0)
                continue
        kept.append(stage)
    plan.stages = kept


def _copies_first(plan: StitchPlan) -> None:
    """Copies before the first stage that reads a tile come before the maps there.

        h = tanh(a), copy w | h @ w   ->   copy w, h = tanh(a) | h @ w

    They are under way while the maps wait for their own operands; those of the program's inputs start before the kernel ahead has ended.
    """
    made: set[int] = set()
    first = 0
    for stage in plan.stages:
        if made.intersection(_read_by(plan, stage)):
            break
        made |= {k for k in stage.pieces if plan.pieces[k].stored}
        first += 1
    plan.stages[:first] = sorted(plan.stages[:first], key=lambda s: s.kind != "copy")


def _read_by(plan: StitchPlan, stage: Stage) -> Iterator[int]:
    own = {*stage.pieces}
    for key in (*stage.pieces, *stage.products):
        yield from (s for s in plan.sources[key] if s not in own)


def _barriers(plan: StitchPlan, persistent: bool) -> None:
    """A barrier before every stage that reads what was written since the last one, or writes where others may still read."""
    # Where tiles are copied ahead, each turn begins with a barrier behind all copies.
    ahead = any(map(plan.is_ahead, plan.stages))
    written = {k for s in plan.stages for k in s.pieces if persistent and not ahead and plan.is_once(s)}
    read: set[int] = set()
    for n, stage in enumerate(plan.stages):
        if persistent and (plan.is_once(stage) or plan.is_ahead(stage)):
            continue
        reads = {k for k in _read_by(plan, stage) if plan.pieces[k].stored}
        writes = {k for k in stage.pieces if plan.pieces[k].stored}
        before = (read | written) - writes
        clash = any(_overlap(plan.pieces[a], plan.pieces[b]) for a in writes for b in before if plan.in_place.get(b) != a)
        if reads & written or clash:
            plan.stages[n] = stage.but(barrier=True)
            written, read = set(), set()
        written |= writes
        read |= reads


def _overlap(a: Piece, b: Piece) -> bool:
    return a.offset_bytes < b.offset_bytes + b.num_bytes and b.offset_bytes < a.offset_bytes + a.num_bytes


# -- time ----------------------------------------------------------------------------------------------------------------------

def _resident(plan: StitchPlan, threads: int, device: DeviceSpec) -> int:
    """Blocks that fit a multiprocessor together."""
    registers = threads * registers_of(plan, device)
    return max(1, min(device.max_threads_per_multiprocessor // threads, device.registers_per_multiprocessor // registers,
                      device.shared_bytes_per_multiprocessor // (plan.shared_bytes + 1024)))


def registers_of(plan: StitchPlan, device: DeviceSpec) -> int:
    """Registers assumed for a thread of the stage with the largest register tile, for the number of blocks that fit a multiprocessor."""
    most = device.fitted.stitch.least_registers
    for stage in plan.stages:
        if stage.tiling is None:
            continue
        m, n = stage.tiling.rows, stage.tiling.columns
        if stage.tiling.unit == "mma" and (stage.columns or stage.tiling.arithmetic):
            # Left fragments with their halves, four right ones with theirs, addresses.
            here = 4 * len(stage.products) * m * n + 12 * m + 16 + (30 if stage.columns else 0)
        elif stage.tiling.unit == "mma":
            here = (4 * len(stage.products) + (2 if plan.held else 0)) * m * n + 4 * m + 2 * n + (40 if plan.held else 0)
        else:
            here = m * n * len(stage.products) + (m + n) * stage.tiling.step
        most = max(most, device.fitted.stitch.base_registers + here)
    return min(-(-most // 8) * 8, 255)


def _microseconds(stitcher: Stitcher, plan: StitchPlan, choice: Stitched, device: DeviceSpec) -> float:
    """Issue slots and latencies of one tile, over the tiles that are computed side by side."""
    issue = latency = once = 0.0
    flops, fitted = 0, device.fitted.stitch
    tiles = prod(n for _, n in plan.grid)
    cache_rate = _cache_rate(tiles, device)
    copying = False
    for stage in plan.stages:
        cycles, wait, operations = _stage_cycles(stitcher, plan, stage, choice.threads, cache_rate, fitted)
        if stage.kind == "copy" and (copying and not stage.barrier or plan.is_ahead(stage)):
            # Copies between two barriers are under way together, and those of the next tile while this one is computed.
            wait = 0.0
        copying = stage.kind == "copy"
        if choice.groups and plan.is_once(stage):
            once += cycles + wait
            continue
        issue += cycles
        latency += wait + (fitted.barrier_cycles if stage.barrier else 0.0)
        flops += operations
    blocks = choice.groups or tiles
    resident = min(_resident(plan, choice.threads, device), -(-blocks // device.num_multiprocessors))
    # A multiprocessor takes `issue` a tile however many blocks it holds; what one block alone waits, the others hide.
    alone = latency + fitted.alone_share * issue * (256 / choice.threads) ** 0.5
    rounds = -(-tiles // blocks) * -(-blocks // (device.num_multiprocessors * resident))
    plan.flops = flops * tiles
    plan.work_cycles = fitted.counted_share * (once + rounds * (resident * issue + alone))
    return plan.work_cycles / _clock(device) * 1e6


def _stage_cycles(stitcher: Stitcher, plan: StitchPlan, stage: Stage, threads: int, cache_rate: float,
                  fitted: StitchFigures) -> tuple[float, float, int]:
    """(issue cycles, latency, operations) of one stage of one block. Units: `cache_rate` in bytes a cycle."""
    cycles = 0.0
    operations = 0
    latency, longest = fitted.stage_cycles, 0.0
    if stage.tiling is not None:
        for key in stage.products:
            piece = plan.pieces[key]
            contraction = plan.contractions[piece.value]
            multiplications = num_elements(piece.region) * contraction.inner
            operations += 2 * multiplications
            held = any(plan.pieces[k].value == contraction.left for k in plan.held & set(plan.sources[key]))
            work, wait = product_cycles(stage.tiling, num_elements(piece.region[:-1]), piece.region[-1].extent, contraction.inner, threads,
                                        held)
            cycles += work
            # Products of one stage share its loop: one waits while the others multiply.
            longest = max(longest, wait)
            for source in plan.sources[key]:
                if not plan.pieces[source].stored and source not in plan.held:
                    cycles += num_elements(plan.pieces[source].region) * plan.pieces[source].dtype.itemsize / cache_rate
                    latency += fitted.global_cycles
    latency += longest
    for key in stage.pieces:
        piece = plan.pieces[key]
        elements = num_elements(piece.region)
        if stage.kind == "copy":
            cycles += max(elements * piece.dtype.itemsize / cache_rate, elements / 32)
            latency = fitted.global_cycles
            continue
        if piece.kind == "product":
            continue
        steps = elements * prod(e for _, e in stitcher.over(piece.value))
        flops = stitcher.flops(piece.value)
        operations += steps * flops
        kept = key in plan.held or stage.kind == "product" and stage.columns and not piece.stored
        access = 0 if kept else fitted.product_access_cycles if stage.kind == "product" else fitted.tile_access_cycles
        cycles += steps * (flops + access) / FMA_PER_CYCLE
        extent_of = dict(zip(stitcher.axes(piece.value), (s.extent for s in piece.region), strict=True)) | dict(stitcher.over(piece.value))
        for value, index in stitcher.touches(piece.value):
            if value in stitcher.inside:
                continue
            # An operand that is the same along an axis of the tile is read again from the first-level cache.
            different = prod(extent_of.get(a, 1) for a in frozenset().union(*(e.axes() for e in index)))
            cycles += min(steps, different) * stitcher.graph.type_of(value).dtype.itemsize / cache_rate
            latency = max(latency, fitted.global_cycles if different >= steps else fitted.cached_cycles)
        if piece.kind == "reduce":
            latency += fitted.shuffle_cycles * stage.lanes.bit_length() + fitted.sum_cycles * steps / max(elements * stage.lanes, 1)
    return cycles, latency, operations
