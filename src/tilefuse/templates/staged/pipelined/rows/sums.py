"""Reductions over the rows of a tile: sums in registers, the four lanes of a row, the blocks of a cluster.

    lane       two neighbouring columns of every 8, for rows r and r + 8 of every 64
    quad       shuffles between the four lanes that share these rows
    cluster    each block sends its part of every row to all blocks; all combine the parts in the order of the columns

Squares: a block adds up deviations from the mean of its own part, t / c of c elements, and the parts become
    T = sum t,  Q = sum q + c (t / c - T / n)^2.     Source: Chan, Golub and LeVeque 1983, The American Statistician 37(3).
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilefuse.domain.contraction import COLUMN, ROW
from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.ir.affine import Affine, axis, linearise, number, row_major_strides
from tilefuse.ir.dtype import F32, DType
from tilefuse.ir.graph import Node
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Bound, Call, Guard, Index, const
from tilefuse.kernel.ir import Assign, Comment, Declare, KExpr, Reg, Shuffle, Store
from tilefuse.kernel.pipeline import WARPGROUP_ROWS
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.warpgroup import HALF_ROWS, NEIGHBOURS
from tilefuse.templates.staged.pipelined.exchanges import is_by_squares, reduction_parts
from tilefuse.templates.staged.pipelined.places import whole_or_cut
from tilefuse.templates.staged.pipelined.results import Place, StagePlace, load_neighbours, load_once, reads_columns
from tilefuse.templates.staged.pipelined.rows.exchange import exchange_parts
from tilefuse.templates.staged.pipelined.rows.form import RowPass, RowStage
from tilefuse.templates.staged.pipelined.rows.tile import QUAD, RowTile
from tilefuse.templates.staged.pipelined.stages import STAGE_COLUMNS
from tilefuse.templates.staged.pipelined.state import ProductState


def reduce_rows(w: ProductState, tile: RowTile) -> None:
    """All stages; behind them `w.by_row` has every value of rows that results read, and the sums hold the elements of `w.source`."""
    for number_of, stage in enumerate(w.form.reduced.stages):
        w.emit(Comment(f"{', '.join('%' + r for r in stage.reductions)}: rows of the tile"))
        parts = {r: _declare(w, stage, r) for r in stage.reductions}
        for p in stage.passes:
            _pass(w, stage, p, tile, parts)
        if w.plan.exchanges:
            exchange_parts(w, tile, number_of, parts)
        _finish(w, stage, parts)
        _row_values(w, stage, tile)
    _store_rows(w, tile)


def _declare(w: ProductState, stage: RowStage, reduction: str) -> list[Reg]:
    """Register arrays of a reduction's parts, an element for each row of the thread, which hold the monoid's identity."""
    count = w.plan.choice.rows_of_thread
    node = w.graph.node_by_name[reduction]
    dtype = body_dtype(w, reduction)
    parts = reduction_parts(w.graph, stage, reduction)
    squares = is_by_squares(stage, reduction)
    starts = [const(0, p.dtype) for p in parts] if squares else list(KERNEL_MONOIDS[node.detail].identity(dtype))
    arrays = []
    for part, start in zip(parts, starts, strict=True):
        array = Reg(w.fresh(part.name), part.dtype)
        w.emit(Declare(array.name, array.dtype, count))
        w.emit(*(Assign(replace(array, index=number(slot)), start) for slot in range(count)))
        arrays.append(array)
    return arrays


def body_dtype(w: ProductState, reduction: str) -> DType:
    """Type of the elements that a reduction combines."""
    body = w.graph.node_by_name[reduction].body
    assert body is not None
    return dtype_of(body, lambda v: w.graph.type_of(v).dtype)


def total_of(stage: RowStage, reduction: str, parts: dict[str, list[Reg]]) -> Reg:
    """The sum of the elements whose squared deviations a reduction adds up."""
    twin = stage.totals.get(reduction)
    return parts[twin][0] if twin is not None else parts[reduction][0]


# -- passes over the sums ------------------------------------------------------------------------------------------------------


def _pass(w: ProductState, stage: RowStage, p: RowPass, tile: RowTile, parts: dict[str, list[Reg]]) -> None:
    """Once over the sums of the thread; then the lanes of each row combine their parts."""
    means = {r: _mean(w, r, total_of(stage, r, parts), tile) for r in p.reductions if p.squares}
    whole_or_cut(w, lambda: _elements(w, stage, p, tile, parts, means))
    w.source = p.target
    w.row_slot, w.sum = None, None
    for r in p.reductions:
        _quad(w, stage, p, r, parts[r])


def _elements(w: ProductState, stage: RowStage, p: RowPass, tile: RowTile, parts: dict[str, list[Reg]], means: dict[str, Reg]) -> None:
    """All elements of the thread."""
    choice, lines = w.plan.choice, w.form.rows
    for a in range(choice.rows_of_thread // 2):
        with w.loop("half", 2, unroll=w.unroll) as half:
            row = w.simplified(tile.row(2 * a) + half * HALF_ROWS)
            w.row_slot = half + a * 2
            with w.when(w.beyond(row, lines)):
                first = w.simplified(tile.first_column + tile.pair * NEIGHBOURS)
                load_once(w, _place(w, tile, a, half, number(0), row, first), lambda: _evaluate(w, p))
                with w.loop("b", choice.columns // MMA_COLUMNS, unroll=w.unroll) as b:
                    column = w.simplified(first + b * MMA_COLUMNS)
                    _pair(w, stage, p, _place(w, tile, a, half, b, row, column), parts, means)


def _place(w: ProductState, tile: RowTile, a: int, half: Affine, b: Affine, row: Affine, column: Affine) -> Place:
    """Pair number `b` of the lane's columns in a half of 64 rows: among the sums, and in the stages of fetched values."""
    choice, per_stage = w.plan.choice, STAGE_COLUMNS // MMA_COLUMNS
    height = choice.warpgroup_rows // WARPGROUP_ROWS
    stage = StagePlace(tile.group, w.simplified(b // per_stage * height + a), a, 0, tile.first_row, tile.first_column)
    return Place((b + a * (choice.columns // MMA_COLUMNS)) * 4 + half * 2, row, column, stage, tile.own_row + half * HALF_ROWS,
                 w.simplified(tile.pair * NEIGHBOURS + b % per_stage * MMA_COLUMNS))


def _pair(w: ProductState, stage: RowStage, p: RowPass, place: Place, parts: dict[str, list[Reg]], means: dict[str, Reg]) -> None:
    """Two neighbouring elements, where both exist or the first does."""
    columns = w.form.columns
    together = columns % NEIGHBOURS == 0
    if w.beyond(place.column + 1, columns) and not reads_columns(w, place, lambda: _evaluate(w, p)):
        _chosen_pair(w, stage, p, place, parts, means)
        return
    with w.when(w.beyond(place.column, columns)):
        if together:
            load_neighbours(w, place.sum, place.row, place.column, lambda: _evaluate(w, p), place)
        for v in range(NEIGHBOURS):
            with w.nested() as one, w.at(**{ROW: place.row, COLUMN: place.column + v}):
                w.sum = place.sum + v
                for r in p.reductions:
                    _accumulate(w, stage, p, r, parts[r], means)
                if p.target != p.source:
                    w.emit(Assign(w.first_sum(), _as_f32(w.element(p.target))))
            with w.when(() if together or not v else w.beyond(place.column + v, columns)):
                w.emit(*one.statements)


def _chosen_pair(w: ProductState, stage: RowStage, p: RowPass, place: Place, parts: dict[str, list[Reg]], means: dict[str, Reg]) -> None:
    """Two neighbouring elements that are computed wherever they lie; a reduction has its identity in place of those that do not exist."""
    for v in range(NEIGHBOURS):
        w.loads.clear()
        w.lookups.clear()
        with w.nested() as one, w.at(**{ROW: place.row, COLUMN: place.column + v}):
            w.sum = place.sum + v
            exists = w.beyond(place.column + v, w.form.columns)
            for r in p.reductions:
                _accumulate(w, stage, p, r, parts[r], means, exists)
            if p.target != p.source:
                w.emit(Assign(w.first_sum(), _as_f32(w.element(p.target))))
        w.emit(*one.statements)


def _evaluate(w: ProductState, p: RowPass) -> None:
    """Everything that a pass computes of an element before it is added up."""
    for r in p.reductions:
        w.here.body(r)
    if p.target != p.source:
        w.element(p.target)


def _accumulate(w: ProductState, stage: RowStage, p: RowPass, reduction: str, arrays: list[Reg], means: dict[str, Reg],
                exists: tuple[Bound, ...] = ()) -> None:
    """The element at hand into the parts of the current row, under `exists` where that is a question."""
    slot = w.row_slot
    assert slot is not None
    dtype, into = body_dtype(w, reduction), [replace(a, index=slot) for a in arrays]
    if p.squares:
        difference = Call("sub", (w.here.body(reduction), replace(means[reduction], index=slot)))
        off = w.register(_or_else(exists, difference, const(0, dtype)), dtype, f"{reduction}_off")
        w.emit(Assign(into[-1], Call("fma", (off, off, into[-1]))))
        return
    if is_by_squares(stage, reduction):
        if reduction not in stage.totals:
            w.combine("sum", into[:1], [_or_else(exists, w.here.body(reduction), const(0, dtype))], dtype)
        return
    node, point = w.graph.node_by_name[reduction], w.form.reduced.points[reduction]
    extents = [e for _, e in node.over]
    position = w.simplified(w.index(linearise(tuple(point[a] for a, _ in node.over), row_major_strides(tuple(extents)))))
    monoid = KERNEL_MONOIDS[node.detail]
    lifted = monoid.lift(w.here.body(reduction), Index(position), dtype)
    identities = monoid.identity(dtype)
    if _is_identity_beyond(w, node, exists, identities):
        exists = ()
    chosen = [_or_else(exists, e, identity) for e, identity in zip(lifted, identities, strict=True)]
    w.combine(node.detail, into, chosen, dtype)


def _is_identity_beyond(w: ProductState, node: Node, exists: tuple[Bound, ...], identities: Sequence[KExpr]) -> bool:
    """Whether a reduction's element already is the identity where the column does not exist: it guards itself more tightly."""
    body = node.body
    if not isinstance(body, Guard) or tuple(identities) != (body.otherwise,):
        return False
    point = {a: w.simplified(w.index(e)) for a, e in w.form.reduction_points[node.name].items()}
    with w.at(**point):
        own = [(w.simplified(w.index(b.index)), b) for b in body.bounds]
    return all(any(index == e.index and e.low <= b.low and b.high <= e.high for index, b in own) for e in exists)


def _or_else(exists: tuple[Bound, ...], e: KExpr, otherwise: KExpr) -> KExpr:
    return Guard(exists, e, otherwise) if exists else e


def _quad(w: ProductState, stage: RowStage, p: RowPass, reduction: str, arrays: list[Reg]) -> None:
    """The four lanes of each row combine the parts that a pass has computed; every lane ends with the result."""
    squares = is_by_squares(stage, reduction)
    monoid = "sum" if squares else w.graph.node_by_name[reduction].detail
    parts = arrays[-1:] if p.squares else arrays[:-1] if squares else arrays
    for slot in range(w.plan.choice.rows_of_thread if parts else 0):
        into = [replace(a, index=number(slot)) for a in parts]
        amount = QUAD // 2
        while amount:
            others = [Reg(w.fresh(f"{a.name}_other"), a.dtype) for a in parts]
            for mine, other in zip(into, others, strict=True):
                w.emit(Declare(other.name, other.dtype), Shuffle(other, mine, "xor", amount))
            w.combine(monoid, into, others, body_dtype(w, reduction))
            amount //= 2


def _mean(w: ProductState, reduction: str, total: Reg, tile: RowTile) -> Reg:
    """The mean of the block's part of each row, in a register array."""
    count, columns, lines = w.plan.choice.rows_of_thread, w.plan.choice.columns, w.form.columns
    share = Reg(w.fresh(f"{reduction}_share"), total.dtype)
    mean = Reg(w.fresh(f"{reduction}_mean"), total.dtype)
    w.emit(Comment(f"%{reduction}: deviations from the mean of the block's columns"))
    w.emit(Declare(share.name, share.dtype, None, const(1.0 / min(columns, lines), share.dtype)), Declare(mean.name, mean.dtype, count))
    if lines > columns and lines % columns:
        with w.when([Bound(w.simplified(tile.first_column), lines // columns * columns, lines)]):
            w.emit(Assign(share, const(1.0 / (lines % columns), share.dtype)))
    w.emit(*(Assign(replace(mean, index=number(slot)), Call("mul", (replace(total, index=number(slot)), share))) for slot in range(count)))
    return mean


# -- values of rows --------------------------------------------------------------------------------------------------------------


def _finish(w: ProductState, stage: RowStage, parts: dict[str, list[Reg]]) -> None:
    """Results of reductions from their complete parts."""
    for reduction in stage.reductions:
        node, arrays = w.graph.node_by_name[reduction], parts[reduction]
        if is_by_squares(stage, reduction) or len(arrays) == 1:
            w.by_row[reduction] = arrays[-1]
            continue
        result = Reg(w.fresh(reduction), node.type.dtype)
        count = w.plan.choice.rows_of_thread
        w.emit(Declare(result.name, result.dtype, count))
        for slot in range(count):
            own = tuple(replace(a, index=number(slot)) for a in arrays)
            w.emit(Assign(replace(result, index=number(slot)), KERNEL_MONOIDS[node.detail].finish(own, body_dtype(w, reduction))))
        w.by_row[reduction] = result


def _row_values(w: ProductState, stage: RowStage, tile: RowTile) -> None:
    """Maps over rows, once for each row of the thread."""
    for name in stage.values:
        dtype = w.graph.type_of(name).dtype
        array = Reg(w.fresh(name), dtype)
        w.emit(Declare(array.name, dtype, w.plan.choice.rows_of_thread))
        for slot in range(w.plan.choice.rows_of_thread):
            with w.when(w.beyond(tile.row(slot), w.form.rows)), w.at(**{ROW: tile.row(slot), COLUMN: tile.row_column}):
                w.row_slot = number(slot)
                value = w.element(name)
                w.emit(Assign(replace(array, index=number(slot)), value))
        w.by_row[name] = array
    w.row_slot = None


def _store_rows(w: ProductState, tile: RowTile) -> None:
    """Results with one element a row: the first lane of each quad, in the first block of a cluster."""
    choice = w.plan.choice
    for name in w.form.row_results:
        w.emit(Comment(f"%{name}: an element a row"))
        first = [Bound(tile.pair, 0, 1), *([Bound(axis("rank"), 0, 1)] if choice.cluster > 1 else [])]
        for slot in range(choice.rows_of_thread):
            with w.when([*first, *w.beyond(tile.row(slot), w.form.rows)]), w.at(**{ROW: tile.row(slot), COLUMN: tile.row_column}):
                w.row_slot = number(slot)
                w.emit(Store(w.buffers[name].name, w.result_offset(name), w.element(name)))
    w.row_slot = None


def _as_f32(e: KExpr) -> KExpr:
    return e if isinstance(e, Reg) and e.dtype == F32 else Call(F32.name, (e,))
