"""`tilefuse.array.fft`: the standard's extension for discrete Fourier transforms. The transforms are calls of the framework (library nodes;
their gradients: `ir/library/adjoint_fft.py`); cutting and padding before them, and what reads them, fuse as everything does."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tilefuse.arrays.arguments import of_arrays, real_number, whole_number
from tilefuse.arrays.array import Array, apply, installed
from tilefuse.arrays.functions.elementwise import astype, conj
from tilefuse.arrays.functions.manipulation import axes_tuple, own_axes, own_axis, pad, roll
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.types import DEFAULT_COMPLEX, DEFAULT_FLOAT, NAME_OF, as_dtype, promote
from tilefuse.base.errors import OptionError, ShapeError, TypeMismatchError
from tilefuse.ir.building.tensor_complex import ComplexBuilder
from tilefuse.ir.dtype import COMPLEX_OF, F32, F64, PART_OF, DType
from tilefuse.ir.graph import Attribute, Type

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft", "rfftfreq", "rfftn",
]

Axes = int | Sequence[int] | None
# The framework's numbers of a transform's divisor: none, the root of the number of elements, or that number.
UNDIVIDED, BY_ROOT, BY_COUNT = 0, 1, 2
FORWARD = {"backward": UNDIVIDED, "ortho": BY_ROOT, "forward": BY_COUNT}
INVERSE = {"backward": BY_COUNT, "ortho": BY_ROOT, "forward": UNDIVIDED}
OTHER_WAY = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


@of_arrays
def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The transform along one dimension, cut or padded with zeros to n elements.

    norm: which way divides by the number of elements: "backward" (the inverse), "forward", or "ortho" (both by its root).
    """
    return _complex("fft", x, None if n is None else (n,), (axis,), norm, forward=True)


@of_arrays
def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `fft`; n and norm as there."""
    return _complex("ifft", x, None if n is None else (n,), (axis,), norm, forward=False)


@of_arrays
def fftn(x: Array, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward") -> Array:
    """The transform along several dimensions: `axes`, else all, or the last ones where only the sizes `s` are given. norm: as for `fft`."""
    return _complex("fftn", x, s, axes, norm, forward=True)


@of_arrays
def ifftn(x: Array, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward") -> Array:
    """The inverse of `fftn`; s, axes and norm as there."""
    return _complex("ifftn", x, s, axes, norm, forward=False)


@of_arrays
def rfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The transform of real numbers: its first n // 2 + 1 elements; the others are the conjugates of these. norm: as for `fft`."""
    return _from_real("rfft", x, None if n is None else (n,), (axis,), norm)


@of_arrays
def irfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `rfft`. n: the number of real elements, 2 * (elements of x - 1) where None. norm: as for `fft`."""
    return _to_real("irfft", x, None if n is None else (n,), (axis,), norm, INVERSE)


@of_arrays
def rfftn(x: Array, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward") -> Array:
    """The transform of real numbers along several dimensions; the last of these has half of its elements. s, axes, norm: as for `fftn`."""
    return _from_real("rfftn", x, s, axes, norm)


@of_arrays
def irfftn(x: Array, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward") -> Array:
    """The inverse of `rfftn`; s, axes and norm as there."""
    return _to_real("irfftn", x, s, axes, norm, INVERSE)


@of_arrays
def hfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The transform of numbers whose second half are conjugates of the first, which x holds: real numbers.

    n: how many. norm: as for `fft`.
    """
    return _to_real("hfft", conj(_as_complex("hfft", x)), None if n is None else (n,), (axis,), norm, FORWARD)


@of_arrays
def ihfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `hfft`: the first n // 2 + 1 elements. norm: as for `fft`."""
    return conj(_from_real("ihfft", x, None if n is None else (n,), (axis,), OTHER_WAY[_checked("ihfft", norm)]))


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of `fft`'s n elements, d apart: 0, 1, ..., -2, -1 over n * d."""
    return _frequencies("fftfreq", n, d, dtype, device, half=False)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of `rfft`'s n // 2 + 1 elements, d apart."""
    return _frequencies("rfftfreq", n, d, dtype, device, half=True)


@of_arrays
def fftshift(x: Array, /, *, axes: Axes = None) -> Array:
    """The frequency 0 moved to the middle along the dimensions `axes` (all where None)."""
    return _rolled(x, axes, 1)


@of_arrays
def ifftshift(x: Array, /, *, axes: Axes = None) -> Array:
    """The inverse of `fftshift`, which differs from it for odd extents; axes as there."""
    return _rolled(x, axes, -1)


# Transforms


def _complex(name: str, x: Array, sizes: Sequence[int] | None, axes: Axes, norm: str, forward: bool) -> Array:
    over, extents = _domain(name, x, sizes, axes)
    divided = (FORWARD if forward else INVERSE)[_checked(name, norm)]
    return _called("aten._fft_c2c.default", _resized(_as_complex(name, x), over, extents), over, divided, forward)


def _from_real(name: str, x: Array, sizes: Sequence[int] | None, axes: Axes, norm: str) -> Array:
    if not x.dtype.is_float:
        raise TypeMismatchError(f"{name} takes real floats, not {NAME_OF[x.dtype]}", where=user_span(),
                                hint="fft and fftn take complex numbers" if x.dtype.is_complex else "convert with astype")
    over, extents = _domain(name, x, sizes, axes)
    real = _resized(x if x.dtype == F64 else astype(x, F32, copy=False), over, extents)
    return _called("aten._fft_r2c.default", real, over, FORWARD[_checked(name, norm)], True)


