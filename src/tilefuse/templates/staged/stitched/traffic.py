"""Traffic of kernels of stages: bytes that stitched kernels and walks between products move through L2 and shared memory.

    product, softmax:   every block reads its rows of the left operand and all of the right one        L2       blocks x both tiles
                        warps read fragments as often as their tiles share a row or column             shared   written once, read so often
"""
from __future__ import annotations

from itertools import chain
from math import prod

from tilefuse.domain.contraction import Tiling
from tilefuse.domain.regions import Region, num_elements
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP
from tilefuse.target.memory import SECTOR_BYTES
from tilefuse.templates.staged.stitched.pattern import StitchPattern
from tilefuse.templates.staged.stitched.plan import Piece, Stage, StitchPlan
from tilefuse.templates.staged.stitched.record import Stitched


def stitched_traffic(stitcher: StitchPattern, plan: StitchPlan, choice: Stitched) -> tuple[int, int]:
    """(bytes between L2 and the multiprocessors, bytes written to and read from shared memory) of all blocks. Units: bytes.

    A stage reads an element of a tile once, however many of its threads want it; a product reads it for every warp tile that multiplies it.
    Pieces that reach beyond their value count what is there.
    """
    graph = plan.graph
    tiles = prod(n for _, n in plan.grid)
    grid = dict(plan.grid)
    l2_bytes = sum(graph.type_of(r).num_bytes for r in graph.results)
    shared_bytes = 0
    for stage in plan.stages:
        once = bool(choice.groups) and plan.is_once(stage)
        for key in (*stage.pieces, *stage.products):
            piece = plan.pieces[key]
            turns = choice.groups if once else tiles
            if piece.kind == "copy":
                l2_bytes += _all_tiles(piece, graph.type_of(piece.value).shape, grid, turns) * piece.dtype.itemsize
            elif piece.kind != "product":
                extents = stitcher.loop_extents(piece.value, piece.region)
                l2_bytes += turns * sum(read.different(extents) * read.itemsize for read in stitcher.outside_reads(piece.value))
            if piece.stored and key in stage.pieces:
                shared_bytes += turns * num_elements(piece.region) * piece.dtype.itemsize
        shared_bytes += tiles * 2 * stage.exchange_bytes
        for key in stage.products:
            outside, on_chip = _operands(plan, stage, plan.pieces[key])
            l2_bytes += tiles * outside
            shared_bytes += tiles * on_chip
        shared_bytes += tiles * sum(_read_of_tiles(stitcher, plan, stage, plan.pieces[k]) for k in stage.pieces)
    return l2_bytes, shared_bytes


def partial_sectors(plan: StitchPlan) -> int:
    """Sectors of which stores of a warp write a part: results whose columns neighbouring threads take in strips that are no whole sectors.

        strips of 5 columns of f32      | 0 1 2 3 4 | 5 6 7 8 9 | ..      a strip touches one sector of 8 or two, and fills none
    """
    sectors = 0
    for stage in plan.stages:
        t = stage.tiling
        products = [plan.contractions[plan.pieces[k].value] for k in stage.products]
        if t is None or not t.strip or t.split > 1 or not all(c.inner_last_right for c in products):
            continue
        for key in dict.fromkeys((*stage.pieces, *stage.products)):
            value = plan.pieces[key].value
            if value not in plan.graph.results:
                continue
            result = plan.graph.type_of(value)
            run_bytes = t.strip * result.dtype.itemsize
            if run_bytes % SECTOR_BYTES:
                touched = 1 + (run_bytes - result.dtype.itemsize) / SECTOR_BYTES
                sectors += int(result.num_elements / t.strip * min(touched, 2.0))
    return sectors


def _all_tiles(piece: Piece, shape: tuple[int, ...], grid: dict[str, int], turns: int) -> int:
    """Elements of a copied piece over all tiles, without those beyond the ends of its value."""
    axes = [a for s in piece.region for a in s.offset.axes()]
    if turns != prod(grid.values()) or len(set(axes)) < len(axes):
        return turns * num_elements(piece.region)
    elements = prod(n for a, n in grid.items() if a not in axes)
    for span, extent in zip(piece.region, shape, strict=True):
        step, steps = 0, 1
        match span.offset.terms:
            case ():
                pass
            case ((str() as a, step),):
                steps = grid[a]
            case _:
                return turns * num_elements(piece.region)
        elements *= elements_within(span.offset.const, step, steps, span.extent, extent)
    return elements


def elements_within(begin: int, step: int, steps: int, extent: int, full: int) -> int:
    """Elements within a dimension of `full` elements of spans of `extent`: `steps` of them, `step` apart from `begin` on.

    Cost: by the spans that reach beyond an end of the dimension, which are few; those that lie inside are counted at once.
    """
    # Numbers of the spans that lie inside the dimension.
    first, end = (max(-(begin // step), 0), min((full - extent - begin) // step + 1, steps)) if step > 0 else (0, 0)
    whole = max(end - first, 0)
    begins = (begin + step * n for n in (chain(range(first), range(end, steps)) if whole else range(steps)))
    return whole * extent + sum(max(0, min(b + extent, full) - max(b, 0)) for b in begins)


def _read_of_tiles(stitcher: StitchPattern, plan: StitchPlan, stage: Stage, piece: Piece) -> int:
    """Bytes that the loops of a map or reduction read of tiles in shared memory."""
    if piece.kind in ("copy", "product"):
        return 0
    extents = stitcher.loop_extents(piece.value, piece.region)
    stored = {plan.pieces[k].value: plan.pieces[k] for k in plan.sources[piece.key]
              if plan.pieces[k].stored and not (k in stage.pieces and stage.kind == "rows")}
    return sum(prod(extents.get(a, 1) for a in frozenset[str]().union(*(e.axes() for e in index))) * stored[value].dtype.itemsize
               for value, index in stitcher.touches(piece.value) if value in stored)


def _operands(plan: StitchPlan, stage: Stage, product: Piece) -> tuple[int, int]:
    """Bytes that one tile of a product reads in global memory, and in shared memory."""
    assert stage.tiling is not None, "products have a tiling"
    contraction = plan.contractions[product.value]
    left, right = _fragment_reads(stage.tiling, product.region, contraction.inner)
    outside = on_chip = 0
    for key in plan.sources[product.key]:
        source = plan.pieces[key]
        times = left if source.value == contraction.left else right if source.value == contraction.right else 1.0
        if key in plan.held or key in stage.pieces:
            continue
        if source.stored:
            on_chip += int(num_elements(source.region) * source.dtype.itemsize * times)
        elif source.kind == "copy":
            outside += num_elements(source.region) * source.dtype.itemsize
    return outside, on_chip


def _fragment_reads(t: Tiling, region: Region, inner: int) -> tuple[float, float]:
    """How many times all of the left and all of the right operand's tile go from shared memory to registers."""
    rows, columns = num_elements(region[:-1]), region[-1].extent
    if t.unit == "mma":
        return -(-columns // (MMA_COLUMNS * t.columns)), max(rows / (MMA_ROWS * t.rows), 1.0)
    # A warp's lanes cover a patch of thread tiles, and read what they have in common once.
    lanes = max(WARP // t.split, 1)
    wide = max(columns // t.columns, 1)
    across = min(t.strip or (t.side if t.split > 1 else lanes), lanes, wide)
    down = max(lanes // across, 1)
    return max(columns / (across * t.columns), 1.0), max(rows / (down * t.rows), 1.0)
