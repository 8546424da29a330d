"""Subscripts of arrays: integers, slices, `...`, `None`, integer arrays and masks, as one view and at most one gather."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import AxisError, ShapeError, TypeMismatchError
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import I64, DType

_PARTS = (int, slice, type(None), type(Ellipsis), bool)
# ("at", position), ("slice", first, count, step), ("new",), ("index", number of the index array)
Item = tuple[Any, ...]


class HasType(Protocol):
    """An array inside a subscript, of which the subscript reads the data type."""

    @property
    def dtype(self) -> DType: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked subscript: one item for each dimension of the array, and one for each new dimension."""

    items: tuple[Item, ...]

    def is_view(self) -> bool:
        """Whether torch has such a view."""
        return all(i[0] in ("at", "new") or i[0] == "slice" and i[3] > 0 for i in self.items)

    def ranges(self, shape: Sequence[int]) -> list[range]:
        """The positions that are selected of each dimension of the array; all where index arrays decide."""
        gathers = any(i[0] == "index" for i in self.items)
        positions = []
        for item, extent in zip((i for i in self.items if i[0] != "new"), shape, strict=True):
            if item[0] == "slice":
                positions.append(range(item[1], item[1] + item[2] * item[3], item[3]))
            else:
                positions.append(range(extent) if gathers else range(item[1], item[1] + 1))
        return positions

    def positions(self, b: TensorBuilder, indices: Sequence[str]) -> list[str | None]:
        """Subscript of each dimension of `lower_view`. With index arrays an integer counts as one, as in numpy: it decides where the
        gathered dimensions stand."""
        return [indices[i[1]] if i[0] == "index" else b.full((), i[1], I64) if i[0] == "at" else None for i in self.items]

    def of_tensor(self, tensor: Any) -> Any:
        """The view of a torch tensor; None where torch has none (steps below 1)."""
        key = self.torch_key()
        return None if key is None else tensor[key]

    def torch_key(self, indices: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The subscript as torch takes it, with index tensors; None for steps below 1, which it has not."""
        key: list[Any] = []
        for item in self.items:
            match item:
                case ("at", position):
                    key.append(position)
                case ("slice", first, count, step):
                    if step < 1:
                        return None
                    key.append(slice(first, first + (count - 1) * step + 1 if count else first, step))
                case ("new",):
                    key.append(None)
                case ("index", number):
                    key.append(indices[number])
        return tuple(key)


def with_arrays(key: Any, array_class: type[HasType], device: str, as_array: Callable[[Any, str], Any]) -> Any:
    """The key with lists and arrays of other libraries as arrays, made on this device; the key itself where it has none."""
    if key.__class__ is tuple:
        return tuple([_as_part(k, array_class, device, as_array) for k in key])
    return _as_part(key, array_class, device, as_array)


def _as_part(one: Any, array_class: type[HasType], device: str, as_array: Callable[[Any, str], Any]) -> Any:
    if one.__class__ in _PARTS or isinstance(one, (array_class, np.generic)):
        return one
    if isinstance(one, list) and not one:
        return as_array(np.empty(0, np.int64), device)
    if isinstance(one, list) or hasattr(one, "__dlpack__") or isinstance(one, np.ndarray):
        array = as_array(one, device)
        return array if array.ndim or array.dtype.kind == "bool" else one
    return one


def is_mask(one: Any, array_class: type[HasType]) -> bool:
    """Whether a part of a subscript is an array of bool."""
    return isinstance(one, array_class) and one.dtype.kind == "bool"


def mask_in(key: Any, array_class: type[HasType]) -> bool:
    """Whether a subscript has a mask."""
    return any(is_mask(k, array_class) for k in key) if key.__class__ is tuple else is_mask(key, array_class)


def masked_key(key: Any, shape: Sequence[int], array_class: type[HasType]) -> tuple[Any, tuple[Any, ...], int]:
    """(mask, the key with whole dimensions in its place, the dimension of x[that key] where the mask's begin) of a key with a mask.

    The mask is None where there are more index arrays, or integers, whose selection has another form, and where it selects nothing.
    Raises: AxisError for a mask that does not fit.
    """
    listed = _listed(key, shape, array_class)
    masks = [n for n, k in enumerate(listed) if is_mask(k, array_class)]
    if len(masks) > 1 or any(isinstance(k, array_class) and n != masks[0] or hasattr(k, "__index__") and not isinstance(k, array_class)
                             for n, k in enumerate(listed)):
        return None, (), 0
    mask = listed[masks[0]]
    before = listed[:masks[0]]
    dimensions = sum(k is not None for k in before)
    if not _check_mask(mask, shape, dimensions):
        return None, (), 0
    return mask, (*before, *(slice(None),) * mask.ndim, *listed[masks[0] + 1:]), len(before)


def _check_mask(mask: Any, shape: Sequence[int], at: int) -> bool:
    """Whether a mask has the shape of its dimensions. By the standard it may also have 0 for any of them, and select nothing.
    Raises: AxisError for another shape."""
    mine, extents = tuple(mask.shape), tuple(shape[at:at + mask.ndim])
    if any(m not in (w, 0) for m, w in zip(mine, extents)):
        raise AxisError(f"a mask of shape {mine} for dimensions of extents {extents}", where=user_span(),
                        hint="a mask has the shape of the dimensions that it selects from")
    return mine == extents


def _listed(key: Any, shape: Sequence[int], array_class: type[HasType]) -> list[Any]:
    """The parts of a key, one for each dimension (masks cover several), with `...` expanded to whole dimensions."""
    listed = list(key) if isinstance(key, tuple) else [key]
    dots = [n for n, k in enumerate(listed) if k is Ellipsis]
    if len(dots) > 1:
        raise AxisError("a subscript has at most one ...", where=user_span())
    used = sum(k.ndim if is_mask(k, array_class) else 1 for k in listed if k is not None and k is not Ellipsis)
    if used > len(shape):
        raise AxisError(f"{used} subscripts for an array of shape {tuple(shape)}", where=user_span())
    at = dots[0] if dots else len(listed)
    listed[at:at + 1] = [slice(None)] * (len(shape) - used)
    return listed


def subscript_plan(shape: Sequence[int], key: Any, array_class: type[HasType],
                   positions: Callable[[Any], Sequence[Any]] | None = None) -> tuple[Plan, tuple[Any, ...]]:
    """The plan of x[key] for an array of this shape, and the index arrays in order.

    positions: gives the index arrays, one a dimension, of what a mask selects.
    Raises: AxisError for a subscript out of range, too many of them, or a mask that does not fit; ShapeError for one where there are no
        `positions`; TypeMismatchError for what is no subscript.
    """
    items: list[Item] = []
    indices: list[Any] = []
    at = 0
    for one in _listed(key, shape, array_class):
        if one is None:
            items.append(("new",))
        elif positions is not None and is_mask(one, array_class):
            _check_mask(one, shape, at)
            selected = positions(one)
            items += [("index", len(indices) + n) for n in range(len(selected))]
            indices += selected
            at += len(selected)
        else:
            items.append(_item(one, shape, at, indices, array_class))
            at += 1
    return Plan(tuple(items)), tuple(indices)


def _item(one: Any, shape: Sequence[int], at: int, indices: list[Any], array_class: type[HasType]) -> Item:
    extent = shape[at]
    if isinstance(one, slice):
        try:
            taken = range(extent)[slice(*(None if v is None else operator.index(v) for v in (one.start, one.stop, one.step)))]
        except (TypeError, ValueError) as error:
            raise ShapeError(f"subscript {at}: {error}", where=user_span()) from None
        return ("slice", taken.start, len(taken), taken.step)
    if isinstance(one, array_class):
        dtype = one.dtype
        if dtype.kind == "bool":
            raise _mask()
        if not dtype.is_integer:
            raise TypeMismatchError(f"subscript {at} is an array of {dtype}, not of integers", where=user_span())
        indices.append(one)
        return ("index", len(indices) - 1)
    if isinstance(one, bool) or type(one).__name__ in ("bool_", "bool"):
        raise _mask()
    try:
        position = operator.index(one)
    except TypeError:
        raise TypeMismatchError(f"subscript {at} is a {type(one).__name__}", where=user_span(),
                                hint="subscripts are integers, slices, ..., None, integer arrays and masks") from None
    if not -extent <= position < extent:
        raise AxisError(f"subscript {position} is outside dimension {at} of an array of shape {tuple(shape)}", where=user_span())
    return ("at", position % extent)


def _mask() -> ShapeError:
    return ShapeError("a bool is no subscript", where=user_span(), hint="a boolean mask is an array: asarray([True, False])")


def lower_subscript(b: TensorBuilder, x: str, *rest: Any) -> str:
    """The view of the plan, then the gather of the index arrays (negative ones count from the end)."""
    *indices, plan = rest
    assert isinstance(plan, Plan)
    seen = lower_view(b, x, plan)
    return b.index(seen, plan.positions(b, indices), checked=True) if indices else seen


def lower_view(b: TensorBuilder, x: str, plan: Plan) -> str:
    """Selection by the slices and new dimensions of a plan; dimensions that index arrays decide, and integers beside them, stay whole."""
    shape = b.shape_of(x)
    gathers = any(i[0] == "index" for i in plan.items)
    extents: list[int] = []
    for item in plan.items:
        if item[0] == "slice":
            extents.append(item[2])
        elif item[0] == "new":
            extents.append(1)
        elif gathers:
            extents.append(shape[_dimension(plan, item)])

    def subscripts(i: Sequence[Affine]) -> list[Affine]:
        rest = iter(i)
        out: list[Affine] = []
        for item in plan.items:
            match item:
                case ("slice", first, _, step):
                    out.append(next(rest) * step + first)
                case ("new",):
                    next(rest)
                case ("at", position) if not gathers:
                    out.append(number(position))
                case _:
                    out.append(next(rest))
        return out

    return b.view("subscript", x, extents, subscripts)


def _dimension(plan: Plan, item: Item) -> int:
    """The dimension of the array that an item addresses."""
    real = [i for i in plan.items if i[0] != "new"]
    return next(n for n, i in enumerate(real) if i is item)
