"""Functions of scores in forms of few instructions: soft caps, and divisions by constants.

    c * tanh(x / c)   ->   c * (2 / (1 + 2 ** (-2 log2(e) / c * x)) - 1)        one power and one reciprocal
    x / c             ->   x * (1 / c)                                          a factor of the powers' exponents

The error of a cap is absolute, at most 2**-22 of c: as much as rounding scores of this size to f32. Scores stand in exponents, where only
absolute errors count. A product with an inverse is rounded once more than a quotient.
"""
from __future__ import annotations

import math

from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Call, Const, Expr, Guard, const
from tilefuse.templates.staged.online.products import OnlineForm
from tilefuse.templates.staged.walked.limit import vanishes, with_bodies


def with_short_scores(form: OnlineForm) -> OnlineForm:
    """The form with every tanh and every quotient below a maximum in its short form; the same form where anything else than powers reads
    it."""
    relative = (*form.sums, *(w.total for w in form.weighted))
    short_by_body = {t.body: _short(t.body) for t in form.tops}
    if all(body == short for body, short in short_by_body.items()) or not all(vanishes(t, form) for t in relative):
        return form
    return with_bodies(form, short_by_body)


def _short(e: Expr) -> Expr:
    match e:
        case Call("tanh", (x,)):
            factor, inner = _scaled(_short(x))
            power: Expr = Call("exp2", (Call("mul", (inner, const(-2 * math.log2(math.e) * factor, F32))),))
            half: Expr = Call("reciprocal", (Call("add", (const(1, F32), power)),))
            return Call("sub", (Call("mul", (const(2, F32), half)), const(1, F32)))
        case Call("div", (x, Const() as c)) if c.dtype == F32 and c.value and 0 < abs(const(1 / c.value, F32).value) < math.inf:
            return Call("mul", (_short(x), const(1 / c.value, F32)))
        case Call(fn, args):
            return Call(fn, tuple(_short(a) for a in args))
        case Guard(facts, then, otherwise):
            return Guard(facts, _short(then), _short(otherwise))
    return e


def _scaled(e: Expr) -> tuple[float, Expr]:
    """An expression as a constant factor and the rest."""
    match e:
        case Call("mul", (x, Const() as c)) | Call("mul", (Const() as c, x)) if c.value:
            factor, inner = _scaled(x)
            return factor * float(c.value), inner
        case Call("div", (x, Const() as c)) if c.value:
            factor, inner = _scaled(x)
            return factor / float(c.value), inner
    return 1.0, e
