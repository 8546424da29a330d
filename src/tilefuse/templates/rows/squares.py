"""Squared deviations along a row that one thread takes alone: two passes over each stretch of it, in vector code.

    for each stretch of vectors:   s[v] += x,  kept[..] = x            first pass, lane by lane
                                   mean = (sum of s) / n
                                   c[v] += x - mean,  q[v] += (x - mean)^2           second pass, over what was kept
                                   mean += c / n,  m2 = q - c^2 / n

One division a stretch and none an element; all lanes share a mean, so that joining them is plain sums. Chan's formula joins stretches
(`cascade.py`). The sum `c` takes back what the rounded mean adds. Source: Chan, Golub and LeVeque 1983, The American Statistician 37(3),
the corrected two-pass algorithm.

The first pass is in the dtype of the elements, the second in f64: sums of squares of f32 on a coarse grid round one way, not at random.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilefuse.domain.resolved import Instance
from tilefuse.domain.wide_squares import narrow_body
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.kernel.ir import Assign, Declare, KExpr, Reg
from tilefuse.templates.rows.walk import RowState, in_row, vector_at


def takes_stretches(state: RowState, instance: Instance) -> bool:
    """Whether a reduction is made here: squared deviations, and one thread of the host has the row, in vectors that can be halved."""
    c = state.choice
    return instance.node.detail == "m2" and state.writer.device.kind == "host" and c.threads == 1 < c.vector and c.vector.bit_count() == 1


class TwoPassSquares:
    """The m2 reductions of one stage of a row.

    parts: their components (count, mean, m2), scalars in f64; `extent`: vectors a stretch. `sums`: lane accumulators of sums over the
    same values, by the key of the m2; `kept`: arrays over the row that hold the values already, by the same key.
    """

    def __init__(self, state: RowState, squares: Sequence[Instance], parts: Mapping[int, Sequence[Reg]], extent: int,
                 sums: Mapping[int, Reg], kept: Mapping[int, Reg]) -> None:
        self.state, self.squares, self.parts, self.extent = state, squares, parts, extent
        self.width = state.choice.vector
        e = state.writer.emitter
        # Elements past the last vector join a row's only stretch; those of longer rows are taken one by one.
        self.tail = state.tail if extent == state.choice.chunks == state.vectors else 0
        self.own_sums = {i.key for i in squares} - sums.keys()
        self.sums = {i.key: sums.get(i.key) or self._array(i.node.name + "_lanes", self._dtype(i), self.width) for i in squares}
        elements = extent * self.width + self.tail
        self.values = {i.key: kept.get(i.key) or self._array(i.node.name + "_x", self._dtype(i), elements) for i in squares}
        self.own_values = {i.key for i in squares} - kept.keys()
        # A row of one stretch needs no counter: its length is known. The field is None then.
        self.seen = None if extent == state.choice.chunks == state.vectors else Reg(e.fresh("vectors_seen"), e.dtype(squares[0].body))
        if self.seen is not None:
            e.emit(Declare(self.seen.name, self.seen.dtype))

    def start(self) -> None:
        """Before a stretch."""
        e = self.state.writer.emitter
        if self.seen is not None:
            e.emit(Assign(self.seen, const(0, self.seen.dtype)))
        for i in self.squares:
            if i.key in self.own_sums:
                self._clear(self.sums[i.key])

    def next_vector(self) -> None:
        """A vector of the stretch that is there."""
        if self.seen is not None:
            self.state.writer.emitter.emit(Assign(self.seen, _call("add", self.seen, const(1, self.seen.dtype))))

    def take(self, i: Instance, element: Affine, lane: Affine) -> None:
        """Element number `element` of the stretch; those past the last vector are of lane 0."""
        if i.key not in self.own_values | self.own_sums:
            return
        e = self.state.writer.emitter
        x = e.expression(narrow_body(i))
        if i.key in self.own_values:
            place = self._at(self.values[i.key], element)
            e.emit(Assign(place, x))
            x = place
        if i.key in self.own_sums:
            total = self._at(self.sums[i.key], lane)
            e.emit(Assign(total, _call("add", total, x)))

    def end(self, first: Affine) -> None:
        """After the vectors of the stretch that begins with vector `first`."""
        if not self.tail:
            self._end(first)

    def finish(self) -> None:
        """After the whole row."""
        if self.tail:
            self._end(number(0))

    def refine_sums(self, totals: Mapping[int, Reg]) -> None:
        """Sums over the values of an m2 follow from its mean, which the second pass has corrected in f64; infinite ones stay as they are.

        totals: the row's sums, by their instances' keys.
        """
        e = self.state.writer.emitter
        for key, total in totals.items():
            body = self.state.writer.domain.instances[key].body
            twin = next((i for i in self.squares if narrow_body(i) == body), None)
            if twin is not None:
                count, mean, _ = self.parts[twin.key]
                exact = _converted(_call("mul", count, mean), mean.dtype, total.dtype)
                finite = _call("lt", _call("abs", mean), const(float("inf"), mean.dtype))
                e.emit(Assign(total, _call("select", finite, exact, total)))

    def _end(self, first: Affine) -> None:
        """The second pass, and the components of Chan's formula."""
        e = self.state.writer.emitter
        for i in self.squares:
            narrow = self._dtype(i)
            count, mean, m2 = self.parts[i.key]
            dtype = mean.dtype
            inverse = self._count(count)
            rounded = _call("mul", self._total(self.sums[i.key]), _converted(inverse, dtype, narrow))
            e.emit(Assign(mean, _converted(rounded, narrow, dtype)))
            rest, squares = (self._array(i.node.name + suffix, dtype, self.width) for suffix in ("_rest", "_squares"))
            self._clear(rest, squares)
            with e.loop("step", self.extent) as step, e.when(self._present(first + step)), e.lanes(self.width, False) as v:
                self._add_distance(self._at(self.values[i.key], step * self.width + v), mean, self._at(rest, v), self._at(squares, v))
            if self.tail:
                with e.loop("rest", self.tail) as last:
                    self._add_distance(self._at(self.values[i.key], self.extent * self.width + last), mean, self._at(rest, number(0)),
                                       self._at(squares, number(0)))
            lost = e.register(self._total(rest), dtype, "lost")
            correction = e.register(_call("mul", lost, inverse), dtype, "correction")
            e.emit(Assign(m2, _call("maximum", _call("sub", self._total(squares), _call("mul", lost, correction)), const(0, dtype))),
                   Assign(mean, _call("add", mean, correction)))

    def _add_distance(self, x: Reg, mean: Reg, rest: Reg, squares: Reg) -> None:
        e = self.state.writer.emitter
        off = e.register(_call("sub", _converted(x, x.dtype, mean.dtype), mean), mean.dtype, "off")
        e.emit(*(Assign(into, _call("add", into, term)) for into, term in ((rest, off), (squares, _call("mul", off, off)))))

    def _present(self, vector: Affine) -> list[Bound]:
        # The last stretch of a thread may reach beyond the thread's own share of the row.
        own = Bound(vector, 0, self.state.choice.chunks)
        return [own, *in_row(self.state, vector, vector_at(self.state, vector))]

    def _count(self, count: Reg) -> KExpr:
        """Sets the number of elements; its inverse."""
        e, dtype = self.state.writer.emitter, count.dtype
        if self.seen is None:
            number_of_elements = self.extent * self.width + self.tail
            e.emit(Assign(count, const(number_of_elements, dtype)))
            return const(1 / number_of_elements, dtype)
        e.emit(Assign(count, _call("mul", self.seen, const(self.width, dtype))))
        return e.register(_call("div", const(1, dtype), _call("maximum", count, const(1, dtype))), dtype, "inverse")

    def _total(self, lanes: Reg) -> KExpr:
        """The sum over the lanes, half onto half; `lanes` stays as it is."""
        e = self.state.writer.emitter
        width = self.width
        half = self._array(lanes.name + "_halves", lanes.dtype, width // 2)
        source = lanes
        while width > 1:
            width //= 2
            with e.lanes(width, False) as v:
                e.emit(Assign(self._at(half, v), _call("add", self._at(source, v), self._at(source, v + width))))
            source = half
        return self._at(half, number(0))

    def _clear(self, *arrays: Reg) -> None:
        e = self.state.writer.emitter
        with e.lanes(self.width, False) as v:
            e.emit(*(Assign(self._at(a, v), const(0, a.dtype)) for a in arrays))

    def _dtype(self, i: Instance) -> DType:
        return self.state.writer.emitter.dtype(narrow_body(i))

    def _array(self, stem: str, dtype: DType, size: int) -> Reg:
        e = self.state.writer.emitter
        array = Reg(e.fresh(stem), dtype)
        e.emit(Declare(array.name, dtype, size))
        return array

    @staticmethod
    def _at(array: Reg, at: Affine) -> Reg:
        return Reg(array.name, array.dtype, at)


def _converted(x: KExpr, source: DType, target: DType) -> KExpr:
    return x if source == target else _call(target.name, x)


def _call(fn: str, *args: KExpr) -> KExpr:
    return Call(fn, args)
