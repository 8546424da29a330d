"""ONNX convolutions and pooling. Paddings become explicit pairs here, for all values of `auto_pad`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilefuse.frontends.onnx.call import Call, onnx_op
from tilefuse.ir.dtype import I64, compute_dtype
from tilefuse.ir.scalar import call, const

Pairs = list[tuple[int, int]]


def paddings(n: Call, extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Pairs:
    """(before, after) of every spatial dimension."""
    dims = len(kernel)
    mode = n.attr("auto_pad", "NOTSET")
    if not len(extents) == len(strides) == len(dilations) == dims or min([1, *kernel, *strides, *dilations]) < 1:
        raise n.wrong(
            f"kernel {list(kernel)}, strides {list(strides)} and dilations {list(dilations)} do not fit {len(extents)} spatial dimensions"
        )
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for extent, k, s, d in zip(extents, kernel, strides, dilations):
            total = max((-(-extent // s) - 1) * s + d * (k - 1) + 1 - extent, 0)
            small, large = total // 2, total - total // 2
            pairs.append((small, large) if mode == "SAME_UPPER" else (large, small))
        return pairs
    pads = n.attr("pads") if mode != "VALID" else None
    pads = pads or [0] * 2 * dims
    if len(pads) != 2 * dims:
        raise n.wrong(f"{len(pads)} paddings for {dims} spatial dimensions")
    return [(pads[d], pads[d + dims]) for d in range(dims)]


@onnx_op("Conv")
def conv(n: Call) -> str:
    x, w = n.shape(0), n.shape(1)
    dims = len(x) - 2
    strides, dilations = n.attr("strides", [1] * dims), n.attr("dilations", [1] * dims)
    if tuple(n.attr("kernel_shape", w[2:])) != w[2:]:
        raise n.wrong(f"kernel_shape {n.attr('kernel_shape')} is not that of the weight, {list(w[2:])}")
    pairs = paddings(n, x[2:], w[2:], strides, dilations)
    return convolve(n, n[0], n[1], n[2] if n.has(2) else None, strides, pairs, dilations)


def convolve(n: Call, x: str, w: str, bias: str | None, strides: Sequence[int], pairs: Pairs, dilations: Sequence[int]) -> str:
    """The library's convolution; paddings that differ at the two ends are a map before it, as libraries want them equal."""
    if any(p[0] != p[1] for p in pairs):
        x = n.b.pad(x, [(0, 0), (0, 0), *pairs])
        pairs = [(0, 0)] * len(pairs)
    return n.b.convolution(x, w, bias, strides, pairs, dilations, n.attr("group", 1))


@onnx_op("ConvTranspose")
def conv_transpose(n: Call) -> str:
    """Unequal paddings are cut off the result of an unpadded call."""
    x, w = n.shape(0), n.shape(1)
    dims = len(x) - 2
    strides, dilations = n.attr("strides", [1] * dims), n.attr("dilations", [1] * dims)
    extra, output_shape = list(n.attr("output_padding", [0] * dims)), n.attr("output_shape")
    mode = n.attr("auto_pad", "NOTSET")
    reach = [strides[d] * (x[2 + d] - 1) + dilations[d] * (w[2 + d] - 1) + 1 for d in range(dims)]
    if output_shape is not None or mode in ("SAME_UPPER", "SAME_LOWER"):
        output_shape = [x[2 + d] * strides[d] for d in range(dims)] if output_shape is None else output_shape[-dims:]
        pairs = []
        for d in range(dims):
            total = reach[d] + extra[d] - output_shape[d]
            small, large = total // 2, total - total // 2
            pairs.append((small, large) if mode == "SAME_UPPER" else (large, small))
    else:
        pairs = paddings(n, x[2:], w[2:], strides, dilations)
        output_shape = [reach[d] + extra[d] - sum(pairs[d]) for d in range(dims)]
    bias = n[2] if n.has(2) else None
    groups = n.attr("group", 1)
    if all(p[0] == p[1] >= 0 and e < max(s, g) for p, e, s, g in zip(pairs, extra, strides, dilations)):
        return n.b.convolution_transpose(n[0], n[1], bias, strides, pairs, dilations, groups, extra)
    full = n.b.convolution_transpose(n[0], n[1], None, strides, [(0, 0)] * dims, dilations, groups)
    cut = [(-p[0], want - have + p[0]) for p, want, have in zip(pairs, output_shape, n.b.shape_of(full)[2:])]
    out = n.b.pad(full, [(0, 0), (0, 0), *cut])
    return out if bias is None else n.b.elementwise("add", out, n.b.reshape(bias, (-1, *(1,) * dims)))


