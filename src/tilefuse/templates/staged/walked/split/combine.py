"""Parts of the walked axis become one: each block stores the maxima, sums and products of its rows, and the last one of
a tile to do so adds them up.

    part p left      m[p], n[p], s[p], o[p]          maximum; number that powers are relative to, negated; sum; weighted products
    n = least n[p]   f[p] = 2 ** (n - n[p])          a part that has seen nothing but -inf has n[p] = inf and f[p] = 0
    m = max m[p]     s = sum f[p] s[p]     o = sum f[p] o[p]

Parts are added in their order, so results are equal from run to run. All threads of the block share the products of a row, of which few
rows would leave most of the threads that multiplied them idle; combined products go back to those through shared memory.
Source: Rabe and Staats 2021, arXiv:2112.05682, section 3, sums of parts relative to their own maxima.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import BOOL, F32
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, KExpr, LastBlock, Load, Reg, Stmt, Store, VectorLoad, VectorStore
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.staged.online.ends import INFINITY
from tilefuse.templates.staged.online.fragments import Fragment, over_lanes
from tilefuse.templates.staged.online.lazy import LazyTop
from tilefuse.templates.staged.walked.split.parts import NEGATED, OWN
from tilefuse.templates.staged.walked.state import WalkState


class PartsOfTile:
    """The statements behind the turns of a part. here, product: the thread's scores and products; lazy: as of `WalkEnd`."""

    def __init__(self, w: WalkState, here: Fragment, product: Fragment, lazy: dict[str, LazyTop]) -> None:
        assert w.walk.sums is not None and w.sums_of_parts is not None
        self.w, self.here, self.products, self.lazy = w, here, product, lazy
        self.sums, self.buffers, self.parts = w.walk.sums, w.sums_of_parts, w.walk.choice.parts
        self.weighted = w.form.weighted[0]

    def store(self, tile: Affine, part: Affine) -> Reg:
        """Stores the part at hand; whether its block is the last one of the tile to do so."""
        w, here = self.w, self.here
        w.emit(Comment(f"%{self.weighted.value}: a part of the walked axis, one of {self.parts}, for the last block of the tile"))
        for t in w.form.sums:
            over_lanes(w, "add", w.carried[t.value], here)
        with w.loop("i", here.rows, unroll=w.unroll) as i:
            row = w.simplified(here.row(i))
            with w.when(self._of_tile(row)):
                with w.when([Bound(here.lane, 0, 1)]):
                    for value in self.buffers.place_by_value:
                        place = w.simplified(self.buffers.total(tile, part, row, value))
                        w.emit(Store(self.buffers.totals.name, place, self._at(value, i)))
                with w.loop("g", self.products.groups, unroll=w.unroll) as g:
                    place = self.buffers.product(tile, part, row, self.products.column(g, number(0)))
                    w.emit(VectorStore(self.buffers.products.name, w.simplified(place), w.carried[self.weighted.value].name,
                                       self.products.place(i, g, number(0)), self.products.vector))
        last = Reg(w.fresh("last"), BOOL)
        w.emit(Declare(last.name, BOOL), LastBlock(last, self.buffers.counter.name, tile, self.parts))
        return last

    def combine(self, tile: Affine) -> None:
        """In the last block: maxima, sums and products of all parts take the place of the block's own."""
        w, here = self.w, self.here
        w.emit(Comment(f"%{self.weighted.value}: all {self.parts} parts, relative to one maximum"))
        with w.loop("i", here.rows, unroll=w.unroll) as i:
            row = w.simplified(here.row(i))
            with w.when(self._of_tile(row)):
                self._combine_totals(tile, row, i)
        self._combine_products(tile)
        w.emit(Barrier())
        total = w.carried[self.weighted.value]
        with w.loop("i", here.rows, unroll=w.unroll) as i:
            row = w.simplified(here.row(i))
            with w.when(self._of_tile(row)), w.loop("g", self.products.groups, unroll=w.unroll) as g:
                place = row * self.sums.width + self.products.column(g, number(0))
                w.emit(VectorLoad(total.name, self.products.place(i, g, number(0)), self.buffers.rows.name, w.simplified(place),
                                  self.products.vector))

    def _of_tile(self, row: Affine) -> list[Bound]:
        """The bound of rows that parts are kept of."""
        return [Bound(row, 0, self.sums.rows)]

    def _at(self, value: tuple[str, str], i: Affine) -> Reg:
        """The thread's register of a value of its row number i."""
        name, kind = value
        array = self.lazy[name].negated if kind == NEGATED else self.w.carried[name]
        return Reg(array.name, array.dtype, i)

    # -- totals of rows -------------------------------------------------------------------------------------------------------

    def _combine_totals(self, tile: Affine, row: Affine, i: Affine) -> None:
        w, form = self.w, self.w.form
        for name, kind in self.buffers.place_by_value:
            start = INFINITY if kind == NEGATED else -INFINITY if name in self.lazy else 0.0
            w.emit(Assign(self._at((name, kind), i), const(start, F32)))
        for first, count in self._groups():
            loaded = {value: self._load_totals(tile, first, count, row, value) for value in self.buffers.place_by_value}
            factors = {t.value: self._factors(t.value, self._at((t.value, NEGATED), i), loaded[t.value, NEGATED], count) for t in form.tops}
            for t in form.totals:
                own = self._at((t.value, OWN), i)
                if t.monoid == "max":
                    self._follow(own, "maximum", loaded[t.value, OWN], count)
                else:
                    self._add(own, loaded[t.value, OWN], factors.get(t.top), count)

    def _load_totals(self, tile: Affine, first: Affine, count: int, row: Affine, value: tuple[str, str]) -> Reg:
        """The value that each of some parts has left."""
        w = self.w
        array = Reg(w.fresh(f"{value[0]}_of_parts"), F32)
        w.emit(Declare(array.name, F32, count))
        self._each(count, lambda k: Assign(_of(array, k), Load(
            self.buffers.totals.name, F32, w.simplified(self.buffers.total(tile, first + k, row, value)))))
        return array

    def _factors(self, top: str, negated: Reg, of_parts: Reg, count: int) -> tuple[Reg, KExpr]:
        """Factors that make parts relative to the greatest of their maxima `top`, in place of the numbers that they were relative to, and
        the factor of the parts that were added before; `negated` becomes that of the greatest maximum."""
        w = self.w
        least = Reg(w.fresh("least"), F32)
        w.emit(Declare(least.name, F32, None, negated))
        self._follow(least, "minimum", of_parts, count)
        before = w.register(self._factor(top, least, negated), F32, "before")
        self._each(count, lambda k: Assign(_of(of_parts, k), self._factor(top, least, _of(of_parts, k))))
        w.emit(Assign(negated, least))
        return of_parts, before

    def _factor(self, top: str, least: KExpr, negated: KExpr) -> KExpr:
        """Factor of sums that are relative to `negated`; 0 for a part without an element."""
        empty: KExpr = Call("eq", (negated, const(INFINITY, F32)))
        return Call("select", (empty, const(0.0, F32), self.lazy[top].factor_between(least, negated)))

    def _follow(self, extreme: Reg, fn: str, of_parts: Reg, count: int) -> None:
        """A maximum or minimum with the values of some parts."""
        self._each(count, lambda k: Assign(extreme, Call(fn, (extreme, _of(of_parts, k)))))

    def _add(self, total: Reg, of_parts: Reg, factors: tuple[Reg, KExpr] | None, count: int, vector: int = 1, v: Affine | int = 0) -> None:
        """Adds the elements of some parts. v: number of the element of those that a thread has of each part."""
        if factors is None:
            self._each(count, lambda k: Assign(total, Call("add", (total, _of(of_parts, k * vector + v)))))
            return
        by_part, before = factors
        self.w.emit(Assign(total, Call("mul", (total, before))))
        self._each(count, lambda k: Assign(total, Call("fma", (_of(of_parts, k * vector + v), _of(by_part, k), total))))

    # -- products ---------------------------------------------------------------------------------------------------------------

    def _combine_products(self, tile: Affine) -> None:
        """Neighbouring columns of a row for each thread, until all are done, to shared memory."""
        w, sums, threads, top = self.w, self.sums, self.w.walk.choice.consumer_threads, self.weighted.total.top
        vector = ACCESS_BYTES // F32.itemsize
        while vector > 1 and sums.elements < vector * threads:
            vector //= 2
        count = sums.elements // vector
        with w.loop("e", number(count), start=axis("thread"), step=threads, extent=count) as e:
            in_row = sums.width // vector
            row, column = w.let("row_of_part", e // in_row, sums.rows), w.let("column", e % in_row * vector, sums.width)
            total, negated = Reg(w.fresh("combined"), F32), Reg(w.fresh("relative_to"), F32)
            w.emit(Declare(total.name, F32, vector), Declare(negated.name, F32, None, const(INFINITY, F32)))
            with w.loop("v", vector, unroll=w.unroll) as v:
                w.emit(Assign(_of(total, v), const(0.0, F32)))
            for first, size in self._groups():
                loaded = Reg(w.fresh("of_parts"), F32)
                w.emit(Declare(loaded.name, F32, size * vector))
                with w.loop("k", size, unroll=w.unroll) as k:
                    place = self.buffers.product(tile, first + k, row, column)
                    w.emit(VectorLoad(loaded.name, k * vector, self.buffers.products.name, w.simplified(place), vector))
                factors = None
                if top:
                    factors = self._factors(top, negated, self._load_totals(tile, first, size, row, (top, NEGATED)), size)
                with w.loop("v", vector, unroll=w.unroll) as v:
                    self._add(_of(total, v), loaded, factors, size, vector, v)
            w.emit(VectorStore(self.buffers.rows.name, w.simplified(row * sums.width + column), total.name, number(0), vector))

    # -- loops ------------------------------------------------------------------------------------------------------------------

    def _groups(self) -> Iterator[tuple[Affine, int]]:
        """Inside of each: the first of some parts that are loaded together, and their number."""
        ahead = min(self.parts, self.w.device.fitted.walks.parts_ahead)
        with self.w.loop("first_of", self.parts // ahead) as n:
            yield n * ahead, ahead
        if self.parts % ahead:
            yield number(self.parts // ahead * ahead), self.parts % ahead

    def _each(self, count: int, statement: Callable[[Affine], Stmt]) -> None:
        """A statement for each of some parts."""
        with self.w.loop("k", count, unroll=self.w.unroll) as k:
            self.w.emit(statement(k))


def _of(array: Reg, n: Affine | int) -> Reg:
    return Reg(array.name, array.dtype, number(n) if isinstance(n, int) else n)
