"""Sums of a slot times the scales of their rows and columns, added to the sums of a tile in f32.

    products of the slot start | load scales of its block | wait for the products | sum += sum of the slot * (row scale * column scale)
"""
from __future__ import annotations

from tilefuse.domain.contraction import INNER
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Call, Expr, Read, const, walk
from tilefuse.kernel.ir import Assign, Declare, KExpr, Reg, Stmt
from tilefuse.kernel.pipeline import WARPGROUP, WARPGROUP_ROWS
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP
from tilefuse.target.warpgroup import HALF_ROWS, LANE_ELEMENTS, NEIGHBOURS
from tilefuse.templates.staged.pipelined.places import TilePlace
from tilefuse.templates.staged.pipelined.state import ProductState


def scaled_sums(w: ProductState, parts: tuple[Reg, ...], group: Affine, place: TilePlace,
                inner: Affine) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """(loads of the slot's scales, additions of its sums). group: the warpgroup's part of the tile's rows; inner: the slot's first element.

    Exact: to the roundings of the scales' product, of its product with a sum of the slot, and of the addition.
    """
    with w.nested() as loads:
        scales = [_Scales(w, n, group, place, inner) for n in range(len(parts))]
        w.emit(*(s for each in scales for s in each.statements))
    additions: list[Stmt] = []
    for total, part, scale in zip(w.totals, parts, scales, strict=True):
        for n in range(w.plan.sums):
            at = number(n)
            own, scaled = Reg(total.name, total.dtype, at), scale.times(Reg(part.name, part.dtype, at), n)
            additions.append(Assign(own, Call("add", (own, scaled))))
    return tuple(loads.statements), tuple(additions)


class _Scales:
    """The scales of one product's sums that a thread holds: a register for each row and each group of columns with a scale in common."""

    def __init__(self, w: ProductState, number_of: int, group: Affine, place: TilePlace, inner: Affine) -> None:
        self.w, self.columns = w, w.plan.choice.columns
        of_rows, of_columns = w.form.products[number_of].scales or (const(1, F32), const(1, F32))
        along_rows, along_columns = (of_columns, of_rows) if w.form.swapped else (of_rows, of_columns)
        thread = axis("thread") % WARPGROUP
        first_row = place.first_row + group * w.plan.choice.warpgroup_rows + thread // WARP * MMA_ROWS + thread % WARP // 4
        first_column = place.first_column + thread % 4 * NEIGHBOURS
        self.pairs: dict[tuple[str, str], Reg] = {}
        with w.nested() as frame:
            self.rows = [self._scale(along_rows, first_row + a * WARPGROUP_ROWS + half * HALF_ROWS, place.first_column, inner, True)
                         for a in range(w.plan.choice.warpgroup_rows // WARPGROUP_ROWS) for half in range(2)]
            self.of_columns = [self._scale(along_columns, place.first_row, first_column + b * MMA_COLUMNS + v, inner, False)
                               for b in range(self.columns // MMA_COLUMNS) for v in range(NEIGHBOURS)]
            # Scales of single columns would need a register for each of them and each row.
            columns = {c.name: c for c in self.of_columns}
            for row in self.rows if len(columns) <= len(self.rows) else ():
                for column in columns.values():
                    made = w.register(Call("mul", (row, column)), F32, "scale")
                    assert isinstance(made, Reg)
                    self.pairs[row.name, column.name] = made
        self.statements = tuple(frame.statements)

    def times(self, part: KExpr, n: int) -> KExpr:
        """Sum n of the thread times its scales."""
        place, neighbour = divmod(n % LANE_ELEMENTS, NEIGHBOURS)
        a, b = divmod(n // LANE_ELEMENTS, self.columns // MMA_COLUMNS)
        row, column = self.rows[a * 2 + place], self.of_columns[b * NEIGHBOURS + neighbour]
        pair = self.pairs.get((row.name, column.name))
        if pair is not None:
            return Call("mul", (part, pair))
        by_row: KExpr = Call("mul", (part, row))
        return Call("mul", (by_row, column))

    def _scale(self, scale: Expr, row: Affine, column: Affine, inner: Affine, of_row: bool) -> Reg:
        """A scale at a place of the tile; 0 beyond the product's ends. Neighbours whose elements are the same share a register."""
        w, form = self.w, self.w.form
        line, lines = (row, form.extents[form.row_axis]) if of_row else (column, form.extents[form.column_axis])
        with w.at(**form.place(w.simplified(row), w.simplified(column)), **{INNER: w.simplified(inner)}):
            read = (x for x in walk(scale) if isinstance(x, Read))
            key = ("scale", of_row, scale, *((x.value, *(w.simplified(w.index(i)) for i in x.index)) for x in read))
            held = w.loaded(key)
            if isinstance(held, Reg):
                return held
            bounds = (*w.beyond(line, lines), *w.beyond(inner, form.inner))
            made = Reg(w.fresh("scale"), F32)
            w.emit(Declare(made.name, F32, None, const(0, F32)))
            with w.when(bounds):
                w.emit(Assign(made, w.expression(scale)))
        w.hold(key, made)
        return made
