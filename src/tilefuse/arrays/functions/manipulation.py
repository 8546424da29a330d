"""Functions of `tilefuse.array` that move elements: views, joins, repeats, and slices at index arrays."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from tilefuse.arrays.arguments import array_list, of_arrays, whole_number
from tilefuse.arrays.array import Array, apply, apply_all, checked_number, copied
from tilefuse.arrays.functions.selection import repeated
from tilefuse.arrays.nodes import record_known, user_span
from tilefuse.arrays.types import Number, number_constant, promote_all
from tilefuse.base.errors import AxisError, ShapeError, SharingError, TypeMismatchError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_elementwise import broadcast_shapes as shapes_together
from tilefuse.ir.building.tensor_elementwise import normal_axis
from tilefuse.ir.scalar import Const

Axes = int | Sequence[int]


def axes_tuple(axis: Any) -> tuple[int, ...]:
    """One integer or several (axes, extents, repetitions) as a tuple. Raises: TypeMismatchError for anything else."""
    try:
        return (operator.index(axis),)
    except TypeError:
        pass
    try:
        return tuple([operator.index(a) for a in axis])
    except TypeError:
        got = axis if isinstance(axis, (float, str, list, tuple)) else type(axis).__name__
        raise TypeMismatchError(f"integers are wanted for axes and extents, not {got!r}", where=user_span()) from None


def own_axis(axis: Any, x: Array) -> int:
    """One axis of `x` as an integer. Raises: TypeMismatchError for anything else, AxisError for one that `x` does not have."""
    try:
        at = operator.index(axis)
    except TypeError:
        raise TypeMismatchError(f"an axis is an integer, not a {type(axis).__name__}", where=user_span()) from None
    if not -x.ndim <= at < x.ndim:
        raise AxisError(f"axis {at} is outside an array of shape {x.shape}", where=user_span())
    return at


def own_axes(axis: Any, x: Array) -> tuple[int, ...]:
    """Distinct axes of `x`. Raises: as `own_axis`; ShapeError where one occurs twice."""
    axes = tuple([own_axis(a, x) for a in axes_tuple(axis)])
    if len({a % x.ndim for a in axes}) < len(axes):
        raise ShapeError(f"a dimension occurs twice in axis={axis}", where=user_span())
    return axes


@of_arrays
def reshape(x: Array, /, shape: Sequence[int] | int, *, copy: bool | None = None) -> Array:
    """The elements in row-major order under another shape; one extent may be -1.

    copy: True leaves memory that `x` shares with others, False shares the memory of `x` (where it has some already).
    Raises: ShapeError when the numbers of elements differ; SharingError where they do not lie in this order and must not be copied.
    """
    extents = axes_tuple(shape)
    if copy is not False or x.node.buffer is None:
        return apply(lower_layout, (copied(x) if copy else x,), ("reshape", extents))
    reshaped = apply(lower_layout, (x,), ("reshape", extents))
    try:
        seen = x.node.buffer.view(reshaped.shape)
    except RuntimeError:
        raise SharingError(f"reshape of an array of shape {x.shape} to {reshaped.shape} needs a copy: its elements lie in another order",
                           where=user_span(), hint="drop copy=False") from None
    return Array(record_known(lower_layout, (x.node,), ("reshape", extents), seen))


def lower_layout(b: TensorBuilder, x: str, method: str, *settings: Any) -> str:
    """A layout method of the builder."""
    laid_out: str = getattr(b, method)(x, *settings)
    return laid_out


@of_arrays
def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """Dimension d of the result is dimension axes[d]."""
    return apply(lower_layout, (x,), ("permute", axes_tuple(axes)))


@of_arrays
def matrix_transpose(x: Array, /) -> Array:
    """The last two dimensions exchanged."""
    return x.mT


@of_arrays
def moveaxis(x: Array, source: Axes, destination: Axes, /) -> Array:
    """Dimensions moved to other places; the others keep their order.

    source, destination: positions before and after, one or several.
    Raises: ShapeError where the two differ in length or name a dimension twice.
    """
    return apply(lower_moveaxis, (x,), (own_axes(source, x), own_axes(destination, x)))


def lower_moveaxis(b: TensorBuilder, x: str, source: tuple[int, ...], destination: tuple[int, ...]) -> str:
    """Raises: ShapeError where the two differ in length or name a dimension twice."""
    rank = b.rank_of(x)
    origin, goal = [normal_axis(a, rank) for a in source], [normal_axis(a, rank) for a in destination]
    if len(origin) != len(goal) or len(set(origin)) != len(origin) or len(set(goal)) != len(goal):
        raise ShapeError(f"moveaxis from {source} to {destination}: as many distinct dimensions there as here")
    rest = iter(d for d in range(rank) if d not in origin)
    moved = dict(zip(goal, origin))
    return b.permute(x, [moved[d] if d in moved else next(rest) for d in range(rank)])


@of_arrays
def swapaxes(x: Array, axis1: int, axis2: int, /) -> Array:
    """Two dimensions, `axis1` and `axis2`, exchanged."""
    return apply(lower_layout, (x,), ("transpose", whole_number(axis1, "an axis"), whole_number(axis2, "an axis")))


@of_arrays
def expand_dims(x: Array, /, axis: Axes = 0) -> Array:
    """New dimensions of extent 1 at these positions of the result."""
    return apply(lower_layout, (x,), ("expand_dims", axes_tuple(axis)))


@of_arrays
def squeeze(x: Array, /, axis: Axes | None = None) -> Array:
    """Without these dimensions of extent 1 (all such where None). Raises: ShapeError where one has another extent."""
    return apply(lower_squeeze, (x,), (None if axis is None else own_axes(axis, x),))


def lower_squeeze(b: TensorBuilder, x: str, axes: tuple[int, ...] | None) -> str:
    """Raises: ShapeError where an extent is not 1."""
    have = b.shape_of(x)
    for a in axes or ():
        if have[normal_axis(a, len(have))] != 1:
            raise ShapeError(f"squeeze: dimension {a} of {b.types[x]} has extent {have[normal_axis(a, len(have))]}, not 1")
    return b.squeeze(x, axes)


@of_arrays
def flip(x: Array, /, *, axis: Axes | None = None) -> Array:
    """In reverse order along these dimensions (all where None)."""
    return apply(lower_layout, (x,), ("flip", tuple(range(x.ndim)) if axis is None else own_axes(axis, x)))


@of_arrays
def roll(x: Array, /, shift: int | Sequence[int], *, axis: Axes | None = None) -> Array:
    """Moved by `shift` along dimensions; what leaves at one end comes back at the other. Without axis: over all elements in order."""
    if axis is None:
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    axes = tuple([own_axis(a, x) for a in axes_tuple(axis)])
    shifts = axes_tuple(shift)
    if not isinstance(shift, Sequence):
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: {len(shifts)} shifts for {len(axes)} dimensions", where=user_span())
    return apply(lower_layout, (x,), ("roll", shifts, axes))


@of_arrays
def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    """Repeated along dimensions of extent 1 and new leading ones."""
    return apply(lower_layout, (x,), ("broadcast_to", axes_tuple(shape)))


@of_arrays
def broadcast_arrays(*arrays: Array) -> list[Array]:
    """All arrays brought to the shape they broadcast to."""
    shape = broadcast_shapes(*(a.shape for a in arrays))
    return [broadcast_to(a, shape) for a in arrays]


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all shapes broadcast to. Raises: ShapeError, at the user's line."""
    try:
        return shapes_together(*map(axes_tuple, shapes))
    except ShapeError as error:
        raise ShapeError(error.message, where=user_span()) from None


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """`arrays` one after another along a dimension (flattened first where axis is None), in the type that all meet in.

    Raises: ShapeError where another dimension differs.
    """
    if axis is None:
        return concat([reshape(a, (-1,)) for a in array_list(arrays, "concat")], axis=0)
    several = array_list(arrays, "concat")
    return apply(lower_concat, several, (whole_number(axis, "axis"), promote_all(a.dtype for a in several)))


