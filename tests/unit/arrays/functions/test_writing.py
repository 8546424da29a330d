"""`x[key] = value` and `put`: random keys beside numpy, types, what sees a write and what does not, and who must not be written to."""
from __future__ import annotations

import itertools
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import tilefuse.array as ta
from tests.unit.arrays.array_values import agree, drawn_mask, key_of_ours, value
from tilefuse.arrays.types import NAME_OF
from tilefuse.base.errors import AxisError, ShapeError, TypeMismatchError, UserError

some = settings(max_examples=60, deadline=None, database=None, derandomize=True)


def numbered(shape: tuple[int, ...], dtype: str = "int64") -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


def broadcastable(draw: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """New values of a shape that broadcasts to this one: some extents 1, leading ones missing or of extent 1 in front."""
    kept = tuple(1 if draw(st.booleans()) else n for n in shape)[draw(st.integers(0, len(shape))):]
    if shape and len(kept) == len(shape) and draw(st.booleans()):
        kept = (1, *kept)
    return -1 - numbered(kept)


@some
@given(hnp.array_shapes(min_dims=0, max_dims=3, max_side=4), st.data())
def test_writes_at_slices(shape: tuple[int, ...], data: Any) -> None:
    """Integers, slices of any step, `...` and None, of values that broadcast: written and recorded, both as numpy."""
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True)) if shape else ()
    base = numbered(shape)
    fresh = broadcastable(data.draw, base[key].shape)
    wanted = base.copy()
    wanted[key] = fresh
    x = ta.asarray(base)
    agree(ta.put(x, key, ta.asarray(fresh)), wanted, what=(key, fresh.shape))
    recorded = x + 0
    x[key] = fresh
    agree(x, wanted, what=(key, fresh.shape))
    x[key] = 7
    wanted[key] = 7
    agree(x, wanted, what=key)
    agree(recorded, base)


@some
@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), st.data())
def test_puts_at_index_arrays(shape: tuple[int, ...], data: Any) -> None:
    """Integer arrays among integers, slices of any step and None; every position once, because one of several values wins."""
    base = numbered(shape)
    marks = -1 - numbered(shape)
    key: list[Any] = []
    for extent in shape:
        kind = data.draw(st.sampled_from(("array", "slice", "integer", "new")))
        if kind == "new":
            key.append(None)
        if kind in ("array", "new"):
            at = np.array(data.draw(st.lists(st.integers(0, extent - 1), min_size=1, max_size=1, unique=True)))
            key.append(at - extent if data.draw(st.booleans()) else at)
        else:
            key.append(data.draw(st.slices(extent)) if kind == "slice" else data.draw(st.integers(-extent, extent - 1)))
    fresh = marks[tuple(key)]
    wanted = base.copy()
    wanted[tuple(key)] = fresh
    ours = key_of_ours(key)
    agree(ta.put(ta.asarray(base), ours, ta.asarray(fresh)), wanted, what=key)


@some
@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), st.data())
def test_puts_at_masks(shape: tuple[int, ...], data: Any) -> None:
    """Masks of some dimensions among slices: of values for all that is selected, and of one value a selected element."""
    first, last, mask = drawn_mask(shape, data)
    key = (*(data.draw(st.slices(n)) for n in shape[:first]), mask, *(data.draw(st.slices(n)) for n in shape[last:]))
    ours = key_of_ours(key)
    base = numbered(shape)
    inside = base[key].shape
    for several in (False, True):
        wide = -1 - numbered(tuple(n if several or d != first else 1 for d, n in enumerate(inside)))
        for fresh in (wide, wide[0] if first == 0 and not several and wide.size else wide):
            wanted = base.copy()
            wanted[key] = fresh
            agree(ta.put(ta.asarray(base), ours, ta.asarray(np.asarray(fresh))), wanted, what=(key, fresh.shape))


@pytest.mark.parametrize(("own", "other"), list(itertools.product(
    ("bool", "int8", "uint16", "int64", "uint64", "float16", "bfloat16", "float32", "float64", "float8_e5m2"),
    ("bool", "uint8", "int64", "float32", "float64"))))
