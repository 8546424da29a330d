"""Functions that move elements and subscripts, against the strict implementation of the standard and numpy."""
from __future__ import annotations

from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tilefuse.array as ta
from tests.unit.arrays.array_values import STANDARD_DTYPES, agree, key_of_ours, pair, value
from tilefuse.base.errors import AxisError, ShapeError, TypeMismatchError

some = settings(max_examples=40, deadline=None)
shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)


def numbered(shape: tuple[int, ...], dtype: str = "int64") -> np.ndarray[Any, Any]:
    """Elements that are all different."""
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


@some
@given(shapes, st.data())
def test_layouts(shape: tuple[int, ...], data: Any) -> None:
    """permute_dims, flip, roll, expand_dims, moveaxis, tile, repeat on random shapes and axes."""
    x, y = pair(numbered(shape))
    rank = len(shape)
    axis = data.draw(st.integers(-rank, rank - 1))
    other = data.draw(st.integers(-rank, rank - 1))
    order = tuple(data.draw(st.permutations(range(rank))))
    shift = data.draw(st.integers(-5, 5))
    times = data.draw(st.integers(0, 3))
    for name, arguments, named in (
        ("permute_dims", (order,), {}), ("flip", (), {"axis": axis}), ("flip", (), {}), ("roll", (shift,), {"axis": axis}),
        ("roll", (shift,), {}), ("expand_dims", (), {"axis": axis}), ("moveaxis", (axis, other), {}), ("tile", ((times, 2),), {}),
        ("repeat", (times,), {"axis": axis}), ("repeat", (times,), {}), ("reshape", ((-1,) if 0 not in shape else (0,),), {}),
    ):
        agree(getattr(ta, name)(x, *arguments, **named), getattr(strict, name)(y, *arguments, **named), what=(name, arguments, named))
    split = ta.unstack(x, axis=axis)
    assert [value(s).tolist() for s in split] == [np.asarray(s).tolist() for s in strict.unstack(y, axis=axis)]
    if rank >= 2:
        agree(ta.matrix_transpose(x), strict.matrix_transpose(y))
        agree(ta.tril(x, k=shift), strict.tril(y, k=shift))
        agree(ta.triu(x, k=shift), strict.triu(y, k=shift))
        agree(ta.diagonal(x, offset=shift), strict.linalg.diagonal(y, offset=shift))


@some
@given(shapes, st.data())
def test_joins(shape: tuple[int, ...], data: Any) -> None:
    """concat, stack and split put together and take apart."""
    rank = len(shape)
    axis = data.draw(st.integers(-rank, rank - 1))
    extents = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    parts = [numbered(tuple(e if d == axis % rank else s for d, s in enumerate(shape))) for e in extents]
    ours, theirs = [ta.asarray(p) for p in parts], [strict.asarray(p) for p in parts]
    whole = ta.concat(ours, axis=axis)
    agree(whole, strict.concat(theirs, axis=axis))
    agree(ta.concat(ours, axis=None), strict.concat(theirs, axis=None))
    for piece, part in zip(ta.split(whole, extents, axis=axis), theirs, strict=True):
        agree(piece, part)
    at = data.draw(st.integers(-rank - 1, rank))
    agree(ta.stack([ours[0]] * 3, axis=at), strict.stack([theirs[0]] * 3, axis=at))


def test_joins_of_several_types() -> None:
    """The parts meet in one type."""
    assert ta.concat([ta.ones((2,), dtype="int8"), ta.ones((1,), dtype="float16")]).dtype == ta.float16
    assert ta.stack([ta.ones((2,), dtype="int8"), ta.ones((2,), dtype="uint8")]).dtype == ta.int16


@some
@given(shapes.filter(lambda s: 0 not in s), st.data())
def test_basic_subscripts(shape: tuple[int, ...], data: Any) -> None:
    """Integers, slices with any step, ... and None."""
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    base = numbered(shape)
    for x in (ta.asarray(base), ta.asarray(base) + 0):
        agree(x[key], base[key], what=key)


