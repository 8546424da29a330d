"""Subscripts of arrays: integers, slices, `...`, `None` and integer arrays, as one view and at most one gather."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilefuse.base.errors import AxisError, ShapeError, TypeMismatchError
from tilefuse.frontends.array_nodes import user_span
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.dtype import I64
from tilefuse.ir.tensor import TensorBuilder

# ("at", position), ("slice", first, count, step), ("new",), ("index", number of the index array)
Item = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked subscript: one item a dimension of the array, and one a new dimension."""

    items: tuple[Item, ...]

    def of_tensor(self, tensor: Any) -> Any:
        """The view of a torch tensor; None where torch has none (steps below 1)."""
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
        return tensor[tuple(key)]


def subscript_plan(shape: Sequence[int], key: Any, array_class: type) -> tuple[Plan, tuple[Any, ...]]:
    """The plan of x[key] for an array of this shape, and the index arrays in order.

    Raises: AxisError for a subscript out of range or too many of them; ShapeError for a mask; TypeMismatchError for what is no subscript.
    """
    listed = list(key) if isinstance(key, tuple) else [key]
    if sum(k is Ellipsis for k in listed) > 1:
        raise AxisError("a subscript has at most one ...", where=user_span())
    used = sum(1 for k in listed if k is not None and k is not Ellipsis)
    if used > len(shape):
        raise AxisError(f"{used} subscripts for an array of shape {tuple(shape)}", where=user_span())
    if Ellipsis not in [k for k in listed if k is None or k is Ellipsis]:
        listed.append(Ellipsis)
    items: list[Item] = []
    indices: list[Any] = []
    at = 0
    for one in listed:
        if one is None:
            items.append(("new",))
            continue
        if one is Ellipsis:
            for _ in range(len(shape) - used):
                items.append(("slice", 0, shape[at], 1))
                at += 1
            continue
        items.append(_item(one, shape, at, indices, array_class))
        at += 1
    return Plan(tuple(items)), tuple(indices)


def _item(one: Any, shape: Sequence[int], at: int, indices: list[Any], array_class: type) -> Item:
    extent = shape[at]
    if isinstance(one, slice):
        try:
            taken = range(extent)[slice(*(None if v is None else operator.index(v) for v in (one.start, one.stop, one.step)))]
        except (TypeError, ValueError) as error:
            raise ShapeError(f"subscript {at}: {error}", where=user_span()) from None
        return ("slice", taken.start, len(taken), taken.step)
    if isinstance(one, array_class):
        dtype = one.dtype  # type: ignore[attr-defined]
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
                                hint="subscripts are integers, slices, ..., None and integer arrays (asarray makes one)") from None
    if not -extent <= position < extent:
        raise AxisError(f"subscript {position} is outside dimension {at} of an array of shape {tuple(shape)}", where=user_span())
    return ("at", position % extent)


def _mask() -> ShapeError:
    return ShapeError("a boolean mask gives an array whose shape depends on the data, and shapes here are static", where=user_span(),
                      hint="where(mask, x, 0) keeps the shape; sum(where(mask, x, 0)) sums what the mask selects")


def lower_subscript(b: TensorBuilder, x: str, *rest: Any) -> str:
    """The view of the plan, then the gather of the index arrays (negative ones count from the end)."""
    *indices, plan = rest
    assert isinstance(plan, Plan)
    shape = b.shape_of(x)
    gathers = bool(indices)
    extents: list[int] = []
    for item in plan.items:
        if item[0] == "slice":
            extents.append(item[2])
        elif item[0] == "new":
            extents.append(1)
        elif gathers:
            extents.append(shape[_dimension(plan, item)])

    def subscripts(i: Sequence[Affine]) -> list[Affine]:
        left = iter(i)
        out: list[Affine] = []
        for item in plan.items:
            match item:
                case ("slice", first, _, step):
                    out.append(next(left) * step + first)
                case ("new",):
                    next(left)
                case ("at", position) if not gathers:
                    out.append(number(position))
                case _:
                    out.append(next(left))
        return out

    seen = b.view("subscript", x, extents, subscripts)
    if not gathers:
        return seen
    # With index arrays an integer counts as one, as in numpy: it decides where the gathered dimensions stand.
    at: list[str | None] = []
    for item in plan.items:
        if item[0] == "index":
            at.append(indices[item[1]])
        else:
            at.append(b.full((), item[1], I64) if item[0] == "at" else None)
    return b.index(seen, at)


def _dimension(plan: Plan, item: Item) -> int:
    """The dimension of the array that an item stands for."""
    real = [i for i in plan.items if i[0] != "new"]
    return next(n for n, i in enumerate(real) if i is item)
