"""Torch operators that a vendor library performs: matrix products, convolutions, attention, sorting.

The library computes the product; a bias stands outside it as a map where something follows that can share the map's kernel,
and inside the call otherwise. Operators of `BY_DESIGN` go to torch and are not reported as fallbacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from tilefuse.frontends.torch.ops import Scalar, TorchBuilder, Value, decline, lowers
from tilefuse.ir.dtype import F32, I32
from tilefuse.ir.graph import Attribute, Type
from tilefuse.ir.scalar import Expr, call

BY_DESIGN = frozenset(
    f"aten.{name}"
    for name in (
        "_scaled_dot_product_flash_attention.default",
        "_scaled_dot_product_flash_attention_backward.default",
        "_scaled_dot_product_efficient_attention.default",
        "_scaled_dot_product_efficient_attention_backward.default",
        "_scaled_dot_product_cudnn_attention.default",
        "_scaled_dot_product_cudnn_attention_backward.default",
        "_scaled_dot_product_flash_attention_for_cpu.default",
        "_scaled_dot_product_flash_attention_for_cpu_backward.default",
        "_scaled_dot_product_fused_attention_overrideable.default",
        "_scaled_dot_product_fused_attention_overrideable_backward.default",
        "_flash_attention_forward.default",
        "_flash_attention_backward.default",
        "_efficient_attention_forward.default",
        "_efficient_attention_backward.default",
        "_grouped_mm.default",
        "_int_mm.default",
        "_scaled_mm.default",
        "sort.default",
        "sort.stable",
        "topk.default",
    )
) | {"tilefuse.attention_backward.default"}


@lowers("aten.mm.default", "aten.bmm.default")
def mm(b: TorchBuilder, x: Value, y: Value) -> str:
    return b.matmul(x, y)


@lowers("aten.mv.default", "aten.dot.default", "aten.matmul.default")
def product(b: TorchBuilder, x: Value, y: Value) -> str:
    return b.matmul(x, y)


@lowers("aten.addmm.default", "aten.baddbmm.default")
def addmm(b: TorchBuilder, bias: Value, x: Value, y: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> str:
    # A row added in the product's own epilogue is free; where the sum lies in memory anyway, a map would only read and write it again.
    inside = b.feeds_library_only or b.feeds_library and b.rank_of(bias) == 1
    if beta == 1 and alpha == 1 and inside and b.dtype_of(bias) == b.result_dtype:
        attributes: dict[str, Attribute] = {"transpose_a": False, "transpose_b": False, "precision": "default", "has_bias": True}
        return b.library(b.hint or "matmul", "matmul", Type(b.result_dtype, b.result_shape), (x, y, bias), attributes)
    xy = b.matmul(x, y)
    if beta == 0:
        return xy if alpha == 1 else b.elementwise("mul", xy, alpha)
    if beta == 1 and alpha == 1:
        return b.pointwise(lambda p, q: call("add", p, q), Value(xy), bias, name="addmm")
    return b.pointwise(lambda p, q, s, t: call("add", call("mul", t, p), call("mul", s, q)), Value(xy), bias, beta, alpha, name="addmm")


@lowers("aten.addbmm.default")
def addbmm(b: TorchBuilder, bias: Value, x: Value, y: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> str:
    total = Value(b.reduce(b.matmul(x, y), "sum", (0,)))
    if beta == 0:
        return total if alpha == 1 else b.elementwise("mul", total, alpha)
    return b.pointwise(lambda p, q, s, t: call("add", call("mul", t, p), call("mul", s, q)), total, bias, beta, alpha, name="addbmm")


@lowers("aten._int_mm.default")
def int_mm(b: TorchBuilder, x: Value, y: Value) -> str:
    """x @ y of 8-bit integers, in i32."""
    return b.matmul(x, y, dtype=I32)


@lowers("aten._scaled_mm.default")
def scaled_mm(b: TorchBuilder, x: Value, y: Value, scale_x: Value, scale_y: Value, bias: Value | None = None,
              scale_result: Value | None = None, out_dtype: object = None, use_fast_accum: bool = False) -> str:
    """x @ y * scale_x * scale_y + bias, in f32; scales are of the whole operands, or of rows of x and of columns of y."""
    rows, columns = b.result_shape
    for scale, legal in ((scale_x, ((1, 1), (rows, 1))), (scale_y, ((1, 1), (1, columns)))):
        if b.dtype_of(scale) != F32 or prod(b.shape_of(scale)) != 1 and b.shape_of(scale) not in legal:
            raise decline(f"scales of {b.dtype_of(scale)}{list(b.shape_of(scale))} for a product of {rows} x {columns}")
    if scale_result is not None:
        raise decline("torch multiplies by scale_result on a GPU alone")
    if out_dtype is None or out_dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise decline("torch saturates results of 8-bit floats, and conversions do not")
    scales = (Value(b.reshape(s, ()) if prod(b.shape_of(s)) == 1 else s) for s in (scale_x, scale_y))
    total = Value(b.matmul(x, y, precision="fast" if use_fast_accum else "default", dtype=F32))

    def scaled(s: Expr, p: Expr, q: Expr, *added: Expr) -> Expr:
        product = call("mul", s, call("mul", p, q))
        return call("add", product, added[0]) if added else product

    return b.pointwise(scaled, total, *scales, *([bias] if bias is not None else []), work=F32, name="scaled_mm")


@lowers("aten._grouped_mm.default")
def grouped_mm(b: TorchBuilder, x: Value, w: Value, offs: Value | None = None, bias: Value | None = None, out_dtype: object = None) -> str:
    """Rows of x times the matrix of their group, which ends at its offset; a batch of products where nothing is sorted by group."""
    if bias is not None or b.result_dtype != b.dtype_of(x) or b.dtype_of(w) != b.dtype_of(x):
        raise decline("a grouped product with a bias or a result of another type")
    ranks = b.rank_of(x), b.rank_of(w)
    if ranks == (3, 3) and offs is None:
        return b.matmul(x, w)
    if ranks != (2, 3) or offs is None:
        raise decline(f"a grouped product of operands of {ranks[0]} and {ranks[1]} dimensions, whose columns or inner axis are grouped")
    return b.grouped_matmul(x, w, offs)


def _each(value: Sequence[int], count: int) -> list[int]:
    return list(value) * count if len(value) == 1 else list(value)


@lowers("aten.convolution.default")
def convolution(
    b: TorchBuilder,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> str:
    rank = b.rank_of(x) - 2
    inside = bias if b.feeds_library_only else None
    steps, gaps = _each(stride, rank), _each(dilation, rank)
    pads = [(p, p) for p in _each(padding, rank)]
    if transposed:
        convolved = b.convolution_transpose(x, weight, inside, steps, pads, gaps, groups, _each(output_padding, rank))
    else:
        convolved = b.convolution(x, weight, inside, steps, pads, gaps, groups)
    if bias is None or inside is not None:
        return convolved
    return b.pointwise(lambda p, q: call("add", p, q), Value(convolved), Value(_columns(b, bias, rank)), name="convolution")


def _columns(b: TorchBuilder, bias: str, rank: int) -> str:
    return b.reshape(bias, [1, -1, *(1 for _ in range(rank))])


@lowers("aten.convolution_backward.default")
def convolution_backward(
    b: TorchBuilder,
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[str | None, ...]:
    """Gradients of input and weight by the library; that of the bias is a sum that fuses with the producer of the gradient."""
    rank = b.rank_of(x) - 2
    attributes: dict[str, Attribute] = {
        "stride": tuple(_each(stride, rank)),
        "padding": tuple((p, p) for p in _each(padding, rank)),
        "dilation": tuple(_each(dilation, rank)),
        "groups": groups,
        "transposed": transposed,
        "output_padding": tuple(_each(output_padding, rank)),
        "mask": (bool(mask[0]), bool(mask[1]), False),
    }
    gradients: list[str | None] = []
    for n, like in enumerate((x, weight)):
        type_ = Type(b.dtype_of(like), b.shape_of(like))
        gradients.append(
            b.library(b.hint or "convolution_backward", "convolution_backward", type_, (grad, x, weight), attributes | {"result": n})
            if mask[n]
            else None
        )
    over = tuple(d for d in range(rank + 2) if d != 1)
    gradients.append(b.reduce(grad, "sum", over) if mask[2] else None)
    return tuple(gradients)
