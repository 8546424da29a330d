"""Running maxima that are followed lazily: powers are relative to a maximum of some turns ago until they would grow beyond 2**8.

    e = exp(c * s - m)      ->      e = 2 ** (s * k + neg),   k = c * log2(e),   neg = -k * (an older maximum of s)

One fused multiplication and one power an element, and hardly ever a rescaling: a row's maximum seldom grows by that much after its first
turn. Sums are made relative to the true maximum at the end. The exponent s * k + neg is off by the roundings of k and neg,
2**-24 of |s| each: as much as s itself is, a sum rounded to f32. Source: Milakov and Gimelshein 2018, arXiv:1805.02867.

Elements that may be as low as the lowest float, as with masks of numbers (`reaches_lowest`), take a subtraction more: s * k would overflow.

    e = 2 ** ((s + neg) * k),   neg = -(an older maximum of s)
"""
from __future__ import annotations

import math

import numpy as np

from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import BOOL, F32
from tilefuse.ir.scalar import Call, Const, Expr, Guard, Lookup, Read, const, walk
from tilefuse.kernel.ir import Assign, Comment, Declare, IfValue, KExpr, Reg
from tilefuse.templates.staged.online.fragments import Fragment, clear
from tilefuse.templates.staged.online.products import NARROW, OnlineForm
from tilefuse.templates.staged.online.state import OnlineState
from tilefuse.templates.staged.online.total import Total

# Powers of two by which elements may exceed 1 before what was summed up is rescaled: far below the largest f16.
LIMIT = 8.0
LARGEST = float(np.finfo(np.float32).max)


def is_lazy(w: OnlineState, t: Total) -> bool:
    """Whether a maximum is only subtracted before exp, in a kernel on the matrix unit."""
    shifts = [r.shift for r in w.form.relative(t.value)]
    return w.plan.unit == "mma" and t.dtype == F32 and bool(shifts) and all(s == w.form.reads[t.value] for s in shifts)


def unscaled(e: Expr) -> tuple[Expr, float]:
    """An element as another one times a positive constant, masked by -inf or not: where that is largest, so is the element."""
    match e:
        case Call("mul", (x, Const() as c)) | Call("mul", (Const() as c, x)) if not isinstance(x, Const) and 0 < c.value < math.inf:
            return x, float(c.value)
        case Call("select", (condition, Const() as c, x)) if c.value == -math.inf:
            inner, scale = unscaled(x)
            return Call("select", (condition, c, inner)), scale
        case Call("select", (condition, x, Const() as c)) if c.value == -math.inf:
            inner, scale = unscaled(x)
            return Call("select", (condition, inner, c)), scale
        case Guard(facts, x, Const() as c) if c.value == -math.inf:
            inner, scale = unscaled(x)
            return Guard(facts, inner, c), scale
    return e, 1.0


def reaches_lowest(e: Expr, form: OnlineForm) -> bool:
    """Whether log2(e) times an element may overflow: the element has numbers of memory of f32's range, or so large a constant.

    Models hide scores by adding the lowest number of the type: -3.4e38 in bf16 and f32. Products of two operands are taken to be smaller.
    """
    for x in walk(e):
        if isinstance(x, Const) and isinstance(x.value, float) and LARGEST < abs(x.value) * math.log2(math.e) < math.inf:
            return True
        if isinstance(x, Read | Lookup) and x.value not in form.reads:
            dtype = form.graph.type_of(x.value).dtype
            if dtype.is_float and (dtype.bits > 16 or dtype.name == "bf16"):
                return True
    return False


