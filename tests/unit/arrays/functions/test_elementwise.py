"""Elementwise array functions against the strict implementation of the standard: values, special values, types, broadcasting."""
from __future__ import annotations

from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tilefuse.array as ta
from tests.unit.arrays.array_values import COMPLEX, FLOATS, INTEGERS, NUMBERS, STANDARD_DTYPES, agree, pair, value
from tilefuse.base.errors import ShapeError, TypeMismatchError

FLOAT_UNARY = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log10", "log1p", "log2",
               "reciprocal", "sin", "sinh", "sqrt", "tan", "tanh")
NUMBER_UNARY = ("abs", "ceil", "floor", "isfinite", "isinf", "isnan", "negative", "positive", "round", "sign", "square", "trunc")
NUMBER_BINARY = ("add", "floor_divide", "maximum", "minimum", "multiply", "remainder", "subtract")
FLOAT_BINARY = ("atan2", "copysign", "divide", "hypot", "logaddexp", "nextafter")
COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")
SHIFTS = ("bitwise_left_shift", "bitwise_right_shift")
LOGIC = ("logical_and", "logical_or", "logical_xor")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.5, 3.0, 1e30, -1e-30, float("inf"), float("-inf"), float("nan")]
# numpy's own functions are not correctly rounded everywhere; ours may differ by as many units in the last place.
ULPS = 8
few = settings(max_examples=12, deadline=None)


def specials(dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """All pairs of special values (integers: the ends of the range and small numbers), as two vectors."""
    if dtype == "bool":
        values: list[Any] = [False, True]
    elif "int" in dtype:
        limits = np.iinfo(dtype)
        values = sorted({int(limits.min), int(limits.max), 0, 1, 2, 3, 7, *([-1, -2, -7] if limits.min else [])})
    else:
        values = SPECIAL
    first, second = np.meshgrid(np.array(values, dtype), np.array(values, dtype))
    return first.reshape(-1), second.reshape(-1)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_float_functions(name: str, dtype: str) -> None:
    """Functions of one float, special values included."""
    data = np.concatenate([np.array(SPECIAL, dtype), np.linspace(-4, 4, 33, dtype=dtype)])
    with np.errstate(all="ignore"):
        x, y = pair(data)
        agree(getattr(ta, name)(x), getattr(strict, name)(y), ulps=ULPS, what=name)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", NUMBER_UNARY)
def test_number_functions(name: str, dtype: str) -> None:
    """Functions of one number of any type."""
    if name == "negative" and dtype.startswith("u"):
        pytest.skip("the standard leaves negative unsigned numbers open")
    x, y = pair(np.unique(specials(dtype)[0]))
    with np.errstate(all="ignore"):
        agree(getattr(ta, name)(x), getattr(strict, name)(y), what=name)


def test_signbit() -> None:
    """The sign of zeros, infinities and NaN."""
    x, y = pair(np.array([*SPECIAL, -float("nan")], np.float32))
    agree(ta.signbit(x), strict.signbit(y))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", NUMBER_BINARY)
def test_arithmetic(name: str, dtype: str) -> None:
    """Arithmetic on all pairs of special values; integers wrap, and only division by zero is left open."""
    first, second = specials(dtype)
    if name in ("floor_divide", "remainder"):
        kept = (second != 0) if "int" in dtype else np.isfinite(first) & np.isfinite(second) & (second != 0)
        if "int" in dtype and not dtype.startswith("u"):
            kept &= ~((first == np.iinfo(dtype).min) & (second == -1))
        first, second = first[kept], second[kept]
    (x1, y1), (x2, y2) = pair(first), pair(second)
    with np.errstate(all="ignore"):
        agree(getattr(ta, name)(x1, x2), getattr(strict, name)(y1, y2), ulps=1, what=name)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FLOAT_BINARY)
def test_float_pairs(name: str, dtype: str) -> None:
    """Functions of two floats on all pairs of special values."""
    (x1, y1), (x2, y2) = (pair(v) for v in specials(dtype))
    with np.errstate(all="ignore"):
        agree(getattr(ta, name)(x1, x2), getattr(strict, name)(y1, y2), ulps=ULPS, what=name)