@some
@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), st.data())
def test_index_arrays(shape: tuple[int, ...], data: Any) -> None:
    """Integer arrays, alone and among integers and slices, follow numpy; negative ones count from the end."""
    base = numbered(shape)
    chosen = data.draw(hnp.array_shapes(max_dims=2, max_side=3))
    key: list[Any] = []
    for extent in shape:
        kind = data.draw(st.sampled_from(("array", "slice", "integer")))
        key.append(data.draw(hnp.arrays(np.int64, chosen, elements=st.integers(-extent, extent - 1))) if kind == "array"
                   else slice(None) if kind == "slice" else data.draw(st.integers(-extent, extent - 1)))
    ours = key_of_ours(key)
    agree(ta.asarray(base)[ours], base[tuple(key)], what=key)


@some
@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), st.data())
def test_put(shape: tuple[int, ...], data: Any) -> None:
    """`put` is x[key] = value on a copy, for slices of any step, integers and new dimensions."""
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=False, allow_ellipsis=True))
    base = numbered(shape)
    wanted = base.copy()
    wanted[key] = -1 - base[key]
    agree(ta.put(ta.asarray(base), key, ta.asarray(-1 - base[key])), wanted, what=key)
    wanted[key] = 7
    agree(ta.put(ta.asarray(base), key, 7), wanted, what=key)


def test_put_at_index_arrays() -> None:
    """Replaced or added; positions that occur twice are added twice."""
    x, at = ta.zeros((4, 2), dtype="int32"), ta.asarray([1, -1, 1])
    assert value(ta.put(x, at, 5))[:, 0].tolist() == [0, 5, 0, 5]
    assert value(ta.put(x, (at, 0), ta.asarray([1, 2, 3], dtype="int32"), accumulate=True)).tolist() == [[0, 0], [4, 0], [0, 0], [2, 0]]


def test_take() -> None:
    """Slices along a dimension and elements along one."""
    base = numbered((3, 4))
    x, at = ta.asarray(base), np.array([[2, 0], [1, -1]])
    agree(ta.take(x, ta.asarray(at), axis=1), np.take(base, at, axis=1))
    agree(ta.take(x[0], ta.asarray([3, 1])), base[0][[3, 1]])
    order = np.argsort(-base, axis=1)
    agree(ta.take_along_axis(x, ta.asarray(order), axis=1), np.take_along_axis(base, order, axis=1))
    agree(ta.take_along_axis(x, ta.asarray(order[:1, :2])), np.take_along_axis(base, order[:1, :2], axis=-1))
    with pytest.raises(ShapeError, match="needs an axis"):
        ta.take(x, ta.asarray([0]))
    with pytest.raises(TypeMismatchError, match="array of integers, not f32"):
        ta.take(x, ta.ones((1,)), axis=0)


@pytest.mark.parametrize("mode", ("constant", "edge", "reflect", "wrap"))
def test_pad(mode: str) -> None:
    """numpy's modes."""
    base = numbered((3, 4))
    extra = {"constant_values": 9} if mode == "constant" else {}
    value_of = {"value": 9} if mode == "constant" else {}
    for widths in (1, (1, 2), ((0, 1), (2, 0))):
        agree(ta.pad(ta.asarray(base), widths, mode=mode, **value_of), np.pad(base, widths, mode=mode, **extra))  # type: ignore[call-overload,arg-type]


@pytest.mark.parametrize("dtype", STANDARD_DTYPES)
def test_creation(dtype: str) -> None:
    """Every function that makes an array of a type."""
    kind, other = getattr(ta, dtype), getattr(strict, dtype)
    for name, arguments in (("zeros", ((2, 3),)), ("ones", (4,)), ("full", ((2,), 1)), ("eye", (3, 4)), ("zeros", ((0, 2),)),
                            ("ones", ((),))):
        agree(getattr(ta, name)(*arguments, dtype=kind), getattr(strict, name)(*arguments, dtype=other), what=name)
    x, y = pair(np.zeros((2, 2), dtype))
    agree(ta.ones_like(x), strict.ones_like(y))
    agree(ta.full_like(x, 1), strict.full_like(y, 1))
    assert ta.empty((2, 1), dtype=kind).shape == ta.empty_like(x)[:, :1].shape
    if dtype != "bool":
        agree(ta.arange(7, dtype=kind), strict.arange(7, dtype=other))
        agree(ta.arange(1, 9, 3, dtype=kind), strict.arange(1, 9, 3, dtype=other))
        agree(ta.arange(9, 1, -3, dtype=kind), strict.arange(9, 1, -3, dtype=other))