def pool_setting(n: Call) -> tuple[list[int], list[int], Pairs, list[int], bool]:
    """Kernel, strides, paddings, dilations and ceil mode of a pooling operator."""
    kernel = list(n.needed_attr("kernel_shape"))
    strides, dilations = n.attr("strides", [1] * len(kernel)), n.attr("dilations", [1] * len(kernel))
    pairs = paddings(n, n.shape(0)[2:], kernel, strides, dilations)
    return kernel, strides, pairs, dilations, bool(n.attr("ceil_mode", 0))


@onnx_op("MaxPool")
def max_pool(n: Call) -> list[str | None]:
    """Indices are positions in the whole tensor, the planes in column-major order where `storage_order` is 1."""
    kernel, strides, pairs, dilations, ceil = pool_setting(n)
    column_major = bool(n.attr("storage_order", 0)) and len(kernel) > 1
    with_indices = n.num_outputs > 1
    y, places = n.b.pool(
        n[0], "max", kernel, strides, pairs, dilations, ceil, with_indices=with_indices, index_space="plane" if column_major else "tensor"
    )
    if places is None or not column_major:
        return [y, places]
    if len(kernel) != 2:
        raise n.unsupported("column-major indices of other than 2 spatial dimensions")
    height, width = n.shape(0)[2:]
    turned = n.b.expression(
        lambda p: call("add", call("mul", call("mod", p, const(width, I64)), const(height, I64)), call("floordiv", p, const(width, I64))),
        places,
        dtype=I64,
        name="column_major",
    )
    batch, channels = n.shape(0)[:2]
    planes = n.b.reshape(n.b.iota((batch * channels,), 0, step=height * width), (batch, channels, 1, 1))
    return [y, n.b.elementwise("add", turned, planes)]


@onnx_op("AveragePool")
def average_pool(n: Call) -> str:
    kernel, strides, pairs, dilations, ceil = pool_setting(n)
    return n.b.pool(n[0], "mean", kernel, strides, pairs, dilations, ceil, count_include_pad=bool(n.attr("count_include_pad", 0)))[0]


@onnx_op("LpPool")
def lp_pool(n: Call) -> str:
    kernel, strides, pairs, dilations, ceil = pool_setting(n)
    p, have = float(n.attr("p", 2)), n.dtype(0)
    powers = n.b.elementwise("pow", n.b.elementwise("abs", n.b.cast(n[0], compute_dtype(have))), p)
    total = n.b.pool(powers, "sum", kernel, strides, pairs, dilations, ceil)[0]
    return n.b.cast(n.b.elementwise("pow", total, 1.0 / p), have)


def _spatial(n: Call) -> list[int]:
    return list(range(2, len(n.shape(0))))


@onnx_op("GlobalAveragePool")
def global_average_pool(n: Call) -> str:
    return n.b.mean(n[0], _spatial(n), keepdims=True)


@onnx_op("GlobalMaxPool")
def global_max_pool(n: Call) -> str:
    return n.b.reduce(n[0], "max", _spatial(n), keepdims=True)


@onnx_op("GlobalLpPool")
def global_lp_pool(n: Call) -> str:
    return n.b.norm(n[0], float(n.attr("p", 2)), _spatial(n), keepdims=True)


@onnx_op("MaxUnpool")
def max_unpool(n: Call) -> str:
    """The maxima written back to their places, zeros elsewhere.

    Places refer to the shape that the strides give; a given shape adds zeros after it.
    """
    kernel = n.needed_attr("kernel_shape")
    dims = len(kernel)
    strides, pads = n.attr("strides", [1] * dims), n.attr("pads", [0] * 2 * dims)
    have = n.shape(0)
    natural = [*have[:2], *((have[2 + d] - 1) * strides[d] + kernel[d] - pads[d] - pads[d + dims] for d in range(dims))]
    base = n.b.full((prod(natural),), 0, n.dtype(0))
    unpooled = n.b.reshape(n.b.scatter(base, n.b.reshape(n[1], (-1,)), n.b.reshape(n[0], (-1,)), 0, checked=True), natural)
    if not n.has(2):
        return unpooled
    return n.b.pad(unpooled, [(0, want - have) for want, have in zip(n.ints(2, "the output's shape"), natural)])
