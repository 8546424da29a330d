"""Rows of a stitched kernel: maps and reductions over the last dimension that one warp composes in registers.

Lane l keeps elements (chunk * lanes + l) * vector + v of its row. Each value is computed once a row and stays in registers for the
values after it; only what later stages read goes to shared memory. Source: FusionStitching 5.1, warp composition.
"""
from __future__ import annotations

from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.domain.regions import inside, num_elements
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import NO_EXTENT, Affine, axis, number, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.kernel.ir import Assign, Declare, KExpr, Reg, Shuffle, Store, VectorLoad, VectorStore
from tilefuse.templates.staged.stitched.items import Items
from tilefuse.templates.staged.stitched.plan import Piece, Stage
from tilefuse.templates.staged.stitched.points import point_of_item, store_vector
from tilefuse.templates.staged.stitched.reduce import accumulate, body_dtype, identities
from tilefuse.templates.staged.stitched.row_chain import first_lane_pieces
from tilefuse.templates.staged.stitched.values import Point, StitchValues


def emit_rows(w: StitchValues, stage: Stage) -> None:
    """One stage of rows: every warp (or part of one) takes rows in turn."""
    pieces = [w.plan.pieces[k] for k in stage.pieces]
    first = next(p for p in pieces if p.kind == "reduce")
    with Items(w, num_elements(first.region), stage.lanes) as item:
        local = point_of_item(w, first, item, 1, first.region[-1].extent)
        row = w.start(first.region, local, number(0))
        Row(w, stage, first, row, w.lane, w.active).emit(pieces)


