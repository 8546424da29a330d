"""Values that the Python array API standard 2024.12 demands: special cases of every elementwise function, creation, scalars, DLPack.

The standard's own test suite is no package that could be installed, so these are tests of our own: the rules of its text as tables, and
its strict implementation over numpy where that has the function. Everything here runs as compiled kernels on the host executor.
"""
from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilefuse.array as ta
from tests.unit.arrays.array_values import agree, pair, value
from tilefuse.arrays.evaluation import evaluate as array_evaluate

inf, nan = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 2.5, 2.0, -2.0, 3.0, -3.0, 7.0, 1e30, -1e-30, inf, -inf, nan]
UNARY = ("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "conj", "cos", "cosh", "exp", "expm1", "floor", "isfinite",
         "isinf", "isnan", "log", "log10", "log1p", "log2", "negative", "positive", "real", "reciprocal", "round", "sign", "signbit",
         "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc")
BINARY = ("add", "atan2", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less", "less_equal",
          "logaddexp", "maximum", "minimum", "multiply", "nextafter", "not_equal", "pow", "remainder", "subtract")
# Functions of the standard on floats whose specials the C library rounds as it likes: units in the last place that may differ.
ULPS = 8
# (function, operands) -> result, from the standard's text: where implementations have been known to differ.
RULES: tuple[tuple[str, tuple[float, ...], float], ...] = (
    ("acos", (1.5,), nan), ("acosh", (0.5,), nan), ("acosh", (1.0,), 0.0), ("asinh", (-0.0,), -0.0), ("atanh", (1.0,), inf),
    ("atanh", (-1.0,), -inf), ("atanh", (1.5,), nan), ("ceil", (-0.5,), -0.0), ("cosh", (-inf,), inf), ("exp", (-inf,), 0.0),
    ("expm1", (-0.0,), -0.0), ("expm1", (-inf,), -1.0), ("floor", (-0.0,), -0.0), ("log", (-1.0,), nan), ("log", (-0.0,), -inf),
    ("log1p", (-1.0,), -inf), ("log1p", (-0.0,), -0.0), ("log2", (1.0,), 0.0), ("log10", (0.0,), -inf), ("round", (2.5,), 2.0),
    ("round", (-0.5,), -0.0), ("sign", (nan,), nan), ("sign", (-0.0,), 0.0), ("sin", (inf,), nan), ("sqrt", (-0.0,), -0.0),
    ("sqrt", (-1.0,), nan), ("tanh", (-inf,), -1.0), ("trunc", (-0.5,), -0.0), ("reciprocal", (-0.0,), -inf), ("reciprocal", (-inf,), -0.0),
    ("add", (inf, -inf), nan), ("add", (-0.0, -0.0), -0.0), ("add", (-0.0, 0.0), 0.0), ("subtract", (0.0, 0.0), 0.0),
    ("multiply", (inf, 0.0), nan), ("multiply", (-1.0, 0.0), -0.0), ("divide", (0.0, 0.0), nan), ("divide", (1.0, -0.0), -inf),
    ("divide", (-1.0, inf), -0.0), ("floor_divide", (-0.0, 2.0), -0.0), ("floor_divide", (1.0, -0.0), -inf),
    ("floor_divide", (nan, 1.0), nan), ("floor_divide", (3.0, inf), 0.0), ("floor_divide", (-3.0, -inf), 0.0),
    ("remainder", (inf, 2.0), nan), ("remainder", (3.0, inf), 3.0), ("remainder", (3.0, -inf), -inf), ("remainder", (-3.0, inf), inf),
    ("remainder", (-0.0, 2.0), 0.0), ("remainder", (0.0, -2.0), -0.0), ("remainder", (1.0, 0.0), nan),
    ("pow", (nan, 0.0), 1.0), ("pow", (1.0, nan), 1.0), ("pow", (-1.0, inf), 1.0), ("pow", (0.5, inf), 0.0), ("pow", (0.5, -inf), inf),
    ("pow", (-inf, 3.0), -inf), ("pow", (-inf, -3.0), -0.0), ("pow", (-0.0, 3.0), -0.0), ("pow", (-0.0, -3.0), -inf),
    ("pow", (-0.0, -2.5), inf), ("pow", (-2.5, 0.5), nan), ("atan2", (0.0, -0.0), np.pi), ("atan2", (-0.0, -1.0), -np.pi),
    ("atan2", (inf, -inf), 3 * np.pi / 4), ("atan2", (-1.0, inf), -0.0), ("hypot", (inf, nan), inf), ("hypot", (nan, 1.0), nan),
    ("copysign", (1.0, -0.0), -1.0), ("nextafter", (1.0, 1.0), 1.0), ("logaddexp", (inf, -inf), inf), ("logaddexp", (nan, 1.0), nan),
    ("maximum", (nan, 1.0), nan), ("minimum", (1.0, nan), nan), ("maximum", (-inf, inf), inf), ("equal", (nan, nan), 0.0),
    ("equal", (0.0, -0.0), 1.0), ("not_equal", (nan, nan), 1.0), ("less", (-0.0, 0.0), 0.0),
)
few = settings(max_examples=40, deadline=None)


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of the host executor, also where there is a GPU."""
    monkeypatch.setattr(array_evaluate.Evaluation, "default_device", staticmethod(lambda: "host"))
    yield


def is_same(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Equal with the sign of zeros, NaN as NaN, other numbers within a few units in the last place."""
    with np.errstate(all="ignore"):
        exact = (found == wanted) & (np.signbit(found) == np.signbit(wanted))
        near = (np.abs(found - wanted) <= ULPS * np.spacing(np.abs(wanted))) & (found != 0) & (wanted != 0)
    return np.asarray(exact | near | np.isnan(found) & np.isnan(wanted))


