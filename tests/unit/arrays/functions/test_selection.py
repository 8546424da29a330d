"""Results whose shape depends on data, beside the strict implementation over numpy; and errors where there are no values."""
from __future__ import annotations

from typing import Any

import array_api_strict as strict
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import tilefuse.array as ta
from tests.unit.arrays.array_values import STANDARD_DTYPES, agree, drawn_mask, key_of_ours, pair
from tilefuse.base.errors import AxisError, ShapeError, TypeMismatchError, UserError

some = settings(max_examples=40, deadline=None, database=None, derandomize=True)
UNIQUE = ("unique_all", "unique_counts", "unique_inverse", "unique_values")


@some
@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), st.data())
def test_reads_at_masks(shape: tuple[int, ...], data: Any) -> None:
    """Masks of some dimensions among slices and None, of arrays with and without data."""
    first, last, mask = drawn_mask(shape, data)
    new = (None,) if data.draw(st.booleans()) else ()
    key = (*(data.draw(st.slices(n)) for n in shape[:first]), *new, mask, *(data.draw(st.slices(n)) for n in shape[last:]))
    base = np.arange(np.prod(shape)).reshape(shape)
    ours = key_of_ours(key)
    agree(ta.asarray(base)[ours], base[key], what=key)


def test_subscripts_of_other_libraries() -> None:
    """Lists, numpy arrays and torch tensors are index arrays and masks as ours are; of one element too, and without any."""
    base = np.arange(6).reshape(2, 3)
    x = ta.asarray(base)
    for key in ([1, 0], np.array([1]), [True, False], np.array([[True, False, True], [False, True, False]]), [], np.array(1), np.int64(1)):
        agree(x[key], base[key], what=key)
        if isinstance(key, np.ndarray):
            agree(x[torch.from_numpy(key)], base[key], what=key)
    agree(x[1, [0, 2]], base[1, [0, 2]])
    x[torch.tensor([1]), [0, 1]] = 9
    x[[True, False]] = 7
    assert x.tolist() == [[7, 7, 7], [9, 9, 5]]
    for wrong in ([1.5], np.array([0.5]), "a", [["b"]]):
        with pytest.raises(TypeMismatchError):
            x[wrong]


def test_masks_beside_index_arrays() -> None:
    """A mask is the index arrays of its positions; an integer counts as one; a mask without dimensions selects all or nothing."""
    base = np.arange(24).reshape(2, 3, 4)
    x, mask = ta.asarray(base), np.array([True, False, True])
    at = np.array([1, 0])
    agree(x[ta.asarray(at), ta.asarray(mask)], base[at, mask])
    agree(x[1, ta.asarray(mask)], base[1, mask])
    agree(x[..., ta.asarray(mask), 2], base[..., mask, 2])
    for whole in (True, False):
        agree(x[ta.asarray(whole)], base[np.array(whole)])
    agree((x * 2)[x > 20], (base * 2)[base > 20])


@pytest.mark.parametrize("dtype", STANDARD_DTYPES)
def test_standard_functions(dtype: str) -> None:
    """`nonzero` and `unique_*` in every type of the standard; NaNs are all distinct, signed zeros are one."""
    draw = np.random.default_rng(3)
    for shape in ((), (0,), (7,), (3, 4)):
        base = draw.integers(0, 4, shape).astype(dtype)
        if base.size > 4 and base.dtype.kind == "f":
            base.flat[[0, 2]], base.flat[[1, 3]] = np.nan, [-0.0, 0.0]
        ours, theirs = pair(base)
        for name in UNIQUE:
            got, wanted = getattr(ta, name)(ours), getattr(strict, name)(theirs)
            for mine, other in zip(got, wanted, strict=True) if isinstance(got, tuple) else ((got, wanted),):
                agree(mine, other, what=(name, shape))
            assert getattr(got, "_fields", ()) == getattr(wanted, "_fields", ())
        if shape:
            for mine, other in zip(ta.nonzero(ours), strict.nonzero(theirs), strict=True):
                agree(mine, other, what=("nonzero", shape))
            counts = draw.integers(0, 3, shape[-1])
            agree(ta.repeat(ours, ta.asarray(counts), axis=-1), np.repeat(base, counts, axis=-1))
            agree(ta.repeat(ours, ta.asarray([2])), np.repeat(base, 2))
        else:
            with pytest.raises(ShapeError, match="without dimensions"):
                ta.nonzero(ours)


