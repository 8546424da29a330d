"""Short forms of expressions whose results have 16 bits: one function of the support header for sums and products around erf, tanh and exp.

    0.5 * x * (1 + erf(0.7 * x))    ->    x * one_plus_erf(x, scale 0.7, factor 0.5)
    x * 0.4 * exp(-0.5 * y)         ->    x * scaled_exp(y, scale -0.5, factor 0.4)

Constants become part of the function's coefficients and cost no instruction. Printers print these forms, and prices count them.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilefuse.ir.dtype import F32
from tilefuse.ir.ops import NARROW_FLOPS, NARROW_ONE_PLUS_FLOPS, NARROW_SCALED_FLOPS, SCALAR_OPS
from tilefuse.ir.scalar import Call, Const, Guard, Lookup, const

# Scales that leave the coefficients far from the ends of f32.
LEAST_SCALE, LARGEST_SCALE = 2.0**-20, 2.0**20
# Least factor: its binary logarithm is added to an exponent, whose rounding grows with it.
LEAST_FACTOR = 2.0**-20


@dataclass(frozen=True, slots=True)
class ShortForm:
    """others[0] * others[1] * ... * factor * f, where f is 1 + fn(scale * argument), or fn(scale * argument) for functions of
    `NARROW_SCALED`. Expressions are of the level of the one that has the form."""

    fn: str
    argument: Any
    scale: float
    factor: float
    others: tuple[Any, ...] = ()

    @property
    def constants(self) -> tuple[float, float, float]:
        """Scale, factor and the factor's binary logarithm, as the support functions take them."""
        return self.scale, self.factor, math.log2(self.factor)


def short_form(e: object) -> ShortForm | None:
    """The short form of an expression of f32; None for others. Exact: within the error of `NARROW_CUDA`."""
    if not isinstance(e, Call) or e.fn not in ("add", "mul"):
        return None
    if e.fn == "add":
        return _one_plus(e, 1.0)
    factors = list(_factors(e))
    number = next((f for f in factors if _number(f) is not None and LEAST_FACTOR <= (_number(f) or 0.0) <= 1.0), None)
    if number is None:
        return None
    for read in (_one_plus, _scaled_function):
        for n, form in enumerate(factors):
            own = read(form, _number(number) or 1.0)
            if own is not None:
                return replace(own, others=tuple(f for m, f in enumerate(factors) if m != n and f is not number))
    return None


def short_flops(e: object) -> int:
    """Estimated operations of one evaluation of `e` in its short forms. Units: as `flops_of`."""
    form = short_form(e)
    if form is not None:
        own = (NARROW_ONE_PLUS_FLOPS | NARROW_SCALED_FLOPS)[form.fn]
        return own + short_flops(form.argument) + sum(1 + short_flops(o) for o in form.others)
    match e:
        case Call(fn, args):
            own = NARROW_FLOPS.get(fn, SCALAR_OPS[fn].flops if fn in SCALAR_OPS else 0)
            return own + sum(short_flops(a) for a in args)
        case Guard(_, then, otherwise):
            return max(short_flops(then), short_flops(otherwise))
        case Lookup(_, subscripts):
            return sum(short_flops(s) for s in subscripts)
    return 0


def _one_plus(e: object, factor: float) -> ShortForm | None:
    """factor * e, where `e` is 1 + f(a)."""
    for one, other in (e.args, e.args[::-1]) if isinstance(e, Call) and e.fn == "add" else ():
        if one == const(1, F32) and isinstance(other, Call) and other.fn in NARROW_ONE_PLUS_FLOPS:
            scale, argument = _scaled(other.args[0])
            return ShortForm(other.fn, argument, scale, factor)
    return None


def _scaled_function(e: object, factor: float) -> ShortForm | None:
    """factor * e, where `e` is a function that takes a scale and a factor at no cost."""
    if not isinstance(e, Call) or e.fn not in NARROW_SCALED_FLOPS:
        return None
    scale, argument = _scaled(e.args[0], negative=True)
    return ShortForm(e.fn, argument, scale, factor)


def _scaled(e: object, negative: bool = False) -> tuple[float, object]:
    """(scale, operand) of a product with a constant, positive unless `negative`; other expressions have the scale 1."""
    for factor, other in (e.args, e.args[::-1]) if isinstance(e, Call) and e.fn == "mul" else ():
        scale = _number(factor)
        if scale is not None and LEAST_SCALE < (abs(scale) if negative else scale) < LARGEST_SCALE:
            return scale, other
    return 1.0, e


def _factors(e: object) -> Iterator[object]:
    """Factors of a product of products."""
    if isinstance(e, Call) and e.fn == "mul":
        for a in e.args:
            yield from _factors(a)
    else:
        yield e


def _number(e: object) -> float | None:
    """The number of a constant of f32; None for other expressions."""
    return float(e.value) if isinstance(e, Const) and e.dtype == F32 else None