def test_complex_functions_are_the_same_as_kernels() -> None:
    """Functions of different forms on special numbers: what the interpreter defines, compiled in one program."""
    data = np.array([complex(a, b) for a in SPECIAL for b in (0.0, -0.0, 0.5, -2.5, 1e30, inf, nan)], np.complex64)
    x, y = ta.asarray(data), ta.asarray(np.roll(data, 5))
    made = [ta.exp(x), ta.expm1(x), ta.log(x), ta.sqrt(x), ta.tanh(x), ta.asin(x), ta.divide(x, y), ta.multiply(x, y), ta.abs(x)]
    ta.evaluate(*made, keep_history=True)
    for found in made:
        wanted = value(_without_data(found))
        for ours, theirs in ((found.numpy().real, wanted.real), (found.numpy().imag, wanted.imag)):
            assert is_same(ours, theirs).mean() == 1, [(a, b, c) for a, b, c in zip(data, found.numpy(), wanted)][:3]


def _without_data(x: Any) -> Any:
    """The same expression, not computed yet."""
    made = type(x)(copy.copy(x.node))
    made.node.buffer = None
    return made


@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_special_cases(dtype: str) -> None:
    """All functions on all pairs of special values, one program; first the rules of the text, then all pairs as the strict one."""
    data = np.array(SPECIAL, dtype)
    first, second = (v.reshape(-1) for v in np.meshgrid(data, data, indexing="ij"))
    made = {n: getattr(ta, n)(ta.asarray(data)) for n in UNARY} | {n: getattr(ta, n)(ta.asarray(first), ta.asarray(second)) for n in BINARY}
    ta.evaluate(*made.values())
    for name, operands, wanted in RULES:
        here = data if len(operands) == 1 else first
        same = is_same(here, np.full_like(here, operands[0]))
        if len(operands) == 2:
            same &= is_same(second, np.full_like(second, operands[1]))
        found = made[name].numpy()[same].astype(dtype)
        assert found.size and is_same(found, np.full_like(found, wanted)).all(), (name, operands, found, wanted)
    for name, x in made.items():
        given = (data,) if name in UNARY else (first, second)
        with np.errstate(all="ignore"):
            theirs = np.asarray(getattr(strict, name)(*map(strict.asarray, given)) if name not in ("conj", "real") else given[0])
        found = x.numpy()
        assert found.dtype == theirs.dtype, name
        wrong = ~(found == theirs if theirs.dtype == bool else is_same(found, theirs))
        assert not wrong.any(), (name, [tuple(g[wrong][:3]) for g in given], found[wrong][:3], theirs[wrong][:3])


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_special_cases_of_narrow_floats(dtype: str) -> None:
    """NaN, infinities and the signs of zeros come through the wider type in which they are computed."""
    data = ta.astype(ta.asarray(np.array(SPECIAL, np.float32)), dtype)
    wide = data.numpy().astype(np.float32)
    made = {n: getattr(ta, n)(data) for n in ("exp", "log", "sqrt", "tanh", "floor", "reciprocal", "sign", "log1p")}
    ta.evaluate(*made.values())
    for name, x in made.items():
        with np.errstate(all="ignore"):
            theirs = np.asarray(getattr(strict, name)(strict.asarray(wide))).astype(x.numpy().dtype).astype(np.float32)
        found = x.numpy().astype(np.float32)
        for ask in (np.isnan, np.isposinf, np.isneginf, lambda v: (v == 0) & np.signbit(v)):
            np.testing.assert_array_equal(ask(found), ask(theirs), err_msg=name)


@few
@given(st.integers(-20, 20), st.integers(-20, 20), st.sampled_from((-7, -3, -1, 1, 2, 5)), st.sampled_from(("int32", "int64", "float32")))
def test_ranges(start: int, stop: int, step: int, dtype: str) -> None:
    """As the strict implementation: lengths, types, the last element."""
    agree(ta.arange(start, stop, step, dtype=dtype), strict.arange(start, stop, step, dtype=getattr(strict, dtype)))
    agree(ta.linspace(start, stop, abs(step) + 1, dtype=ta.float64), strict.linspace(start, stop, abs(step) + 1, dtype=strict.float64),
          ulps=2)
    agree(ta.linspace(start, stop, abs(step), endpoint=False, dtype=ta.float64),
          strict.linspace(start, stop, abs(step), endpoint=False, dtype=strict.float64), ulps=2)
    agree(ta.eye(abs(step), abs(start) % 6, k=stop % 5 - 2), strict.eye(abs(step), abs(start) % 6, k=stop % 5 - 2, dtype=strict.float32))


