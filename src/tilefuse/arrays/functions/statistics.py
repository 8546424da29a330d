"""Functions of `tilefuse.array` over dimensions: sums, extremes, moments, running sums, and truth of all or any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilefuse.arrays.arguments import of_arrays, real_number, whole_number
from tilefuse.arrays.array import Array, apply
from tilefuse.arrays.functions.creation import zeros
from tilefuse.arrays.functions.elementwise import astype
from tilefuse.arrays.functions.manipulation import axes_tuple, concat, own_axis
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.types import DEFAULT_FLOAT, DEFAULT_INT, NAME_OF, as_dtype
from tilefuse.base.errors import AxisError, ShapeError, TypeMismatchError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_elementwise import normal_axes, normal_axis
from tilefuse.ir.dtype import BOOL, I64, U64, DType

Axis = int | Sequence[int] | None


def _axes(axis: Axis) -> tuple[int, ...] | None:
    return None if axis is None else axes_tuple(axis)


def _summed_dtype(dtype: DType, chosen: Any) -> DType:
    """Type of a sum: small integers and bool grow to the default integer, as the standard wants."""
    if chosen is not None:
        return as_dtype(chosen)
    if dtype.kind == "bool":
        return DEFAULT_INT
    if dtype.is_integer and dtype.bits < 64:
        return U64 if dtype.kind == "uint" else I64
    return dtype


def lower_reduce(b: TensorBuilder, x: str, monoid: str, axes: tuple[int, ...] | None, keepdims: bool, dtype: DType | None) -> str:
    """A reduction of converted elements; over no dimension at all, the elements."""
    _check_axes(b, x, axes)
    wide = x if dtype is None or monoid in ("any", "all") else b.cast(x, dtype)
    if monoid in ("any", "all") and b.dtype_of(x) != BOOL:
        wide = b.elementwise("ne", x, 0)
    if axes == () or not b.rank_of(x):
        return wide
    return b.reduce(wide, monoid, axes, keepdims)


def _check_axes(b: TensorBuilder, x: str, axes: tuple[int, ...] | None) -> None:
    if axes and len({normal_axis(a, b.rank_of(x)) for a in axes}) < len(axes):
        raise ShapeError(f"a dimension occurs twice in axis={axes}")
    if axes and not b.rank_of(x):
        raise AxisError(f"axis {axes} of an array without dimensions")


@of_arrays
def sum(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Sum over dimensions (all where None). float16 and bfloat16 accumulate in float32; small integers grow to 64 bits."""
    return apply(lower_reduce, (x,), ("sum", _axes(axis), bool(keepdims), _summed_dtype(x.dtype, dtype)))