def lower_concat(b: TensorBuilder, *given: Any) -> str:
    """Raises: ShapeError where shapes differ elsewhere."""
    *xs, axis, common = given
    normal_axis(axis, b.rank_of(xs[0]))
    ranks = {b.rank_of(x) for x in xs}
    if len(ranks) > 1 or not b.rank_of(xs[0]):
        raise ShapeError(f"concat of arrays of shapes {', '.join(str(b.shape_of(x)) for x in xs)}",
                         hint="stack joins along a new dimension")
    return b.concatenate([b.cast(x, common) for x in xs], axis)


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """`arrays` side by side along a new dimension. Shapes: n of [*S] -> [*S] with n at `axis`"""
    several = array_list(arrays, "stack")
    return apply(lower_stack, several, (whole_number(axis, "axis"), promote_all(a.dtype for a in several)))


def lower_stack(b: TensorBuilder, *given: Any) -> str:
    """Raises: ShapeError where shapes differ."""
    *xs, axis, common = given
    if len({b.shape_of(x) for x in xs}) > 1:
        raise ShapeError(f"stack of arrays of different shapes {', '.join(str(b.shape_of(x)) for x in xs)}")
    d = normal_axis(axis, b.rank_of(xs[0]) + 1)
    if 0 in b.shape_of(xs[0]):
        have = b.shape_of(xs[0])
        return b.full((*have[:d], len(xs), *have[d:]), 0, common)
    return b.concatenate([b.expand_dims(b.cast(x, common), d) for x in xs], d)


