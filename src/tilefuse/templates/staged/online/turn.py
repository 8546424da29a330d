"""One turn of a kernel that walks an axis: scores of a tile, running maxima, powers, and what they are summed up to."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.scalar import Bound, Call, Const, Expr, Guard, Read, const, walk
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, If, KExpr, Reg, Store
from tilefuse.templates.staged.online.fragments import Fragment, multiply_powers, multiply_scores, over_lanes
from tilefuse.templates.staged.online.lazy import LazyTop, unscaled
from tilefuse.templates.staged.online.plan import OnChip
from tilefuse.templates.staged.online.products import ROW, WALK
from tilefuse.templates.staged.online.state import OnlineState
from tilefuse.templates.staged.online.total import Total

INFINITY = float("inf")


class Turn:
    """One tile of the walked axis. lazy: the maxima that are followed lazily, by value."""

    def __init__(self, w: OnlineState, turn: Affine, stage: Affine, scores: Fragment, products: list[Fragment], held: list[str],
                 lazy: dict[str, LazyTop]) -> None:
        self.w, self.stage, self.here, self.products, self.held, self.lazy = w, stage, scores, products, held, lazy
        self.start = turn * w.plan.choice.columns
        self.scaled: dict[str, Reg] = {}  # elements of what each maximum is of
        self.sums: list[Reg] = []
        bodies = (*(t.body for t in w.form.totals), *(p.total.body for p in w.form.weighted), *(s.bias for s in w.form.scores if s.bias))
        self.reads_rows = any(isinstance(e, Read) and e.value in w.buffers and any(ROW in x.axes() for x in e.index)
                              and not w.is_on_chip(e) for body in bodies for e in walk(body))

    def emit(self) -> None:
        """Scores, maxima, powers, products."""
        w, form = self.w, self.w.form
        self.sums = [multiply_scores(w, n, self.here, self.held[n], self.stage) for n in range(len(form.scores))]
        powers = self.reduce()
        if w.plan.unit == "fma" and form.weighted:
            w.emit(Barrier())
        for n, product in enumerate(self.products):
            multiply_powers(w, n, w.carried[form.weighted[n].value], product, powers[n].name, self.stage)

    def reduce(self) -> list[Reg]:
        """Maxima and sums with the scores of this turn; the register arrays of each weighted product's powers."""
        shifts: dict[Expr, Reg] = {}
        for t in self.w.form.tops:
            self._maximum(t, shifts)
        return self._powers(shifts)

    @contextlib.contextmanager
    def _at(self, i: Affine, g: Affine) -> Iterator[tuple[Bound, ...]]:
        """Inside, ROW and WALK are at one score of the thread; yields the bounds under which it exists."""
        w = self.w
        row = self.row_at(i)
        place = w.simplified(self.start + self._column(g))
        with w.at(**{ROW: row, WALK: place}):
            # Rows beyond the end have scores of zeros: only what is read at the row itself must not be.
            yield w.beyond(**({ROW: row, WALK: place} if self.reads_rows else {WALK: place}))

    def row_at(self, i: Affine) -> Affine:
        """The thread's row of number i; beyond the end, nothing is read at it."""
        return self.w.simplified(self.w.first_row + self.here.row(i))

    def inputs_at_hand(self) -> AbstractContextManager[None]:
        """Within, the other values that scores depend on are there."""
        return contextlib.nullcontext()

    def each_column(self, first: int = 0, last: int = 0) -> AbstractContextManager[Affine]:
        """A loop over the thread's columns, from one of a group's first ones to before another; 0: to the end."""
        return self.w.loop("j", last or self._columns, start=first, unroll=self.w.unroll)

    def _column(self, j: Affine) -> Affine:
        return self.here.column(j // self.here.vector, j % self.here.vector)

    def _place(self, i: Affine, j: Affine) -> Affine:
        return self.here.place(i, j // self.here.vector, j % self.here.vector)

    @property
    def _columns(self) -> int:
        return self.here.groups * self.here.vector

    def inputs_known(self, i: Affine, j: Affine) -> None:
        """Makes known the other values that the score at a thread's row i and column j depends on, where they are at hand."""

    def draws_known(self, i: Affine, j: Affine) -> None:
        """Makes known outcomes of random numbers at a thread's row i and column j, where these were drawn before."""

    def _scores_known(self, place: Affine) -> None:
        w = self.w
        for s, reg in zip(w.form.scores, self.sums, strict=True):
            score: KExpr = Reg(reg.name, reg.dtype, place)
            if s.bias is not None:
                score = Call("add", (score, Call(reg.dtype.name, (w.element(s.bias),))))
            w.remember(w.form.reads[s.value], score)

    def _maximum(self, t: Total, shifts: dict[Expr, Reg]) -> None:
        """The running maximum with this tile's elements; rescales what is relative to it. `shifts`: what is subtracted from now on."""
        w, here = self.w, self.here
        own, lazy = w.carried[t.value], self.lazy.get(t.value)
        w.emit(Comment(f"%{t.value}: with the elements of this turn"))
        single = len(w.form.tops) == 1 and len(w.form.scores) == 1 and not self._scores_read(t)
        elements = self.sums[0] if single else Reg(w.fresh(f"{t.value}_of"), t.dtype)
        if not single:
            w.emit(Declare(elements.name, t.dtype, here.size))
        self.scaled[t.value] = elements
        new = Reg(w.fresh(f"{t.value}_new"), t.dtype)
        w.emit(Declare(new.name, new.dtype, here.rows))
        with w.loop("i", here.rows, unroll=w.unroll) as i:
            w.emit(Assign(Reg(new.name, new.dtype, i), Reg(own.name, own.dtype, i)))
        with self.inputs_at_hand():
            ahead = self.elements_ahead(t, elements)
            with self.each_column() as j:
                if not ahead:
                    self.elements_of_column(t, elements, j)
                with w.loop("i", here.rows, unroll=w.unroll) as i:
                    so_far, element = Reg(new.name, new.dtype, i), Reg(elements.name, t.dtype, self._place(i, j))
                    w.emit(Assign(so_far, Call("maximum", (so_far, element))))
        over_lanes(w, "maximum", new, here)
        if lazy is not None:
            lazy.grow(new, self.products)
        for shift in dict.fromkeys(r.shift for r in w.form.relative(t.value) if r.shift is not None and lazy is None):
            shifts[shift] = self._shifted(t, shift, new)
        with w.loop("i", here.rows, unroll=w.unroll) as i:
            w.emit(Assign(Reg(own.name, own.dtype, i), Reg(new.name, new.dtype, i)))

    def elements_ahead(self, t: Total, elements: Reg) -> bool:
        """Whether all elements of a maximum are in their array before the loop over columns: then this has written them."""
        return False

    def elements_of_column(self, t: Total, elements: Reg, j: Affine) -> None:
        """A maximum's elements in a column of the thread."""
        w, here = self.w, self.here
        if self.reads_rows:
            with w.loop("i", here.rows, unroll=w.unroll) as i, self._at(i, j) as facts:
                self._scaled(t, elements, i, j, facts)
            return
        # One guard for all of a thread's rows: what is the same for them is read once.
        with self._at(number(0), j) as facts, w.nested() as inner, w.loop("i", here.rows, unroll=w.unroll) as i, self._at(i, j):
            self._scaled(t, elements, i, j, ())
        with w.nested() as other, w.loop("i", here.rows, unroll=w.unroll) as i:
            w.emit(Assign(Reg(elements.name, t.dtype, self._place(i, j)), const(-INFINITY, t.dtype)))
        w.emit(*([If(facts, tuple(inner.statements), tuple(other.statements))] if facts else inner.statements))

    def _scaled(self, t: Total, elements: Reg, i: Affine, j: Affine, facts: tuple[Bound, ...]) -> None:
        """One element of what a maximum is of, into its array; -inf where `facts` do not hold."""
        w = self.w
        target = Reg(elements.name, t.dtype, self._place(i, j))
        with w.nested() as inner:
            self._scores_known(self._place(i, j))
            self.inputs_known(i, j)
            element = w.element(unscaled(t.body)[0] if t.value in self.lazy else t.body)
            if element != target:
                w.emit(Assign(target, element))
        lowest = (Assign(target, const(-INFINITY, t.dtype)),)
        w.emit(*([If(facts, tuple(inner.statements), lowest)] if facts else inner.statements))

    def _shifted(self, t: Total, shift: Expr, new: Reg) -> Reg:
        """Number that is subtracted from now on; earlier sums are multiplied by exp(old - new)."""
        w, here, form = self.w, self.here, self.w.form
        own, lowest = w.carried[t.value], const(-INFINITY, t.dtype)
        shifted, factor = Reg(w.fresh(f"{t.value}_shift"), t.dtype), Reg(w.fresh(f"{t.value}_factor"), t.dtype)
        w.emit(Declare(shifted.name, t.dtype, here.rows), Declare(factor.name, t.dtype, here.rows))
        with w.loop("i", here.rows, unroll=w.unroll) as i:
            old, now, by, grown = (Reg(r.name, r.dtype, i) for r in (own, new, shifted, factor))
            row = w.simplified(w.first_row + here.row(i))
            before, after = (self._shift_at(t, shift, top, row) for top in (old, now))
            if shift == form.reads[t.value]:
                # Where all is -inf so far the differences would be NaN; less 0 instead, the powers are exp(-inf) = 0.
                after = Call("select", (Call("eq", (now, lowest)), const(0, t.dtype), now))
            ratio = Call("exp", (Call("sub", (before, by)),))
            # Before the first element nothing is summed up, whatever the difference would be.
            w.emit(Assign(by, after), Assign(grown, Call("select", (Call("eq", (old, lowest)), const(0, t.dtype), ratio))))
            for s in form.sums:
                if s.top == t.value and s.shift == shift:
                    self._rescale(Reg(w.carried[s.value].name, s.dtype, i), grown)
            for weighted, product in zip(form.weighted, self.products, strict=True):
                if weighted.total.top == t.value and weighted.total.shift == shift:
                    carried = w.carried[weighted.value]
                    with w.loop("g", product.groups, unroll=w.unroll) as g, w.loop("v", product.vector, unroll=w.unroll) as v:
                        self._rescale(Reg(carried.name, carried.dtype, product.place(i, g, v)), grown)
        return shifted

    def _shift_at(self, t: Total, shift: Expr, top: Reg, row: Affine) -> KExpr:
        """The shift that belongs to a maximum."""
        with self.w.nested() as inner, self.w.at(**{ROW: row}):
            self.w.remember(self.w.form.reads[t.value], top)
            shift_here = self.w.element(shift)
        self.w.emit(*inner.statements)
        return shift_here

    def _rescale(self, reg: Reg, factor: Reg) -> None:
        by: KExpr = factor if factor.dtype == reg.dtype else Call(reg.dtype.name, (factor,))
        self.w.emit(Assign(reg, Call("mul", (reg, by))))

    def _scores_read(self, t: Total) -> bool:
        """Whether scores are read elsewhere than in what the maximum is of."""
        form = self.w.form
        names = {s.value for s in form.scores}

        def reads(e: Expr) -> bool:
            if e == t.body:
                return False
            if isinstance(e, Read):
                return e.value in names
            parts = e.args if isinstance(e, Call) else (e.then, e.otherwise) if isinstance(e, Guard) else ()
            return any(reads(p) for p in parts)

        return any(reads(x.body) for x in (*form.sums, *(p.total for p in form.weighted)))

    def power_array(self, number_: int) -> Reg:
        """The register array of a weighted product's powers; where threads multiply they lie on chip instead."""
        weighted = self.w.form.weighted[number_]
        array = Reg(self.w.fresh(f"{weighted.total.value}_held"), weighted.right.dtype)
        if self.w.plan.unit == "mma":
            self.w.emit(Declare(array.name, array.dtype, self.here.size))
        return array

    def _powers(self, shifts: dict[Expr, Reg]) -> list[Reg]:
        """Adds the tile's elements to the sums, and keeps those that are multiplied: in registers as left fragments, or on chip."""
        w, here, form = self.w, self.here, self.w.form
        held = [self.power_array(n) for n in range(len(form.weighted))]
        names = dict.fromkeys((*(s.value for s in form.sums), *(p.total.value for p in form.weighted)))
        w.emit(Comment(f"{', '.join('%' + x for x in names)}: of this turn"))
        with w.loop("i", here.rows, unroll=w.unroll) as i, w.loop("j", self._columns, unroll=w.unroll) as j, self._at(i, j) as facts:
            place = self._place(i, j)
            biased = bool(facts) and any(s.bias is not None for s in form.scores)
            if not biased:
                self._scores_known(place)
            for t in form.tops:
                element = Reg(self.scaled[t.value].name, t.dtype, place)
                if t.value in self.lazy:
                    self.lazy[t.value].know(element, i)
                else:
                    w.remember(t.body, element)
            for shift, reg in shifts.items():
                w.remember(shift, Reg(reg.name, reg.dtype, i))
            self.draws_known(i, j)
            for s in form.sums:
                self._when(facts, s, place if biased else None, partial(self._add, Reg(w.carried[s.value].name, s.dtype, i)), None)
            for n, weighted in enumerate(form.weighted):
                if w.plan.unit == "mma":
                    put = partial(self._assign, Reg(held[n].name, held[n].dtype, place))
                else:
                    tile = w.plan.tile("powers", n)
                    put = partial(self._store, tile, w.simplified(here.row(i) * tile.pitch + self._column(j)))
                self._when(facts, weighted.total, place if biased else None, put, const(0, form.sum_dtype))
        return held

    def _add(self, total: Reg, element: KExpr) -> None:
        self.w.emit(Assign(total, Call("add", (total, element))))

    def _assign(self, target: Reg, value: KExpr) -> None:
        self.w.emit(Assign(target, value if kernel_dtype(value) == target.dtype else Call(target.dtype.name, (value,))))

    def _store(self, tile: OnChip, offset: Affine, value: KExpr) -> None:
        self.w.emit(Store(self.w.shared[tile].name, offset, value))

    def _when(self, facts: tuple[Bound, ...], total: Total, place: Affine | None, put: Callable[[KExpr], None],
              otherwise: Const | None) -> None:
        """Computes an element of the tile and hands it to `put`; beyond the end of the rows or of the walk `otherwise`, if anything.

        place: where the scores lie whose biases are read for it, under the same condition; None: they are known.
        """
        w = self.w
        # The elements of a maximum are -inf there, and their powers 0.
        safe = total.shift is not None and any(
            total.body == Call("exp", (Call("sub", (t.body, total.shift)),)) for t in w.form.tops if t.value == total.top)
        if not facts or safe:
            put(w.element(total.body))
            return
        with w.nested() as inner:
            if place is not None:
                self._scores_known(place)
            put(w.element(total.body))
        with w.nested() as other:
            if otherwise is not None:
                put(otherwise)
        w.emit(If(facts, tuple(inner.statements), tuple(other.statements)))
