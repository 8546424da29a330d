"""Kernels that walk an axis between products (`templates/staged/online/products.py`), as kernel IR.

    for each turn:  fetch the right operands' tiles | scores | maximum, rescale what is summed up | powers, sums | += powers * weights
    at the end:     sums of a row's lanes, factors known only now, results

Each lane keeps the running maxima, sums and products of its rows; a row's lanes meet by shuffles.
"""
from __future__ import annotations

from tilefuse.domain.tile import TileProgram
from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.scalar import Bound, Call, Expr, Read, const, walk
from tilefuse.kernel.asynchronous import AsyncGroup, AsyncWait
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, Kernel, KExpr, Reg, Store, VectorStore
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.kernel_ends import finished_kernel
from tilefuse.templates.staged.online.fragments import Fragment, clear, fragment, hold_left, over_lanes, place_of_thread
from tilefuse.templates.staged.online.lazy import LazyTop, is_lazy
from tilefuse.templates.staged.online.operands import fetch
from tilefuse.templates.staged.online.plan import OnlinePlan
from tilefuse.templates.staged.online.products import LEAD, ROW, WIDTH, Total, Weighted
from tilefuse.templates.staged.online.state import OnlineState
from tilefuse.templates.staged.online.turn import Turn

INFINITY = float("inf")


