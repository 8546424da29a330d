"""Sorting and searching of arrays. Sorting is the framework's (a library node); searching is written in reductions."""

from __future__ import annotations

from tilefuse.arrays.arguments import of_arrays, whole_number
from tilefuse.arrays.array import Array, apply, apply_all, checked_number
from tilefuse.arrays.functions.creation import full
from tilefuse.arrays.functions.manipulation import own_axis
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.types import Number, met_by_number, promote
from tilefuse.base.errors import ShapeError, TypeMismatchError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_elementwise import normal_axis
from tilefuse.ir.dtype import BOOL, I32, I64, U64, DType
from tilefuse.ir.graph import Attribute, Type
from tilefuse.ir.scalar import call, cast, const

# Types that the framework sorts as they are; the others go through a wider one, uint64 by way of its bits.
_SORTED_AS_IS = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8")


@of_arrays
def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The elements in rising order along a dimension, or in falling order where `descending`; NaN counts as the greatest.

    stable: equal elements keep their order; they always do. A scalar is in order.
    """
    return apply_all(lower_sort, (x,), (_sorted_along(x, axis), bool(descending)))[0]


@of_arrays
def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The positions that sort `x` along a dimension; equal elements keep their order.

    descending, stable: as for `sort`.
    """
    return apply_all(lower_sort, (x,), (_sorted_along(x, axis), bool(descending)))[1]


def _sorted_along(x: Array, axis: int) -> int:
    return axis if not x.ndim and axis in (0, -1) else own_axis(axis, x)


@of_arrays
def topk(x: Array, k: int, /, *, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """The k greatest elements along a dimension in order (the least where not `largest`), and their positions.

    Raises: ShapeError where there are fewer.
    """
    k = whole_number(k, "k")
    if not 0 <= k <= x.shape[own_axis(axis, x)]:
        raise ShapeError(f"topk: {k} elements along axis {axis} of an array of shape {x.shape}", where=user_span())
    values, positions = apply_all(lower_sort, (x,), (int(axis), bool(largest)))
    lead = (slice(None),) * (axis % x.ndim)
    return values[(*lead, slice(0, k))], positions[(*lead, slice(0, k))]


def lower_sort(b: TensorBuilder, x: str, axis: int, descending: bool) -> tuple[str, str]:
    """Sorted values and positions by one stable sort of the framework."""
    have, shape = b.dtype_of(x), b.shape_of(x)
    if not shape:
        return x, b.full((), 0, I64)
    key = _sortable(b, x)
    attributes: dict[str, Attribute] = {
        "args": (("%", 0),),
        "kwargs": (("stable", True), ("dim", normal_axis(axis, len(shape))), ("descending", descending)),
    }
    dtype = b.dtype_of(key)
    values = b.library("sort", "aten.sort.stable", Type(dtype, shape), (key,), attributes | {"result": 0})
    positions = b.library("sort", "aten.sort.stable", Type(I64, shape), (key,), attributes | {"result": 1})
    if have == U64:
        turned = b.expression(lambda e: cast(call("bit_xor", e, const(-(1 << 63), I64)), U64), values, dtype=U64, name="unsorted")
        return turned, positions
    return b.cast(values, have), positions


def _sortable(b: TensorBuilder, x: str) -> str:
    have = b.dtype_of(x)
    if have.name in _SORTED_AS_IS:
        return x
    if have == U64:
        return b.expression(lambda e: call("bit_xor", cast(e, I64), const(-(1 << 63), I64)), x, dtype=I64, name="sortable")
    return b.cast(x, I32 if have.bits < 32 else I64)


@of_arrays
def searchsorted(x1: Array, x2: Array | Number, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    """Where elements of `x2` would stand in the sorted vector `x1`: before equal ones (side "left") or after them ("right").

    sorter: positions that sort `x1`, where it is not in order.
    Cost: one comparison for every pair, in one fused kernel without temporaries.
    """
    if x1.ndim != 1 or side not in ("left", "right"):
        raise ShapeError(f"searchsorted in an array of shape {x1.shape} from side {side!r}", where=user_span(),
                         hint="the first array is a vector; side is left or right")
    if not isinstance(x2, Array):
        x2 = _scalar(x2, x1)
    if sorter is not None:
        x1 = x1[sorter]
    return apply(lower_searchsorted, (x1, x2), (side, promote(x1.dtype, x2.dtype)))


def lower_searchsorted(b: TensorBuilder, x1: str, x2: str, side: str, common: DType) -> str:
    """The number of elements of x1 that are smaller (or not greater); NaN counts as the greatest."""
    rank = b.rank_of(x2)
    sought = b.expand_dims(b.cast(x2, common), rank)
    have = b.cast(x1, common)
    if side == "left":
        before = b.elementwise("lt", have, sought)
    else:
        before = b.elementwise("le", have, sought)
    if common.is_float:
        missing = b.expression(lambda e: call("isnan", e), sought, dtype=BOOL, name="missing")
        below = b.full(b.shape_of(have), True, BOOL)
        if side == "left":
            below = b.expression(lambda e: call("logical_not", call("isnan", e)), have, dtype=BOOL, name="present")
        before = b.elementwise("logical_or", before, b.elementwise("logical_and", missing, below))
    return b.reduce(b.cast(before, I64), "sum", [rank])


def isin(x1: Array | Number, x2: Array | Number, /, *, invert: bool = False) -> Array:
    """Whether each element of `x1` occurs in `x2`; with `invert`, whether it does not.

    Cost: one comparison for every pair, in one fused kernel.
    """
    arrays = [x for x in (x1, x2) if isinstance(x, Array)]
    if not arrays:
        raise TypeMismatchError("isin needs an array", where=user_span(), hint="asarray makes one of numbers")
    pair = [x if isinstance(x, Array) else _scalar(x, arrays[0]) for x in (x1, x2)]
    return apply(lower_isin, pair, (bool(invert), promote(pair[0].dtype, pair[1].dtype)))


def lower_isin(b: TensorBuilder, x1: str, x2: str, invert: bool, common: DType) -> str:
    """Any of equal, or all of different."""
    rank = b.rank_of(x1)
    one = b.expand_dims(b.cast(x1, common), rank)
    same = b.elementwise("ne" if invert else "eq", one, b.reshape(b.cast(x2, common), [-1]))
    return b.reduce(same, "all" if invert else "any", [rank])


def _scalar(scalar: Number, like: Array) -> Array:
    """A number as an array without dimensions, in the type in which it meets the other operand."""
    number = checked_number("searching", scalar)
    return full((), number, dtype=met_by_number(like.dtype, number), device=like.device)
