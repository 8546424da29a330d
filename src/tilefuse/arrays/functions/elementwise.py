"""The elementwise functions of `tilefuse.array`, one for each row of the table, and those that choose or convert."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tilefuse.arrays.arguments import of_arrays
from tilefuse.arrays.array import Array, apply, binary, checked_number, power, unary
from tilefuse.arrays.lowering import ELEMENTWISE
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.types import NAME_OF, Number, Scalar, as_dtype, integer_range, met_by_number, number_constant, promote_all
from tilefuse.base.errors import TypeMismatchError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BOOL, DType, compute_dtype
from tilefuse.ir.scalar import Const, call, const


def _one(name: str) -> Callable[[Array], Array]:
    def function(x: Array, /) -> Array:
        return unary(name, x)

    _document(function, name)
    return function


def _two(name: str) -> Callable[[Any, Any], Array]:
    def function(x1: Array | Number, x2: Array | Number, /) -> Array:
        return binary(name, x1, x2)

    _document(function, name)
    return function


# Types that a row of the table takes, and the result's where it is not theirs.
_TAKEN = {"numeric": "numbers", "float": "numbers (integers as float32)", "compare": "all types", "logical": "bool",
          "bitwise": "integers and bool", "shift": "integers", "test": "numbers"}
_GIVEN = {"compare": "bool", "logical": "bool", "test": "bool"}


def _document(function: Any, name: str) -> None:
    row = ELEMENTWISE[name]
    begin = row.doc if re.match(r"(x1?|e|exp|log|sqrt)\b", row.doc) else row.doc[0].upper() + row.doc[1:]
    shapes = "[*S] -> [*S]" if row.arity == 1 else "any two that broadcast -> the shape they broadcast to; one may be a number"
    result = f" -> {_GIVEN[row.takes]}" if row.takes in _GIVEN else ""
    others = ", complex numbers too" if row.is_of_complex and row.takes != "compare" else ""
    raised = "TypeMismatchError for other types" + ("; ShapeError where shapes do not broadcast." if row.arity == 2 else ".")
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{begin}, element by element.\n\nRequires: {_TAKEN[row.takes]}{others}{result}.\nShapes: {shapes}\nRaises: {raised}"


add, subtract, multiply, divide = _two("add"), _two("subtract"), _two("multiply"), _two("divide")
floor_divide, remainder = _two("floor_divide"), _two("remainder")
maximum, minimum = _two("maximum"), _two("minimum")
atan2, hypot, copysign, nextafter, logaddexp = _two("atan2"), _two("hypot"), _two("copysign"), _two("nextafter"), _two("logaddexp")
equal, not_equal, less, less_equal = _two("equal"), _two("not_equal"), _two("less"), _two("less_equal")
greater, greater_equal = _two("greater"), _two("greater_equal")
logical_and, logical_or, logical_xor = _two("logical_and"), _two("logical_or"), _two("logical_xor")
bitwise_and, bitwise_or, bitwise_xor = _two("bitwise_and"), _two("bitwise_or"), _two("bitwise_xor")
bitwise_left_shift, bitwise_right_shift = _two("bitwise_left_shift"), _two("bitwise_right_shift")

exp, exp2, expm1, log, log2, log10, log1p = (_one(n) for n in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p"))
sqrt, rsqrt, reciprocal, square = _one("sqrt"), _one("rsqrt"), _one("reciprocal"), _one("square")
sin, cos, tan, asin, acos, atan = (_one(n) for n in ("sin", "cos", "tan", "asin", "acos", "atan"))
sinh, cosh, tanh, asinh, acosh, atanh = (_one(n) for n in ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"))
erf, erfc, erfinv, lgamma, digamma, sigmoid = (_one(n) for n in ("erf", "erfc", "erfinv", "lgamma", "digamma", "sigmoid"))
negative, positive, abs, sign = _one("negative"), _one("positive"), _one("abs"), _one("sign")
floor, ceil, trunc, round = _one("floor"), _one("ceil"), _one("trunc"), _one("round")
isnan, isinf, isfinite, signbit = _one("isnan"), _one("isinf"), _one("isfinite"), _one("signbit")
logical_not, bitwise_invert = _one("logical_not"), _one("bitwise_invert")
real, imag, conj, angle = _one("real"), _one("imag"), _one("conj"), _one("angle")


def pow(x1: Array | Number, x2: Array | Number, /) -> Array:
    """x1 to the power x2, element by element; a power with the whole number 1 or 2 is a product.

    Requires: numbers, complex numbers too.
    Shapes: any two that broadcast -> the shape they broadcast to; one may be a number
    Raises: TypeMismatchError for bool; ShapeError where shapes do not broadcast.
    """
    return power(x1, x2)


def where(condition: Array, x1: Array | Number, x2: Array | Number, /) -> Array:
    """`x1` where the condition holds, else `x2`; all broadcast. The remedy for branches that depend on data.

    Raises: TypeMismatchError when the condition is not bool or both choices are numbers.
    """
    if not isinstance(condition, Array) or condition.dtype != BOOL:
        raise TypeMismatchError("the condition of where is a bool array", where=user_span(), hint="compare: where(x > 0, x, 0)")
    arrays = [x for x in (x1, x2) if isinstance(x, Array)]
    numbers = [checked_number("where", x) for x in (x1, x2) if not isinstance(x, Array)]
    common = promote_all(a.dtype for a in arrays) if arrays else promote_all(as_dtype(type(n)) for n in numbers)
    for number in numbers if arrays else ():
        common = met_by_number(common, number)
    places = iter(range(1, 3))
    chosen = tuple(next(places) if isinstance(x, Array) else number_constant(checked_number("where", x), common) for x in (x1, x2))
    return apply(lower_where, (condition, *arrays), (common, chosen))


def lower_where(b: TensorBuilder, condition: str, *rest: Any) -> str:
    """A selection; `chosen` are numbers of operands or constants of the common type."""
    *values, common, chosen = rest
    operands = [condition, *(b.cast(v, common) for v in values)]
    if all(isinstance(c, Const) for c in chosen):
        return b.expression(lambda c: call("select", c, *(const(k.value, common) for k in chosen)), condition, dtype=common, name="where")
    first, second = (c.value if isinstance(c, Const) else operands[c] for c in chosen)
    return b.where(condition, first, second)


@of_arrays
def clip(x: Array, /, min: Array | Number | None = None, max: Array | Number | None = None) -> Array:
    """`x` held inside [min, max], in its own type; either bound may be missing. NaN stays; where min > max, max wins."""
    out = x
    for name, bound in (("maximum", min), ("minimum", max)):
        if isinstance(bound, Array):
            out = binary(name, out, astype(bound, x.dtype))
        elif bound is not None:
            limit = _held(checked_number("clip", bound), x.dtype)
            out = binary(name, out, limit) if limit is not None else out
    return out if out is not x else unary("positive", x)


def _held(bound: Scalar, dtype: DType) -> Scalar | None:
    """A bound inside the range of an integer type (one beyond it binds nothing where it points outwards)."""
    if not dtype.is_integer or isinstance(bound, complex):
        return bound
    low, high = integer_range(dtype)
    if bound != bound:
        return None
    if bound in (float("inf"), float("-inf")):
        return high if bound > 0 else low
    return low if bound < low else high if bound > high else int(bound)


@of_arrays
def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """`x` converted to a data type. Floats become integers by truncation.

    copy: False gives an array that has the type already as it is, True another one (of the same data, which no write to it changes).
    """
    converted = (Array(x.node) if copy else x) if as_dtype(dtype) == x.dtype else apply(lower_cast, (x,), (as_dtype(dtype),))
    return converted if device is None else converted.to_device(device)


def lower_cast(b: TensorBuilder, x: str, dtype: DType) -> str:
    """One conversion."""
    return b.cast(x, dtype)


@of_arrays
def fma(x1: Array, x2: Array, x3: Array, /) -> Array:
    """x1 * x2 + x3, rounded once, in floats of one type."""
    common = promote_all(a.dtype for a in (x1, x2, x3))
    if not common.is_float:
        raise TypeMismatchError(f"fma takes floats, not {NAME_OF[common]}", where=user_span())
    return apply(lower_fma, (x1, x2, x3), (common,))


def lower_fma(b: TensorBuilder, x1: str, x2: str, x3: str, common: DType) -> str:
    """One map in the compute dtype."""
    work = compute_dtype(common)
    return b.cast(b.elementwise("fma", *(b.cast(x, work) for x in (x1, x2, x3))), common)

