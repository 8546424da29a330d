"""Functions of `tilefuse.array` that make arrays: from data, from a number, from positions."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite, nan, prod
from typing import Any

import numpy as np

from tilefuse.arrays.arguments import of_arrays, whole_number
from tilefuse.arrays.array import Array, apply, checked_number, copied, installed
from tilefuse.arrays.functions.elementwise import astype
from tilefuse.arrays.functions.manipulation import broadcast_to, permute_dims, reshape
from tilefuse.arrays.lowering import lower_full
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.types import (
    DEFAULT_COMPLEX,
    DEFAULT_FLOAT,
    DEFAULT_INT,
    NAME_OF,
    Number,
    Scalar,
    as_dtype,
    as_number,
    number_constant,
)
from tilefuse.base.errors import ShapeError, SharingError, TypeMismatchError
from tilefuse.ir.affine import axis
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_complex import ComplexBuilder
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.dtype import F64, I64, DType
from tilefuse.ir.scalar import Bound, Const, Expr, Guard, Index, call, cast, const

Shape = int | Sequence[int]


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of extents. Raises: ShapeError for a negative extent, TypeMismatchError for anything but a shape."""
    listed = (shape,) if isinstance(shape, (int, np.integer)) else shape
    try:
        extents = tuple(int(s.__index__()) for s in listed)
    except (TypeError, AttributeError):
        raise TypeMismatchError(f"a shape is an integer or a tuple of integers, not {shape!r}", where=user_span()) from None
    if any(s < 0 for s in extents):
        raise ShapeError(f"a shape has no negative extents: {extents}", where=user_span())
    return extents


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Array:
    """An array of `obj`: numbers, nested lists, a numpy or torch array, anything with DLPack or a buffer; over its memory where possible.

    copy: True always copies, False never does, None where it must.
    Raises: TypeMismatchError for what is no array of real numbers; SharingError where copy=False cannot be had.
    """
    target_dtype = None if dtype is None else as_dtype(dtype)
    if isinstance(obj, Array):
        array = obj if target_dtype is None else astype(obj, target_dtype, copy=False)
        array = array if device is None else array.to_device(device)
        if copy is False and array is not obj:
            raise SharingError(f"an array of {NAME_OF[obj.dtype]} on {obj.device} cannot become one of {NAME_OF[array.dtype]} on "
                               f"{array.device} without a copy", where=user_span(), hint="drop copy=False")
        return copied(array) if copy and array is obj else array
    return Array(installed().source(obj, target_dtype, None if device is None else installed().device_named(device), copy))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array over the memory of another library's array. copy: as for `asarray`."""
    if not hasattr(x, "__dlpack__"):
        raise TypeMismatchError(f"a {type(x).__name__} has no __dlpack__", where=user_span(), hint="asarray takes lists and numbers")
    return asarray(x, device=device, copy=copy)


def _device(device: Any) -> str:
    return installed().default_device() if device is None else installed().device_named(device)


def full(shape: Shape, fill_value: Scalar | Array, *, dtype: Any = None, device: Any = None) -> Array:
    """Every element is `fill_value`; its type where none is given is the default one of the number."""
    extents = checked_shape(shape)
    if isinstance(fill_value, Array):
        return broadcast_to(astype(fill_value, fill_value.dtype if dtype is None else dtype), extents)
    number = checked_number("full", fill_value)
    chosen_dtype = as_dtype(type(number) if dtype is None else dtype)
    return apply(lower_full, (), (extents, number_constant(number, chosen_dtype)), _device(device))


