"""Rows of sums in the registers of the warp that computed them: maps and reductions along them, element for element and row by row.

Lane l holds columns 8 * b + 2 * (l % 4) and the next one of rows l / 4 and 8 below, for each 16 x 8 tile b of the matrix unit. Every value
of the stage has an array laid out like the sums; a value of the row has one element for each of the lane's rows, the same in four lanes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilefuse.domain.contraction import Contraction, Tiling
from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.domain.regions import inside
from tilefuse.ir.affine import Affine, from_terms, number, substitute
from tilefuse.ir.scalar import Bound, Call, Const, const
from tilefuse.kernel.ir import Assign, Declare, If, KExpr, Reg, Shuffle, Store
from tilefuse.templates.staged.stitched.plan import Piece, Stage
from tilefuse.templates.staged.stitched.points import at_point, keep
from tilefuse.templates.staged.stitched.reduce import accumulate, body_dtype
from tilefuse.templates.staged.stitched.values import Point, StitchValues


@dataclass(frozen=True)
class Place:
    """Where a lane is: its row (of `2 * rows` it holds) and first column, over the tile, and the element of an array at v columns on."""

    number: Affine
    row: Affine
    column: Affine
    element: Callable[[Affine], Affine]


class SumRows:
    """One warp's rows: `sums` are the products and their accumulators by value, `row` the first row of the warp's tile."""

    def __init__(self, w: StitchValues, stage: Stage, t: Tiling, sums: dict[str, tuple[Piece, Reg]], lead: list[Affine], row: Affine,
                 lane: Affine) -> None:
        self.w, self.stage, self.tiling, self.sums, self.lead, self.row, self.lane = w, stage, t, sums, lead, row, lane
        self.width = stage.vector
        self.of_row: dict[int, tuple[Piece, str]] = {}  # arrays of values of the row that are computed by now
        self.full: dict[int, Piece] = {}  # the others that are

    def emit(self) -> None:
        """All pieces of the stage, in order."""
        pieces = [self.w.plan.pieces[k] for k in self.stage.pieces]
        self.reduced = next(p for p in pieces if p.kind == "reduce")
        for p in pieces:
            if p.kind == "reduce":
                self._reduce(p)
            elif p.region == self.reduced.region:
                self._of_row(p)
            else:
                self._full(p)

    # -- places -------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _rows(self) -> Iterator[tuple[Affine, Affine]]:
        """(number, row in the tile) of each row of a lane."""
        w, t = self.w, self.tiling
        with w.loop("a", t.rows, unroll=w.unroll) as a, w.loop("half", 2, unroll=w.unroll) as half:
            yield 2 * a + half, self.row + 16 * a + 8 * half + self.lane // 4

    @contextmanager
    def _places(self) -> Iterator[Place]:
        w, t = self.w, self.tiling
        with w.loop("a", t.rows, unroll=w.unroll) as a, w.loop("b", t.columns, unroll=w.unroll) as b, \
                w.loop("half", 2, unroll=w.unroll) as half:
            yield Place(2 * a + half, self.row + 16 * a + 8 * half + self.lane // 4, 8 * b + 2 * (self.lane % 4),
                        lambda v: 4 * t.columns * a + 4 * b + 2 * half + v)

    def _point(self, row: Affine) -> Point:
        """A row of the tile as a point of the values of the row."""
        return tuple(self.w.simplified(e) for e in self.w.start(self.reduced.region, (*self.lead, row), number(0)))

    def _present(self, at: Point) -> tuple[Bound, ...]:
        """Bounds under which a row is one of the value: tiles reach beyond its end."""
        w = self.w
        shape = w.graph.type_of(self.reduced.value).shape
        return tuple(b for b in inside(self.reduced.region, at, shape, dict(w.plan.grid)) if not w.always(b))

    def _remember(self, place: Place, p: Piece, at: Point, v: Affine) -> None:
        """Makes known what registers hold at one element; of the sums only what the piece reads."""
        w = self.w
        row = self._point(place.row)
        for other, array in self.of_row.values():
            w.remember(other.value, row, Reg(array, other.dtype, place.number))
        for other in self.full.values():
            w.remember(other.value, at, Reg(w.held[other.key], other.dtype, place.element(v)))
        for value, (product, total) in self.sums.items():
            if product.key == p.key or product.key in w.plan.sources[p.key] and product.key not in self.full:
                held = with_bias(w, w.plan.contractions[value], Reg(total.name, total.dtype, place.element(v)), at)
                held = held if total.dtype == product.dtype else Call(product.dtype.name, (held,))
                w.remember(value, at, w.register(held, product.dtype, value))

    # -- pieces -------------------------------------------------------------------------------------------------------------

    def _full(self, p: Piece) -> None:
        """A map over the elements: into its array, and to memory where somebody needs it there."""
        w = self.w
        if p.key not in w.held:
            w.held[p.key] = w.fresh(p.value)
            w.emit(Declare(w.held[p.key], p.dtype, 4 * self.tiling.rows * self.tiling.columns))
        with self._places() as place:
            for first in range(0, 2, self.width):
                self._elements(p, place, first)
        self.full[p.key] = p

    def _elements(self, p: Piece, place: Place, first: int) -> None:
        """Neighbouring elements from one of a lane's columns on; zeros where they lie beyond the last one."""
        w = self.w
        column = place.column + first
        beyond = tuple(b for b in (Bound(column, 0, self.stage.columns),) if not w.always(b))
        with w.nested() as inner:
            local = (*self.lead, place.row, column_within(w, column, self.stage.columns) if beyond else column)

            def known(v: Affine) -> None:
                self._remember(place, p, tuple(w.simplified(e) for e in w.start(p.region, local, v)), v + first)

            w.before_lane, w.keep_at = known, lambda v: place.element(v + first)
            at_point(w, [p], local, self.width)
            w.before_lane = w.keep_at = None
        with w.nested() as other:
            keep(w, p, [const(0, p.dtype)] * self.width, lambda v: place.element(v + first))
        w.emit(*((If(beyond, tuple(inner.statements), tuple(other.statements)),) if beyond else inner.statements))

    def _array(self, p: Piece, stem: str, start: Const) -> str:
        """A new array with an element for each row of the lane."""
        w = self.w
        name = w.fresh(stem)
        w.emit(Declare(name, start.dtype, 2 * self.tiling.rows))
        with self._rows() as (n, _):
            w.emit(Assign(Reg(name, start.dtype, n), start))
        return name

    def _of_row(self, p: Piece) -> None:
        """A map with one value a row: all four lanes compute it, the first one stores it."""
        w = self.w
        name = self._array(p, p.value, const(0, p.dtype))
        with self._rows() as (n, row):
            at = self._point(row)
            with w.when(self._present(at)):
                for other, array in self.of_row.values():
                    w.remember(other.value, at, Reg(array, other.dtype, n))
                w.emit(Assign(Reg(name, p.dtype, n), w.body(w.nodes[p.value], at)))
            self._store_row(p, at, Reg(name, p.dtype, n))
        self.of_row[p.key] = p, name

    def _store_row(self, p: Piece, at: Point, value: Reg) -> None:
        w = self.w
        first = Bound(self.lane % 4, 0, 1)
        if p.stored:
            with w.when((first,)):
                w.emit(Store(w.shared[p.key].name, w.tile_offset(p, at), value))
        if p.written:
            with w.when((first, *self._present(at), *w.writers(p))):
                w.emit(Store(w.buffers[p.value].name, w.global_offset(p.value, at), value))

    def _reduce(self, p: Piece) -> None:
        """A reduction along the rows: the lane's own elements, then those of the other three lanes."""
        w, node = self.w, self.w.nodes[p.value]
        dtype = body_dtype(w, node)
        arrays = [(self._array(p, f"{p.value}_{n}" if n else p.value, start), start.dtype)
                  for n, start in enumerate(KERNEL_MONOIDS[node.detail].identity(dtype))]
        over = node.over[0][0]
        with self._places() as place:
            at = self._point(place.row)
            parts = [Reg(name, kind, place.number) for name, kind in arrays]
            with w.when((*self._present(at), *((Bound(place.column, 0, self.stage.columns),) if self.width == 2 else ()))):
                for v in range(2):
                    column = w.simplified(place.column + v)
                    with w.when((Bound(column, 0, self.stage.columns),) if self.width == 1 else ()):
                        if not w.always(Bound(column, 0, self.stage.columns)):
                            column = column_within(w, place.column + (v if self.width == 1 else 0), self.stage.columns)
                            column = column if self.width == 1 else column + v
                        index = {over: column}
                        self._remember(place, p, tuple(substitute(e, index) for e in (*at, column)), number(v))
                        accumulate(w, node, parts, at, column)
        amount = 2
        while amount:
            with self._rows() as (n, _):
                others = []
                for name, kind in arrays:
                    other = Reg(w.fresh(f"{name}_other"), kind)
                    w.emit(Declare(other.name, kind), Shuffle(other, Reg(name, kind, n), "xor", amount))
                    others.append(other)
                w.combine(node.detail, [Reg(name, kind, n) for name, kind in arrays], others, dtype)
            amount //= 2
        total = self._array(p, f"{p.value}_all", const(0, p.dtype))
        with self._rows() as (n, row):
            result = KERNEL_MONOIDS[node.detail].finish(tuple(Reg(name, kind, n) for name, kind in arrays), dtype)
            w.emit(Assign(Reg(total, p.dtype, n), result))
            self._store_row(p, self._point(row), Reg(total, p.dtype, n))
        self.of_row[p.key] = p, total


def column_within(w: StitchValues, column: Affine, columns: int) -> Affine:
    """A column (of even ones the first of two) that a guard keeps below `columns`, under a name whose extent says so."""
    if columns <= 2:
        return number(0)
    if columns % 2:
        return w.let("column", column, columns)
    half = from_terms([(atom, c // 2) for atom, c in column.terms], column.const // 2)
    return 2 * w.let("pair", half, columns // 2)


def with_bias(w: StitchValues, contraction: Contraction, total: Reg, at: Point) -> KExpr:
    """The sum of products with the bias of its element, if there is one, before it is rounded."""
    if not contraction.bias:
        return total
    by_axis = dict(zip(contraction.axes, at, strict=True))
    bias = w.element(contraction.bias, tuple(substitute(e, by_axis) for e in contraction.bias_index))
    dtype = w.graph.type_of(contraction.bias).dtype
    widened = bias if dtype == total.dtype else Call(total.dtype.name, (bias,))
    return Call("add", (total, widened))