def test_types(own: str, other: str) -> None:
    """The array keeps its type; values of a wider kind are refused, others are converted as astype does."""
    x, before = ta.zeros((3,), dtype=own), ta.zeros((3,), dtype=own)
    fresh = ta.asarray([0, 1, 1], dtype=other)
    rank = {"bool": 0, "int": 1, "uint": 1, "float": 2}
    if rank[fresh.dtype.kind] > rank[x.dtype.kind]:
        with pytest.raises(TypeMismatchError, match=f"an array of {own} cannot hold values of {other}"):
            x[...] = fresh
    else:
        x[:2] = fresh[1:]
        assert NAME_OF[x.dtype] == own and x.tolist() == [1, 1, 0] and before.tolist() == [0, 0, 0]
        made = ta.put(before, 1, fresh[1])
        assert made.dtype == x.dtype and value(made).tolist() == [0, 1, 0]


def test_python_numbers() -> None:
    """Numbers take the array's type, or are refused where they would lose what they are."""
    whole, real = ta.zeros((3,), dtype="int8"), ta.zeros((3,))
    whole[0], real[0], whole[1], real[1], real[2] = -128, 2.5, True, 3, np.float64(0.1)
    assert whole.tolist() == [-128, 1, 0] and real.tolist() == [2.5, 3.0, np.float32(0.1)]
    for write, told in ((lambda: ta.put(whole, 0, 128), "128 is outside int8"), (lambda: ta.put(whole, 0, 1.0), "int8 cannot hold a float"),
                        (lambda: ta.put(whole > 0, 0, 1), "bool cannot hold a int"), (lambda: ta.put(whole, 0, 1j), "complex")):
        with pytest.raises(TypeMismatchError, match=told) as caught:
            write()
        assert str(caught.value.where).startswith(f"{__file__}:{write.__code__.co_firstlineno}:")
    real[:] = [1, 2, 3]
    assert real.tolist() == [1, 2, 3]
    real[1:] = torch.tensor([5.0, 6.0], dtype=torch.float64)
    assert real.tolist() == [1, 5, 6]


def test_what_sees_a_write() -> None:
    """Other names of the array; not its slices, copies, what was recorded before, nor memory of other libraries."""
    memory = np.zeros(4, np.float32)
    x = ta.asarray(memory)
    same, part, copy, again, cast = x, x[1:], ta.asarray(x, copy=True), ta.reshape(x, (4,)), ta.astype(x, x.dtype)
    double, seen = x * 2, x.numpy()
    x[1] = 5
    x[2:] += 3
    assert x.tolist() == [0, 5, 3, 3] and same is x
    for other in (part, copy, again, cast, double):
        assert not any(other.tolist())
    assert not seen.any() and not memory.any()
    part[0] = 9
    assert x.tolist() == [0, 5, 3, 3] and part.tolist() == [9, 0, 0]
    x[...] = part[0]
    assert x.tolist() == [9] * 4 and part.tolist() == [9, 0, 0]
    exported = x.numpy()
    x[0] = 1
    x[1] = 1
    assert exported.tolist() == [9] * 4 and x.tolist() == [1, 1, 9, 9]
    x[1:] = x[:-1]
    assert x.tolist() == [1, 1, 1, 9]


def test_writes_in_a_loop_keep_one_buffer() -> None:
    """From the second write on the data lies where it lay, and nothing is compiled; someone who looks on gets the old values."""
    x = ta.asarray(np.zeros(64, np.float32))
    x[0] = 0
    place = x.node.buffer.data_ptr()
    for n in range(64):
        x[n] = n
    assert x.node.buffer.data_ptr() == place and x.tolist() == list(range(64))
    onlooker = x[5:7]
    x[5] = -1
    assert onlooker.tolist() == [5, 6] and x.node.buffer.data_ptr() != place


def test_a_part_without_a_name_is_not_written_to() -> None:
    """Writes that would be lost without a word in a library without views."""
    x = ta.zeros((2, 3))
    with pytest.raises(UserError, match="nothing holds the array") as caught:
        x[0][1] = 1
    assert "x[0][1] = 1" in str(caught.value) and "x[0, 1] = v" in str(caught.value)
    with pytest.raises(UserError, match="nothing holds the array"):
        x.T[0] += 1
    held = {"x": [x]}
    held["x"][0][1] = 4
    x.__setitem__(0, 1)
    assert x.tolist() == [[1] * 3, [4] * 3]