@of_arrays
def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices along a dimension, which disappears."""
    lead = (slice(None),) * (own_axis(axis, x) % x.ndim)
    return tuple(x[(*lead, n)] for n in range(x.shape[axis]))


@of_arrays
def split(x: Array, /, sections: int | Sequence[int], *, axis: int = 0) -> list[Array]:
    """Pieces along a dimension. `sections`: how many of equal size, or their sizes.

    Raises: ShapeError where the sizes do not add up.
    """
    return list(apply_all(lower_split, (x,), (sections if isinstance(sections, int) else axes_tuple(sections), own_axis(axis, x))))


def lower_split(b: TensorBuilder, x: str, sections: int | tuple[int, ...], axis: int) -> tuple[str, ...]:
    """Raises: ShapeError where the sizes do not add up."""
    extent = b.shape_of(x)[normal_axis(axis, b.rank_of(x))]
    if isinstance(sections, int) and (sections < 1 or extent % sections):
        raise ShapeError(f"split: {extent} elements are not {sections} equal pieces")
    return tuple(b.split(x, [extent // sections] * sections if isinstance(sections, int) else sections, axis))


@of_arrays
def tile(x: Array, repetitions: Sequence[int], /) -> Array:
    """Laid side by side; `repetitions`: how often along each dimension. Shapes: [s0, ...] -> [s0 * r0, ...]"""
    return apply(lower_layout, (x,), ("tile", axes_tuple(repetitions)))


@of_arrays
def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Every element `repeats` times in a row, or as often as an array says for each (the result's shape then depends on its data).

    Raises: ShapeError for less than no repetitions; UserError for an array in a trace.
    """
    flat = reshape(x, (-1,)) if axis is None else x
    along = 0 if axis is None else own_axis(axis, x)
    if isinstance(repeats, Array):
        return repeated(flat, repeats, along)
    try:
        count = operator.index(repeats)
    except TypeError:
        raise TypeMismatchError(f"repeat takes an integer or an array of integers, not a {type(repeats).__name__}", where=user_span(),
                                hint="asarray makes an array of a list") from None
    if count < 0:
        raise ShapeError(f"repeat: {count} times is less than none", where=user_span())
    return apply(lower_layout, (flat,), ("repeat_interleave", count, along))


