"""One turn of a pipelined walk: what threads do with scores while the products of the turn before are in flight.

    scores arrive | maximum, powers in the scores' registers | products before end | rescale | powers rounded to a left operand
"""
from __future__ import annotations

from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Call
from tilefuse.kernel.ir import Assign, Comment, Declare, IfValue, KExpr, Reg
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.online.fragments import Fragment
from tilefuse.templates.staged.online.lazy import LazyTop
from tilefuse.templates.staged.online.products import Total
from tilefuse.templates.staged.online.turn import Turn
from tilefuse.templates.staged.walked.state import WalkState


class DeferredTop(LazyTop):
    """A lazily followed maximum whose factors wait for the products in flight before they rescale these."""

    def __init__(self, w: WalkState, t: Total, rows: int) -> None:
        super().__init__(w, t, rows)
        self.factor = Reg("", F32)

    def of(self, t: Total) -> DeferredTop:
        """The same maximum with its elements in another form, as without a mask."""
        other = object.__new__(DeferredTop)
        other.__dict__.update(self.__dict__)
        other.take(t)
        return other

    def grow(self, new: Reg, products: list[Fragment]) -> None:
        """As of `LazyTop`; factors of the products are kept until `rescale`."""
        self.factor = Reg(self.w.fresh(f"{self.total.value}_factor"), F32)
        self.w.emit(Declare(self.factor.name, F32, self.rows))
        super().grow(new, products)

    def rescale_products(self, i: Affine, factor: KExpr, products: list[Fragment]) -> None:
        """Keeps a row's factor."""
        self.w.emit(Assign(self._row(self.factor, i), factor))

    def rescale(self, products: list[Fragment]) -> None:
        """Multiplies what products have summed up by the factors of this turn."""
        w = self.w
        with w.nested() as inner, w.loop("i", self.rows, unroll=w.unroll) as i:
            super().rescale_products(i, self._row(self.factor, i), products)
        w.emit(IfValue(self.grown, tuple(inner.statements)))


class PipelinedTurn(Turn):
    """One tile of the walked axis, whose scores a warpgroup product has computed into `scores`."""

    w: WalkState

    def of_scores(self, scores: Reg) -> None:
        """Maxima, sums and powers of this turn, the powers in the place of the scores."""
        self.sums = [scores]
        self.reduce()

    def power_array(self, number_: int) -> Reg:
        """The scores' registers: each element is read before its power takes its place."""
        return self.sums[0]


def round_powers(w: WalkState, scores: Reg, powers: Reg, size: int) -> None:
    """Powers of a turn as the left operand of the weighted product, two at a time."""
    w.emit(Comment("powers of this turn as a left operand"))
    with w.loop("n", size // NEIGHBOURS, unroll=w.unroll) as n:
        for v in range(NEIGHBOURS):
            at = n * NEIGHBOURS + v
            w.emit(Assign(Reg(powers.name, powers.dtype, at), Call(powers.dtype.name, (Reg(scores.name, scores.dtype, at),))))