@pytest.mark.parametrize("dtype", STANDARD_DTYPES)
def test_comparisons(dtype: str) -> None:
    """Comparisons of all pairs of special values."""
    (x1, y1), (x2, y2) = (pair(v) for v in specials(dtype))
    for name in COMPARISONS if dtype not in ("bool", *COMPLEX) else ("equal", "not_equal"):
        agree(getattr(ta, name)(x1, x2), getattr(strict, name)(y1, y2), what=name)


@pytest.mark.parametrize("dtype", (*INTEGERS, "bool"))
def test_bits(dtype: str) -> None:
    """Bitwise functions, and shifts by less than the width."""
    (x1, y1), (x2, y2) = (pair(v) for v in specials(dtype))
    for name in (*BITS, *(LOGIC if dtype == "bool" else ())):
        agree(getattr(ta, name)(x1, x2), getattr(strict, name)(y1, y2), what=name)
    agree(ta.bitwise_invert(x1), strict.bitwise_invert(y1))
    if dtype == "bool":
        agree(ta.logical_not(x1), strict.logical_not(y1))
        return
    (x2, y2) = pair(np.arange(x1.size).astype(dtype) % 7)
    for name in SHIFTS:
        agree(getattr(ta, name)(x1, x2), getattr(strict, name)(y1, y2), what=name)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_powers(dtype: str) -> None:
    """Powers: integers wrap (exponents that are not negative), floats by the C library's rules."""
    first, second = specials(dtype)
    if "int" in dtype:
        kept = (second >= 0) & (second < 8)
        first, second = first[kept], second[kept]
    (x1, y1), (x2, y2) = pair(first), pair(second)
    with np.errstate(all="ignore"):
        agree(ta.pow(x1, x2), strict.pow(y1, y2), ulps=ULPS)
        agree(x1**2, y1**2, ulps=1)
        agree(x1**1, y1**1)


@few
@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3), st.sampled_from(NUMBERS), st.data())
def test_broadcasting(shapes: Any, dtype: str, data: Any) -> None:
    """Shapes that broadcast do so in arithmetic, also empty ones."""
    first, second = (data.draw(hnp.arrays(dtype, s, elements=st.integers(0, 50))) for s in shapes.input_shapes)
    (x1, y1), (x2, y2) = pair(first), pair(second)
    agree(x1 + x2, y1 + y2)
    agree(x1 * x2 >= x1, y1 * y2 >= y1)
    agree(ta.where(x1 > x2, x1, x2), strict.where(y1 > y2, y1, y2))


@pytest.mark.parametrize("first", NUMBERS)
@pytest.mark.parametrize("second", NUMBERS)
def test_promotion(first: str, second: str) -> None:
    """Types of one kind meet as the standard says; kinds that it does not mix meet in the float."""
    x, y = ta.ones((2,), dtype=first), ta.ones((2,), dtype=second)
    try:
        wanted = str(strict.result_type(getattr(strict, first), getattr(strict, second))).removeprefix("array_api_strict.")
    except TypeError:
        if "uint64" in (first, second) and "int" in first and "int" in second:
            with pytest.raises(TypeMismatchError, match="no integer type holds both"):
                ta.add(x, y)
            return
        wanted = first if first in FLOATS else second
    assert ta.result_type(x, y) == (x + y).dtype == getattr(ta, wanted)


def test_python_numbers_take_the_arrays_type() -> None:
    """A number never widens an array of its kind; what does not fit is refused."""
    half, small = ta.ones((2,), dtype=ta.bfloat16), ta.ones((2,), dtype=ta.int8)
    assert (half + 1).dtype == (2.5 * half).dtype == ta.bfloat16 and (small - 3).dtype == ta.int8
    assert (small + 0.5).dtype == ta.float32 and (1 - half).dtype == ta.bfloat16 and (small + np.float32(2)).dtype == ta.float32
    with pytest.raises(TypeMismatchError, match="300 is outside int8, which holds -128 to 127"):
        small + 300
    for data, dtype in ((2**63, None), ([300], "int8"), ([2**63], None), ([-1], "uint8")):
        with pytest.raises(TypeMismatchError, match=r"\d+ is outside u?int\d+, which holds"):
            ta.asarray(data, dtype=dtype)
    assert ta.asarray([2**63], dtype="uint64").numpy()[0] == ta.asarray([np.uint64(2**63)]).numpy()[0] == 2**63
    for what in ("a", None, {1: 2}):
        with pytest.raises(TypeMismatchError, match=f"type {type(what).__name__} is no array of numbers"):
            ta.asarray(what)
    assert value(ta.zeros((1,)) * -1.0 + 0.0).tobytes() != value(ta.zeros((1,)) * -1.0 + -0.0).tobytes()