class _Walk:
    """The statements of one block. lazy: the maxima that are followed lazily, by value."""

    def __init__(self, w: OnlineState) -> None:
        self.w = w
        self.lazy: dict[str, LazyTop] = {}

    def run(self) -> None:
        """One block: rows of one lead place."""
        plan, form = self.w.plan, self.w.form
        tiles = -(-form.num_rows // plan.choice.rows)
        row_tile = self.w.let("row_tile", axis("block") % tiles, tiles) if tiles > 1 else number(0)
        self.w.env[LEAD] = self.w.let("lead", axis("block") // tiles, form.num_leads) if form.num_leads > 1 else number(0)
        self.w.first_row = row_tile * plan.choice.rows
        self.w.place_of_thread = place_of_thread(self.w, plan)
        scores = fragment(self.w, plan, plan.choice.columns, 1)
        products = [fragment(self.w, plan, plan.width(n), plan.vector) for n in range(len(form.weighted))]
        held = [hold_left(self.w, n, scores) if plan.unit == "mma" else "" for n in range(len(form.scores))]
        for tile in plan.tiles:
            if tile.role == "left":
                fetch(self.w, tile, self.w.first_row, number(0))
        for t in form.totals:
            self.w.carried[t.value] = Reg(self.w.fresh(f"{t.value}_so_far"), t.dtype)
            clear(self.w, self.w.carried[t.value], scores.rows, -INFINITY if t.monoid == "max" else 0.0)
        for w, here in zip(form.weighted, products, strict=True):
            self.w.carried[w.value] = Reg(self.w.fresh(f"{w.value}_so_far"), form.sum_dtype)
            clear(self.w, self.w.carried[w.value], here.size)
        self.lazy = {t.value: LazyTop(self.w, t, scores.rows) for t in form.tops if is_lazy(self.w, t)}
        turns = -(-form.length // plan.choice.columns)
        ahead = plan.choice.stages > 1 and turns > 1
        if ahead:
            self._fetch_turn(number(0), number(0), True)
        with self.w.loop("turn", turns) as turn:
            stage = turn % plan.choice.stages if ahead else number(0)
            if ahead:
                # This turn's tiles have come, and nobody reads those of the last turn any more.
                self.w.emit(AsyncWait(), Barrier())
                with self.w.when([Bound(turn + 1, 0, turns)]):
                    following = self.w.let("following", turn + 1, turns)
                    self._fetch_turn(following, following % plan.choice.stages, True)
            else:
                if turns > 1:
                    self.w.emit(Barrier())
                self._fetch_turn(turn, stage, False)
                self.w.emit(Barrier())
            Turn(self.w, turn, self.w.let("stage", stage, plan.choice.stages), scores, products, held, self.lazy).emit()
        self._end(scores, products)

    def _fetch_turn(self, turn: Affine, stage: Affine, ahead: bool) -> None:
        """The right operands' tiles of one turn."""
        for tile in self.w.plan.tiles:
            if tile.role in ("right", "weight"):
                fetch(self.w, tile, turn * self.w.plan.choice.columns, stage, ahead)
        if ahead:
            self.w.emit(AsyncGroup())

    def _end(self, scores: Fragment, products: list[Fragment]) -> None:
        """Sums of a row's lanes, what is applied at the end, results."""
        form = self.w.form
        self.w.emit(Comment("the rows' sums over their lanes, and what is known only now"))
        for t in form.sums:
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
                        self.store(name, e)
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
                total = Call(fn, (total, self.w.element(e)))
            self.w.remember(self._read_of(t.value), self.w.register(total, t.dtype, t.value))

    def _is_empty(self, top: str, i: Affine) -> KExpr:
        """Whether a maximum is -inf, as of a row of nothing else: differences from it are NaN."""
        own = self.w.carried[top]
        return Call("eq", (Reg(own.name, own.dtype, i), const(-INFINITY, own.dtype)))

    def _weighted_at(self, w: Weighted, here: Fragment, i: Affine) -> None:
        """Applies a row's late factors to its finished products, in their registers."""
        own, late = self.w.carried[w.value], list(w.total.late)
        factors: list[tuple[str, KExpr]] = [(fn, self.w.register(self.w.element(e), own.dtype, "factor")) for fn, e in late]
        if w.total.top in self.lazy:
            factors.append(("mul", self.w.register(self.lazy[w.total.top].whole(i), own.dtype, "whole")))
        elif w.total.top and w.total.shift == self.w.form.reads[w.total.top]:
            nan: KExpr = Call("select", (self._is_empty(w.total.top, i), const(float("nan"), own.dtype), const(1, own.dtype)))
            factors.append(("mul", self.w.register(nan, own.dtype, "whole")))
        with self.w.loop("g", here.groups, unroll=self.w.unroll) as g, self.w.loop("v", here.vector, unroll=self.w.unroll) as v:
            reg = Reg(own.name, own.dtype, here.place(i, g, v))
            element: KExpr = reg
            for fn, factor in factors:
                element = Call(fn, (element, factor))
            self.w.emit(Assign(reg, element))

    def _read_of(self, value: str) -> Read:
        """The read by which expressions know a value of the walk."""
        return self.w.form.reads[value]

    def store(self, name: str, e: Expr) -> None:
        """One element of a result."""
        dtype = self.w.buffers[name].dtype
        element = self.w.element(e)
        element = element if kernel_dtype(element) == dtype else Call(dtype.name, (element,))
        self.w.emit(Store(self.w.buffers[name].name, self.w.global_offset(name, self.w.form.points[name]), element))

    def _store_wide(self, name: str, e: Expr, products: list[Fragment], i: Affine) -> None:
        """A row of a result with the columns of a weighted product."""
        here, dtype = products[0], self.w.buffers[name].dtype
        width = self.w.form.weighted[0].width
        with self.w.loop("g", here.groups, unroll=self.w.unroll) as g:
            array = self.w.fresh(f"{name}_out")
            column = self.w.simplified(here.column(g, number(0)))
            whole = width % here.vector == 0
            with self.w.when([Bound(column, 0, width)]):
                self.w.emit(Declare(array, dtype, here.vector))
                for v in range(here.vector):
                    with self.w.nested() as one, self.w.at(**{WIDTH: column + v}):
                        for w, other in zip(self.w.form.weighted, products, strict=True):
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
                    lane = self.w.fresh("v")
                    self.w.frame.extents[lane] = here.vector
                    with self.w.at(**{WIDTH: column + axis(lane)}):
                        offset = self.w.global_offset(name, self.w.form.points[name])
                    for start, part in vector_parts(offset, lane, here.vector, dtype):
                        self.w.emit(VectorStore(self.w.buffers[name].name, substitute(offset, {lane: number(start)}, self.w.extents), array,
                                              number(start), part))

    def finish(self) -> Kernel:
        """The kernel."""
        buffers = (*self.w.buffers.values(), *self.w.shared.values())
        allocated = self.w.plan.shared_bytes
        return finished_kernel(self.w.program, self.w.device, buffers, self.w.frame.statements, allocated, f"{allocated} bytes allocated",
                               self.w.plan.choice.resident)


def compose_online(program: TileProgram, device: DeviceSpec) -> Kernel:
    """The kernel IR of a tile program that walks an axis."""
    plan = program.internal
    assert isinstance(plan, OnlinePlan)
    kernel = _Walk(OnlineState(program, plan, device))
    kernel.run()
    return kernel.finish()
