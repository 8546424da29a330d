"""The end of a walk: sums of a row's lanes, factors known only now, results.

    y[r, j] = (sum over turns of powers * weights) * 1 / t[r]       each lane stores neighbours of its rows
"""
from __future__ import annotations

from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import BOOL
from tilefuse.ir.scalar import Bound, Call, Expr, Read, const, walk
from tilefuse.kernel.ir import Assign, Comment, Declare, KExpr, Reg, Store, VectorStore
from tilefuse.templates.staged.online.fragments import Fragment, over_lanes
from tilefuse.templates.staged.online.late import CONDITIONAL, applied
from tilefuse.templates.staged.online.lazy import LazyTop
from tilefuse.templates.staged.online.products import ROW, WIDTH, Weighted
from tilefuse.templates.staged.online.state import OnlineState
from tilefuse.templates.staged.online.total import Total

INFINITY = float("inf")


class WalkEnd:
    """The statements behind the turns of one block. lazy: the maxima that are followed lazily, by value."""

    def __init__(self, w: OnlineState, lazy: dict[str, LazyTop]) -> None:
        self.w, self.lazy = w, lazy

    def emit(self, scores: Fragment, products: list[Fragment], added: bool = False) -> None:
        """Sums of a row's lanes, what is applied at the end, results. added: the lanes of a row have its whole sums already."""
        form = self.w.form
        summing = "" if added else "the rows' sums over their lanes, and "
        self.w.emit(Comment(f"{summing}what is known only now"))
        for t in () if added else form.sums:
            over_lanes(self.w, "add", self.w.carried[t.value], scores)
        with self.w.loop("i", scores.rows, unroll=self.w.unroll) as i:
            row = self.w.simplified(self.w.first_row + scores.row(i))
            facts = self.w.beyond(**{ROW: row})
            with self.w.at(**{ROW: row}), self.w.when(facts):
                self._row_values(form.totals, i)
                for w, here in zip(form.weighted, products, strict=True):
                    self._weighted_at(w, here, i)
                with self.w.when([Bound(scores.lane, 0, 1)]):
                    for name, e in form.row_results:
                        self._store(name, e)
                for name, e in form.width_results:
                    self._store_wide(name, e, products, i)

    def _row_values(self, totals: tuple[Total, ...], i: Affine) -> None:
        """Makes those of a row's finished reductions known that something reads."""
        late = (e for t in (*totals, *(w.total for w in self.w.form.weighted)) for _, e in t.late)
        written = (e for _, e in (*self.w.form.row_results, *self.w.form.width_results))
        read = {x.value for e in (*late, *written) for x in walk(e) if isinstance(x, Read)}
        for t in totals:
            if t.value not in read:
                continue
            own = self.w.carried[t.value]
            total: KExpr = Reg(own.name, own.dtype, i)
            if t.value in self.lazy:
                total = self.lazy[t.value].maximum(i)
            if t.top in self.lazy:
                total = Call("mul", (total, self.lazy[t.top].whole(i)))
            elif t.top and t.shift == self.w.form.reads[t.top]:
                total = Call("select", (self._is_empty(t.top, i), const(float("nan"), t.dtype), total))
            for fn, e in t.late:
                total = applied(fn, total, self.w.element(e))
            self.w.remember(self._read_of(t.value), self.w.register(total, t.dtype, t.value))

    def _is_empty(self, top: str, i: Affine) -> KExpr:
        """Whether a maximum is -inf, as of a row of nothing else: differences from it are NaN."""
        own = self.w.carried[top]
        return Call("eq", (Reg(own.name, own.dtype, i), const(-INFINITY, own.dtype)))

    def _weighted_at(self, w: Weighted, here: Fragment, i: Affine) -> None:
        """Applies a row's late factors to its finished products, in their registers."""
        own, late = self.w.carried[w.value], list(w.total.late)
        factors = [(fn, self.w.register(self.w.element(e), BOOL if fn in CONDITIONAL else own.dtype, "factor")) for fn, e in late]
        # Rows of nothing but -inf are NaN, unless the definition makes them zeros.
        end = next((n for n, (fn, _) in enumerate(late) if fn in CONDITIONAL), len(late))
        if w.total.top in self.lazy:
            factors.insert(end, ("mul", self.w.register(self.lazy[w.total.top].whole(i), own.dtype, "whole")))
        elif w.total.top and w.total.shift == self.w.form.reads[w.total.top]:
            nan: KExpr = Call("select", (self._is_empty(w.total.top, i), const(float("nan"), own.dtype), const(1, own.dtype)))
            factors.insert(end, ("mul", self.w.register(nan, own.dtype, "whole")))
        with self.w.loop("g", here.groups, unroll=self.w.unroll) as g, self.w.loop("v", here.vector, unroll=self.w.unroll) as v:
            reg = Reg(own.name, own.dtype, here.place(i, g, v))
            element: KExpr = reg
            for fn, factor in factors:
                element = applied(fn, element, factor)
            self.w.emit(Assign(reg, element))

    def _read_of(self, value: str) -> Read:
        """The read by which expressions know a value of the walk."""
        return self.w.form.reads[value]

    def _store(self, name: str, e: Expr) -> None:
        """One element of a result."""
        dtype = self.w.buffers[name].dtype
        element = self.w.element(e)
        element = element if kernel_dtype(element) == dtype else Call(dtype.name, (element,))
        self.w.emit(Store(self.w.buffers[name].name, self.w.global_offset(name, self.w.form.points[name]), element))

    def _store_wide(self, name: str, e: Expr, products: list[Fragment], i: Affine) -> None:
        """A row of a result with the columns of a weighted product."""
        read = self.w.form.products_in(e)
        here, dtype = products[read[0]], self.w.buffers[name].dtype
        width = self.w.form.weighted[read[0]].width
        with self.w.loop("g", here.groups, unroll=self.w.unroll) as g:
            array = self.w.fresh(f"{name}_out")
            column = self.w.simplified(here.column(g, number(0)))
            whole = width % here.vector == 0
            with self.w.when([Bound(column, 0, width)]):
                self.w.emit(Declare(array, dtype, here.vector))
                for v in range(here.vector):
                    with self.w.nested() as one, self.w.at(**{WIDTH: column + v}):
                        for n in read:
                            w, other = self.w.form.weighted[n], products[n]
                            own = self.w.carried[w.value]
                            element: KExpr = Reg(own.name, own.dtype, other.place(i, g, number(v)))
                            if w.bias is not None:
                                element = Call("add", (element, Call(own.dtype.name, (self.w.element(w.bias),))))
                            self.w.remember(self._read_of(w.value), element)
                        value = self.w.element(e)
                        value = value if kernel_dtype(value) == dtype else Call(dtype.name, (value,))
                        self.w.emit(Assign(Reg(array, dtype, number(v)), value))
                        if not whole:
                            offset = self.w.global_offset(name, self.w.form.points[name])
                            self.w.emit(Store(self.w.buffers[name].name, offset, Reg(array, dtype, number(v))))
                    with self.w.when(() if whole else [Bound(column + v, 0, width)]):
                        self.w.emit(*one.statements)
                if whole:
                    self.store_neighbours(name, array, column, i, here)

    def store_neighbours(self, name: str, array: str, column: Affine, i: Affine, here: Fragment) -> None:
        """Stores neighbouring elements of a row, from a column on."""
        w, dtype, lane = self.w, self.w.buffers[name].dtype, self.w.fresh("v")
        w.frame.extents[lane] = here.vector
        with w.at(**{WIDTH: column + axis(lane)}):
            offset = w.global_offset(name, w.form.points[name])
        for start, part in vector_parts(offset, lane, here.vector, dtype):
            at = substitute(offset, {lane: number(start)}, w.extents)
            w.emit(VectorStore(w.buffers[name].name, at, array, number(start), part))
