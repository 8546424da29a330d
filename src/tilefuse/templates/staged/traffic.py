"""Traffic of kernels of stages: bytes that stitched kernels and walks between products move through L2 and shared memory.

    product, softmax:   every block reads its rows of the left operand and all of the right one        L2       blocks x both tiles
                        warps read fragments as often as their tiles share a row or column             shared   written once, read so often
"""
from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilefuse.domain.contraction import MMA_COLUMNS, MMA_ROWS, WARP, Tiling
from tilefuse.domain.regions import Region, num_elements
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Expr, Index, Lookup, Read, walk
from tilefuse.templates.staged.online.choose import LANES, OnlinePlan, operands
from tilefuse.templates.staged.online.products import LEAD, ROW, WALK
from tilefuse.templates.staged.record import Stitched
from tilefuse.templates.staged.stitch_pattern import StitchPattern
from tilefuse.templates.staged.stitch_plan import Piece, Stage, StitchPlan


def stitched_traffic(graph: Graph, plan: StitchPlan, choice: Stitched) -> tuple[int, int]:
    """(bytes between L2 and the multiprocessors, bytes written to and read from shared memory) of all blocks. Units: bytes.

    A stage reads an element of a tile once, however many of its threads want it; a product reads it for every warp tile that multiplies it.
    Pieces that reach beyond their value count what is there.
    """
    stitcher = StitchPattern(graph)
    stitcher.analyse()
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
                l2_bytes += turns * sum(_read_directly(stitcher, piece))
            if piece.stored and key in stage.pieces:
                shared_bytes += turns * num_elements(piece.region) * piece.dtype.itemsize
        for key in stage.products:
            outside, on_chip = _operands(plan, stage, plan.pieces[key])
            l2_bytes += tiles * outside
            shared_bytes += tiles * on_chip
        shared_bytes += tiles * sum(_read_of_tiles(stitcher, plan, stage, plan.pieces[k]) for k in stage.pieces)
    return l2_bytes, shared_bytes


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
        begins = (span.offset.const + step * n for n in range(steps))
        elements *= sum(max(0, min(b + span.extent, extent) - max(b, 0)) for b in begins)
    return elements


def _extents(stitcher: StitchPattern, piece: Piece) -> dict[str, int]:
    """Extents of the loops that compute a piece."""
    return dict(zip(stitcher.axes(piece.value), (s.extent for s in piece.region), strict=True)) | dict(stitcher.over(piece.value))


def _different(extents: dict[str, int], axes: frozenset[str]) -> int:
    return prod(extents.get(a, 1) for a in axes)


def _read_directly(stitcher: StitchPattern, piece: Piece) -> Iterator[int]:
    """Bytes of boundary values that the loops of a map or reduction read where they lie."""
    extents = _extents(stitcher, piece)
    for value, index in stitcher.touches(piece.value):
        if value not in stitcher.inside:
            axes = frozenset[str]().union(*(e.axes() for e in index))
            yield _different(extents, axes) * stitcher.graph.type_of(value).dtype.itemsize


def _read_of_tiles(stitcher: StitchPattern, plan: StitchPlan, stage: Stage, piece: Piece) -> int:
    """Bytes that the loops of a map or reduction read of tiles in shared memory."""
    if piece.kind in ("copy", "product"):
        return 0
    extents = _extents(stitcher, piece)
    stored = {plan.pieces[k].value: plan.pieces[k] for k in plan.sources[piece.key]
              if plan.pieces[k].stored and not (k in stage.pieces and stage.kind == "rows")}
    return sum(_different(extents, frozenset[str]().union(*(e.axes() for e in index))) * stored[value].dtype.itemsize
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


def online_traffic(plan: OnlinePlan) -> tuple[int, int]:
    """The same of a walk between products: operands of its columns once a block, what it holds of its rows once.

    Units: bytes. Reads of shared memory as `choose_online` estimates them.
    """
    form, choice = plan.form, plan.choice
    turns = -(-form.length // choice.columns)
    extents = {LEAD: 1, ROW: min(choice.rows, form.num_rows), WALK: form.length}
    block = sum(s.inner * (extents[ROW] * s.left.dtype.itemsize + form.length * s.right.dtype.itemsize) for s in form.scores)
    block += sum(form.length * w.width * w.right.dtype.itemsize for w in form.weighted)
    block += sum(_beside(plan, extents))
    depth = sum(plan.inner(n) for n in range(len(form.scores))) + sum(plan.width(n) for n in range(len(form.weighted)))
    itemsize = form.scores[0].right.dtype.itemsize
    if plan.unit == "mma":
        read = choice.columns * depth * itemsize * (choice.threads // WARP)
    else:
        across = choice.columns // LANES
        read = int(choice.rows * choice.columns * depth * form.sum_dtype.itemsize * (1 / (4 * across) + 1 / (2 * plan.warp_rows)) / 2)
    walked = sum(t.rows * t.columns * t.dtype.itemsize for t in plan.tiles if t.role != "left")
    once = sum(t.rows * t.columns * t.dtype.itemsize for t in plan.tiles if t.role == "left")
    written = sum(form.graph.type_of(r).num_bytes for r in form.graph.results)
    return plan.num_blocks * block + written, plan.num_blocks * (turns * (walked + read) + once)


def _beside(plan: OnlinePlan, extents: dict[str, int]) -> Iterator[int]:
    """Bytes of boundary values that a block reads beside the operands (biases, masks)."""
    form = plan.form
    known = {o.value for o in operands(form)} | {r.value for r in form.reads.values()}
    bodies: list[Expr] = [t.body for t in (*form.totals, *(w.total for w in form.weighted))]
    bodies += [b for b in (*(s.bias for s in form.scores), *(w.bias for w in form.weighted)) if b is not None]
    reads = dict.fromkeys(e for body in bodies for e in walk(body) if isinstance(e, Read | Lookup) and e.value not in known)
    inputs = {v.name: v.type for v in form.graph.inputs}
    for e in reads:
        if e.value in inputs:
            yield prod(extents.get(a, 1) for a in _axes(e)) * inputs[e.value].dtype.itemsize


def _axes(e: Expr) -> frozenset[str]:
    """Axes that the subscripts in an expression depend on."""
    affine = [i for x in walk(e) for i in (x.index if isinstance(x, Read) else (x.affine,) if isinstance(x, Index) else ())]
    return frozenset[str]().union(*(i.axes() for i in affine))