@of_arrays
def prod(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Product over dimensions (all where None)."""
    return apply(lower_reduce, (x,), ("prod", _axes(axis), bool(keepdims), _summed_dtype(x.dtype, dtype)))


@of_arrays
def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Greatest element over dimensions; NaN where there is one. Raises: ShapeError over no elements."""
    return _extreme("max", x, axis, keepdims)


@of_arrays
def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Least element over dimensions; NaN where there is one. Raises: ShapeError over no elements."""
    return _extreme("min", x, axis, keepdims)


def _extreme(monoid: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    return apply(lower_extreme, (x,), (monoid, _axes(axis), bool(keepdims)))


def lower_extreme(b: TensorBuilder, x: str, monoid: str, axes: tuple[int, ...] | None, keepdims: bool) -> str:
    """Raises: ShapeError over no elements."""
    _check_axes(b, x, axes)
    shape = b.shape_of(x)
    if 0 in [shape[d] for d in normal_axes(axes, len(shape))]:
        raise ShapeError(f"{monoid} of {b.types[x]} over no elements", hint="sum and prod have a value there")
    if axes == () or not shape:
        return x
    return b.reduce(x, monoid, axes, keepdims)


@of_arrays
def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the first greatest element along a dimension (row-major over all where None)."""
    return _position("argmax", x, axis, keepdims)


@of_arrays
def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the first least element along a dimension (row-major over all where None)."""
    return _position("argmin", x, axis, keepdims)


def _position(monoid: str, x: Array, axis: int | None, keepdims: bool) -> Array:
    at = None if axis is None else own_axis(axis, x)
    if not x.ndim:
        return zeros((), dtype=I64, device=x.device)
    return _extreme(monoid, x, at, keepdims)


@of_arrays
def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False, dtype: Any = None) -> Array:
    """Arithmetic mean; integers as the default float, bools as 0 and 1: the share that is true. float16 and bfloat16 accumulate in
    float32."""
    if dtype is None and x.dtype == BOOL:
        dtype = DEFAULT_FLOAT
    return _moment("mean", x if dtype is None else astype(x, as_dtype(dtype)), axis, keepdims, None)


@of_arrays
def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Squared deviations from the mean over (number of elements - correction)."""
    return _moment("variance", x, axis, keepdims, real_number(correction, "correction"))


@of_arrays
def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Square root of `var`, whose `correction` it takes."""
    return _moment("standard_deviation", x, axis, keepdims, real_number(correction, "correction"))


def _moment(name: str, x: Array, axis: Axis, keepdims: bool, correction: float | None) -> Array:
    if x.dtype.kind == "bool":
        raise TypeMismatchError(f"{name} takes numbers, not bool", where=user_span(), hint="convert with astype")
    if x.dtype.is_complex and name != "mean":
        raise TypeMismatchError(f"{name} takes real numbers, not {NAME_OF[x.dtype]}", where=user_span(),
                                hint="real(x), imag(x) and abs(x) are real")
    wide = x if x.dtype.is_float or x.dtype.is_complex else astype(x, DEFAULT_FLOAT)
    return apply(lower_moment, (wide,), (name, _axes(axis), bool(keepdims), correction))


def lower_moment(b: TensorBuilder, x: str, name: str, axes: tuple[int, ...] | None, keepdims: bool, correction: float | None) -> str:
    """The composite that the pass `decompose` knows."""
    _check_axes(b, x, axes)
    over = axes if axes is not None else tuple(range(b.rank_of(x)))
    if not b.rank_of(x):
        x, over = b.reshape(x, [1]), (0,)
        moment = b.mean(x, over) if correction is None else getattr(b, name)(x, over, correction)
        return str(moment)
    if correction is None:
        return b.mean(x, over, keepdims)
    return str(getattr(b, name)(x, over, correction, keepdims))


@of_arrays
def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether all elements are true (not 0)."""
    return apply(lower_reduce, (x,), ("all", _axes(axis), bool(keepdims), None))


@of_arrays
def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether any element is true (not 0)."""
    return apply(lower_reduce, (x,), ("any", _axes(axis), bool(keepdims), None))


@of_arrays
def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Number of elements that are not 0."""
    return sum(x if x.dtype == BOOL else x != 0, axis=axis, keepdims=keepdims)


@of_arrays
def cumulative_sum(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Running sum along a dimension; with `include_initial` a 0 stands in front."""
    return _running("sum", x, axis, dtype, include_initial)


@of_arrays
def cumulative_prod(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Running product along a dimension; with `include_initial` a 1 stands in front."""
    return _running("prod", x, axis, dtype, include_initial)


def _running(monoid: str, x: Array, axis: int | None, dtype: Any, initial: bool) -> Array:
    if axis is None and x.ndim != 1:
        raise ShapeError(f"a running {monoid} of an array of shape {x.shape} needs an axis", where=user_span())
    return apply(lower_running, (x,), (monoid, 0 if axis is None else own_axis(axis, x), _summed_dtype(x.dtype, dtype), bool(initial)))


def lower_running(b: TensorBuilder, x: str, monoid: str, axis: int, dtype: DType, initial: bool) -> str:
    """A scan, after its identity where wanted."""
    d = normal_axis(axis, b.rank_of(x))
    running = b.scan(b.cast(x, dtype), monoid, d)
    if not initial:
        return running
    shape = b.shape_of(x)
    first = b.full((*shape[:d], 1, *shape[d + 1 :]), 0 if monoid == "sum" else 1, dtype)
    return b.concatenate([first, running], d)


@of_arrays
def diff(x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None) -> Array:
    """Differences of neighbours along a dimension, n times.

    prepend, append: elements before and after `x` along it.
    """
    lead = (slice(None),) * (own_axis(axis, x) % x.ndim)
    parts = [p for p in (prepend, x, append) if p is not None]
    out = concat(parts, axis=axis) if len(parts) > 1 else x
    for _ in range(whole_number(n, "n")):
        later, earlier = out[(*lead, slice(1, None))], out[(*lead, slice(None, -1))]
        out = later != earlier if x.dtype == BOOL else later - earlier
    return out


@of_arrays
def logsumexp(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Log of the sum of exponentials, without overflow."""
    return apply(lower_logsumexp, (_float(x, "logsumexp"),), (_axes(axis), bool(keepdims)))


def lower_logsumexp(b: TensorBuilder, x: str, axes: tuple[int, ...] | None, keepdims: bool) -> str:
    """The composite that the pass `decompose` knows."""
    return b.logsumexp(x, axes, keepdims)


@of_arrays
def softmax(x: Array, /, *, axis: int = -1) -> Array:
    """Exponentials that sum to one along a dimension."""
    return apply(lower_softmax, (_float(x, "softmax"),), ("softmax", whole_number(axis, "axis")))


@of_arrays
def log_softmax(x: Array, /, *, axis: int = -1) -> Array:
    """Logarithm of softmax along a dimension."""
    return apply(lower_softmax, (_float(x, "log_softmax"),), ("log_softmax", whole_number(axis, "axis")))


def lower_softmax(b: TensorBuilder, x: str, name: str, axis: int) -> str:
    """The composite that the pass `decompose` knows."""
    return b.softmax(x, axis) if name == "softmax" else b.log_softmax(x, axis)


def _float(x: Array, name: str) -> Array:
    if not x.dtype.is_float:
        raise TypeMismatchError(f"{name} takes floats, not {NAME_OF[x.dtype]}", where=user_span(), hint="convert with astype")
    return x