@some
@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(1, 7), st.integers(1, 30))
def test_ranges(start: int, stop: int, step: int, num: int) -> None:
    """arange of integers and floats, and linspace, whose ends are exact."""
    agree(ta.arange(start, stop, step), np.arange(start, stop, step))
    agree(ta.arange(float(start), stop, step / 4, dtype="float64"), np.arange(float(start), stop, step / 4))
    for endpoint in (True, False):
        agree(ta.linspace(start, stop, num, dtype="float64", endpoint=endpoint), np.linspace(start, stop, num, endpoint=endpoint), ulps=4)
    ends = value(ta.linspace(start, stop, num + 1))
    assert ends[0] == start and ends[-1] == stop


def test_ranges_near_the_ends_of_64_bits() -> None:
    """A range is refused for what it holds, not for how long a step is that it never takes."""
    low, high = -2**63, 2**63 - 1
    for given_range in ((0, 0, low // 2), (low, high, 2**62), (high - 2, high, 1), (0, -1, 2**70), (5, 6, 2**70)):
        assert value(ta.arange(*given_range)).tolist() == list(range(*given_range)), given_range
    assert ta.arange(0, -1e300).shape == (0,)
    for wrong in ((0, high + 2, high + 1), (0, 1e300), (0, float("inf")), (0, float("nan"))):
        with pytest.raises(ShapeError, match="no end that can be reached"):
            ta.arange(*wrong)


def test_meshgrid_and_eye() -> None:
    """Both index orders; diagonals beside the main one."""
    first, second = np.arange(3), np.arange(2)
    for indexing in ("xy", "ij"):
        for made, wanted in zip(ta.meshgrid(ta.asarray(first), ta.asarray(second), indexing=indexing),
                                np.meshgrid(first, second, indexing=indexing), strict=True):  # type: ignore[call-overload]
            agree(made, wanted)
    for k in (-2, 0, 1, 5):
        agree(ta.eye(3, 4, k=k, dtype="int32"), np.eye(3, 4, k=k, dtype=np.int32))
    assert ta.broadcast_shapes((3, 1), (1, 4), (4,)) == (3, 4)


def test_axes_that_are_not_there() -> None:
    """A scalar has no dimension 0; an axis is an integer, of Python or numpy, and occurs once."""
    scalar, x = ta.asarray(1.0), ta.ones((2, 3))
    missing = [
        lambda: ta.squeeze(scalar, axis=0), lambda: ta.repeat(scalar, 2, axis=0), lambda: ta.roll(scalar, 1, axis=0),
        lambda: ta.moveaxis(scalar, 0, 0), lambda: ta.take(scalar, ta.asarray([0]), axis=0), lambda: ta.split(scalar, 1),
        lambda: ta.argmax(scalar, axis=0), lambda: ta.sort(scalar, axis=1), lambda: ta.argsort(x, axis=2), lambda: ta.topk(x, 1, axis=2),
        lambda: ta.cumulative_sum(scalar, axis=0), lambda: ta.diff(x, axis=2), lambda: ta.unstack(x, axis=-3), lambda: ta.sum(x, axis=2),
        lambda: ta.expand_dims(x, axis=4), lambda: x[2], lambda: x[0, 0, 0], lambda: x[..., ...],
    ]
    for call in missing:
        with pytest.raises(AxisError) as caught:
            call()
        # Two ways to say it in Python; both are caught.
        assert isinstance(caught.value, IndexError) and isinstance(caught.value, ValueError)
        assert str(caught.value.where).startswith(f"{__file__}:"), caught.value
    for wrong in (lambda: ta.argmax(x, axis=()), lambda: ta.argmin(x, axis=(0,)), lambda: ta.sum(x, axis=1.0),  # type: ignore[arg-type]
                  lambda: ta.reshape(x, (2.5,)), lambda: ta.tile(x, (1.5,)), lambda: ta.sort(x, axis="a")):  # type: ignore[arg-type, list-item]
        with pytest.raises(TypeMismatchError) as told:
            wrong()
        assert isinstance(told.value, TypeError)
    for twice in (lambda: ta.flip(x, axis=(0, -2)), lambda: ta.squeeze(ta.ones((1, 1)), axis=(0, 0)), lambda: ta.sum(x, axis=(0, 0))):
        with pytest.raises(ShapeError, match="occurs twice|twice"):
            twice()
    assert ta.sum(x, axis=np.int64(0)).shape == (3,) and ta.reshape(x, np.int64(6)).shape == (6,)  # type: ignore[arg-type]
    assert ta.repeat(x, np.int8(2), axis=np.int8(1)).shape == (2, 6) and ta.sort(scalar).shape == ()  # type: ignore[arg-type]


def test_errors_name_the_users_line() -> None:
    """File, line, text and a caret under the call."""
    x = ta.ones((2, 3))
    cases = [
        (lambda: x + ta.ones((4,)), "do not broadcast"), (lambda: ta.reshape(x, (4, 2)), "cannot take the shape"),
        (lambda: x @ x, "inner extents differ, 3 and 2"), (lambda: ta.concat([x, ta.ones((3, 2))]), "differ in another dimension"),
        (lambda: x[2], "outside dimension 0"), (lambda: x[0, 0, 0], "3 subscripts"), (lambda: ta.squeeze(x, axis=0), "extent 2, not 1"),
        (lambda: ta.sum(x, axis=2), "axis 2 is outside"), (lambda: ta.permute_dims(x, (0, 0)), "not a permutation"),
        (lambda: x[x[0] > 0], "a mask of shape"), (lambda: x[True], "boolean mask is an array"),
        (lambda: ta.max(ta.zeros((0,))), "over no elements"),
        (lambda: ta.broadcast_to(x, (2, 4)), "does not broadcast to"), (lambda: ta.zeros((-1,)), "no negative extents"),
        (lambda: ta.stack([x, ta.ones((3, 2))]), "different shapes"), (lambda: x.T.T.mT[..., 0].mT, "needs two dimensions"),
    ]
    for call, message in cases:
        with pytest.raises(ShapeError, match=message) as caught:
            call()
        where = caught.value.where
        assert str(where).startswith(f"{__file__}:{call.__code__.co_firstlineno}:"), str(where)
        assert "lambda" in str(where) and "^" in str(where)
    small = ta.ones((2,), dtype="int8")
    wide = ta.ones((2,), dtype="uint64")
    typed = [
        (lambda: ta.zeros((2,), dtype="flaot32"), "did you mean float32"), (lambda: small + 300, "outside int8"),
        (lambda: ta.put(small, 0, 300), "outside int8"), (lambda: ta.where(small > 0, small, 300), "outside int8"),
        (lambda: ta.pad(small, 1, value=-200), "outside int8"), (lambda: ta.full((2,), 300, dtype="uint8"), "outside uint8"),
        (lambda: ta.exp(small > 0), "exp takes numbers"), (lambda: ta.iinfo(x), "use finfo"), (lambda: small + wide, "no integer type"),
        (lambda: ta.concat([small, wide]), "no integer type"), (lambda: ta.isdtype(x.dtype, "reel"), "no kind"),
        (lambda: ta.asarray(["a"]), "no array of real numbers"), (lambda: ta.softmax(small), "takes floats"),
        (lambda: ta.take(x, x, axis=0), "array of integers"), (lambda: x[1.5], "subscript 0 is a float"),
    ]
    for call, message in typed:
        with pytest.raises(TypeMismatchError, match=message) as refused:
            call()
        where = refused.value.where
        assert str(where).startswith(f"{__file__}:{call.__code__.co_firstlineno}:"), (message, str(where))