def _to_real(name: str, x: Array, sizes: Sequence[int] | None, axes: Axes, norm: str, division: dict[str, int]) -> Array:
    over, extents = _domain(name, x, sizes, axes)
    last = extents[-1] if sizes is not None else 2 * (x.shape[over[-1]] - 1)
    if last < 1:
        raise ShapeError(f"{name} of {x.shape[over[-1]]} elements along dimension {over[-1]} would have no element", where=user_span(),
                         hint="say how many: n=1")
    resized = _resized(_as_complex(name, x), over, (*extents[:-1], last // 2 + 1))
    return _called("aten._fft_c2r.default", resized, over, division[_checked(name, norm)], last)


def _called(operator: str, x: Array, over: tuple[int, ...], divided: int, setting: int) -> Array:
    return apply(lower_transform, (x,), (operator, over, divided, setting))


def lower_transform(b: ComplexBuilder, x: str, operator: str, over: tuple[int, ...], divided: int, setting: int) -> str:
    """A call of the framework. setting: for complex transforms the direction, for real ones whether half is returned, else the last
    extent."""
    dtype, shape = b.dtype_of(x), list(b.shape_of(x))
    if operator == "aten._fft_r2c.default":
        dtype, shape[over[-1]] = COMPLEX_OF[dtype], shape[over[-1]] // 2 + 1
    elif operator == "aten._fft_c2r.default":
        dtype, shape[over[-1]] = PART_OF[dtype], setting
    if not prod(shape):
        return b.full(shape, 0, dtype)
    attributes: dict[str, Attribute] = {"args": (("%", 0), over, divided, setting), "kwargs": ()}
    return b.library("fft", operator, Type(dtype, tuple(shape)), (x,), attributes)


def _checked(name: str, norm: Any) -> str:
    if norm not in FORWARD:
        raise OptionError(f"{name} has no norm {norm!r}", where=user_span(), hint=f"known: {', '.join(FORWARD)}")
    return str(norm)


def _as_complex(name: str, x: Array) -> Array:
    if not (x.dtype.is_float or x.dtype.is_complex):
        raise TypeMismatchError(f"{name} takes floats and complex numbers, not {NAME_OF[x.dtype]}", where=user_span(),
                                hint="convert with astype")
    return astype(x, promote(x.dtype, DEFAULT_COMPLEX), copy=False)


def _domain(name: str, x: Array, sizes: Sequence[int] | None, axes: Axes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions of a transform, and their extents after cutting and padding. Raises: ShapeError for an extent below 1."""
    chosen_sizes = None if sizes is None else axes_tuple(sizes)
    if axes is None:
        chosen = tuple(range(x.ndim)) if chosen_sizes is None else tuple(range(-len(chosen_sizes), 0))
    else:
        chosen = axes_tuple(axes)
    over = tuple([a % x.ndim for a in own_axes(chosen, x)])
    if not over:
        raise ShapeError(f"{name} of an array of shape {x.shape} along no dimension", where=user_span())
    extents = tuple([x.shape[a] for a in over]) if chosen_sizes is None else chosen_sizes
    if len(extents) != len(over):
        raise ShapeError(f"{name}: {len(extents)} sizes for {len(over)} dimensions", where=user_span())
    if min(extents) < 1:
        raise ShapeError(f"{name} along dimensions {over} of extents {extents}: a transform has at least one element", where=user_span())
    return over, extents


def _resized(x: Array, over: tuple[int, ...], extents: tuple[int, ...]) -> Array:
    """`x` cut, or padded with zeros at the end, to these extents."""
    added = {a: extent - x.shape[a] for a, extent in zip(over, extents, strict=True)}
    return pad(x, [(0, added.get(d, 0)) for d in range(x.ndim)]) if any(added.values()) else x


# Frequencies


def _frequencies(name: str, n: Any, d: Any, dtype: Any, device: Any, half: bool) -> Array:
    count, distance = whole_number(n, "n"), real_number(d, "d")
    chosen_dtype = DEFAULT_FLOAT if dtype is None else as_dtype(dtype)
    if not chosen_dtype.is_float:
        raise TypeMismatchError(f"{name} gives real floats, not {NAME_OF[chosen_dtype]}", where=user_span())
    if count < 1 or not distance:
        raise ShapeError(f"{name} of {count} elements, {distance} apart", where=user_span())
    where = installed().default_device() if device is None else installed().device_named(device)
    return apply(lower_frequencies, (), (count, 1 / (count * distance), half, chosen_dtype), where)


def lower_frequencies(b: ComplexBuilder, count: int, step: float, half: bool, dtype: DType) -> str:
    """Positions times the step, the upper half counted from the end. Exact: in f64, rounded once."""
    low = 0 if half else -(count // 2)
    places = b.iota((count // 2 + 1 if half else count,), 0, F64, low)
    return b.cast(b.elementwise("mul", places if half else b.roll(places, [low], [0]), step), dtype)


def _rolled(x: Array, axes: Axes, sign: int) -> Array:
    over = tuple(range(x.ndim)) if axes is None else tuple([own_axis(a, x) for a in axes_tuple(axes)])
    return roll(x, [sign * (x.shape[a] // 2) for a in over], axis=over) if over else x
