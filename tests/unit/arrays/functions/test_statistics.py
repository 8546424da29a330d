"""Reductions, moments, running sums, sorting, searching and products, against the strict implementation of the standard and numpy."""
from __future__ import annotations

from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tilefuse.array as ta
from tests.unit.arrays.array_values import FLOATS, INTEGERS, NUMBERS, STANDARD_DTYPES, agree, pair, value
from tilefuse.base.errors import ShapeError, TypeMismatchError

some = settings(max_examples=30, deadline=None)


def small(dtype: str, shape: tuple[int, ...], seed: int = 3) -> np.ndarray[Any, Any]:
    """Whole numbers of either sign (where there is one), so that sums are exact."""
    low = 0 if dtype.startswith("u") or dtype == "bool" else -4
    return np.random.default_rng(seed).integers(low, 2 if dtype == "bool" else 5, shape).astype(dtype)


@some
@given(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4), st.booleans(), st.data())
def test_axes(shape: tuple[int, ...], keepdims: bool, data: Any) -> None:
    """One axis, several and all, kept or not, also over no elements where that has a value."""
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1) | hnp.valid_tuple_axes(len(shape)))
    x, y = pair(small("int64", shape))
    agree(ta.sum(x, axis=axis, keepdims=keepdims), strict.sum(y, axis=axis, keepdims=keepdims))
    agree(ta.prod(x, axis=axis, keepdims=keepdims), strict.prod(y, axis=axis, keepdims=keepdims))
    agree(ta.any(x, axis=axis, keepdims=keepdims), strict.any(y, axis=axis, keepdims=keepdims))
    agree(ta.all(x, axis=axis, keepdims=keepdims), strict.all(y, axis=axis, keepdims=keepdims))
    agree(ta.count_nonzero(x, axis=axis, keepdims=keepdims), strict.count_nonzero(y, axis=axis, keepdims=keepdims))
    if 0 in shape:
        return
    agree(ta.max(x, axis=axis, keepdims=keepdims), strict.max(y, axis=axis, keepdims=keepdims))
    agree(ta.min(x, axis=axis, keepdims=keepdims), strict.min(y, axis=axis, keepdims=keepdims))
    if not isinstance(axis, tuple):
        agree(ta.argmax(x, axis=axis, keepdims=keepdims), strict.argmax(y, axis=axis, keepdims=keepdims))
        agree(ta.argmin(x, axis=axis, keepdims=keepdims), strict.argmin(y, axis=axis, keepdims=keepdims))
    f, g = pair(small("float64", shape))
    for name in ("mean", "var", "std"):
        agree(getattr(ta, name)(f, axis=axis, keepdims=keepdims), getattr(strict, name)(g, axis=axis, keepdims=keepdims), ulps=4, what=name)
    agree(ta.var(f, axis=axis, correction=0.5), strict.var(g, axis=axis, correction=0.5), ulps=4)


@pytest.mark.parametrize("dtype", STANDARD_DTYPES)
def test_types_of_sums(dtype: str) -> None:
    """Small integers grow to 64 bits (bool as well), floats stay; `dtype` is obeyed."""
    x, y = pair(small(dtype, (3, 5)))
    if dtype != "bool":
        agree(ta.sum(x, axis=0), strict.sum(y, axis=0))
        agree(ta.prod(x, axis=1), strict.prod(y, axis=1))
        agree(ta.cumulative_sum(x, axis=1), strict.cumulative_sum(y, axis=1))
        agree(ta.cumulative_prod(x, axis=0, include_initial=True), strict.cumulative_prod(y, axis=0, include_initial=True))
        wide = "complex128" if "complex" in dtype else "float32"
        agree(ta.sum(x, dtype=getattr(ta, wide)), strict.sum(y, dtype=getattr(strict, wide)))
        agree(ta.diff(x, axis=0), strict.diff(y, axis=0))
        agree(ta.diff(x, n=2, prepend=x[:, :1], append=x), strict.diff(y, n=2, prepend=y[:, :1], append=y))
    else:
        assert ta.sum(x).dtype == ta.int64
    agree(ta.any(x, axis=0), strict.any(y, axis=0))


