"""The table of monoids: one record a combination that reductions, scans and scatters may name.

The records combine scalar expressions of the functions in `ops.py`, or kernel expressions, whose leaves differ.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilefuse.base.errors import NameLookupError, TypeMismatchError, nearest
from tilefuse.ir.dtype import BOOL, I64, DType
from tilefuse.ir.ops import OPERAND_CLASSES
from tilefuse.ir.scalar import Const, call, const


def lowest(dtype: DType) -> Const:
    """The least value of a dtype: identity of max."""
    if dtype.is_float:
        return const(float("-inf"), dtype)
    return Const("false", dtype) if dtype == BOOL else const(0 if dtype.kind == "uint" else -(1 << (dtype.bits - 1)), dtype)


def highest(dtype: DType) -> Const:
    """The greatest value of a dtype: identity of min."""
    if dtype.is_float:
        return const(float("inf"), dtype)
    return Const("true", dtype) if dtype == BOOL else const((1 << (dtype.bits if dtype.kind == "uint" else dtype.bits - 1)) - 1, dtype)


Components = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Monoid:
    """An associative combination with identity, on one or more components of a partial result.

    components  dtypes of the partial result's components, from the body's dtype
    identity    constants that change nothing when combined (the result of an empty reduction, through `finish`)
    lift        (body, row-major position in the `over` domain as i64) -> components of a single element
    combine     (components, components) -> components; each argument may be used several times: pass registers
    finish      components -> result
    Functions take the body's dtype last. Exact: "sum", "prod", "logaddexp" and "m2" of floats depend on the order; the others do not.
    """

    name: str
    operands: str
    components: Callable[[DType], tuple[DType, ...]]
    identity: Callable[[DType], tuple[Const, ...]]
    lift: Callable[[Any, Any, DType], Components]
    combine: Callable[[Components, Components, DType], Components]
    finish: Callable[[Components, DType], Any]
    result: Callable[[DType], DType]
    doc: str


def _simple(name: str, fn: str, operands: str, identity: Callable[[DType], Const], doc: str) -> Monoid:
    return Monoid(name, operands, lambda t: (t,), lambda t: (identity(t),), lambda body, position, t: (body,),
                  lambda a, b, t: (call(fn, a[0], b[0]),), lambda c, t: c[0], lambda t: t, doc)


def _better(name: str) -> Callable[[Components, Components, DType], Components]:
    """Combine of argmax ("gt") and argmin ("lt"): the better value, NaN best of all; among equals the smaller position."""

    def combine(a: Components, b: Components, dtype: DType) -> Components:
        wins = call(name, b[0], a[0])
        ties = call("eq", a[0], b[0])
        if dtype.is_float:
            wins = call("logical_or", wins, call("logical_and", call("isnan", b[0]), call("logical_not", call("isnan", a[0]))))
            ties = call("logical_or", ties, call("logical_and", call("isnan", a[0]), call("isnan", b[0])))
        take = call("logical_or", wins, call("logical_and", ties, call("lt", b[1], a[1])))
        return call("select", take, b[0], a[0]), call("select", take, b[1], a[1])

    return combine


def _arg(name: str, comparison: str, worst: Callable[[DType], Const], doc: str) -> Monoid:
    return Monoid(name, "arithmetic", lambda t: (t, I64), lambda t: (worst(t), highest(I64)), lambda body, position, t: (body, position),
                  _better(comparison), lambda c, t: c[1], lambda t: I64, doc)


def _chan(a: Components, b: Components, dtype: DType) -> Components:
    """Count, mean and squared deviations of two disjoint samples together.

    Source: Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance", equation 2.1.
    """
    total = call("add", a[0], b[0])
    # Counts are whole: with both sides empty the share is 0 / 1, and no branch is needed.
    share = call("div", b[0], call("maximum", total, const(1, dtype)))
    delta = call("sub", b[1], a[1])
    # delta is multiplied in last: with an empty side the weight is 0 and must not meet an overflowed square.
    spread = call("mul", call("mul", delta, call("mul", a[0], share)), delta)
    return total, call("fma", delta, share, a[1]), call("add", call("add", a[2], b[2]), spread)


def log_added(a: Any, b: Any, dtype: DType) -> Any:
    """log(exp(a) + exp(b)) as the larger plus the logarithm of 1 + exp(-|a - b|); equal operands (also infinite ones) add log 2."""
    gap = call("neg", call("abs", call("sub", a, b)))
    added = call("select", call("eq", a, b), const(math.log(2.0), dtype), call("log1p", call("exp", gap)))
    return call("add", call("maximum", a, b), added)


MONOIDS: dict[str, Monoid] = {
    x.name: x for x in (
        _simple("sum", "add", "number", lambda t: const(0, t), "sum; 0 if empty"),
        _simple("prod", "mul", "number", lambda t: const(1, t), "product; 1 if empty"),
        _simple("max", "maximum", "number", lowest, "greatest; NaN if any element is NaN; the least value if empty"),
        _simple("min", "minimum", "number", highest, "least; NaN if any element is NaN; the greatest value if empty"),
        _simple("any", "logical_or", "bool", lambda t: const(False, t), "whether any element is true; false if empty"),
        _simple("all", "logical_and", "bool", lambda t: const(True, t), "whether all elements are true; true if empty"),
        _arg("argmax", "gt", lowest, "row-major position of the first NaN, else of the first greatest element; the greatest i64 if empty"),
        _arg("argmin", "lt", highest, "row-major position of the first NaN, else of the first least element; the greatest i64 if empty"),
        Monoid("logaddexp", "float", lambda t: (t,), lambda t: (lowest(t),), lambda body, position, t: (body,),
               lambda a, b, t: (log_added(a[0], b[0], t),), lambda c, t: c[0], lambda t: t,
               "logarithm of the sum of exponentials, without overflow; NaN if any element is NaN; minus infinity if empty"),
        Monoid("m2", "float", lambda t: (t, t, t), lambda t: (const(0, t),) * 3,
               lambda body, position, t: (const(1, t), body, const(0, t)), _chan, lambda c, t: c[2], lambda t: t,
               "sum of squared deviations from the mean, by Welford's and Chan's formulas; 0 if empty"),
    )
}


def monoid_result(name: str, body: DType) -> DType:
    """Result dtype of a reduction, scan or scatter combining `body` elements by the monoid `name`.

    Raises: NameLookupError for an unknown monoid, TypeMismatchError where it does not take the dtype.
    """
    monoid = MONOIDS.get(name)
    if monoid is None:
        raise NameLookupError(f"unknown monoid {name}", hint=nearest(name, MONOIDS))
    if body.name not in OPERAND_CLASSES[monoid.operands]:
        raise TypeMismatchError(f"{name} combines {' '.join(OPERAND_CLASSES[monoid.operands])}, got {body}")
    return monoid.result(body)