@of_arrays
def pad(x: Array, /, widths: Any, *, mode: str = "constant", value: Number = 0) -> Array:
    """So many elements added before and after each dimension.

    widths: a number, a (before, after) pair for all dimensions, or one pair a dimension.
    mode: "constant" (`value`), "reflect", "edge", "wrap".
    """
    pairs = _pairs(widths, x.ndim)
    return apply(lower_pad, (x,), (pairs, mode, number_constant(checked_number("pad", value), x.dtype)))


def _pairs(widths: Any, rank: int) -> tuple[tuple[int, int], ...]:
    if isinstance(widths, int):
        return ((widths, widths),) * rank
    listed = list(widths) if isinstance(widths, Iterable) else []
    if len(listed) == 2 and all(isinstance(w, int) for w in listed):
        return ((listed[0], listed[1]),) * rank
    if len(listed) != rank or any(isinstance(w, int) or len(axes_tuple(w)) != 2 for w in listed):
        raise ShapeError(f"pad: one (before, after) pair for each of {rank} dimensions, not {widths!r}", where=user_span())
    return tuple((int(w[0]), int(w[1])) for w in listed)


def lower_pad(b: TensorBuilder, x: str, pairs: tuple[tuple[int, int], ...], mode: str, value: Const) -> str:
    """Guarded reads."""
    return b.pad(x, pairs, mode, value.value)


@of_arrays
def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """The elements of the last two dimensions with column - row = offset, as the last dimension."""
    return apply(lower_diagonal, (x,), (whole_number(offset, "offset"),))


def lower_diagonal(b: TensorBuilder, x: str, offset: int) -> str:
    """Raises: ShapeError for a vector."""
    if b.rank_of(x) < 2:
        raise ShapeError(f"diagonal needs two dimensions, got {b.types[x]}")
    return b.diagonal(x, offset, -2, -1)


# Slices at positions that data gives


@of_arrays
def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """Slices of `x` at positions along a dimension; negative ones count from the end.

    Shapes: x: [*A, n, *B], indices: [*I] -> [*A, *I, *B]
    Raises: IndexRangeError when the positions are computed and one is out of range.
    """
    _check_indices(indices, "take")
    if axis is None and x.ndim != 1:
        raise ShapeError(f"take needs an axis for an array of shape {x.shape}", where=user_span())
    return apply(lower_take, (x, indices), (0 if axis is None else own_axis(axis, x),))


def _check_indices(indices: Any, name: str) -> None:
    if not isinstance(indices, Array) or not indices.dtype.is_integer:
        got = indices.dtype if isinstance(indices, Array) else type(indices).__name__
        raise TypeMismatchError(f"{name} takes an array of integers, not {got}", where=user_span(), hint="asarray makes one of a list")


def lower_take(b: TensorBuilder, x: str, indices: str, axis: int) -> str:
    """A gather."""
    if b.shape_of(x)[normal_axis(axis, b.rank_of(x))] == 0 and 0 not in b.shape_of(indices):
        raise ShapeError(f"take from an empty dimension of {b.types[x]}")
    return b.take(x, indices, axis, wrap=True, checked=True)


@of_arrays
def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """result[.., i, ..] = x[.., indices[.., i, ..], ..]; the other dimensions broadcast."""
    _check_indices(indices, "take_along_axis")
    return apply(lower_take_along, (x, indices), (own_axis(axis, x),))


def lower_take_along(b: TensorBuilder, x: str, indices: str, axis: int) -> str:
    """Raises: ShapeError where the numbers of dimensions differ."""
    have, chosen = b.shape_of(x), b.shape_of(indices)
    if len(have) != len(chosen):
        raise ShapeError(f"take_along_axis: {b.types[x]} and indices {b.types[indices]} have different numbers of dimensions")
    d = normal_axis(axis, len(have))
    around = shapes_together((*have[:d], 1, *have[d + 1 :]), (*chosen[:d], 1, *chosen[d + 1 :]))
    wide = b.broadcast_to(x, (*around[:d], have[d], *around[d + 1 :]))
    return b.gather_elements(wide, b.broadcast_to(indices, (*around[:d], chosen[d], *around[d + 1 :])), d, wrap=True, checked=True)