def test_types_of_means() -> None:
    """Means of integers are the default float, of half precision half precision."""
    assert ta.mean(ta.ones((3,), dtype="int32")).dtype == ta.float32 and ta.std(ta.ones((3,), dtype="bfloat16")).dtype == ta.bfloat16
    share = ta.mean(ta.asarray([True, False, True, True]))
    assert share.dtype == ta.float32 and value(share) == 0.75
    with pytest.raises(TypeMismatchError, match="variance takes numbers, not bool"):
        ta.var(ta.asarray([True]))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("descending", (False, True))
def test_sort(dtype: str, descending: bool) -> None:
    """Values and stable positions along every axis, with the ends of the type's range."""
    data = small(dtype, (4, 5))
    data[0, 0], data[1, 2] = (np.iinfo(dtype).min, np.iinfo(dtype).max) if "int" in dtype else (-np.inf, np.inf)
    x, y = pair(data)
    for axis in (0, 1, -1):
        agree(ta.sort(x, axis=axis, descending=descending), strict.sort(y, axis=axis, descending=descending))
        agree(ta.argsort(x, axis=axis, descending=descending), strict.argsort(y, axis=axis, descending=descending))
    values, positions = ta.topk(x, 2, axis=1, largest=descending)
    agree(values, strict.sort(y, axis=1, descending=descending)[:, :2])
    assert positions.dtype == ta.int64 and positions.shape == (4, 2)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_search(dtype: str) -> None:
    """searchsorted on both sides, with a sorter, and isin."""
    data = small(dtype, (9,))
    order = np.argsort(data)
    sorted_data, wanted = data[order], small(dtype, (2, 6), 9)
    for side in ("left", "right"):
        agree(ta.searchsorted(ta.asarray(sorted_data), ta.asarray(wanted), side=side), np.searchsorted(sorted_data, wanted, side=side))
        agree(ta.searchsorted(ta.asarray(data), ta.asarray(wanted), side=side, sorter=ta.asarray(order)),
              np.searchsorted(sorted_data, wanted, side=side))
    for invert in (False, True):
        agree(ta.isin(ta.asarray(wanted), ta.asarray(data[:2]), invert=invert), np.isin(wanted, data[:2], invert=invert))
    assert value(ta.isin(ta.asarray(wanted), 1)).tolist() == (wanted == 1).tolist()


def test_search_for_nan() -> None:
    """NaN stands behind every number."""
    data = np.array([0.0, 1.0, np.nan, np.nan])
    for side in ("left", "right"):
        agree(ta.searchsorted(ta.asarray(data), ta.asarray([np.nan, 1.0, 2.0], dtype="float64"), side=side),
              np.searchsorted(data, [np.nan, 1.0, 2.0], side=side))  # type: ignore[call-overload]


@pytest.mark.parametrize("dtype", ("int32", "uint8", "int64", *FLOATS))
def test_products(dtype: str) -> None:
    """Matrices, vectors, batches that broadcast; whole numbers, so floats are exact."""
    cases = (((3, 4), (4, 5)), ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((0, 4), (4, 2)), ((2, 0), (0, 3)))
    for first, second in cases:
        (x1, y1), (x2, y2) = pair(small(dtype, first)), pair(small(dtype, second, 5))
        agree(ta.matmul(x1, x2), strict.matmul(y1, y2), what=(first, second))
        agree(x1 @ x2, y1 @ y2, what=(first, second))
    (x1, y1), (x2, y2) = pair(small(dtype, (3, 4, 5))), pair(small(dtype, (5, 4, 2), 5))
    agree(ta.tensordot(x1, x2, axes=1), strict.tensordot(y1, y2, axes=1))
    agree(ta.tensordot(x1, x2, axes=((2, 1), (0, 1))), strict.tensordot(y1, y2, axes=((2, 1), (0, 1))))
    agree(ta.tensordot(x1, x2, axes=0), strict.tensordot(y1, y2, axes=0))
    agree(ta.vecdot(x1[:, :, :4], x2[:3, :1, :1] + x1[:, :, :4]), strict.vecdot(y1[:, :, :4], y2[:3, :1, :1] + y1[:, :, :4]))
    agree(ta.vecdot(x1, x1, axis=-2), strict.vecdot(y1, y1, axis=-2))
    agree(ta.outer(x1[0, 0], x2[0, 0]), strict.linalg.outer(y1[0, 0, :], y2[0, 0, :]))


