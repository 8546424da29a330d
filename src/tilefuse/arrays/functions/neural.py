"""Arrays through the operators of networks: products with weights, convolutions, windows, norms, picks, activations.

Each is recorded through the tensor builder that the other frontends use, so that it fuses as theirs does. Activations are one map each;
statistics are computed in the compute dtype. The layers themselves, which hold parameters, are in `tilefuse.nn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import pi, sqrt
from typing import Any, Union

from tilefuse.arrays.arguments import of_arrays, real_number, whole_number
from tilefuse.arrays.array import Array, apply, apply_all
from tilefuse.arrays.functions.manipulation import axes_tuple
from tilefuse.arrays.nodes import Lowering, user_span
from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError
from tilefuse.ir.affine import axis, number
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.dtype import F32, F64, I64, compute_dtype
from tilefuse.ir.scalar import Const, Expr, Index, call, const, in_range

Extents = Union[int, Sequence[int]]
Padding = Union[int, Sequence[Union[int, tuple[int, int]]]]


def each(value: Extents, count: int, what: str) -> tuple[int, ...]:
    """One number a dimension. Raises: ShapeError where there are neither one nor `count`."""
    listed = (value,) if isinstance(value, int) else axes_tuple(value)
    if len(listed) not in (1, count):
        raise ShapeError(f"{what} has {len(listed)} numbers for {count} dimensions", where=user_span())
    return listed * count if len(listed) == 1 else listed


def pairs(padding: Padding, count: int) -> tuple[tuple[int, int], ...]:
    """Elements added before and after, for each dimension. Raises: ShapeError where there are neither one nor `count`."""
    listed = (padding,) if isinstance(padding, int) or not isinstance(padding, Iterable) else tuple(padding)
    if len(listed) not in (1, count):
        raise ShapeError(f"padding has {len(listed)} entries for {count} dimensions", where=user_span())
    entries = [axes_tuple(p) for p in listed]
    if any(len(e) not in (1, 2) for e in entries):
        raise ShapeError(f"padding is a number or a (before, after) pair for each dimension, not {padding}", where=user_span())
    amounts = tuple([(e[0], e[-1]) for e in entries])
    return amounts * count if len(amounts) == 1 else amounts


# Products with weights

@of_arrays
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x @ weight^T + bias, in the type of `x`. Shapes: x: [*B, inputs], weight: [outputs, inputs], bias: [outputs] -> [*B, outputs]"""
    return apply(_linear, (x, weight) if bias is None else (x, weight, bias))


def _check_float(b: TensorBuilder, name: str, x: str) -> None:
    """Raises: TypeMismatchError for an input of integers: weights would be rounded to them."""
    if not b.dtype_of(x).is_float:
        raise TypeMismatchError(f"{name} is for floats, not for {b.types[x]}", hint="convert the input with astype")


def _linear(b: TensorBuilder, x: str, weight: str, bias: str | None = None) -> str:
    have, shape = b.dtype_of(x), b.shape_of(x)
    _check_float(b, "linear", x)
    if not shape or b.rank_of(weight) != 2 or b.shape_of(weight)[1] != shape[-1]:
        raise ShapeError(f"linear of {b.types[x]} with weight {b.types[weight]}: the last extents must be equal")
    flat = b.reshape(x, [-1, shape[-1]]) if len(shape) != 2 else x
    product = b.matmul(flat, b.cast(weight, have), transpose_b=True)
    if len(shape) != 2:
        product = b.reshape(product, [*shape[:-1], b.shape_of(weight)[0]])
    return product if bias is None else b.elementwise("add", product, b.cast(bias, have))


@of_arrays
def convolution(x: Array, weight: Array, bias: Array | None = None, *, stride: Extents = 1, padding: Padding = 0, dilation: Extents = 1,
                groups: int = 1) -> Array:
    """Cross-correlation over the spatial dimensions, in the type of `x`. padding: a number, one a dimension, or (before, after) pairs.

    Shapes: x: [N, C, *S], weight: [O, C / groups, *K], bias: [O] -> [N, O, *S']
    Raises: ShapeError when channels do not match or no window fits.
    """
    dims = x.ndim - 2
    if dims < 1 or weight.ndim != x.ndim:
        raise ShapeError(f"convolution of shape {x.shape} with weight {weight.shape}", where=user_span(),
                         hint="[N, C, *S] with [O, C / groups, *K]")
    settings = (each(stride, dims, "stride"), pairs(padding, dims), each(dilation, dims, "dilation"), groups)
    return apply(_convolution, (x, weight), settings) if bias is None else apply(_biased_convolution, (x, weight, bias), settings)