def test_errors_name_the_users_line() -> None:
    """Keys and values that do not fit, with the line that writes."""
    x, two = ta.zeros((2, 3)), ta.ones((2,))

    def write(key: Any, fresh: Any) -> None:
        x[key] = fresh

    for key, fresh, kind, told in (
        (0, two, ShapeError, r"\(2,\)|f32\[2\]"), (2, 1, AxisError, "outside dimension 0"), ((0, 0, 0), 1, AxisError, "3 subscripts"),
        (1.5, 1, TypeMismatchError, "a float"), (two > 0, ta.ones((2, 2)), ShapeError, "f32"),
        (ta.ones((3,)) > 0, 1, ShapeError, "a mask of shape"),
        (ta.ones((1, 2, 3)) > 0, 1, AxisError, "3 subscripts"), (True, 1, ShapeError, "a bool is no subscript"),
        (0, "a", TypeMismatchError, "type str"),
    ):
        with pytest.raises(kind, match=told) as caught:
            write(key, fresh)
        assert f"{__file__}:{write.__code__.co_firstlineno + 1}:" in str(caught.value), (key, str(caught.value))
    assert not any(x.flatten().tolist())


def test_placeholders_and_variables_are_not_written_to() -> None:
    """They stand for what a session feeds and assigns; what is computed from them is recorded."""
    held, fed = ta.variable([1.0, 2.0]), ta.placeholder((2,), name="fed")
    for x, told in ((held, r"fetch w.assign\(put"), (fed, r"put\(x, key, value\)")):
        with pytest.raises(UserError, match=told):
            x[0] = 1.0
    both = held * fed
    both[0] = held[1]
    session = ta.Session()
    assert session.run(both, {fed: [3.0, 4.0]}).tolist() == [2, 8]
    session.run(held.assign(held + 10))
    assert session.run(both, {fed: [3.0, 4.0]}).tolist() == [12, 48]
    kept = ta.zeros((2,))
    kept[1] = held[0]
    session.run(held.assign(held + 1))
    assert session.run(kept).tolist() == [0, 12]


def test_a_donated_array_is_not_written_to() -> None:
    """Its memory is another array's."""
    step = ta.compile(lambda w: w + 1, donate=0)
    w = ta.zeros((2,))
    step(w)
    with pytest.raises(UserError, match="donated to"):
        w[0] = 1


def test_gradients_go_through_writes() -> None:
    """To the values where they were written, to the array elsewhere; the write itself happened at once."""
    a, b = ta.asarray([1.0, 2.0, 3.0]), ta.asarray([4.0, 5.0])
    y = a * 1.0
    y[1:] = b * b
    y[0] *= 2.0
    y[y > 20] = 0.0
    by_a, by_b = ta.grad(ta.sum(y * y), (a, b))
    assert y.tolist() == [2, 16, 0] and by_a.tolist() == [8, 0, 0] and by_b.tolist() == [256, 0]
    loss = ta.sum(a * a)
    a[0] = 7.0
    with pytest.raises(UserError, match="before it was written to"):
        ta.grad(loss, a)

    def written(p: Any) -> Any:
        p["w"][0] = 0.0
        return ta.sum(p["w"] ** 2)

    w = {"w": ta.asarray([1.0, 2.0])}
    value_of, slopes = ta.value_and_grad(written)(w)
    assert float(value_of) == 4 and slopes["w"].tolist() == [0, 4] and w["w"].tolist() == [1, 2]


def test_a_scan_writes_to_its_own_state() -> None:
    """A step that writes to its state leaves the first state alone."""
    def step(state: Any, x: Any) -> Any:
        state[0] += x
        return state, state[0]

    start = ta.zeros((2,))
    last, sums = ta.scan(step, start, ta.asarray([1.0, 2.0, 3.0]))
    assert last.tolist() == [6, 0] and sums.tolist() == [1, 3, 6] and start.tolist() == [0, 0]


def test_what_is_added_to_a_row_is_written_where_it_lies() -> None:
    """x[n] += v reads x through a view that nobody keeps; kept views, and kept arrays over x, have the old values."""
    x = ta.asarray(np.zeros((6, 4), np.float32))
    w = ta.asarray([1.0, 2.0, 3.0, 4.0])
    x[0] = w
    place = x.node.buffer.data_ptr()
    for n in range(1, 6):
        x[n] += x[n - 1] * 2
    assert x.node.buffer.data_ptr() == place and x[5].tolist() == [32, 64, 96, 128]
    assert ta.grad(ta.sum(x), w).tolist() == [63] * 4
    kept, double = x[2], x * 2
    x[2] += kept
    x[0] = double[1] + 1
    assert kept.tolist() == [4, 8, 12, 16] and x[2].tolist() == [8, 16, 24, 32] and x[0].tolist() == [5, 9, 13, 17]
    assert double[2].tolist() == [8, 16, 24, 32] and double[0].tolist() == [2, 4, 6, 8]
