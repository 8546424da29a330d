"""Results with data-dependent shapes: elements selected by a mask, `nonzero`, `unique_*`, repetitions by an array.

They are computed when they are called, because nothing can be recorded without a shape; while a function is traced, where there are no
values, they are errors with the remedy. The positions are found on the host; the elements at them are read by the framework, so that
ever new shapes compile nothing, and gradients find their way back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilefuse.arrays.arguments import of_arrays
from tilefuse.arrays.array import Array, apply, installed
from tilefuse.arrays.functions.subscript import Plan, lower_subscript, subscript_plan
from tilefuse.arrays.lowering import lower_full
from tilefuse.arrays.nodes import record_known, user_span
from tilefuse.base.errors import ShapeError, TypeMismatchError
from tilefuse.ir.dtype import BOOL, I64
from tilefuse.ir.scalar import NUMPY_DTYPES, const


class UniqueAll(NamedTuple):
    """Of `unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """Of `unique_counts`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """Of `unique_inverse`."""

    values: Array
    inverse_indices: Array


@of_arrays
def nonzero(x: Array, /) -> tuple[Array, ...]:
    """The positions of all elements that are not 0 (NaN is not), in row-major order: an index array for each dimension.

    Raises: ShapeError for an array without dimensions; UserError in a trace.
    """
    if not x.ndim:
        raise ShapeError("nonzero tells positions, and an array without dimensions has none", where=user_span(), hint="compare x != 0")
    return _positions(x, "nonzero")


def positions_of(mask: Array) -> tuple[Array, ...]:
    """The index arrays of the elements that a mask selects. Raises: ShapeError for one without dimensions; UserError in a trace."""
    if not mask.ndim:
        raise ShapeError("a mask without dimensions selects all or nothing, beside other subscripts not of any dimension",
                         where=user_span(), hint="a mask of the first dimension's extent")
    return _positions(mask, "a boolean mask")


def selected(x: Array, key: Any) -> Array:
    """`x[key]` where the key has a mask."""
    if isinstance(key, Array) and not key.ndim:
        return selected(x[None], key[None])
    plan, indices = subscript_plan(x.shape, key, Array, positions_of)
    key_arrays = [k for k in (key if isinstance(key, tuple) else (key,)) if isinstance(k, Array)]
    # Integers and integer arrays beside the mask are the compiler's: the framework has other rules for them.
    return _read(x, plan, indices, all(k.dtype == BOOL for k in key_arrays) and not any(i[0] == "at" for i in plan.items))


def repeated(x: Array, counts: Array, axis: int) -> Array:
    """Each slice along a dimension as often as an array says. Raises: as `repeat`."""
    if not counts.dtype.is_integer:
        raise TypeMismatchError(f"repeat takes integers, not {counts.dtype}", where=user_span(), hint="convert with astype")
    extent = x.shape[axis]
    if counts.ndim > 1 or counts.ndim == 1 and counts.shape[0] not in (1, extent):
        raise ShapeError(f"repeat: {counts.shape} numbers of repetitions for {extent} elements", where=user_span())
    times = _host(counts, "repeat by an array")
    if times.size and times.min() < 0:
        raise ShapeError(f"repeat: {times.min()} times is less than none", where=user_span())
    at = _indices(np.repeat(np.arange(extent), np.broadcast_to(times, (extent,))), x.device)
    plan, indices = subscript_plan(x.shape, (*(slice(None),) * (axis % x.ndim), at), Array)
    return _read(x, plan, indices, True)


@of_arrays
def unique_all(x: Array, /) -> UniqueAll:
    """The distinct elements in order, where each is first, which one each element is, and how often each occurs. NaNs are all distinct.

    Shapes: x: any shape -> values, indices, counts: [k], inverse_indices: of x
    Raises: UserError in a trace.
    """
    return _unique(x, "unique_all")


@of_arrays
def unique_counts(x: Array, /) -> UniqueCounts:
    """The distinct elements in order, and how often each occurs. Raises: UserError in a trace."""
    unique = _unique(x, "unique_counts")
    return UniqueCounts(unique.values, unique.counts)


@of_arrays
def unique_inverse(x: Array, /) -> UniqueInverse:
    """The distinct elements in order, and which one each element of `x` is. Raises: UserError in a trace."""
    unique = _unique(x, "unique_inverse")
    return UniqueInverse(unique.values, unique.inverse_indices)


@of_arrays
def unique_values(x: Array, /) -> Array:
    """The distinct elements in order. Raises: UserError in a trace."""
    return _unique(x, "unique_values").values


def _unique(x: Array, name: str) -> UniqueAll:
    data = _host(x, name)
    if data.dtype == NUMPY_DTYPES["bf16"] or x.dtype.is_float and x.dtype.bits == 8:
        data = data.astype(np.float32)  # exact, and numpy sorts its own types only
    _, first, inverse, counts = np.unique(data, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
    at = _indices(first, x.device)
    flat = x.flatten()
    values = _read(flat, Plan((("index", 0),)), (at,), True)
    return UniqueAll(values, at, _indices(inverse.reshape(x.shape), x.device), _indices(counts, x.device))


def _host(x: Array, purpose: str) -> np.ndarray[Any, Any]:
    x.buffer(purpose)
    return installed().host_array(x.node)


def _positions(x: Array, purpose: str) -> tuple[Array, ...]:
    return tuple([_indices(n, x.device) for n in np.nonzero(_host(x, purpose))])


def _indices(data: np.ndarray[Any, Any], device: str) -> Array:
    if not data.size:
        return apply(lower_full, (), (data.shape, const(0, I64)), device)
    return Array(installed().source(data.astype(np.int64, copy=False), I64, device, True))


def _read(x: Array, plan: Plan, indices: tuple[Array, ...], plain: bool) -> Array:
    """`x` at index arrays that are known; with its data at once where it has some and the framework reads such subscripts (`plain`)."""
    nodes = [x.node, *(i.node for i in indices)]
    if not (plain and installed().is_settled(nodes)):
        return apply(lower_subscript, (x, *indices), (plan,))
    installed().compute(nodes)
    key = plan.torch_key([n.buffer for n in nodes[1:]])
    if key is None:
        return apply(lower_subscript, (x, *indices), (plan,))
    return Array(record_known(lower_subscript, nodes, (plan,), installed().elements(x.node.buffer, key)))