class LazyTop:
    """One maximum of a kernel: the carried maximum is that of the unscaled elements."""

    def __init__(self, w: OnlineState, t: Total, rows: int) -> None:
        self.w, self.rows = w, rows
        self.take(t)
        self.by = const(self.scale * math.log2(math.e), F32)
        self.subtracts = reaches_lowest(t.body, w.form)
        self.negated = Reg(w.fresh(f"{t.value}_negated"), F32)
        self.used = Reg(w.fresh(f"{t.value}_used"), F32)
        # Powers of products of 16 bits need no more than the instruction gives, also where logarithms of their sums are f32.
        wide = any(w.graph.type_of(r).dtype.bits > 16 for r in w.graph.results)
        self.fn = "power_of_difference" if wide and w.form.scores[0].left.dtype.name in NARROW else "exp2"
        # Whether a row of the thread is rescaled in the turn at hand.
        self.grown = Reg("", BOOL)
        times = "" if self.subtracts else f"{self.by.text} times "
        w.emit(Comment(f"%{t.value}: {self.negated.name} is {times}the negated maximum that powers are relative to"))
        clear(w, self.negated, rows, math.inf)
        w.emit(Declare(self.used.name, F32, rows))

    def take(self, t: Total) -> None:
        """From here on, elements are those of `t`, the same maximum."""
        self.total = t
        self.body, self.scale = unscaled(t.body)

    def exponent(self, element: KExpr, negated: KExpr) -> KExpr:
        """Exponent of the power of an element, of two."""
        if self.subtracts:
            return Call("mul", (Call("add", (element, negated)), self.by))
        return Call("fma", (element, self.by, negated))

    def factor_between(self, now: KExpr, before: KExpr) -> KExpr:
        """Factor by which sums relative to an older maximum become relative to a new one. Both are negated, as they are kept."""
        difference = Call("sub", (now, before))
        return Call("exp2", (Call("mul", (difference, self.by)) if self.subtracts else difference,))

    def _row(self, array: Reg, i: Affine) -> Reg:
        return Reg(array.name, array.dtype, i)

    def grow(self, new: Reg, products: list[Fragment]) -> None:
        """Makes powers relative to the new maximum in rows where they would exceed 2**LIMIT, and rescales what was summed up there."""
        w, form = self.w, self.w.form
        self.grown = Reg(w.fresh("any_above"), BOOL)
        above, grown = Reg(w.fresh("above"), F32), self.grown
        w.emit(Declare(above.name, F32, self.rows), Declare(grown.name, BOOL, None, const(False, BOOL)))
        limit = const(LIMIT, F32)
        with w.loop("i", self.rows, unroll=w.unroll) as i:
            over = self._row(above, i)
            w.emit(Assign(over, self.exponent(self._row(new, i), self._row(self.negated, i))),
                   Assign(grown, Call("logical_or", (grown, Call("gt", (over, limit))))))
        with w.nested() as inner, w.loop("i", self.rows, unroll=w.unroll) as i:
            over, negated = self._row(above, i), self._row(self.negated, i)
            here: KExpr = Call("gt", (over, limit))
            scaled: KExpr = self._row(new, i) if self.subtracts else Call("mul", (self._row(new, i), self.by))
            now = w.register(Call("neg", (scaled,)), F32, "negated")
            # Before the first element it is infinite, and the factor 0.
            ratio = self.factor_between(now, negated)
            factor = w.register(Call("select", (here, ratio, const(1, F32))), F32, "factor")
            w.emit(Assign(negated, Call("select", (here, now, negated))))
            for s in form.sums:
                if s.top == self.total.value:
                    own = Reg(w.carried[s.value].name, s.dtype, i)
                    w.emit(Assign(own, Call("mul", (own, factor))))
            self.rescale_products(i, factor, products)
        w.emit(IfValue(grown, tuple(inner.statements)))
        with w.loop("i", self.rows, unroll=w.unroll) as i:
            negated = self._row(self.negated, i)
            nothing: KExpr = Call("eq", (negated, const(math.inf, F32)))
            w.emit(Assign(self._row(self.used, i), Call("select", (nothing, const(0, F32), negated))))

    def rescale_products(self, i: Affine, factor: KExpr, products: list[Fragment]) -> None:
        """Multiplies the sums of a row's weighted products by a factor."""
        w = self.w
        for weighted, product in zip(w.form.weighted, products, strict=True):
            if weighted.total.top == self.total.value:
                carried = w.carried[weighted.value]
                with w.loop("g", product.groups, unroll=w.unroll) as g, w.loop("v", product.vector, unroll=w.unroll) as v:
                    own = Reg(carried.name, carried.dtype, product.place(i, g, v))
                    w.emit(Assign(own, Call("mul", (own, factor))))

    def know(self, element: Reg, i: Affine) -> None:
        """Makes the element at hand and its power known."""
        w, read = self.w, self.w.form.reads[self.total.value]
        w.remember(self.total.body, element if self.scale == 1.0 else Call("mul", (element, const(self.scale, F32))))
        power: KExpr = Call(self.fn, (self.exponent(element, self._row(self.used, i)),))
        w.remember(Call("exp", (Call("sub", (self.total.body, read)),)), w.register(power, F32, "power"))

    def maximum(self, i: Affine) -> KExpr:
        """The true maximum, at the end."""
        own = self._row(self.w.carried[self.total.value], i)
        return own if self.scale == 1.0 else Call("mul", (own, const(self.scale, F32)))

    def whole(self, i: Affine) -> KExpr:
        """Factor that makes sums relative to the true maximum; NaN for a row of nothing but -inf, as exp(-inf - -inf) gives."""
        own = self._row(self.w.carried[self.total.value], i)
        return Call("exp2", (Call("neg", (self.exponent(own, self._row(self.negated, i)),)),))