def zeros(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    """All elements 0."""
    return full(shape, 0, dtype=DEFAULT_FLOAT if dtype is None else dtype, device=device)


def ones(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    """All elements 1."""
    return full(shape, 1, dtype=DEFAULT_FLOAT if dtype is None else dtype, device=device)


def empty(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    """Elements of no particular value (0: nothing here reads memory that was not written)."""
    return zeros(shape, dtype=dtype, device=device)


@of_arrays
def full_like(x: Array, /, fill_value: Scalar, *, dtype: Any = None, device: Any = None) -> Array:
    """Every element is `fill_value`, with shape, type and device of `x`."""
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=x.device if device is None else device)


@of_arrays
def zeros_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    """As `zeros`, with shape, type and device of `x`."""
    return full_like(x, 0, dtype=dtype, device=device)


@of_arrays
def ones_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    """As `ones`, with shape, type and device of `x`."""
    return full_like(x, 1, dtype=dtype, device=device)


@of_arrays
def empty_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    """As `empty`, with shape, type and device of `x`."""
    return full_like(x, 0, dtype=dtype, device=device)


def arange(start: Number, /, stop: Number | None = None, step: Number = 1, *, dtype: Any = None, device: Any = None) -> Array:
    """start, start + step, ... below stop; with one number, from 0 up to it.

    Exact: integers exactly; floats as start + step * position in f64, rounded once.
    """
    first, last = (0, start) if stop is None else (start, stop)
    numbers = [as_number(n) for n in (first, last, step)]
    if any(n is None for n in numbers):
        raise TypeMismatchError("arange takes numbers", where=user_span(), hint="its length is part of the program, which is static")
    begin, end, by = (n for n in numbers if n is not None)
    if not by:
        raise ShapeError("arange with step 0 never arrives", where=user_span())
    whole = all(isinstance(n, int) for n in numbers)
    steps = (-((begin - end) // by) if whole else (end - begin) / by) if all(isfinite(n) for n in (begin, end, by)) else nan
    if not steps < 1 << 62 or whole and steps > 0 and not all(-1 << 63 <= n < 1 << 63 for n in (begin, begin + (steps - 1) * by)):
        raise ShapeError(f"arange from {begin} to {end} by {by} has no end that can be reached", where=user_span())
    count = ceil(steps) if steps > 0 else 0
    chosen_dtype = (DEFAULT_INT if whole else DEFAULT_FLOAT) if dtype is None else as_dtype(dtype)
    kind = I64 if whole else F64
    return apply(lower_steps, (), (count, const(begin, kind), const(by, kind), None, chosen_dtype), _device(device))


def linspace(start: Scalar, stop: Scalar, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True) -> Array:
    """`num` numbers at equal distances from start to stop (without stop where `endpoint` is false).

    Exact: start + step * position in f64, rounded once; the last is stop itself.
    """
    count = whole_number(num, "num")
    if count < 0:
        raise ShapeError(f"linspace of {count} numbers", where=user_span())
    gaps = count - 1 if endpoint else count
    bounds = checked_number("linspace", start), checked_number("linspace", stop)
    ends = [complex(g) for g in bounds]
    real = _evenly(ends[0].real, ends[1].real, count, gaps, endpoint)
    kind = DEFAULT_COMPLEX if any(isinstance(g, complex) for g in bounds) else DEFAULT_FLOAT
    chosen_dtype = kind if dtype is None else as_dtype(dtype)
    if not kind.is_complex:
        return apply(lower_steps, (), (*real, chosen_dtype), _device(device))
    imaginary = _evenly(ends[0].imag, ends[1].imag, count, gaps, endpoint)
    return astype(apply(lower_joined_steps, (), (real, imaginary), _device(device)), chosen_dtype, copy=False)


Steps = tuple[int, Const, Const, Const | None]


def _evenly(begin: float, end: float, count: int, gaps: int, endpoint: bool) -> Steps:
    """The settings of `lower_steps` for this many numbers at equal distances."""
    step = (end - begin) / gaps if gaps > 0 else 0.0
    return count, const(begin, F64), const(step, F64), const(end, F64) if endpoint and count > 1 else None


def lower_joined_steps(b: ComplexBuilder, real: Steps, imaginary: Steps) -> str:
    """Complex numbers with such parts."""
    return b.joined(lower_steps(b, *real, F64), lower_steps(b, *imaginary, F64))


def lower_steps(b: TensorBuilder, count: int, first: Const, step: Const, last: Const | None, dtype: DType) -> str:
    """first + step * position, the last element replaced by `last`."""
    if first.dtype == I64:
        return b.iota((count,), 0, dtype, int(first.value), int(step.value))
    axes = axis_names(1)
    position = Index(axis(axes[0]) if count > 1 else axis(axes[0]) * 0)
    body: Expr = call("add", const(first.value, F64), call("mul", const(step.value, F64), cast(position, F64)))
    if last is not None and count:
        body = Guard((Bound(axis(axes[0]), 0, count - 1),), body, const(last.value, F64))
    return b.make_map("steps", dtype, (count,), axes, converted(body, F64, dtype))


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Array:
    """1 on diagonal k (above the main one where positive), else 0. Shapes: [n_rows, n_cols]; n_cols is n_rows where None"""
    shape = checked_shape((n_rows, n_rows if n_cols is None else n_cols))
    return apply(lower_eye, (), (shape, whole_number(k, "k"), DEFAULT_FLOAT if dtype is None else as_dtype(dtype)), _device(device))


def lower_eye(b: TensorBuilder, shape: tuple[int, int], k: int, dtype: DType) -> str:
    """Guards on column - row."""
    if not prod(shape):
        return b.full(shape, 0, dtype)
    axes = axis_names(2)
    place = (axis(axes[1]) if shape[1] > 1 else axis(axes[1]) * 0) - (axis(axes[0]) if shape[0] > 1 else axis(axes[0]) * 0)
    return b.make_map("eye", dtype, shape, axes, Guard((Bound(place, k, k + 1),), const(1, dtype), const(0, dtype)))


@of_arrays
def tril(x: Array, /, *, k: int = 0) -> Array:
    """The last two dimensions with zeros above diagonal k."""
    return apply(lower_triangle, (x,), ("tril", whole_number(k, "k")))


@of_arrays
def triu(x: Array, /, *, k: int = 0) -> Array:
    """The last two dimensions with zeros below diagonal k."""
    return apply(lower_triangle, (x,), ("triu", whole_number(k, "k")))


def lower_triangle(b: TensorBuilder, x: str, which: str, k: int) -> str:
    """Raises: ShapeError for a vector."""
    if b.rank_of(x) < 2:
        raise ShapeError(f"{which} needs two dimensions, got {b.types[x]}")
    return b.tril(x, k) if which == "tril" else b.triu(x, k)


@of_arrays
def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Coordinate arrays of the grid over vectors. indexing: "xy" (the first two dimensions exchanged) or "ij"."""
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"indexing is 'xy' or 'ij', not {indexing!r}", where=user_span())
    rank = len(arrays)
    shape = tuple(a.shape[0] if a.ndim else 1 for a in arrays)
    grids = [broadcast_to(reshape(a, tuple(-1 if d == n else 1 for d in range(rank))), shape) for n, a in enumerate(arrays)]
    swap = (1, 0, *range(2, rank))
    return [permute_dims(m, swap) for m in grids] if indexing == "xy" and rank > 1 else grids