@few
@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.data())
def test_subscripts(shape: list[int], data: Any) -> None:
    """Integers, slices of any step and bounds, ellipsis and new axes, as the strict implementation takes them."""
    key: list[Any] = []
    for extent in shape:
        low, high = data.draw(st.integers(-extent, extent)), data.draw(st.integers(-extent, extent))
        step = data.draw(st.sampled_from((1, 1, 2, -1, -2)))
        whole = slice(None, None, step)
        part = slice(low, high, step) if step > 0 else whole
        key.append(data.draw(st.sampled_from((whole, part, *([data.draw(st.integers(-extent, extent - 1))] if extent else [])))))
    if data.draw(st.booleans()):
        key.insert(data.draw(st.integers(0, len(key))), None)
    if data.draw(st.booleans()):
        key.append(...)
    x, y = pair(np.arange(np.prod(shape), dtype=np.int32).reshape(shape))
    agree(x[tuple(key)], y[tuple(key)], what=key)


def test_numbers_on_either_side() -> None:
    """Since 2024.12 one operand of a binary function may be a Python number, `where`, `clip` and `result_type` take them as well."""
    x, y = pair(np.array([1.0, -2.0, 3.0], np.float32))
    for name in ("add", "atan2", "copysign", "divide", "floor_divide", "hypot", "less", "maximum", "pow", "remainder", "subtract"):
        agree(getattr(ta, name)(x, 2.0), getattr(strict, name)(y, 2.0), ulps=ULPS, what=name)
        with np.errstate(all="ignore"):
            agree(getattr(ta, name)(2.0, x), getattr(strict, name)(2.0, y), ulps=ULPS, what=name)
    agree(ta.where(x > 0, x, 0.5), strict.where(y > 0, y, 0.5))
    agree(ta.clip(x, -1, 2), strict.clip(y, -1, 2))
    assert ta.result_type(x, 1) == ta.float32 and ta.result_type(ta.int8, 1) == ta.int8


def test_dlpack_both_ways() -> None:
    """The protocol with its keywords: versions, devices, copies; views share memory, copies do not."""
    x = ta.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert np.shares_memory(np.from_dlpack(x), x.numpy()) and torch.from_dlpack(x).data_ptr() == x.buffer().data_ptr()
    assert tuple(x.__dlpack_device__()) == (1, 0)
    source = np.arange(4, dtype=np.int64)
    assert np.shares_memory(ta.from_dlpack(source).numpy(), source)
    assert not np.shares_memory(ta.from_dlpack(source, copy=True).numpy(), source)
    assert not np.shares_memory(ta.asarray(source, copy=True).numpy(), source)
    assert ta.from_dlpack(source, device="host").device == "host" and x.to_device("host") is x
    assert x.__dlpack__(max_version=(1, 0)) is not None
    np.testing.assert_array_equal(value(ta.from_dlpack(torch.arange(3))), [0, 1, 2])
    for wrong in ({"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(BufferError, match="cannot be exported"):
            x.__dlpack__(**wrong)
    with pytest.raises(TypeError):
        x.__dlpack__(None)  # type: ignore[misc]


@pytest.mark.parametrize("dtype", ("float32", "bool", "int8"))
def test_copies_share_no_memory(dtype: str) -> None:
    """copy=True of an array over another's memory stays as it was; a gradient finds its way through."""
    data = np.array([1, 0, 1], dtype)
    shared = ta.asarray(data)
    copies = [ta.asarray(shared, copy=True), ta.from_dlpack(shared, copy=True), ta.reshape(shared, (3, 1), copy=True)]
    data[:] = 0
    for made in copies:
        np.testing.assert_array_equal(made.numpy().reshape(-1), np.array([1, 0, 1], dtype))
    x = ta.asarray([1.0, 2.0])
    assert ta.grad(ta.sum(ta.asarray(x, copy=True) ** 2), x).numpy().tolist() == [2.0, 4.0]


def test_what_must_not_be_copied() -> None:
    """copy=False shares, or is a ValueError as the standard says."""
    x = ta.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert np.shares_memory(ta.reshape(x, (3, 2), copy=False).numpy(), x.numpy()) and ta.asarray(x, copy=False) is x
    assert ta.grad(ta.sum(ta.reshape(x, (6,), copy=False) ** 2), x).numpy().tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    locked = np.arange(3.0)
    locked.flags.writeable = False
    for wrong in (lambda: ta.asarray(x, dtype=ta.float64, copy=False), lambda: ta.asarray(np.arange(4)[::-1], copy=False),
                  lambda: ta.asarray(locked, copy=False), lambda: ta.asarray([1, 2], copy=False),
                  lambda: ta.reshape(ta.asarray(np.arange(6.0).reshape(2, 3).T), (6,), copy=False)):
        with pytest.raises(ValueError, match="copy"):
            wrong()