@pytest.mark.parametrize("subscripts", ("ij,jk->ik", "ij,jk", "ij->ji", "ij->", "ij->i", "ii->i", "ii", "bij,bjk->bik", "bij,bkj->bki",
                                        "i,j->ij", "ij,ij->", "ij,kj,kl->il", "bhqd,bhkd->bhqk", "ij,j->i", "i,i->i", "ijk,lk->jl"))
def test_einsum(subscripts: str) -> None:
    """Contractions as numpy has them."""
    extents = dict(zip("bhijkldq", (2, 3, 4, 4, 5, 3, 2, 4)))
    terms = subscripts.partition("->")[0].split(",")
    data = [small("float64", tuple(extents[c] for c in t), n) for n, t in enumerate(terms)]
    agree(ta.einsum(subscripts, *map(ta.asarray, data)), np.einsum(subscripts, *data))


def test_einsum_refuses() -> None:
    """Subscripts that do not fit."""
    x = ta.ones((2, 3))
    for text, operands, message in (("ij->ijk", (x,), "no operand has"), ("ij,jk->ik", (x,), "does not fit 1 operands"),
                                    ("ij,jk->ik", (x, x), "'j' is 3 in one operand and 2"), ("ijk->i", (x,), "subscripts 'ijk'")):
        with pytest.raises(ShapeError, match=message):
            ta.einsum(text, *operands)


def test_softmax_family() -> None:
    """Stable for large elements."""
    data = np.array([[1000.0, 1001.0, 999.0], [0.0, -np.inf, 1.0]])
    shifted = np.exp(data - data.max(1, keepdims=True))
    x = ta.asarray(data)
    np.testing.assert_allclose(value(ta.softmax(x)), shifted / shifted.sum(1, keepdims=True), rtol=1e-14)
    np.testing.assert_allclose(value(ta.exp(ta.log_softmax(x, axis=1))), shifted / shifted.sum(1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(value(ta.logsumexp(x, axis=1)), np.log(shifted.sum(1)) + data.max(1), rtol=1e-14)
    with pytest.raises(TypeMismatchError, match="softmax takes floats, not int64"):
        ta.softmax(ta.asarray([1, 2]))


@pytest.mark.parametrize("name", ("float16", "bfloat16", *FLOATS))
def test_finfo(name: str) -> None:
    """Limits of floats."""
    facts = ta.finfo(getattr(ta, name))
    assert facts.eps == {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[name]
    assert facts.min == -facts.max
    assert facts.bits == getattr(ta, name).bits and ta.finfo(ta.zeros((1,), dtype=name)) == facts
    with pytest.raises(TypeMismatchError, match="use iinfo"):
        ta.finfo(ta.int8)


@pytest.mark.parametrize("name", INTEGERS)
def test_iinfo_and_isdtype(name: str) -> None:
    """Limits and kinds of integers."""
    theirs, dtype = np.iinfo(name), getattr(ta, name)
    assert (ta.iinfo(dtype).min, ta.iinfo(dtype).max) == (theirs.min, theirs.max)
    assert ta.isdtype(dtype, "integral") and ta.isdtype(dtype, ("bool", "numeric")) and not ta.isdtype(dtype, "real floating")
    assert ta.isdtype(dtype, "unsigned integer") == name.startswith("u") != ta.isdtype(dtype, "signed integer")
    with pytest.raises(TypeMismatchError, match="there is no kind"):
        ta.isdtype(dtype, "integer")