def test_narrow_floats_have_distinct_elements() -> None:
    x = ta.asarray([2.0, 1.0, 2.0, -1.0])
    for dtype in (ta.bfloat16, ta.float16, ta.float8_e5m2):
        found = ta.unique_counts(ta.astype(x, dtype))
        assert found.values.dtype == dtype and found.values.tolist() == [-1, 1, 2] and found.counts.tolist() == [1, 1, 2]


def test_gradients_find_their_way_back() -> None:
    """To the elements that were selected."""
    x = ta.asarray([3.0, -1.0, 2.0])
    assert ta.grad(ta.sum(x[x > 0] ** 2), x).tolist() == [6, 0, 4]
    assert ta.grad(ta.sum(ta.repeat(x, ta.asarray([2, 0, 1])) ** 2), x).tolist() == [12, 0, 4]
    assert ta.grad(ta.sum(ta.unique_values(x) ** 2), x).tolist() == [6, -2, 4]


def test_in_a_trace_they_are_errors_with_the_remedy() -> None:
    """A value that depends on arguments has no shape then; one that does not is a constant."""
    x = ta.asarray([3.0, -1.0, 2.0])
    cases = {
        "a boolean mask": (lambda v: v[v > 0], "where(mask, x, 0)"), "nonzero": (ta.nonzero, "argmax"),
        "unique_values": (ta.unique_values, "sort"),
        "unique_all": (ta.unique_all, "isin"), "repeat by an array": (lambda v: ta.repeat(v, ta.astype(v > 0, "int32")), "take"),
    }
    for wanted, (fn, remedy) in cases.items():
        with pytest.raises(UserError, match=f"the shape that {wanted} gives depends on data") as caught:
            ta.compile(fn)(x)
        assert remedy in str(caught.value)
    with pytest.raises(UserError, match="is needed"):
        ta.nonzero(ta.placeholder((3,)))
    known = ta.asarray([True, False, True])
    assert ta.compile(lambda v: v[known] * 2)(x).tolist() == [6, 4]
    assert ta.compile(lambda v: ta.put(v, v > 0, 0.0))(x).tolist() == [0, -1, 0]


def test_what_does_not_fit() -> None:
    x = ta.zeros((2, 3))
    for kind, message, call in (
        (ShapeError, "a mask of shape", lambda: x[ta.ones((3,)) > 0]), (AxisError, "3 subscripts", lambda: x[ta.ones((2, 3, 1)) > 0]),
        (ShapeError, "numbers of repetitions", lambda: ta.repeat(x, ta.asarray([1, 2]), axis=1)),
        (ShapeError, "less than none", lambda: ta.repeat(x, ta.asarray([-1]), axis=1)),
        (TypeMismatchError, "takes integers", lambda: ta.repeat(x, ta.asarray([1.0]), axis=1)),
        (TypeMismatchError, "an integer or an array", lambda: ta.repeat(x, [1, 2], axis=0)),
    ):
        with pytest.raises(kind, match=message) as caught:
            call()
        assert f"{__file__}:{call.__code__.co_firstlineno}:" in str(caught.value)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0), (0, 0)])
def test_a_mask_without_elements_selects_nothing(shape: tuple[int, ...]) -> None:
    """By the standard an extent of a mask is its dimension's or 0."""
    x = ta.reshape(ta.arange(12.0), (3, 4))
    mask = ta.zeros(shape, dtype=ta.bool)
    assert x[mask].shape == ((0, 4) if len(shape) == 1 else (0,))
    written = x + 0
    written[mask] = 7.0
    assert written.tolist() == x.tolist()
    with pytest.raises(IndexError, match=r"a mask of shape \(2,\) for dimensions of extents \(3,\)"):
        x[ta.zeros((2,), dtype=ta.bool)]
