"""Pooling operators of torch and their gradients.

A gradient gathers: each input position sums over the windows that cover it, so nothing is added atomically and results do not
depend on an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilefuse.frontends.torch.ops import TorchBuilder, Value, lowers
from tilefuse.ir.affine import Affine, axis, bounds, floordiv, mod, number, simplify
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.dtype import I64, compute_dtype
from tilefuse.ir.graph import Node, Type
from tilefuse.ir.scalar import Bound, Expr, Guard, Index, Read, call, cast, const


def _each(value: int | Sequence[int], count: int) -> list[int]:
    """torch allows one number, or a list of one, for all dimensions."""
    listed = [value] if isinstance(value, int) else list(value)
    return listed * count if len(listed) == 1 else listed


def _spatial(rank: int) -> tuple[str, str, str]:
    return (f"aten.max_pool{rank}d_with_indices.default", f"aten.avg_pool{rank}d.default", f"aten.avg_pool{rank}d_backward.default")


def _enter_max_pools(rank: int) -> None:
    max_name, _, _ = _spatial(rank)

    @lowers(max_name)
    def max_pool(
        b: TorchBuilder,
        x: Value,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
    ) -> tuple[str, str | None]:
        size = _each(kernel, rank)
        pads = [(p, p) for p in _each(padding, rank)]
        return b.pool(x, "max", size, _each(stride, rank) if stride else size, pads, _each(dilation, rank), ceil_mode, with_indices=True)

    @lowers(max_name.replace("_with_indices", "_with_indices_backward"))
    def max_pool_backward(
        b: TorchBuilder,
        grad: Value,
        x: Value,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: int | Sequence[int],
        dilation: int | Sequence[int],
        ceil_mode: bool,
        indices: Value,
    ) -> str:
        size = _each(kernel, rank)
        reach = [(k - 1) * d + 1 for k, d in zip(size, _each(dilation, rank))]
        return _window_gradient(b, grad, b.shape_of(x), reach, _each(stride, rank) if stride else size, _each(padding, rank), indices)


def _enter_mean_pools(rank: int) -> None:
    _, mean_name, mean_backward_name = _spatial(rank)

    @lowers(mean_name)
    def mean_pool(
        b: TorchBuilder,
        x: Value,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> str:
        size = _each(kernel, rank)
        pads = [(p, p) for p in _each(padding, rank)]
        return b.pool(
            x, "mean", size, _each(stride, rank) if stride else size, pads, None, ceil_mode, count_include_pad, divisor=divisor_override
        )[0]

    @lowers(mean_backward_name)
    def mean_pool_backward(
        b: TorchBuilder,
        grad: Value,
        x: Value,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: int | Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> str:
        size = _each(kernel, rank)
        steps, pads = _each(stride, rank) if stride else size, _each(padding, rank)
        shared = _shared_out(b, grad, b.shape_of(x)[-rank:], size, steps, pads, count_include_pad, divisor_override)
        return _window_gradient(b, shared, b.shape_of(x), size, steps, pads, None)


for _rank in (1, 2, 3):
    _enter_max_pools(_rank)
    _enter_mean_pools(_rank)


@lowers("tilefuse.max_pool_near_backward.default")
def max_pool_near_backward(
    b: TorchBuilder,
    grad: Value,
    near: Value,
    shape: Sequence[int],
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> str:
    reach = [(k - 1) * d + 1 for k, d in zip(size, dilation)]
    return _window_gradient(b, grad, tuple(shape), reach, stride, padding, near, list(zip(size, dilation)))


def _shared_out(
    b: TorchBuilder,
    grad: str,
    extents: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    include_pad: bool,
    divisor: int | None,
) -> str:
    """The gradient of each window divided by the number of elements its mean was taken over, in the compute dtype."""
    shape = b.shape_of(grad)
    work = compute_dtype(b.dtype_of(grad))
    axes = axis_names(len(shape))
    count: Expr = const(divisor or 1, I64)
    if divisor is None:
        for name, windows, extent, k, s, p in zip(axes[-len(kernel) :], shape[-len(kernel) :], extents, kernel, stride, padding):
            low, high = (-p, extent + p) if include_pad else (0, extent)
            first = number(-p) if windows == 1 else axis(name) * s - p
            size = call("sub", call("minimum", Index(first + k), const(high, I64)), call("maximum", Index(first), const(low, I64)))
            count = call("mul", count, size)
    body = call("div", b.read_as(grad, work, shape, axes), cast(count, work))
    return b.make_map("share", work, shape, axes, body)


def _window_gradient(
    b: TorchBuilder,
    grad: str,
    shape: tuple[int, ...],
    reach: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    indices: str | None,
    near: Sequence[tuple[int, int]] = (),
) -> str:
    """For each input position the sum over the windows that cover it (with `indices`: over those whose maximum it was).

    near: size and dilation of the windows within which `indices` count; empty where they count within the image.

    Window w of a dimension covers the positions w * stride - padding up to that + reach, so position h lies in window
    (h + padding) // stride - a for a = 0, 1, ... as long as (h + padding) % stride + a * stride < reach.
    """
    rank = len(reach)
    lead = len(shape) - rank
    out = b.shape_of(grad)
    work = compute_dtype(b.dtype_of(grad))
    axes, taps = axis_names(len(shape)), axis_names(rank, "w")
    over = [(tap, -(-r // s)) for tap, r, s in zip(taps, reach, stride)]
    extents = dict(zip(axes, shape)) | dict(over)
    index: list[Affine] = [number(0) if s == 1 else axis(a) for a, s in zip(axes[:lead], shape)]
    limits: list[Bound] = []
    here = number(0)
    for d, (name, (tap, count), extent, windows, r, s, p) in enumerate(
        zip(axes[lead:], over, shape[lead:], out[lead:], reach, stride, padding)
    ):
        padded = (number(0) if extent == 1 else axis(name)) + p
        back = number(0) if count == 1 else axis(tap)
        window = simplify(floordiv(padded, s, extents) - back, extents)
        inside = simplify(mod(padded, s, extents) + back * s, extents)
        _limit(limits, window, windows, extents)
        _limit(limits, inside, r, extents)
        if near:
            size, dilation = near[d]
            _limit(limits, simplify(mod(inside, dilation, extents), extents), 1, extents)
            here = here * size + simplify(floordiv(inside, dilation, extents), extents)
        else:
            here = here * extent + (number(0) if extent == 1 else axis(name))
        index.append(window)
    body: Expr = converted(Read(grad, tuple(index)), b.dtype_of(grad), work)
    if indices is not None:
        body = call(
            "select", call("eq", converted(Read(indices, tuple(index)), b.dtype_of(indices), I64), Index(here)), body, const(0, work)
        )
    if limits:
        body = Guard(tuple(limits), body, const(0, work))
    if prod(shape) == 0:
        return b.full(shape, 0, b.result_dtype)
    gradient = b.add(Node(b.fresh(b.hint or "pool_grad"), Type(work, shape), "reduce.sum", axes, tuple(over), body=body, span=b.span))
    return b.cast(gradient, b.result_dtype)


def _limit(limits: list[Bound], e: Affine, high: int, extents: dict[str, int]) -> None:
    """Adds 0 <= e < high unless it always holds."""
    span = bounds(e, extents)
    if span is None or span[0] < 0 or span[1] >= high:
        limits.append(Bound(e, 0, high))


@lowers(
    "aten._adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool3d.default",
    "aten.adaptive_avg_pool1d.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.adaptive_avg_pool3d.default",
)
def adaptive_mean_pool(b: TorchBuilder, x: Value, output_size: Sequence[int]) -> str:
    return b.adaptive_pool(x, "mean", list(output_size))[0]


@lowers("aten.adaptive_max_pool1d.default", "aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(b: TorchBuilder, x: Value, output_size: Sequence[int]) -> tuple[str, str | None]:
    return b.adaptive_pool(x, "max", list(output_size), with_indices=True)


@lowers("aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default")
def adaptive_mean_pool_backward(b: TorchBuilder, grad: Value, x: Value) -> str:
    shape, out = b.shape_of(x), b.shape_of(grad)
    axes = axis_names(len(shape))
    if not prod(out):
        return b.full(shape, 0, b.result_dtype)
    if any(s % o for s, o in zip(shape, out)):
        return _unequal_windows(b, grad, shape)
    extents = dict(zip(axes, shape))
    work = compute_dtype(b.dtype_of(grad))
    factors = [s // o for s, o in zip(shape, out)]
    index = tuple(simplify(floordiv(axis(a), f, extents), extents) for a, f in zip(axes, factors))
    body = call("div", converted(Read(grad, index), b.dtype_of(grad), work), const(prod(factors), work))
    return b.make_map("pool_grad", b.result_dtype, shape, axes, converted(body, work, b.result_dtype))


def _unequal_windows(b: TorchBuilder, grad: Value, shape: tuple[int, ...]) -> str:
    """The windows that cover an element are themselves a window of the same kind, from the other side: their shares are summed."""
    out, work = b.shape_of(grad), compute_dtype(b.dtype_of(grad))
    axes = axis_names(len(shape))
    size: Expr = const(1, I64)
    places = [d for d in range(len(shape)) if shape[d] != out[d]]
    for d in places:
        extents = {axes[d]: out[d]}
        at = axis(axes[d]) if out[d] > 1 else number(0)
        end = floordiv((at + 1) * shape[d] + (out[d] - 1), out[d], extents)
        size = call("mul", size, Index(simplify(end - floordiv(at * shape[d], out[d], extents), extents)))
    share = b.make_map("share", work, out, axes, call("div", b.read_as(grad, work, out, axes), cast(size, work)))
    return b.cast(b.adaptive_pool(share, "sum", shape[places[0] :])[0], b.result_dtype)


@lowers("aten.adaptive_max_pool2d_backward.default")
def adaptive_max_pool2d_backward(b: TorchBuilder, grad: Value, x: Value, indices: Value) -> str:
    return _adaptive_max_gradient(b, grad, x, indices, 2)


@lowers("aten.adaptive_max_pool3d_backward.default")
def adaptive_max_pool3d_backward(b: TorchBuilder, grad: Value, x: Value, indices: Value) -> str:
    return _adaptive_max_gradient(b, grad, x, indices, 3)


def _adaptive_max_gradient(b: TorchBuilder, grad: Value, x: Value, indices: Value, rank: int) -> str:
    """Windows may overlap by less than a whole window, so the gradient is added where each maximum stood."""
    shape, out = b.shape_of(x), b.shape_of(grad)
    lead, plane = prod(shape[:-rank]), prod(shape[-rank:])
    zeros = b.full((lead, plane), 0, b.result_dtype)
    small = prod(out[-rank:])
    return b.reshape(b.scatter(zeros, b.reshape(indices, [lead, small]), b.reshape(grad, [lead, small]), 1, "sum"), list(shape))
