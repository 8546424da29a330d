"""The left operand of the next product from the sums of this one: maps in registers, rounded to 16 bits where they lie.

    sums of 64 rows x 8 columns        thread has   (r, c) (r, c+1) (r+8, c) (r+8, c+1)
    left operand, 8 inner elements     thread has   the same places, so no element changes its thread
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.domain.contraction import COLUMN, ROW
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import Assign, Comment, Declare, KExpr, Reg
from tilefuse.kernel.pipeline import WARPGROUP, WARPGROUP_ROWS
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP
from tilefuse.target.warpgroup import HALF_ROWS, LANE_ELEMENTS, NEIGHBOURS
from tilefuse.templates.staged.chain.plan import DEPTH, INSTRUCTION_INNER, PlannedLayer
from tilefuse.templates.staged.chain.state import ChainState
from tilefuse.templates.staged.online.plan import padded
from tilefuse.templates.staged.pipelined.results import load_neighbours


@dataclass(frozen=True)
class Piece:
    """Elements of one filling: `columns` inner elements from `first` on, in a register array of a thread.

    row, pair: of the thread's first element in 64 rows and 8 columns; tall: the first row of the warpgroup
    """

    name: str
    array: str
    dtype: DType
    first: int
    columns: int
    tall: Affine
    row: Affine
    pair: Affine


def left_operand(w: ChainState, layer: PlannedLayer, first_row: Affine) -> list[str]:
    """Register arrays of the next product's left operand, one for each of its fillings. Elements beyond its columns are zeros."""
    assert layer.ahead is not None
    w.take(layer.ahead)
    name, inner = w.form.graph.results[0], w.form.columns
    w.emit(Comment(f"%{name}: from the sums of %{w.form.product.name} to the next left operand"))
    thread, choice = axis("thread"), w.chain.choice
    tall = first_row + (thread // WARPGROUP * w.chain.rows if choice.warpgroups > 1 else number(0))
    own_row = w.let("own_row", thread % WARPGROUP // WARP * MMA_ROWS + thread % WARP // 4, WARPGROUP_ROWS)
    pair = w.let("pair", thread % 4, 4)
    arrays: list[str] = []
    for first in range(0, inner, DEPTH):
        columns = min(DEPTH, padded(inner - first, INSTRUCTION_INNER))
        arrays.append(w.fresh(f"{name}_left"))
        dtype = w.form.graph.type_of(name).dtype
        w.emit(Declare(arrays[-1], dtype, w.chain.rows * columns // WARPGROUP))
        piece = Piece(name, arrays[-1], dtype, first, columns, tall, own_row, pair)
        full = min(inner - first, columns) // MMA_COLUMNS
        for a in range(w.chain.rows // WARPGROUP_ROWS):
            if full:
                with w.loop("b", full, unroll=w.unroll) as b:
                    _eight_columns(w, layer, piece, a, b)
            for rest in range(full, columns // MMA_COLUMNS):
                _eight_columns(w, layer, piece, a, number(rest))
    return arrays


def _eight_columns(w: ChainState, layer: PlannedLayer, piece: Piece, a: int, b: Affine) -> None:
    """A thread's elements in the `a`-th 64 rows and the `b`-th 8 columns of a piece."""
    sum_tile = a * (layer.columns // MMA_COLUMNS) + piece.first // MMA_COLUMNS + b
    left_tile = a * (piece.columns // MMA_COLUMNS) + b
    column = w.simplified(piece.first + b * MMA_COLUMNS + piece.pair * NEIGHBOURS)
    for half in range(LANE_ELEMENTS // NEIGHBOURS):
        row = w.simplified(piece.tall + a * WARPGROUP_ROWS + piece.row + half * HALF_ROWS)
        at = half * NEIGHBOURS
        _neighbours(w, piece, sum_tile * LANE_ELEMENTS + at, left_tile * LANE_ELEMENTS + at, row, column)


def _neighbours(w: ChainState, piece: Piece, first_sum: Affine, first_left: Affine, row: Affine, column: Affine) -> None:
    """Two neighbouring elements; zeros in columns beyond the operand's end, and in rows beyond it where maps load elements of a row."""
    inner = w.form.columns
    both = not w.beyond(column + 1, inner)
    rows = w.beyond(row, w.form.rows) if _loads_rows(w, piece, first_sum, row, column) else ()
    zero = const(0, piece.dtype)
    if rows or not both:
        w.emit(*(Assign(Reg(piece.array, piece.dtype, first_left + v), zero) for v in range(NEIGHBOURS)))
    with w.when(rows):
        if both:
            load_neighbours(w, first_sum, row, column, lambda: w.element(piece.name))
        rounded = _rounded(w, first_sum, row, column) if both else None
        for v in range(NEIGHBOURS):
            # A frame for each element: what it computes is not its neighbour's.
            with w.nested() as one, w.at(**{ROW: row, COLUMN: column + v}):
                w.sum = first_sum + v
                if rounded is not None:
                    w.hold((w.form.product.name, 0), Reg(rounded, w.form.product.type.dtype, number(v)))
                w.emit(Assign(Reg(piece.array, piece.dtype, first_left + v), w.element(piece.name)))
            with w.when(() if both else w.beyond(column + v, inner)):
                w.emit(*one.statements)


def _rounded(w: ChainState, first_sum: Affine, row: Affine, column: Affine) -> str:
    """The register array of two neighbouring elements of the product, rounded together: one instruction, and one register for both."""
    product = w.form.product
    dtype = product.type.dtype
    pair = w.fresh(f"{product.name}_pair")
    values: list[KExpr] = []
    for v in range(NEIGHBOURS):
        with w.at(**{ROW: row, COLUMN: column + v}):
            w.sum = first_sum + v
            values.append(Call(dtype.name, (w.here.unrounded(product.name, 0),)))
    w.emit(Declare(pair, dtype, NEIGHBOURS), *(Assign(Reg(pair, dtype, number(v)), e) for v, e in enumerate(values)))
    return pair


def _loads_rows(w: ChainState, piece: Piece, first_sum: Affine, row: Affine, column: Affine) -> bool:
    """Whether maps load elements of the row at hand."""
    w.loads.clear()
    with w.nested(), w.at(**{ROW: row, COLUMN: column}):
        w.sum = first_sum
        w.element(piece.name)
    return any(offset.axes() & (piece.row.axes() | piece.tall.axes()) - piece.pair.axes() for _, offset in w.loads)
