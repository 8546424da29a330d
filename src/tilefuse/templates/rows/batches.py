"""Squared deviations along streamed rows, a batch of vectors at a time: two passes over the batch in registers.

    for each batch of vectors:   s += x                         first pass, as the elements are computed
                                 mean = s / n,  q += (x - mean)^2           second pass, over registers
                                 count, mean, m2 join n, mean, q

Chan's formula, with its division, joins batches; joining vectors takes a division each, and the threads of a norm's statistics then wait
for arithmetic, not for memory. Sums over the same values take the batch's sum. Source: H200, group norm's statistics over
[7, 64, 258, 258] f32 vector by vector: 64 us with a sigmoid before them, 74 with GELU; the bytes take 29.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilefuse.domain.resolved import Instance, Touch, resolved_walk
from tilefuse.domain.stages import is_row_element
from tilefuse.emit.kernel_writer import reachable
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import Assign, Declare, KExpr, Reg
from tilefuse.templates.rows.walk import RowState, is_streamed, row_room


def takes_batches(state: RowState, instance: Instance) -> bool:
    """Whether a reduction is made here: squared deviations of a device's streamed row, a batch of which a thread holds twice, as it was
    read and as it is summed. Where that does not leave registers for anything else, vectors are joined one by one.
    """
    if instance.node.detail != "m2" or not state.writer.unroll or not is_streamed(state):
        return False
    domain = state.writer.domain
    instances = reachable(domain, [instance.key], {n for n, i in enumerate(domain.instances) if i.shared and n != instance.key})
    read = {x for i in instances for x in resolved_walk(i.body) if isinstance(x, Touch)}
    element = state.writer.emitter.dtype(instance.body).itemsize + sum(t.dtype.itemsize for t in read if is_row_element(domain, t.offset))
    return element * state.choice.batch * state.choice.vector < row_room(state)


class BatchSquares:
    """The m2 reductions of one stage of a streamed row.

    parts: their components (count, mean, m2), scalars. twins: accumulators of the sums over the same values, by the key of the m2.
    """

    def __init__(self, state: RowState, squares: Sequence[Instance], parts: Mapping[int, Sequence[Reg]], twins: Mapping[int, Reg]) -> None:
        self.state, self.squares, self.parts, self.twins = state, squares, parts, twins
        self.width = state.choice.vector
        e = state.writer.emitter
        self.values: dict[int, Reg] = {}
        self.sums: dict[int, Reg] = {}
        self.rests: dict[int, Reg] = {}
        for i in squares:
            dtype = e.dtype(i.body)
            self.values[i.key] = self._declared(i.node.name + "_x", dtype, state.choice.batch * self.width)
            self.sums[i.key] = self._declared(i.node.name + "_batch", dtype)
            self.rests[i.key] = self._declared(i.node.name + "_batch_m2", dtype)
        self.seen = self._declared("elements_of_batch", e.dtype(squares[0].body))
        self.means: dict[int, KExpr] = {}

    def start(self) -> None:
        """Before the elements of a batch."""
        zeros = [self.seen, *self.sums.values(), *self.rests.values()]
        self.state.writer.emitter.emit(*(Assign(r, const(0, r.dtype)) for r in zeros))

    def take(self, i: Instance, step: Affine, lane: Affine) -> None:
        """An element of vector `step` of the batch."""
        e = self.state.writer.emitter
        place = self._at(i, step, lane)
        total = self.sums[i.key]
        e.emit(Assign(place, e.expression(i.body)), Assign(total, _call("add", total, place)))

    def next_vector(self) -> None:
        """After a vector that is there."""
        self.state.writer.emitter.emit(Assign(self.seen, _call("add", self.seen, const(self.width, self.seen.dtype))))

    def turn(self) -> None:
        """Between the two passes: the batch's means."""
        e, dtype = self.state.writer.emitter, self.seen.dtype
        inverse = e.register(_call("div", const(1, dtype), _call("maximum", self.seen, const(1, dtype))), dtype, "inverse")
        for i in self.squares:
            self.means[i.key] = e.register(_call("mul", self.sums[i.key], inverse), dtype, i.node.name + "_batch_mean")

    def distances(self, step: Affine) -> None:
        """The second pass over vector `step`, where it is there."""
        e = self.state.writer.emitter
        for i in self.squares:
            rest = self.rests[i.key]
            with e.lanes(self.width, True) as v:
                off = e.register(_call("sub", self._at(i, step, v), self.means[i.key]), rest.dtype, "off")
                e.emit(Assign(rest, _call("add", rest, _call("mul", off, off))))

    def end(self) -> None:
        """After a batch: it joins what came before."""
        e = self.state.writer.emitter
        for i in self.squares:
            e.combine("m2", list(self.parts[i.key]), (self.seen, self.means[i.key], self.rests[i.key]), self.seen.dtype)
            twin = self.twins.get(i.key)
            if twin is not None:
                e.emit(Assign(twin, _call("add", twin, self.sums[i.key])))

    def _at(self, i: Instance, step: Affine, lane: Affine) -> Reg:
        values = self.values[i.key]
        return Reg(values.name, values.dtype, step * self.width + lane)

    def _declared(self, stem: str, dtype: DType, size: int | None = None) -> Reg:
        e = self.state.writer.emitter
        reg = Reg(e.fresh(stem), dtype)
        e.emit(Declare(reg.name, reg.dtype, size))
        return reg


def twin_sums(group: Sequence[Instance], parts: Mapping[int, Sequence[Sequence[Reg]]], squares: Sequence[Instance],
              dtypes: Mapping[int, DType]) -> dict[int, tuple[int, Reg]]:
    """For each m2 the sum over the same values that the stage makes too: its key, and one of its accumulators."""
    twins: dict[int, tuple[int, Reg]] = {}
    left = [s for s in group if s.node.detail == "sum"]
    for i in squares:
        twin = next((s for s in left if s.body == i.body and dtypes[s.key] == dtypes[i.key]), None)
        if twin is not None:
            left.remove(twin)
            first, count = parts[twin.key][0][0], len(parts[twin.key])
            twins[i.key] = twin.key, Reg(first.name, first.dtype, number(0) if count > 1 else None)
    return twins


def _call(fn: str, *args: KExpr) -> KExpr:
    return Call(fn, args)
