"""Kernels that walk an axis between products (`templates/staged/online/products.py`), as kernel IR.

    for each turn:  fetch the right operands' tiles | scores | maximum, rescale what is summed up | powers, sums | += powers * weights
    at the end:     sums of a row's lanes, factors known only now, results

Each lane keeps the running maxima, sums and products of its rows; a row's lanes meet by shuffles.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tilefuse.base.errors import InternalError
from tilefuse.domain.access import is_vector
from tilefuse.domain.contraction import INNER
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, linearise, number, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound, Call, Expr, Guard, Read, const, walk
from tilefuse.kernel.asynchronous import AsyncCopy, AsyncGroup, AsyncWait
from tilefuse.kernel.ir import (
    Assign,
    Barrier,
    Buffer,
    Comment,
    Declare,
    If,
    Kernel,
    KExpr,
    Load,
    Reg,
    Shuffle,
    Store,
    VectorLoad,
    VectorStore,
)
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.graph_values import GraphResolver, GraphStatements
from tilefuse.templates.staged.online.choose import ACCESS_BYTES, SPECIAL, OnChip, OnlinePlan
from tilefuse.templates.staged.online.fragments import Fragment, clear, fragment, hold_left, place_of_thread
from tilefuse.templates.staged.online.lazy import LazyTop, is_lazy
from tilefuse.templates.staged.online.products import LEAD, ROW, WALK, WIDTH, Operand, Total, Weighted
from tilefuse.templates.staged.online.turn import Turn
from tilefuse.templates.staged.stitch_finish import finished_kernel

INFINITY = float("inf")


class OnlineWriter(GraphStatements):
    """The statements of one kernel. `env` gives the form's axes at the current point."""

    def __init__(self, program: TileProgram, plan: OnlinePlan, device: DeviceSpec) -> None:
        super().__init__(program, program.graph, device)
        self.plan, self.form = plan, plan.form
        self.here = _Here(self)
        self.shared: dict[OnChip, Buffer] = {}
        self.add_boundary()
        for tile in plan.tiles:
            origin = tile.operand.value if tile.operand else self.form.weighted[tile.number].total.value
            self.shared[tile] = Buffer(self.fresh(f"{origin}_tile"), tile.dtype, tile.elements * tile.stages, "shared", "", origin,
                                       tile.offset_bytes)
        self.first_row = number(0)
        self.place_of_thread = (number(0), number(0))
        # Arrays of what is carried along the walk, by value.
        self.carried: dict[str, Reg] = {}
        self.lazy: dict[str, LazyTop] = {}  # maxima that are followed lazily
        self.tails = {WALK: self.form.length, ROW: self.form.num_rows}

    # -- elements --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def at(self, **point: Affine) -> Iterator[None]:
        """Inside, axes of the form are at these places."""
        kept = dict(self.env)
        self.env.update(point)
        yield
        self.env = kept

    def global_offset(self, value: str, index: tuple[Affine, ...]) -> Affine:
        """Offset of an element in global memory, its subscripts over the form's axes. Units: elements."""
        return self.index(linearise(index, self.strides(value)))

    def known(self, e: Expr) -> KExpr | None:
        """The register that holds an element at the current point, if one does."""
        return self.loaded((e,))

    def remember(self, e: Expr, held: KExpr) -> None:
        """From here on (in this frame) the element is in a register."""
        self.hold((e,), held)

    def element(self, e: Expr, guarded: bool = False) -> KExpr:
        """An expression of the form at the current point."""
        return self.here.expression(e, guarded)

    def keep(self, e: Expr, made: KExpr, wanted: str) -> KExpr:
        """A value in a register of its own, so that what follows finds it."""
        reg = self.register(made, kernel_dtype(made), wanted)
        self.remember(e, reg)
        return reg

    def beyond(self, **point: Affine) -> tuple[Bound, ...]:
        """The bounds under which a point lies in the walked value, those that always hold left out."""
        found = tuple(Bound(self.simplified(e), 0, self.tails[a]) for a, e in point.items())
        return tuple(b for b in found if not self.always(b))

    # -- operands ----------------------------------------------------------------------------------------------------------

    def load_lanes(self, operand: Operand, place: dict[str, Affine], along: str, width: int, array: str, first: Affine) -> None:
        """`width` elements along an axis, from a place on, into a register array; zeros beyond the operand's end."""
        limits = self.limits(operand)
        fixed = {a: e for a, e in place.items() if a != along}
        facts = tuple(b for b in (Bound(self.simplified(e), 0, limits[a]) for a, e in fixed.items()) if not self.always(b))
        whole = limits[along] % width == 0 and all(c % width == 0 for c in (place[along].const,))
        bound = Bound(self.simplified(place[along]), 0, limits[along])
        with self.nested() as inner:
            if whole or self.always(Bound(self.simplified(place[along] + (width - 1)), 0, limits[along])):
                facts = facts if self.always(bound) else (*facts, bound)
                self._lanes(operand, place, along, width, array, first)
            else:
                for v in range(width):
                    here = self.simplified(place[along] + v)
                    with self.nested() as one:
                        self._lanes(operand, place | {along: here}, along, 1, array, first + v)
                    zero = (Assign(Reg(array, operand.dtype, first + v), const(0, operand.dtype)),)
                    self.emit(If((Bound(here, 0, limits[along]),), tuple(one.statements), zero))
        if not facts:
            self.emit(*inner.statements)
            return
        zeros = tuple(Assign(Reg(array, operand.dtype, first + v), const(0, operand.dtype)) for v in range(width))
        self.emit(If(facts, tuple(inner.statements), zeros))

    def _lanes(self, operand: Operand, place: dict[str, Affine], along: str, width: int, array: str, first: Affine) -> None:
        lane = self.fresh("v")
        self.frame.extents[lane] = width
        with self.at(**(place | {along: place[along] + axis(lane)})):
            reads: list[Read] = [e for e in walk(operand.body) if isinstance(e, Read)]
            offsets = [(e, self.global_offset(e.value, e.index)) for e in dict.fromkeys(reads)]
        if isinstance(operand.body, Read):
            offset = offsets[0][1]
            for start, part in vector_parts(offset, lane, width, operand.dtype):
                self.emit(VectorLoad(array, first + start, self.buffers[operand.body.value].name,
                                     substitute(offset, {lane: number(start)}, self.extents), part))
            return
        held: list[tuple[Expr, str, DType]] = []
        for e, offset in offsets:
            if width > 1 and is_vector(offset, lane, width) and not any(isinstance(x, Guard) for x in walk(operand.body)):
                dtype = self.buffers[e.value].dtype
                held.append((e, self.fresh(f"{e.value}_v"), dtype))
                self.emit(Declare(held[-1][1], dtype, width), VectorLoad(
                    held[-1][1], number(0), self.buffers[e.value].name, substitute(offset, {lane: number(0)}, self.extents), width))
        with self.loop("v", width, unroll=self.unroll) as v, self.at(**(place | {along: place[along] + v})), self.nested() as inner:
            for read, name, dtype in held:
                self.remember(read, Reg(name, dtype, v))
            made = self.element(operand.body)
            inner.statements.append(Assign(Reg(array, operand.dtype, first + v), made))
            self.frames[-2].statements.extend(inner.statements)

    def limits(self, operand: Operand) -> dict[str, int]:
        """Extents of an operand's two axes."""
        sizes = {ROW: self.form.num_rows, WALK: self.form.length}
        for s in self.form.scores:
            if operand in (s.left, s.right):
                sizes[INNER] = s.inner
        for w in self.form.weighted:
            if operand == w.right:
                sizes[WIDTH] = w.width
        return {a: sizes[a] for a in (operand.rows, operand.columns)}

    def fetch(self, tile: OnChip, start: Affine, stage: Affine, ahead: bool = False) -> None:
        """Brings one tile on chip; `start`: where it begins along the rows or the walked axis. `ahead`: it need not be there at once."""
        operand = tile.operand
        assert operand is not None
        # Where threads multiply, the tile's rows are the product's, however memory runs.
        turned = self.plan.unit == "fma" and operand.rows in (INNER, WIDTH)
        rows, columns = (tile.columns, tile.rows) if turned else (tile.rows, tile.columns)
        limit = self.limits(operand)[operand.columns]
        width = ACCESS_BYTES // tile.dtype.itemsize
        while width > 1 and (columns % width or limit % width):
            width //= 2
        across = columns // width
        count = rows * across
        steps = -(-count // self.plan.choice.threads)
        self.emit(Comment(f"%{operand.value}: tile of {rows} x {columns} -> shared memory"))
        with self.loop("step", steps, unroll=self.unroll and steps <= 8) as step:
            item = self.let("item", step * self.plan.choice.threads + axis("thread"), steps * self.plan.choice.threads)
            with self.when([Bound(item, 0, count)]):
                self.narrow_to(item, count)
                row = self.let("r", item // across, rows)
                column = self.let("x", item % across, across) * width
                base = {ROW: start, WALK: start, INNER: number(0), WIDTH: number(0)}
                place = {operand.rows: base[operand.rows] + row, operand.columns: base[operand.columns] + column}
                where = stage * tile.elements
                if ahead and not turned and self._started(tile, place, width, self.simplified(where + row * tile.pitch + column)):
                    return
                array = self.fresh(f"{operand.value}_v")
                self.emit(Declare(array, tile.dtype, width))
                self.load_lanes(operand, place, operand.columns, width, array, number(0))
                if turned:
                    for v in range(width):
                        offset = self.simplified(where + (column + v) * tile.pitch + row)
                        self.emit(Store(self.shared[tile].name, offset, Reg(array, tile.dtype, number(v))))
                else:
                    offset = self.simplified(where + row * tile.pitch + column)
                    self.emit(VectorStore(self.shared[tile].name, offset, array, number(0), width))

    def _started(self, tile: OnChip, place: dict[str, Affine], width: int, where: Affine) -> bool:
        """Starts a copy of `width` elements to `where` in the tile, if one asynchronous copy can bring them; zeros beyond the end."""
        operand = tile.operand
        assert operand is not None
        if not isinstance(operand.body, Read) or width * tile.dtype.itemsize not in (4, 8, 16):
            return False
        lane = self.fresh("v")
        with self.nested(), self.at(**(place | {operand.columns: place[operand.columns] + axis(lane)})):
            self.frame.extents[lane] = width
            offset = self.global_offset(operand.body.value, operand.body.index)
            source = substitute(offset, {lane: number(0)}, self.extents)
            if len(vector_parts(offset, lane, width, tile.dtype)) > 1 or not is_vector(offset, lane, width):
                return False
        limits = self.limits(operand)
        facts = tuple(b for b in (Bound(self.simplified(e), 0, limits[a]) for a, e in place.items()) if not self.always(b))
        copy = AsyncCopy(self.shared[tile].name, where, self.buffers[operand.body.value].name, source, width)
        if not facts:
            self.emit(copy)
            return True
        array = self.fresh("zeros")
        zeros = [Assign(Reg(array, tile.dtype, number(v)), const(0, tile.dtype)) for v in range(width)]
        self.emit(If(facts, (copy,), (Declare(array, tile.dtype, width), *zeros,
                                      VectorStore(self.shared[tile].name, where, array, number(0), width))))
        return True

    # -- the walk ------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """One block: rows of one lead place."""
        plan, form = self.plan, self.form
        tiles = -(-form.num_rows // plan.choice.rows)
        row_tile = self.let("row_tile", axis("block") % tiles, tiles) if tiles > 1 else number(0)
        self.env[LEAD] = self.let("lead", axis("block") // tiles, form.num_leads) if form.num_leads > 1 else number(0)
        self.first_row = row_tile * plan.choice.rows
        self.place_of_thread = place_of_thread(self, plan)
        scores = fragment(self, plan, plan.choice.columns, 1)
        products = [fragment(self, plan, plan.width(n), plan.vector) for n in range(len(form.weighted))]
        held = [hold_left(self, n, scores) if plan.unit == "mma" else "" for n in range(len(form.scores))]
        for tile in plan.tiles:
            if tile.role == "left":
                self.fetch(tile, self.first_row, number(0))
        for t in form.totals:
            self.carried[t.value] = Reg(self.fresh(f"{t.value}_so_far"), t.dtype)
            clear(self, self.carried[t.value], scores.rows, -INFINITY if t.monoid == "max" else 0.0)
        for w, here in zip(form.weighted, products, strict=True):
            self.carried[w.value] = Reg(self.fresh(f"{w.value}_so_far"), form.sum_dtype)
            clear(self, self.carried[w.value], here.size)
        self.lazy = {t.value: LazyTop(self, t, scores.rows) for t in form.tops if is_lazy(self, t)}
        turns = -(-form.length // plan.choice.columns)
        ahead = plan.choice.stages > 1 and turns > 1
        if ahead:
            self._fetch_turn(number(0), number(0), True)
        with self.loop("turn", turns) as turn:
            stage = turn % plan.choice.stages if ahead else number(0)
            if ahead:
                # This turn's tiles have come, and nobody reads those of the last turn any more.
                self.emit(AsyncWait(), Barrier())
                with self.when([Bound(turn + 1, 0, turns)]):
                    following = self.let("following", turn + 1, turns)
                    self._fetch_turn(following, following % plan.choice.stages, True)
            else:
                if turns > 1:
                    self.emit(Barrier())
                self._fetch_turn(turn, stage, False)
                self.emit(Barrier())
            Turn(self, turn, self.let("stage", stage, plan.choice.stages), scores, products, held).emit()
        self._end(scores, products)

    def _fetch_turn(self, turn: Affine, stage: Affine, ahead: bool) -> None:
        """The right operands' tiles of one turn."""
        for tile in self.plan.tiles:
            if tile.role in ("right", "weight"):
                self.fetch(tile, turn * self.plan.choice.columns, stage, ahead)
        if ahead:
            self.emit(AsyncGroup())

    def _end(self, scores: Fragment, products: list[Fragment]) -> None:
        """Sums of a row's lanes, what is applied at the end, results."""
        form = self.form
        self.emit(Comment("the rows' sums over their lanes, and what is known only now"))
        for t in form.sums:
            self.over_lanes("add", self.carried[t.value], scores)
        with self.loop("i", scores.rows, unroll=self.unroll) as i:
            row = self.simplified(self.first_row + scores.row(i))
            facts = self.beyond(**{ROW: row})
            with self.at(**{ROW: row}), self.when(facts):
                self._row_values(form.totals, i)
                for w, here in zip(form.weighted, products, strict=True):
                    self._weighted_at(w, here, i)
                with self.when([Bound(scores.lane, 0, 1)]):
                    for name, e in form.row_results:
                        self.store(name, e)
                for name, e in form.width_results:
                    self._store_wide(name, e, products, i)

    def _row_values(self, totals: tuple[Total, ...], i: Affine) -> None:
        """Makes those of a row's finished reductions known that something reads."""
        late = (e for t in (*totals, *(w.total for w in self.form.weighted)) for _, e in t.late)
        written = (e for _, e in (*self.form.row_results, *self.form.width_results))
        read = {x.value for e in (*late, *written) for x in walk(e) if isinstance(x, Read)}
        for t in totals:
            if t.value not in read:
                continue
            own = self.carried[t.value]
            made: KExpr = Reg(own.name, own.dtype, i)
            if t.value in self.lazy:
                made = self.lazy[t.value].maximum(i)
            if t.top in self.lazy:
                made = Call("mul", (made, self.lazy[t.top].whole(i)))
            elif t.top and t.shift == self.form.reads[t.top]:
                made = Call("select", (self._is_empty(t.top, i), const(float("nan"), t.dtype), made))
            for fn, e in t.late:
                made = Call(fn, (made, self.element(e)))
            self.remember(self._read_of(t.value), self.register(made, t.dtype, t.value))

    def _is_empty(self, top: str, i: Affine) -> KExpr:
        """Whether a maximum is -inf, as of a row of nothing else: differences from it are NaN."""
        own = self.carried[top]
        return Call("eq", (Reg(own.name, own.dtype, i), const(-INFINITY, own.dtype)))

    def _weighted_at(self, w: Weighted, here: Fragment, i: Affine) -> None:
        """Applies a row's late factors to its finished products, in their registers."""
        own, late = self.carried[w.value], list(w.total.late)
        factors: list[tuple[str, KExpr]] = [(fn, self.register(self.element(e), own.dtype, "factor")) for fn, e in late]
        if w.total.top in self.lazy:
            factors.append(("mul", self.register(self.lazy[w.total.top].whole(i), own.dtype, "whole")))
        elif w.total.top and w.total.shift == self.form.reads[w.total.top]:
            nan: KExpr = Call("select", (self._is_empty(w.total.top, i), const(float("nan"), own.dtype), const(1, own.dtype)))
            factors.append(("mul", self.register(nan, own.dtype, "whole")))
        with self.loop("g", here.groups, unroll=self.unroll) as g, self.loop("v", here.vector, unroll=self.unroll) as v:
            reg = Reg(own.name, own.dtype, here.place(i, g, v))
            made: KExpr = reg
            for fn, factor in factors:
                made = Call(fn, (made, factor))
            self.emit(Assign(reg, made))

    def _read_of(self, value: str) -> Read:
        """The read by which expressions know a value of the walk."""
        return self.form.reads[value]

    def store(self, name: str, e: Expr) -> None:
        """One element of a result."""
        dtype = self.buffers[name].dtype
        made = self.element(e)
        made = made if kernel_dtype(made) == dtype else Call(dtype.name, (made,))
        self.emit(Store(self.buffers[name].name, self.global_offset(name, self.form.points[name]), made))

    def _store_wide(self, name: str, e: Expr, products: list[Fragment], i: Affine) -> None:
        """A row of a result with the columns of a weighted product."""
        here, dtype = products[0], self.buffers[name].dtype
        width = self.form.weighted[0].width
        with self.loop("g", here.groups, unroll=self.unroll) as g:
            array = self.fresh(f"{name}_out")
            column = self.simplified(here.column(g, number(0)))
            whole = width % here.vector == 0
            with self.when([Bound(column, 0, width)]):
                self.emit(Declare(array, dtype, here.vector))
                for v in range(here.vector):
                    with self.nested() as one, self.at(**{WIDTH: column + v}):
                        for w, other in zip(self.form.weighted, products, strict=True):
                            own = self.carried[w.value]
                            made: KExpr = Reg(own.name, own.dtype, other.place(i, g, number(v)))
                            if w.bias is not None:
                                made = Call("add", (made, Call(own.dtype.name, (self.element(w.bias),))))
                            self.remember(self._read_of(w.value), made)
                        value = self.element(e)
                        value = value if kernel_dtype(value) == dtype else Call(dtype.name, (value,))
                        self.emit(Assign(Reg(array, dtype, number(v)), value))
                        if not whole:
                            offset = self.global_offset(name, self.form.points[name])
                            self.emit(Store(self.buffers[name].name, offset, Reg(array, dtype, number(v))))
                    with self.when(() if whole else [Bound(column + v, 0, width)]):
                        self.emit(*one.statements)
                if whole:
                    lane = self.fresh("v")
                    self.frame.extents[lane] = here.vector
                    with self.at(**{WIDTH: column + axis(lane)}):
                        offset = self.global_offset(name, self.form.points[name])
                    for start, part in vector_parts(offset, lane, here.vector, dtype):
                        self.emit(VectorStore(self.buffers[name].name, substitute(offset, {lane: number(start)}, self.extents), array,
                                              number(start), part))

    def over_lanes(self, fn: str, array: Reg, here: Fragment) -> None:
        """array[row] = fn over the lanes that share the row, in each of them."""
        other = Reg(self.fresh(f"{array.name}_other"), array.dtype)
        self.emit(Declare(other.name, other.dtype))
        with self.loop("i", here.rows, unroll=self.unroll) as i:
            own = Reg(array.name, array.dtype, i)
            for amount in here.amounts:
                self.emit(Shuffle(other, own, "xor", amount), Assign(own, Call(fn, (own, other))))

    def finish(self) -> Kernel:
        """The kernel."""
        buffers = (*self.buffers.values(), *self.shared.values())
        allocated = self.plan.shared_bytes
        return finished_kernel(self.program, self.device, buffers, self.frame.statements, allocated, f"{allocated} bytes allocated",
                               self.plan.choice.resident)


class _Here(GraphResolver):
    """Expressions of the form at the writer's current point: what a register holds is not computed again."""

    writer: OnlineWriter

    def index(self, e: Affine) -> Affine:
        return self.writer.index(e)

    def expression(self, e: Expr, guarded: bool = False) -> KExpr:
        held = self.writer.known(e)
        return super().expression(e, guarded) if held is None else held

    def read(self, e: Read, guarded: bool) -> KExpr:
        w = self.writer
        if e.value not in w.buffers:
            raise InternalError(f"%{e.value} is read before it is computed; please report")
        made = Load(w.buffers[e.value].name, w.buffers[e.value].dtype, self.offset(e))
        return made if guarded else w.keep(e, made, e.value)

    def offset(self, e: Read) -> Affine:
        return self.writer.global_offset(e.value, e.index)

    def call(self, e: Call[Expr], guarded: bool) -> KExpr:
        made = super().call(e, guarded)
        return self.writer.keep(e, made, e.fn) if e.fn in SPECIAL and not guarded else made


def compose_online(program: TileProgram, device: DeviceSpec) -> Kernel:
    """The kernel IR of a tile program that walks an axis."""
    plan = program.internal
    assert isinstance(plan, OnlinePlan)
    writer = OnlineWriter(program, plan, device)
    writer.run()
    return writer.finish()