def _convolution(b: TensorBuilder, x: str, weight: str, *settings: Any) -> str:
    stride, padding, dilation, groups = settings
    _check_float(b, "convolution", x)
    # Libraries have no gradient of unequal padding: the excess of one end is added before the call.
    equal = [(min(p), min(p)) for p in padding]
    if any(low != high for low, high in padding):
        x = b.pad(x, [(0, 0), (0, 0), *((low - e, high - e) for (low, high), (e, _) in zip(padding, equal, strict=True))])
    return b.convolution(x, b.cast(weight, b.dtype_of(x)), None, stride, equal, dilation, groups)


def _biased_convolution(b: TensorBuilder, x: str, weight: str, bias: str, *settings: Any) -> str:
    # The bias is added outside the call, where it shares the kernel of the call's users, and its gradient that of its producers.
    return b.elementwise("add", _convolution(b, x, weight, *settings), b.cast(_columns(b, bias, x), b.dtype_of(x)))


@of_arrays
def convolution_transpose(x: Array, weight: Array, bias: Array | None = None, *, stride: Extents = 1, padding: Extents = 0,
                          output_padding: Extents = 0, dilation: Extents = 1, groups: int = 1) -> Array:
    """The gradient of `convolution` in its input, as an operator, in the type of `x`.

    padding: elements cut off each side of each dimension; output_padding: elements added behind.
    Shapes: x: [N, C, *S], weight: [C, O / groups, *K], bias: [O] -> [N, O, *S']
    Raises: ShapeError when channels do not match, nothing is left, or output_padding reaches stride and dilation.
    """
    dims = x.ndim - 2
    if dims < 1 or weight.ndim != x.ndim:
        raise ShapeError(f"transposed convolution of shape {x.shape} with weight {weight.shape}", where=user_span(),
                         hint="[N, C, *S] with [C, O / groups, *K]")
    steps, gaps, behind = each(stride, dims, "stride"), each(dilation, dims, "dilation"), each(output_padding, dims, "output_padding")
    if any(not 0 <= o < max(s, d) for o, s, d in zip(behind, steps, gaps, strict=True)):
        raise ShapeError(f"output_padding {behind} with stride {steps} and dilation {gaps}", where=user_span(),
                         hint="it is smaller than stride or dilation")
    settings = (steps, pairs(each(padding, dims, "padding"), dims), gaps, groups, behind)
    if bias is None:
        return apply(_convolution_transpose, (x, weight), settings)
    return apply(_biased_convolution_transpose, (x, weight, bias), settings)


def _convolution_transpose(b: TensorBuilder, x: str, weight: str, *settings: Any) -> str:
    stride, padding, dilation, groups, behind = settings
    _check_float(b, "convolution_transpose", x)
    return b.convolution_transpose(x, b.cast(weight, b.dtype_of(x)), None, stride, padding, dilation, groups, behind)


def _biased_convolution_transpose(b: TensorBuilder, x: str, weight: str, bias: str, *settings: Any) -> str:
    return b.elementwise("add", _convolution_transpose(b, x, weight, *settings), b.cast(_columns(b, bias, x), b.dtype_of(x)))


@of_arrays
def embedding(weight: Array, indices: Array) -> Array:
    """Rows of `weight`. Shapes: weight: [rows, *W], indices: integers [*I] -> [*I, *W]"""
    return apply(_embedding, (weight, indices))


def _embedding(b: TensorBuilder, weight: str, indices: str) -> str:
    if not b.dtype_of(indices).is_integer:
        raise TypeMismatchError(f"rows are looked up by integers, not by {b.types[indices]}")
    return b.embedding(weight, b.cast(indices, I64), checked=True)


# Windows

@of_arrays
def max_pool(x: Array, kernel: Extents, *, stride: Extents | None = None, padding: Padding = 0, dims: int = 2) -> Array:
    """The largest element of each window over the last `dims` dimensions; padding never wins.

    kernel, stride, padding: a number, or one a dimension; stride is kernel where None.
    Shapes: x: [*B, *S] -> [*B, *S']
    """
    return _pooled(x, "max", kernel, stride, padding, dims, True)