@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"))
def test_operators_are_the_functions(dtype: str) -> None:
    """Every operator, also with the number on the left."""
    x = ta.astype(ta.asarray(np.arange(1, 7).reshape(2, 3)), dtype)
    for made, wanted in ((x + 2, ta.add(x, 2)), (2 - x, ta.subtract(2, x)), (x * x, ta.multiply(x, x)), (7 // x, ta.floor_divide(7, x)),
                         (x % 4, ta.remainder(x, 4)), (x < 3, ta.less(x, 3)), (x >= 3, ta.greater_equal(x, 3)), (abs(x), ta.abs(x))):
        assert made.dtype == wanted.dtype
        np.testing.assert_array_equal(value(made), value(wanted))
    if x.dtype.is_float:
        assert (1 / x).dtype == x.dtype
    y = x
    y += 1
    assert y is not x and float(value(x)[0, 0]) == 1.0


def test_clip() -> None:
    """Bounds may be missing, numbers or arrays; integers keep their type, NaN stays."""
    x, y = pair(np.array([-3, 0, 5, 200], np.int16))
    agree(ta.clip(x, -1, 100), strict.clip(y, -1, 100))
    agree(ta.clip(x, max=4), strict.clip(y, max=4))
    agree(ta.clip(x), strict.clip(y))
    agree(ta.clip(x, ta.asarray(np.int16(1)), 3), strict.clip(y, strict.asarray(np.int16(1)), 3))
    assert value(ta.clip(x, -(1 << 40), 1 << 40)).tolist() == [-3, 0, 5, 200]
    f, g = pair(np.array([np.nan, -np.inf, 0.5, np.inf], np.float32))
    agree(ta.clip(f, -1.0, 1.0), strict.clip(g, -1.0, 1.0))


def test_where_with_numbers() -> None:
    """One or both choices may be numbers."""
    c = ta.asarray([True, False])
    assert value(ta.where(c, 1, ta.asarray([5, 6], dtype="int8"))).tolist() == [1, 6]
    assert ta.where(c, 1.0, ta.asarray([5, 6], dtype="int8")).dtype == ta.float32
    assert value(ta.where(c, 1, 0)).tolist() == [1, 0] and ta.where(c, 2.5, 0).dtype == ta.float32
    with pytest.raises(TypeMismatchError, match="condition of where is a bool"):
        ta.where(ta.asarray([1, 0]), 1, 0)


@pytest.mark.parametrize("source, to", [(a, b) for a in STANDARD_DTYPES for b in STANDARD_DTYPES if a not in COMPLEX or b in COMPLEX])
def test_astype(source: str, to: str) -> None:
    """Conversions of values that both types hold."""
    data = np.array([0, 1, 0, 1] if "bool" in (source, to) else [0, 1, 2, 100]).astype(source)
    x, y = pair(data)
    agree(ta.astype(x, getattr(ta, to)), strict.astype(y, getattr(strict, to)))
    assert ta.can_cast(x, getattr(ta, to)) >= strict.can_cast(y, getattr(strict, to))


def test_refused_types() -> None:
    """Functions say which types they take."""
    flags, numbers = ta.asarray([True, False]), ta.asarray([1.0, 2.0])
    for call, message in ((lambda: flags + flags, "add takes numbers, not bool"), (lambda: ta.exp(flags), "exp takes numbers, not bool"),
                          (lambda: numbers & numbers, "bitwise_and takes integers or bool, not float32"),
                          (lambda: ta.logical_and(numbers, numbers), "logical_and takes bool, not float32"),
                          (lambda: numbers << 2, "takes integers, not float32"), (lambda: numbers + "a", "not a str"),
                          (lambda: numbers + [1, 2], "not a list"), (lambda: ta.add(1, 2), "add needs an array")):
        with pytest.raises(TypeMismatchError, match=message):
            call()
    with pytest.raises(ShapeError, match="do not broadcast"):
        numbers + ta.ones((3,))
