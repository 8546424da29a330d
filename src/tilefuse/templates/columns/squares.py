"""Squared deviations down the columns: each thread sums its rows' distances from its first row, and their squares.

    o = x[first];  s1 = sum (x - o);  s2 = sum (x - o)^2        mean = o + s1 / n,  m2 = s2 - s1^2 / n        of the thread's n rows

Four operations an element and no division until the rows are through; Chan's formula then joins the threads. The shift keeps the
difference harmless: o is one of the n values, so that s1^2 / n is at most n times m2, and n is small (a thread's rows).
Source: Chan, Golub and LeVeque 1983, The American Statistician 37(3), shifted data.
"""
from __future__ import annotations

from tilefuse.domain.resolved import Instance
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.ir.affine import Affine
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.kernel.ir import Assign, Declare, KExpr, Reg
from tilefuse.templates.columns.record import Columns


class ShiftedSquares:
    """The m2 reductions of one stage of a column kernel. `parts`: components (count, mean, m2) and sums, arrays over the lanes.

    twins: sums over the same values as an m2; they follow from its shifted sum.
    """

    def __init__(self, writer: KernelWriter, choice: Columns, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
        e = writer.emitter
        self.writer = writer
        self.choice = choice
        self.squares = [i for i in group if i.node.detail == "m2"]
        self.parts = parts
        self.dtype = e.dtype(self.squares[0].body)
        self.twins = {i.key: next(q.key for q in self.squares if q.body == i.body) for i in group
                      if i.node.detail == "sum" and e.dtype(i.body) == self.dtype and any(q.body == i.body for q in self.squares)}
        self.count = Reg(e.fresh("rows_seen"), self.dtype)
        e.emit(Declare(self.count.name, self.dtype, None, const(0, self.dtype)))
        self.origins = {i.key: self._array(f"{i.node.name}_origin") for i in self.squares}
        # While rows are walked, the mean's place holds the sum of distances and m2's that of their squares.
        for i in self.squares:
            self._set(self.origins[i.key], const(0, self.dtype))

    def takes(self, i: Instance) -> bool:
        """Whether a reduction of the stage is made here and not element by element."""
        return i in self.squares or i.key in self.twins

    def take(self, i: Instance, step: Affine, lane: Affine) -> None:
        """One element of the thread's row number `step`. Requires: row 0 is met first, and is there if any row is."""
        if i not in self.squares:
            return
        e = self.writer.emitter
        x = e.register(e.expression(i.body), self.dtype, i.node.name + "_x")
        origin, (_, distances, squares) = self._at(self.origins[i.key], lane), (self._at(p, lane) for p in self.parts[i.key])
        with e.when([Bound(step, 0, 1)]):
            # An infinite origin would make every distance NaN, and with them sums that are infinite.
            finite: KExpr = Call("lt", (Call("abs", (x,)), const(float("inf"), self.dtype)))
            e.emit(Assign(origin, Call("select", (finite, x, const(0, self.dtype)))))
        off = e.register(Call("sub", (x, origin)), self.dtype, "off")
        e.emit(Assign(distances, Call("add", (distances, off))))
        e.emit(Assign(squares, Call("add", (squares, Call("mul", (off, off))))))

    def next_row(self) -> None:
        """After a row that is there."""
        self.writer.emitter.emit(Assign(self.count, Call("add", (self.count, const(1, self.dtype)))))

    def end(self) -> None:
        """After the last row: the components of Chan's formula, and the sums that follow from them."""
        e = self.writer.emitter
        one = const(1, self.dtype)
        inverse = e.register(Call("div", (one, Call("maximum", (self.count, one)))), self.dtype, "inverse")
        with e.loop("v", self.choice.vector, unroll=self.writer.unroll) as v:
            for key, squares in self.twins.items():
                total, origin, distances = (self._at(p, v) for p in (self.parts[key][0], self.origins[squares], self.parts[squares][1]))
                e.emit(Assign(total, Call("add", (distances, Call("mul", (origin, self.count))))))
            for i in self.squares:
                origin, (count, mean, m2) = self._at(self.origins[i.key], v), (self._at(p, v) for p in self.parts[i.key])
                shift = e.register(Call("mul", (mean, inverse)), self.dtype, "shift")
                rest: KExpr = Call("sub", (m2, Call("mul", (mean, shift))))
                e.emit(Assign(m2, Call("maximum", (rest, const(0, self.dtype)))))
                e.emit(Assign(mean, Call("add", (origin, shift))), Assign(count, self.count))

    def _array(self, stem: str) -> Reg:
        e, width = self.writer.emitter, self.choice.vector
        array = Reg(e.fresh(stem), self.dtype)
        e.emit(Declare(array.name, array.dtype, None if width == 1 else width))
        return array

    def _set(self, array: Reg, value: KExpr) -> None:
        e = self.writer.emitter
        with e.loop("v", self.choice.vector, unroll=self.writer.unroll) as v:
            e.emit(Assign(self._at(array, v), value))

    def _at(self, reg: Reg, lane: Affine) -> Reg:
        return reg if self.choice.vector == 1 else Reg(reg.name, reg.dtype, lane)