class Row:
    """One row in the registers of `lanes` lanes; pieces are computed in order."""

    def __init__(self, w: StitchValues, stage: Stage, first: Piece, row: Point, lane: Affine, active: tuple[Bound, ...]) -> None:
        self.w, self.stage, self.row, self.lane, self.active = w, stage, row, lane, active
        self.rows = first.region
        self.chunks = -(-stage.columns // (stage.lanes * stage.vector))
        shape = w.graph.type_of(first.value).shape
        self.present = tuple(b for b in inside(first.region, row, shape, dict(w.plan.grid)) if not w.always(b))
        # Where a row of the tile lies beyond the value nothing is read and zeros are stored.
        self.bounds = (*active, *self.present)
        self.first = (Bound(lane, 0, 1),) if stage.lanes > 1 else ()
        self.by_first_lane = first_lane_pieces(w.plan, stage)

    def emit(self, pieces: list[Piece]) -> None:
        """All pieces of the row."""
        for p in pieces:
            if p.kind == "reduce":
                self._reduce(p)
            elif p.region == self.rows:
                self._of_row(p)
            else:
                self._full(p)

    def _place(self, chunk: int) -> Affine:
        """Position in the row of a chunk's first element of this lane."""
        return (self.stage.lanes * chunk + self.lane) * self.stage.vector

    def _when(self, chunk: int) -> tuple[Bound, ...]:
        vectors = self.stage.columns // self.stage.vector
        part = (Bound(self.stage.lanes * chunk + self.lane, 0, vectors),) if (chunk + 1) * self.stage.lanes > vectors else ()
        return (*self.bounds, *part)

    def _load(self, p: Piece, chunk: int) -> None:
        """Brings what the piece reads along the row into registers, as vectors."""
        w, vector = self.w, self.stage.vector
        node = w.nodes[p.value]
        lane = w.fresh("v")
        w.frame.extents[lane] = vector
        place = self._place(chunk) + axis(lane)
        if p.kind == "reduce":
            moving, at = self.row, {node.over[0][0]: place}
        else:
            moving, at = (*self.row, place), {}
        for value, index in w.reads(node, moving, at):
            index = tuple(w.simplified(e) for e in index)
            if not any(lane in e.axes() for e in index) or self._has(value, index, lane):
                continue
            place_of_vector = w.place(value, index)
            if place_of_vector is None:
                continue
            buffer, offset, dtype = place_of_vector
            parts = vector_parts(offset, lane, vector, dtype)
            array = w.fresh(f"{value}_v")
            w.emit(Declare(array, dtype, vector))
            with w.when(self._when(chunk)):
                for start, width in parts:
                    w.emit(VectorLoad(array, number(start), buffer, substitute(offset, {lane: number(start)}, w.extents), width))
            for v in range(vector):
                w.remember(value, tuple(w.simplified(substitute(e, {lane: number(v)})) for e in index), Reg(array, dtype, number(v)))

    def _has(self, value: str, index: Point, lane: str) -> bool:
        return self.w.known(value, tuple(self.w.simplified(substitute(e, {lane: number(0)})) for e in index)) is not None

    def _full(self, p: Piece) -> None:
        """A map over the row's elements: computed into registers, stored where somebody needs it."""
        w, vector = self.w, self.stage.vector
        for chunk in range(self.chunks):
            self._load(p, chunk)
            array = w.fresh(p.value)
            w.emit(Declare(array, p.dtype, vector))
            with w.when(self._when(chunk)):
                for v in range(vector):
                    at = tuple(w.simplified(e) for e in (*self.row, self._place(chunk) + v))
                    w.emit(Assign(Reg(array, p.dtype, number(v)), w.body(w.nodes[p.value], at)))
                store_vector(w, p, (*self.row, self._place(chunk)), array, number(0), vector)
            for v in range(vector):
                at = tuple(w.simplified(e) for e in (*self.row, self._place(chunk) + v))
                w.remember(p.value, at, Reg(array, p.dtype, number(v)))
        if p.stored and self.present:
            self._zeros(p)

    def _zeros(self, p: Piece) -> None:
        """Rows beyond the value's end: later stages read zeros."""
        w, vector = self.w, self.stage.vector
        array = w.fresh("zeros")
        w.emit(Declare(array, p.dtype, vector))
        for v in range(vector):
            w.emit(Assign(Reg(array, p.dtype, number(v)), const(0, p.dtype)))
        for bound in self.present:
            for chunk in range(self.chunks):
                vectors = self.stage.columns // vector
                part = (Bound(self.stage.lanes * chunk + self.lane, 0, vectors),) if (chunk + 1) * self.stage.lanes > vectors else ()
                with w.when((*self.active, Bound(bound.index, bound.high, NO_EXTENT), *part)):
                    for start in range(vector):
                        at = (*self.row, self._place(chunk) + start)
                        w.emit(VectorStore(w.shared[p.key].name, w.tile_offset(p, at), array, number(start), 1))

    def _of_row(self, p: Piece) -> None:
        """A map with one value a row: the lanes that need it compute it, the first one stores it."""
        w = self.w
        name = w.fresh(p.value)
        w.emit(Declare(name, p.dtype, None, const(0, p.dtype)))
        with w.when((*self.bounds, *(self.first if p.key in self.by_first_lane else ()))):
            w.emit(Assign(Reg(name, p.dtype), w.body(w.nodes[p.value], self.row)))
        self._store_row(p, Reg(name, p.dtype))
        w.remember(p.value, tuple(w.simplified(e) for e in self.row), Reg(name, p.dtype))

    def _store_row(self, p: Piece, value: Reg) -> None:
        w = self.w
        if p.stored:
            with w.when((*self.active, *self.first)):
                w.emit(Store(w.shared[p.key].name, w.tile_offset(p, self.row), value))
        if p.written:
            with w.when((*self.bounds, *self.first, *w.writers(p))):
                w.emit(Store(w.buffers[p.value].name, w.global_offset(p.value, self.row), value))

    def _reduce(self, p: Piece) -> None:
        """A reduction over the row: the lane's own elements, then the other lanes' by shuffles, so that all lanes have the result."""
        w, stage = self.w, self.stage
        node = w.nodes[p.value]
        dtype = body_dtype(w, node)
        if node.detail == "m2" and stage.columns == self.chunks * stage.lanes * stage.vector:
            self._finish(p, self._squares(p, dtype))
            return
        parts = identities(w, node)
        for chunk in range(self.chunks):
            self._load(p, chunk)
            with w.when(self._when(chunk)):
                for v in range(stage.vector):
                    accumulate(w, node, parts, self.row, w.simplified(self._place(chunk) + v))
        amount = stage.lanes // 2
        while amount:
            others = []
            for reg in parts:
                other = Reg(w.fresh(reg.name + "_other"), reg.dtype)
                w.emit(Declare(other.name, other.dtype), Shuffle(other, reg, "xor", amount))
                others.append(other)
            w.combine(node.detail, parts, others, dtype)
            amount //= 2
        self._finish(p, KERNEL_MONOIDS[node.detail].finish(tuple(parts), dtype))

    def _squares(self, p: Piece, dtype: DType) -> Reg:
        """Squared deviations from the row's mean, where all lanes have equally many elements: nothing is divided, counts are known.

            lane    t = sum x,  q = sum (x - t / c)^2          pairs of lanes    t = t1 + t2,  q = q1 + q2 + (t1 - t2)^2 / 2 c

        Source: Chan, Golub and LeVeque 1983, The American Statistician 37(3), the pairwise algorithm.
        """
        w, stage, node = self.w, self.stage, self.w.nodes[p.value]
        t, q = (Reg(w.fresh(f"{p.value}_{part}"), dtype) for part in ("total", "squares"))
        w.emit(Declare(t.name, dtype, None, const(0, dtype)), Declare(q.name, dtype, None, const(0, dtype)))
        for chunk in range(self.chunks):
            self._load(p, chunk)
        count = self.chunks * stage.vector
        with w.when(self.bounds):
            values = []
            for n in range(count):
                place = self._place(n // stage.vector) + n % stage.vector
                values.append(w.register(w.body(node, self.row, False, {node.over[0][0]: w.simplified(place)}), dtype, f"{p.value}_x"))
                w.emit(Assign(t, _call("add", t, values[-1])))
            mean = w.register(_call("mul", t, const(1.0 / count, dtype)), dtype, f"{p.value}_mean")
            for value in values:
                off = w.register(_call("sub", value, mean), dtype, f"{p.value}_off")
                w.emit(Assign(q, _call("fma", off, off, q)))
        amount = stage.lanes // 2
        while amount:
            others = [Reg(w.fresh(reg.name + "_other"), dtype) for reg in (t, q)]
            for reg, other in zip((t, q), others, strict=True):
                w.emit(Declare(other.name, dtype), Shuffle(other, reg, "xor", amount))
            apart = w.register(_call("sub", t, others[0]), dtype, f"{p.value}_apart")
            between = _call("mul", _call("mul", apart, const(1.0 / (2 * count), dtype)), apart)
            w.emit(Assign(q, _call("add", _call("add", q, others[1]), between)), Assign(t, _call("add", t, others[0])))
            amount //= 2
            count *= 2
        return q

    def _finish(self, p: Piece, result: KExpr) -> None:
        """Result of a reduction of a row, stored where it is needed."""
        w = self.w
        name = w.fresh(p.value)
        w.emit(Declare(name, p.dtype, None, result))
        self._store_row(p, Reg(name, p.dtype))
        w.remember(p.value, tuple(w.simplified(e) for e in self.row), Reg(name, p.dtype))


def _call(fn: str, *args: KExpr) -> KExpr:
    return Call(fn, args)
