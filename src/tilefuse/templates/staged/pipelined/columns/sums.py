"""Sums of 16 rows of a tile in the registers of a warp, 64 columns at a time.

    lane       16 sums: pairs of columns of every 8, of its two rows
    exchange   lanes that hold the same columns share these: three steps halve the sums of a lane and double its rows

        lane 0 .. 31        16 sums of 2 rows       8 of 4       4 of 8       2 of 16 rows        stored: 64 columns, two a lane
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, linearise, number, substitute
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound, Call, Guard, const
from tilefuse.kernel.ir import Assign, Comment, Declare, KExpr, Reg, Shuffle, Store, VectorStore
from tilefuse.kernel.pipeline import WARPGROUP
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.pipelined.stages import STAGE_COLUMNS
from tilefuse.templates.staged.pipelined.state import ProductState

# Sums of a lane before the exchange.
LANE_SUMS = STAGE_COLUMNS // MMA_COLUMNS * NEIGHBOURS


def instructions_an_element() -> float:
    """Instructions with which a lane adds an element and exchanges its sums: for each sum that it keeps in a step two choices, a shuffle
    and an addition; and an addition for each of the elements of its two rows."""
    return 1 + 4 * (LANE_SUMS - NEIGHBOURS) / (2 * LANE_SUMS)


class ColumnSums:
    """The column sums of the stage at hand of 64 rows x 64 columns."""

    def __init__(self, w: ProductState) -> None:
        self.w = w
        self.arrays: dict[str, Reg] = {}

    def begin(self) -> None:
        """Before the stage's elements: every sum is 0."""
        w = self.w
        for name in w.form.down.points:
            array = Reg(w.fresh(f"{name}_sums"), F32)
            w.emit(Declare(array.name, F32, LANE_SUMS),
                   *(Assign(replace(array, index=number(n)), const(0, F32)) for n in range(LANE_SUMS)))
            self.arrays[name] = array

    def add(self, pair: Affine, neighbour: int) -> None:
        """The element at hand, of neighbour 0 or 1 in pair number `pair` of the lane's columns."""
        w = self.w
        for name, array in self.arrays.items():
            into = replace(array, index=w.simplified(pair * NEIGHBOURS + neighbour))
            w.combine("sum", [into], [w.here.body(name)], F32)

    def finish(self, first_row: Affine, first_column: Affine) -> None:
        """Behind the stage's elements: exchange, then each lane stores the sums of two columns. Both places: those of the stage."""
        w, thread = self.w, axis("thread")
        row = w.simplified(first_row + thread % WARPGROUP // WARP * MMA_ROWS)
        column = w.simplified(first_column + thread % WARP * NEIGHBOURS)
        for name, array in self.arrays.items():
            w.emit(Comment(f"%{name}: {MMA_ROWS} rows of each warp"))
            totals = self._exchanged([replace(array, index=number(n)) for n in range(LANE_SUMS)], name)
            out = Reg(w.fresh(f"{name}_out"), F32)
            w.emit(Declare(out.name, F32, NEIGHBOURS), *(Assign(replace(out, index=number(n)), e) for n, e in enumerate(totals)))
            with w.when(w.beyond(row, w.form.rows)):
                self._store(name, out, row, column)

    def _exchanged(self, sums: list[Reg], name: str) -> list[Reg]:
        """The sums of all rows of the warp that a lane keeps: of pair number lane / 4."""
        w, distance = self.w, WARP // 2
        while len(sums) > NEIGHBOURS:
            half = len(sums) // 2
            is_low = (Bound(w.simplified(axis("thread") % WARP // distance % 2), 0, 1),)
            halves: list[Reg] = []
            for low, high in zip(sums[:half], sums[half:], strict=True):
                sent, other, total = (Reg(w.fresh(f"{name}_{what}"), F32) for what in ("sent", "other", "half"))
                own: KExpr = Guard(is_low, low, high)
                w.emit(Declare(sent.name, F32, None, Guard(is_low, high, low)), Declare(other.name, F32),
                       Shuffle(other, sent, "xor", distance), Declare(total.name, F32, None, Call("add", (own, other))))
                halves.append(total)
            sums, distance = halves, distance // 2
        return sums

    def _store(self, name: str, out: Reg, row: Affine, column: Affine) -> None:
        """Both columns of a lane, where they exist."""
        w, columns = self.w, self.w.form.columns
        if columns % NEIGHBOURS:
            for n in range(NEIGHBOURS):
                with w.when(w.beyond(column + n, columns)):
                    w.emit(Store(w.buffers[name].name, self._offset(name, row, column + n), replace(out, index=number(n))))
            return
        lane = w.fresh("v")
        w.frame.extents[lane] = NEIGHBOURS
        with w.when(w.beyond(column, columns)):
            offset = self._offset(name, row, column + axis(lane))
            for start, width in vector_parts(offset, lane, NEIGHBOURS, F32):
                at = substitute(offset, {lane: number(start)}, w.extents)
                w.emit(VectorStore(w.buffers[name].name, at, out.name, number(start), width))

    def _offset(self, name: str, row: Affine, column: Affine) -> Affine:
        """Offset in memory of the sum of the rows that begin at `row`. Units: elements."""
        w, point = self.w, self.w.form.down.points[name]
        with w.at(**w.form.place(row, column)):
            at = tuple(w.index(point[a]) for a in w.graph.node_by_name[name].axes)
        return w.simplified(linearise(at, w.strides(name)))