@of_arrays
def mean_pool(x: Array, kernel: Extents, *, stride: Extents | None = None, padding: Padding = 0, dims: int = 2,
              count_include_pad: bool = True) -> Array:
    """The mean of each window over the last `dims` dimensions.

    kernel, stride, padding: as for `max_pool`. count_include_pad: whether padding counts as zeros.
    Shapes: x: [*B, *S] -> [*B, *S']
    """
    return _pooled(x, "mean", kernel, stride, padding, dims, count_include_pad)


def _pooled(x: Array, monoid: str, kernel: Extents, stride: Extents | None, padding: Padding, dims: int, with_padding: bool) -> Array:
    size = each(kernel, whole_number(dims, "dims"), "the window")
    if not 0 < dims <= x.ndim or min(size) < 1:
        raise ShapeError(f"a pool of windows {size} over the last {dims} dimensions of an array of shape {x.shape}", where=user_span(),
                         hint="windows have at least one element, and the array has these dimensions")
    steps = size if stride is None else each(stride, dims, "stride")
    return apply(_pool, (x,), (monoid, size, steps, pairs(padding, dims), with_padding))


def _pool(b: TensorBuilder, x: str, *settings: Any) -> str:
    monoid, kernel, stride, padding, with_padding = settings
    return b.pool(x, monoid, kernel, stride, padding, count_include_pad=with_padding)[0]


# Norms

def _given(weight: Array | None, bias: Array | None) -> tuple[Array, ...]:
    """Weight and bias of a norm, where it has them. Raises: UserError for a bias without weight."""
    if weight is None and bias is not None:
        raise UserError("a norm with a bias needs a weight", where=user_span(), hint="give weights of one")
    return tuple(a for a in (weight, bias) if a is not None)


def _norm(lowering: Callable[..., str | tuple[str, ...]]) -> tuple[Lowering, Lowering, Lowering]:
    """Lowerings for none, one and both of weight and bias, of one that takes (b, x, weight, bias, *settings)."""
    return (lambda b, x, *settings: lowering(b, x, None, None, *settings),
            lambda b, x, weight, *settings: lowering(b, x, weight, None, *settings), lowering)


