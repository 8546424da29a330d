"""Squared deviations down the columns, a batch of rows at a time: mean and deviations of the batch from registers, then one merge.

    batch of B rows:  mean_b = sum / B;  m2_b = sum (x - mean_b)^2;      merged with what came before by Chan's formula

One division a batch instead of one a row, and a chain of dependent operations a batch instead of one a row.
Source: Chan, Golub and LeVeque 1983, The American Statistician 37(3).
"""
from __future__ import annotations

from tilefuse.codegen.compose import KernelWriter
from tilefuse.codegen.kernel import Assign, Declare, KExpr, Reg
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.scalar import Call, const
from tilefuse.schedule.resolved import Instance
from tilefuse.schedule.template import Columns


class MeanSquares:
    """The m2 reductions of one stage of a column kernel. `parts`: their components (count, mean, m2), arrays over the lanes."""

    def __init__(self, writer: KernelWriter, choice: Columns, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
        e = writer.emitter
        self.writer = writer
        self.choice = choice
        self.group = group
        self.parts = parts
        self.dtype = e.dtype(group[0].body)
        self.seen = Reg(e.fresh("rows_seen"), self.dtype)
        self.values: dict[int, Reg] = {}
        e.emit(Declare(self.seen.name, self.dtype, None, const(0, self.dtype)))

    def begin(self) -> None:
        """At the start of a batch: room for its values, none of them there yet."""
        e, c = self.writer.emitter, self.choice
        self.count = Reg(e.fresh("batch_rows"), self.dtype)
        e.emit(Declare(self.count.name, self.dtype, None, const(0, self.dtype)))
        for i in self.group:
            held = Reg(e.fresh(i.node.name + "_x"), self.dtype)
            e.emit(Declare(held.name, held.dtype, c.batch * c.vector))
            with e.loop("v", c.batch * c.vector, unroll=self.writer.unroll) as v:
                e.emit(Assign(Reg(held.name, held.dtype, v), const(0, self.dtype)))
            self.values[i.key] = held

    def take(self, i: Instance, row: Affine, lane: Affine) -> None:
        """Keeps one element of the batch's row number `row`."""
        held = self.values[i.key]
        e = self.writer.emitter
        e.emit(Assign(Reg(held.name, held.dtype, row * self.choice.vector + lane), e.expression(i.body)))

    def next_row(self) -> None:
        """After a row that is there. Requires: rows past the end come last in a batch."""
        self._set(self.count, "add", self.count, const(1, self.dtype))

    def end(self) -> None:
        """At the end of a batch: merges it into the components."""
        e, c = self.writer.emitter, self.choice
        one = const(1, self.dtype)
        inverse = self._held("inverse", "div", one, Call("maximum", (self.count, one)))  # type: ignore[arg-type]
        total = self._held("rows_now", "add", self.seen, self.count)
        weight = self._held("weight", "div", self.count, Call("maximum", (total, one)))  # type: ignore[arg-type]
        scale = self._held("scale", "mul", self.seen, weight)
        for i in self.group:
            with e.loop("v", c.vector, unroll=self.writer.unroll) as v:
                self._merge(i, v, inverse, total, weight, scale)
        e.emit(Assign(self.seen, total))

    def _merge(self, i: Instance, v: Affine, inverse: KExpr, total: KExpr, weight: KExpr, scale: KExpr) -> None:
        e, c = self.writer.emitter, self.choice
        values = [Reg(self.values[i.key].name, self.dtype, number(b * c.vector) + v) for b in range(c.batch)]
        count, mean, m2 = (p if c.vector == 1 else Reg(p.name, p.dtype, v) for p in self.parts[i.key])
        gathered: KExpr = values[0]
        for x in values[1:]:
            gathered = Call("add", (gathered, x))  # type: ignore[arg-type]
        middle = self._held("batch_mean", "mul", gathered, inverse)
        squares: KExpr = const(0, self.dtype)
        for b, x in enumerate(values):
            off = self._held("off", "sub", x, middle)
            there = Call("lt", (const(b, self.dtype), self.count))  # type: ignore[arg-type]
            term = Call("select", (there, Call("mul", (off, off)), const(0, self.dtype)))  # type: ignore[arg-type]
            squares = Call("add", (squares, term))  # type: ignore[arg-type]
        delta = self._held("delta", "sub", middle, mean)
        self._set(mean, "add", mean, Call("mul", (delta, weight)))  # type: ignore[arg-type]
        between = Call("mul", (Call("mul", (delta, delta)), scale))  # type: ignore[arg-type]
        self._set(m2, "add", m2, Call("add", (squares, between)))  # type: ignore[arg-type]
        e.emit(Assign(count, total))

    def _held(self, wanted: str, fn: str, a: KExpr, b: KExpr) -> KExpr:
        return self.writer.emitter.register(Call(fn, (a, b)), self.dtype, wanted)  # type: ignore[arg-type]

    def _set(self, target: Reg, fn: str, a: KExpr, b: KExpr) -> None:
        self.writer.emitter.emit(Assign(target, Call(fn, (a, b))))  # type: ignore[arg-type]
