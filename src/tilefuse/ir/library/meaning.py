"""Meanings of library operators in f64 numpy: products, convolutions, softmax and norm composites.

Each function takes the node and its operands' arrays and returns an f64 array (or one that casts to the node's dtype). The pass
`decompose` and the framework calls are compared with these.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilefuse.ir.graph import Attribute, Graph, Node
from tilefuse.ir.library.side_by_side import windows_of
from tilefuse.ir.scalar import NUMPY_DTYPES

Array = np.ndarray[Any, Any]
LibraryMeaning = Callable[[Node, list[Array]], Array]

LIBRARY_MEANINGS: dict[str, LibraryMeaning] = {}


def meaning(fn: LibraryMeaning) -> LibraryMeaning:
    """Enters a function under its own name."""
    LIBRARY_MEANINGS[fn.__name__] = fn
    return fn


def _wide(x: Array) -> Array:
    return x.astype(np.float64)


def _ints(value: Attribute) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value if isinstance(v, int))


def _pairs(value: Attribute) -> tuple[tuple[int, int], ...]:
    assert isinstance(value, tuple)
    return tuple((_ints(v)[0], _ints(v)[1]) for v in value)


def _int(value: Attribute) -> int:
    assert isinstance(value, int)
    return int(value)


def _float(value: Attribute) -> float:
    assert isinstance(value, (int, float))
    return float(value)


def _axes(node: Node, x: Array) -> tuple[int, ...]:
    axes = node.attribute("axes")
    return tuple(range(x.ndim)) if axes is None else tuple(a % max(x.ndim, 1) for a in _ints(axes))


# ---------------------------------------------------------------- softmax family and moments

def _shifted(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """x minus its maximum, and the maximum; an infinite maximum is not subtracted, so that exp gives 0, 1 or infinity, not NaN."""
    top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    finite = np.where(np.isinf(top), 0.0, top)
    return x - finite, finite


@meaning
def softmax(node: Node, operands: list[Array]) -> Array:
    """exp(x - max) over its sum along the axis; NaN where all elements are -inf or one is inf."""
    x = _wide(operands[0])
    top = np.max(x, axis=_int(node.attribute("axis")), keepdims=True, initial=-np.inf)
    e = np.exp(x - top)
    return np.asarray(e / np.sum(e, axis=_int(node.attribute("axis")), keepdims=True))


@meaning
def log_softmax(node: Node, operands: list[Array]) -> Array:
    """x - max - log(sum(exp(x - max))) along the axis."""
    x = _wide(operands[0])
    axis = _int(node.attribute("axis"))
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)))


@meaning
def logsumexp(node: Node, operands: list[Array]) -> Array:
    """log(sum(exp(x))) over the axes; -inf where there are no elements or all are -inf, inf where one is inf."""
    x = _wide(operands[0])
    axes = _axes(node, x)
    shifted, top = _shifted(x, axes)
    return np.asarray(np.log(np.sum(np.exp(shifted), axis=axes, keepdims=True)) + top)


@meaning
def mean(node: Node, operands: list[Array]) -> Array:
    """Sum over the number of elements; NaN where there are none."""
    x = _wide(operands[0])
    axes = _axes(node, x)
    return np.asarray(np.sum(x, axis=axes, keepdims=True) / np.float64(prod(x.shape[a] for a in axes)))


@meaning
def variance(node: Node, operands: list[Array]) -> Array:
    """Squared deviations from the mean over (number of elements - correction), which is at least 0."""
    x = _wide(operands[0])
    axes = _axes(node, x)
    count = prod(x.shape[a] for a in axes)
    deviations = x - np.sum(x, axis=axes, keepdims=True) / np.float64(count)
    return np.asarray(np.sum(deviations**2, axis=axes, keepdims=True) / np.float64(max(count - _float(node.attribute("correction", 1)), 0)))


@meaning
def standard_deviation(node: Node, operands: list[Array]) -> Array:
    """Square root of the variance."""
    return np.asarray(np.sqrt(variance(node, operands)))


# ---------------------------------------------------------------- norms

def _optional(node: Node, operands: list[Array]) -> tuple[Array | None, Array | None]:
    rest = [_wide(x) for x in operands[1:]]
    weight = rest.pop(0) if node.attribute("has_weight") else None
    return weight, rest.pop(0) if node.attribute("has_bias") else None


def _moments(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array]:
    average = np.mean(x, axis=axes, keepdims=True)
    return average, 1 / np.sqrt(np.mean((x - average) ** 2, axis=axes, keepdims=True) + eps)


def _spread(parameter: Array, axes: tuple[int, ...], rank: int) -> Array:
    """A parameter over the extents of `axes`, placed on those dimensions of a tensor of that rank."""
    shape = [1] * rank
    for axis, extent in zip(sorted(axes), parameter.shape[-len(axes):] if axes else (), strict=True):
        shape[axis] = extent
    return parameter.reshape(shape)


@meaning
def layer_norm(node: Node, operands: list[Array]) -> Array:
    """Results: 0 (x - mean) * rstd * weight + bias, 1 mean, 2 rstd = 1 / sqrt(variance + eps)."""
    x = _wide(operands[0])
    axes = _axes(node, x)
    weight, bias = _optional(node, operands)
    average, rstd = _moments(x, axes, _float(node.attribute("eps")))
    y = (x - average) * rstd
    y = y * _spread(weight, axes, x.ndim) if weight is not None else y
    y = y + _spread(bias, axes, x.ndim) if bias is not None else y
    return (y, average, rstd)[_int(node.attribute("result", 0))]


@meaning
def rms_norm(node: Node, operands: list[Array]) -> Array:
    """Results: 0 x * rstd * weight, 1 rstd = 1 / sqrt(mean(x * x) + eps)."""
    x = _wide(operands[0])
    axes = _axes(node, x)
    weight, _ = _optional(node, operands)
    rstd = 1 / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + _float(node.attribute("eps")))
    y = x * rstd
    y = y * _spread(weight, axes, x.ndim) if weight is not None else y
    return np.asarray((y, rstd)[_int(node.attribute("result", 0))])


@meaning
def group_norm(node: Node, operands: list[Array]) -> Array:
    """Results: 0 the normalised tensor, 1 mean and 2 rstd of every sample and group. Shapes: x: [N, C, ...]"""
    x = _wide(operands[0])
    groups = _int(node.attribute("groups"))
    weight, bias = _optional(node, operands)
    split = x.reshape(x.shape[0], groups, int(np.prod(x.shape[1:])) // groups)
    average, rstd = _moments(split, (2,), _float(node.attribute("eps")))
    y = ((split - average) * rstd).reshape(x.shape)
    y = y * _spread(weight, (1,), x.ndim) if weight is not None else y
    y = y + _spread(bias, (1,), x.ndim) if bias is not None else y
    return (y, average, rstd)[_int(node.attribute("result", 0))]


# ---------------------------------------------------------------- products

@meaning
def matmul(node: Node, operands: list[Array]) -> Array:
    """Product of the last two dimensions, each operand's exchanged where the attributes say so; leading dimensions broadcast.

    Sums of integers are those of the result's type. With `has_bias` a third operand is added before the result is rounded.
    """
    whole = NUMPY_DTYPES[node.type.dtype.name] if node.type.dtype.is_integer else np.dtype(np.float64)
    a, b, *bias = (x.astype(whole) if x.dtype.kind in "iu" else _wide(x) for x in operands)
    a = np.swapaxes(a, -1, -2) if node.attribute("transpose_a") else a
    b = np.swapaxes(b, -1, -2) if node.attribute("transpose_b") else b
    product = np.matmul(a, b)
    return np.asarray(product + bias[0] if bias else product)


@meaning
def grouped_matmul(node: Node, operands: list[Array]) -> Array:
    """Rows x times the matrix of their group; rows of group g lie before offsets[g] and behind those of the groups before it.

    Offsets are taken within the rows, and one below an earlier offset ends an empty group. Rows behind the last offset are zeros.
    Shapes: x: [M, K], w: [G, K, N] (or [G, N, K] with transpose_b), offsets: [G] integers.
    """
    x, w, offsets = _wide(operands[0]), _wide(operands[1]), operands[2]
    w = np.swapaxes(w, -1, -2) if node.attribute("transpose_b") else w
    result, first = np.zeros((x.shape[0], w.shape[2])), 0
    for group, last in enumerate(np.maximum.accumulate(np.clip(offsets.astype(np.int64), 0, x.shape[0]))):
        result[first:last] = x[first:last] @ w[group]
        first = int(last)
    return result


@meaning
def side_by_side(node: Node, operands: list[Array]) -> Array:
    """Parts where they lie in the value (`side_by_side.py`)."""
    result = np.zeros(prod(node.type.shape), np.result_type(*operands))
    for window, part in zip(windows_of(node), operands, strict=True):
        place = np.lib.stride_tricks.as_strided(result[window.offset:], part.shape, [s * result.itemsize for s in window.strides])
        place[...] = part
    return result.reshape(node.type.shape)


def inner_extent(node: Node, graph: Graph) -> int:
    """The extent of the axis that a `library.matmul` sums over."""
    return graph.type_of(node.operands[0]).shape[-2 if node.attribute("transpose_a") else -1]


@meaning
def attention(node: Node, operands: list[Array]) -> Array:
    """softmax(q @ k^T * scale + mask) @ v; causal: position i sees positions up to i. A bool mask keeps where it is true; rows that a mask
    hides whole are zeros."""
    query, key, value = (_wide(x) for x in operands[:3])
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) * _float(node.attribute("scale"))
    if node.attribute("causal"):
        scores = np.where(np.tri(scores.shape[-2], scores.shape[-1], dtype=np.bool_), scores, -np.inf)
    if node.attribute("has_mask"):
        mask = operands[3]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + _wide(mask)
    top = np.max(scores, axis=-1, keepdims=True)
    e = np.exp(scores - np.where(top == -np.inf, 0.0, top))
    total = np.sum(e, axis=-1, keepdims=True)
    return np.asarray(np.matmul(e / np.where(top == -np.inf, 1.0, total), value))


class _Windows:
    """A convolution's geometry: which input positions a kernel position touches."""

    def __init__(self, node: Node, wide_shape: tuple[int, ...], kernel: tuple[int, ...], steps: tuple[int, ...]) -> None:
        rank = len(kernel)
        self.stride = _ints(node.attribute("stride", (1,) * rank))
        self.dilation = _ints(node.attribute("dilation", (1,) * rank))
        self.padding = _pairs(node.attribute("padding", ((0, 0),) * rank))
        self.groups = _int(node.attribute("groups", 1))
        self.kernel = kernel
        self.steps = steps  # number of window positions, a dimension
        self.wide_shape = wide_shape  # extents of the tensor that the windows slide over

    def padded_shape(self) -> tuple[int, ...]:
        """Extents with padding, at least as large as the last window needs."""
        return tuple(
            max(s + p[0] + p[1], (n - 1) * t + (k - 1) * d + 1)
            for s, p, n, t, k, d in zip(self.wide_shape, self.padding, self.steps, self.stride, self.kernel, self.dilation, strict=True)
        )

    def positions(self) -> Iterator[tuple[Any, Any]]:
        """Every kernel position, as a subscript of the weight, with the strided slice of the padded tensor that it meets."""
        for at in product(*(range(k) for k in self.kernel)):
            yield (..., *at), (..., *(
                slice(k * d, k * d + (n - 1) * t + 1, t)
                for k, d, n, t in zip(at, self.dilation, self.steps, self.stride, strict=True)
            ))

    def inner(self) -> Any:
        """Where the unpadded tensor lies in the padded one."""
        return (..., *(slice(p[0], p[0] + s) for p, s in zip(self.padding, self.wide_shape, strict=True)))

    def pad(self, x: Array) -> Array:
        """x: [N, C, *wide] with zeros around."""
        out = np.zeros((*x.shape[:2], *self.padded_shape()))
        out[self.inner()] = x
        return out

    def crop(self, x: Array) -> Array:
        """The inverse of `pad`."""
        return np.asarray(x[self.inner()])

    def split(self, x: Array, dimension: int) -> Array:
        """A channel dimension cut into [groups, channels a group]."""
        return x.reshape(*x.shape[:dimension], self.groups, x.shape[dimension] // self.groups, *x.shape[dimension + 1:])


def _correlate(w: _Windows, x: Array, weight: Array) -> Array:
    """x: [N, C, *wide], weight: [O, C / groups, *K] -> [N, O, *steps]."""
    padded = w.split(w.pad(x), 1)
    kernels = w.split(weight, 0)
    out = np.zeros((x.shape[0], w.groups, kernels.shape[1], *w.steps))
    for at, window in w.positions():
        out += np.einsum("ngc...,goc->ngo...", padded[window], kernels[at], optimize=True)
    return out.reshape(x.shape[0], w.groups * kernels.shape[1], *w.steps)


def _spread_windows(w: _Windows, y: Array, weight: Array) -> Array:
    """The adjoint of `_correlate` in x. y: [N, O, *steps], weight: [O, C / groups, *K] -> [N, C, *wide]."""
    parts = w.split(y, 1)
    kernels = w.split(weight, 0)
    padded = np.zeros((y.shape[0], w.groups, weight.shape[1], *w.padded_shape()))
    for at, window in w.positions():
        padded[window] += np.einsum(
            "ngo...,goc->ngc...", parts, kernels[at], optimize=True)
    return w.crop(padded.reshape(y.shape[0], w.groups * weight.shape[1], *padded.shape[3:]))


def _weight_gradient(w: _Windows, x: Array, y: Array) -> Array:
    """The adjoint of `_correlate` in the weight. x: [N, C, *wide], y: [N, O, *steps] -> [O, C / groups, *K]."""
    padded = w.split(w.pad(x), 1)
    parts = w.split(y, 1)
    out = np.zeros((w.groups, parts.shape[2], padded.shape[2], *w.kernel))
    flat = parts.reshape(*parts.shape[:3], -1)
    for at, window in w.positions():
        met = padded[window].reshape(*padded.shape[:3], -1)
        out[at] = np.einsum("ngos,ngcs->goc", flat, met, optimize=True)
    return out.reshape(w.groups * parts.shape[2], *out.shape[2:])


@meaning
def own_gradient(node: Node, operands: list[Array]) -> Array:
    """The operand of the result's number."""
    return operands[_int(node.attribute("result", 0))]


@meaning
def convolution(node: Node, operands: list[Array]) -> Array:
    """Cross-correlation, or where `transposed` its adjoint in the input, plus bias.

    Shapes: x: [N, C, *S], weight: [O, C / groups, *K], transposed [C, O / groups, *K], bias: [O]
    """
    x, weight = _wide(operands[0]), _wide(operands[1])
    result = node.type.shape[2:]
    if node.attribute("transposed"):
        y = _spread_windows(_Windows(node, result, weight.shape[2:], x.shape[2:]), x, weight)
    else:
        y = _correlate(_Windows(node, x.shape[2:], weight.shape[2:], result), x, weight)
    if node.attribute("has_bias"):
        y = y + _spread(_wide(operands[2]), (1,), y.ndim)
    return y


@meaning
def convolution_backward(node: Node, operands: list[Array]) -> Array:
    """Gradients of `convolution` from that of its result: result 0 of x, 1 of the weight, 2 of the bias. Operands: gradient, x, weight."""
    gradient, x, weight = (_wide(a) for a in operands[:3])
    result = _int(node.attribute("result", 0))
    if result == 2:
        return np.asarray(np.sum(gradient, axis=(0, *range(2, gradient.ndim))))
    if node.attribute("transposed"):
        w = _Windows(node, gradient.shape[2:], weight.shape[2:], x.shape[2:])
        return _correlate(w, gradient, weight) if result == 0 else _weight_gradient(w, gradient, x)
    w = _Windows(node, x.shape[2:], weight.shape[2:], gradient.shape[2:])
    return _spread_windows(w, gradient, weight) if result == 0 else _weight_gradient(w, x, gradient)