@of_arrays
def layer_norm(x: Array, num_axes: int, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(variance + eps) over the last `num_axes` dimensions, times weight plus bias.

    Shapes: x: [*B, *S], weight, bias: [*S] of `num_axes` dimensions -> as x
    """
    parameters = _given(weight, bias)
    return apply(_LAYER_NORMS[len(parameters)], (x, *parameters), (whole_number(num_axes, "num_axes"), real_number(eps, "eps")))


def _layer_norm(b: TensorBuilder, x: str, weight: str | None, bias: str | None, num_axes: int, eps: float) -> str:
    rank = b.rank_of(x)
    return b.layer_norm(x, tuple(range(rank - num_axes, rank)), weight, bias, eps)[0]


_LAYER_NORMS = _norm(_layer_norm)


@of_arrays
def group_norm(x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5) -> Array:
    """Layer norm over each of `groups` groups of channels with all positions; eps is added to the variance.

    Shapes: x: [N, C, *S], weight, bias: [C] -> as x
    Raises: ShapeError where the groups do not divide the channels.
    """
    parameters = _given(weight, bias)
    if x.ndim < 2 or whole_number(groups, "groups") < 1 or x.shape[1] % groups:
        raise ShapeError(f"group norm of {groups} groups of an array of shape {x.shape}: they divide its second dimension",
                         where=user_span())
    return apply(_GROUP_NORMS[len(parameters)], (x, *parameters), (groups, real_number(eps, "eps")))


_GROUP_NORMS = _norm(lambda b, x, weight, bias, groups, eps: b.group_norm(x, groups, weight, bias, eps)[0])


@of_arrays
def batch_norm(x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    """Each channel less its mean over its standard deviation, times weight plus bias; and mean and variance (over n) of the channels.

    Shapes: x: [N, C, *S] -> the same, [C], [C]
    """
    parameters = _given(weight, bias)
    y, mean, variance = apply_all(_BATCH_NORMS[len(parameters)], (x, *parameters), (eps,))
    return y, mean, variance


def _batch_norm(b: TensorBuilder, x: str, weight: str | None, bias: str | None, eps: float) -> tuple[str, str, str]:
    axes = tuple(d for d in range(b.rank_of(x)) if d != 1)
    wide = b.cast(x, compute_dtype(b.dtype_of(x)))
    mean, variance = b.mean(wide, axes, True), b.variance(wide, axes, 0, True)
    return _normalised(b, x, mean, variance, weight, bias, eps), b.reshape(mean, [-1]), b.reshape(variance, [-1])


_BATCH_NORMS = _norm(_batch_norm)


@of_arrays
def normalised(x: Array, mean: Array, variance: Array, weight: Array | None = None, bias: Array | None = None, *,
               eps: float = 1e-5) -> Array:
    """Batch norm with given statistics. Shapes: x: [N, C, *S], all others: [C]"""
    parameters = _given(weight, bias)
    return apply(_GIVEN_NORMS[len(parameters)], (x, mean, variance, *parameters), (eps,))


def _given_norm(b: TensorBuilder, x: str, mean: str, variance: str, weight: str | None, bias: str | None, eps: float) -> str:
    work = compute_dtype(b.dtype_of(x))
    columns = [_columns(b, b.cast(v, work), x) for v in (mean, variance)]
    return _normalised(b, x, columns[0], columns[1], weight, bias, eps)


_GIVEN_NORMS: tuple[Lowering, Lowering, Lowering] = (
    lambda b, x, mean, variance, eps: _given_norm(b, x, mean, variance, None, None, eps),
    lambda b, x, mean, variance, weight, eps: _given_norm(b, x, mean, variance, weight, None, eps),
    _given_norm,
)


def _columns(b: TensorBuilder, per_channel: str, x: str) -> str:
    """A value per channel with the rank of `x`."""
    return b.reshape(per_channel, [-1 if d == 1 else 1 for d in range(b.rank_of(x))])


def _normalised(b: TensorBuilder, x: str, mean: str, variance: str, weight: str | None, bias: str | None, eps: float) -> str:
    """(x - mean) * rstd * weight + bias as one map; mean and variance have the rank of x."""
    shape, have = b.shape_of(x), b.dtype_of(x)
    work = compute_dtype(have)
    rstd = b.elementwise("rsqrt", b.elementwise("add", variance, eps))
    axes = axis_names(len(shape))
    body: Expr = call("mul", call("sub", b.read_as(x, work, shape, axes), b.read_as(mean, work, shape, axes)),
                      b.read_as(rstd, work, shape, axes))
    if weight is not None:
        body = call("mul", body, b.read_as(_columns(b, weight, x), work, shape, axes))
    if bias is not None:
        body = call("add", body, b.read_as(_columns(b, bias, x), work, shape, axes))
    return b.make_map("batch_norm", have, shape, axes, converted(body, work, have))


# Elements that losses pick

@of_arrays
def one_hot(indices: Array, depth: int) -> Array:
    """1 where the position along a new last axis is the index, else 0, in f32. Shapes: indices [*I] -> [*I, depth]"""
    return apply(_one_hot, (indices,), (whole_number(depth, "depth"),))


def _one_hot(b: TensorBuilder, indices: str, depth: int) -> str:
    return b.one_hot(indices, depth, dtype=F32, on=1.0, off=0.0)


@of_arrays
def picked(x: Array, classes: Array, at: int = 1) -> Array:
    """The element of `x` along axis `at` that `classes` names; by comparison, so that no class is looked up.

    The sum shares the kernel of what computes `x`, and its gradient is a map. Shapes: x: [N, C, *S], classes: integers [N, *S] -> [N, *S]
    Raises: ShapeError where the shapes do not fit; TypeMismatchError for classes that are no integers; IndexRangeError, when it is
        computed, for a class that `x` does not have.
    """
    return apply(_picked, (x, classes), (at,))


def _picked(b: TensorBuilder, x: str, chosen: str, at: int) -> str:
    shape = b.shape_of(x)
    small = (*shape[:at], *shape[at + 1 :])
    if b.shape_of(chosen) != small:
        raise ShapeError(f"classes are {b.types[chosen]}; values of {b.types[x]} need the shape {small}")
    if not b.dtype_of(chosen).is_integer:
        raise TypeMismatchError(f"classes are {b.types[chosen]}, not integers")
    work = compute_dtype(b.dtype_of(x))
    names = axis_names(len(shape))
    kept_axes = (*names[:at], *names[at + 1 :])
    named = b.read_as(chosen, I64, small, kept_axes)
    hit = call("eq", named, Index(number(0) if shape[at] == 1 else axis(names[at])))
    element = call("select", hit, b.read_as(x, work, shape, names), const(0, work))
    target = b.reduce(b.make_map("target_only", work, shape, names, element), "sum", (at,))
    # A class in range is never negative: the guard only checks the range.
    legal = call("ge", in_range(named, shape[at], I64), const(0, I64))
    return b.make_map("picked", work, small, kept_axes, call("select", legal, b.read(target, small, kept_axes), const(0, work)))


# Activations: one map each

def _activation(name: str, x: Array, body: Callable[..., Expr], *numbers: float) -> Array:
    """A map of `x`; its numbers are stored as constants, which distinguish 0.0 from -0.0."""
    return apply(_activated, (x,), (name, body, *(const(real_number(n, f"a number of {name}"), F64) for n in numbers)))


def _activated(b: TensorBuilder, x: str, name: str, body: Callable[..., Expr], *numbers: Const) -> str:
    _check_float(b, name, x)
    return b.expression(body, x, *(float(n.value) for n in numbers), dtype=b.dtype_of(x), name=name)


@of_arrays
def relu(x: Array) -> Array:
    """x where it is positive, else 0; NaN stays NaN. The derivative at 0 is 0."""
    return _activation("relu", x, _relu, 0)


def _relu(e: Expr, zero: Expr) -> Expr:
    return call("select", call("le", e, zero), zero, e)


@of_arrays
def leaky_relu(x: Array, slope: float = 0.01) -> Array:
    """x where it is positive, else slope * x."""
    return _activation("leaky_relu", x, _leaky_relu, 0, slope)


def _leaky_relu(e: Expr, zero: Expr, slope: Expr) -> Expr:
    return call("select", call("le", e, zero), call("mul", e, slope), e)


@of_arrays
def elu(x: Array, alpha: float = 1.0) -> Array:
    """x where it is positive, else alpha * (exp(x) - 1)."""
    return _activation("elu", x, _elu, 0, alpha)


def _elu(e: Expr, zero: Expr, alpha: Expr) -> Expr:
    # The exponential of a large x is not evaluated: its infinity would be multiplied by the gradient's zero.
    is_low = call("le", e, zero)
    return call("select", is_low, call("mul", alpha, call("expm1", call("select", is_low, e, zero))), e)


@of_arrays
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return _activation("sigmoid", x, _sigmoid)


def _sigmoid(e: Expr) -> Expr:
    return call("sigmoid", e)


@of_arrays
def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return _activation("silu", x, _silu)


def _silu(e: Expr) -> Expr:
    return call("mul", e, call("sigmoid", e))


@of_arrays
def gelu(x: Array, approximate: str = "none") -> Array:
    """x times the normal distribution function at x.

    approximate: "none", or "tanh", the approximation of Hendrycks and Gimpel 2016, section 2.
    Raises: UserError for another approximation.
    """
    match approximate:
        case "none":
            return _activation("gelu", x, _gelu, 0.5, 1.0, sqrt(0.5))
        case "tanh":
            return _activation("gelu", x, _gelu_by_tanh, 0.5, 1.0, sqrt(2 / pi), 0.044715)
    raise UserError(f"gelu has no approximation {approximate!r}", where=user_span(), hint='"none" or "tanh"')


def _gelu(e: Expr, half: Expr, one: Expr, root: Expr) -> Expr:
    return call("mul", call("mul", half, e), call("add", one, call("erf", call("mul", e, root))))


def _gelu_by_tanh(e: Expr, half: Expr, one: Expr, root: Expr, cubic: Expr) -> Expr:
    cube = call("mul", cubic, call("mul", call("mul", e, e), e))
    return call("mul", call("mul", half, e), call("add", one, call("tanh", call("mul", root, call("add", e, cube)))))


@of_arrays
def softplus(x: Array) -> Array:
    """log(1 + exp(x)) without overflow: max(x, 0) + log1p(exp(-|x|)). The derivative is sigmoid(x) also at 0."""
    return _activation("softplus", x, _softplus, 0)


def _softplus(e: Expr, zero: Expr) -> Expr:
    # -|x| as a choice with the same branch as the maximum's, so that both derivatives at 0 are from one side and their sum is right.
    return call("add", _relu(e, zero), call("log1p", call("exp", call("select", call("le", e, zero), e, call("neg", e)))))
