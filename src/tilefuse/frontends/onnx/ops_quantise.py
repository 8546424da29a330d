"""ONNX quantisation: linear quantising and its inverse, integer products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from tilefuse.frontends.onnx.call import Call, onnx_op
from tilefuse.frontends.onnx.model import element_dtype
from tilefuse.frontends.onnx.ops_elementwise import largest_finite
from tilefuse.frontends.onnx.ops_neural import paddings
from tilefuse.frontends.onnx.ops_product import integer_product
from tilefuse.ir.dtype import F32, F64, I8, I32, U8, DType, compute_dtype
from tilefuse.ir.scalar import Expr, call, cast, const


def spread(n: Call, part: str, have: Sequence[int], at: int, block: int) -> str:
    """A scale or zero point in a shape that broadcasts to `have`: a single number, one for each index of the axis, or one for each block of
    it."""
    shape = n.b.shape_of(part)
    if len(shape) == 0 or shape == (1,):
        return n.b.reshape(part, ())
    if len(shape) == 1 and len(have) != 1 or (len(shape) == 1 and not block):
        return n.b.reshape(part, (-1, *(1,) * (len(have) - at - 1)))
    if not block:
        return part
    repeated = n.b.repeat_interleave(part, block, at)
    if n.b.shape_of(repeated)[at] == have[at]:
        return repeated
    return n.b.slice(repeated, [0], [have[at]], axes=[at])


def integer_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    if dtype.kind == "int":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def quantised(n: Call, x: str, scale: str, zero: str | None, to: DType, work: DType = F32) -> str:
    """saturate(round(x / scale) + zero) as `to`; 8-bit floats are rounded by the conversion itself."""
    parts = [x, scale] + ([zero] if zero is not None else [])
    parts = [n.b.cast(p, work) for p in parts]

    def body(e: Expr, s: Expr, *z: Expr) -> Expr:
        ratio = call("div", e, s)
        if to.is_float:
            ratio = call("add", ratio, z[0]) if z else ratio
            low, high = -largest_finite(to), largest_finite(to)
        else:
            ratio = call("round", ratio)
            ratio = call("add", ratio, z[0]) if z else ratio
            low, high = integer_range(to)
        clamped = call("minimum", call("maximum", ratio, const(low, work)), const(high, work))
        return clamped if to.is_float else cast(clamped, I32)

    return n.b.expression(body, *parts, dtype=to, name="quantised")


def dequantised(n: Call, x: str, scale: str, zero: str | None, to: DType) -> str:
    """(x - zero) * scale as `to`. Exact: the difference is taken in i32 (f32 for 8-bit floats)."""

    def body(e: Expr, s: Expr, *z: Expr) -> Expr:
        difference = call("sub", e, z[0]) if z else e
        work = n.b.expression_dtype(s)
        if n.b.expression_dtype(difference) != work:
            difference = cast(difference, work)
        return call("mul", difference, s)

    return n.b.expression(body, x, scale, *([zero] if zero is not None else []), dtype=to, name="dequantised")


@onnx_op("QuantizeLinear")
def quantize_linear(n: Call) -> str:
    have = n.shape(0)
    at = n.axis(n.attr("axis", 1), len(have)) if len(have) > 1 else 0
    block = n.attr("block_size", 0)
    to = n.dtype(2) if n.has(2) else element_dtype(n.attr("output_dtype"), n.place) if n.attr("output_dtype", 0) else U8
    scale = spread(n, n[1], have, at, block)
    zero = spread(n, n[2], have, at, block) if n.has(2) else None
    precision = element_dtype(n.attr("precision"), n.place) if n.attr("precision", 0) else n.dtype(0)
    work = compute_dtype(precision) if precision.is_float else F32
    x = n.b.cast(n[0], n.dtype(1)) if not n.dtype(0).is_float else n[0]
    return quantised(n, x, scale, zero, to, work)


@onnx_op("DequantizeLinear")
def dequantize_linear(n: Call) -> str:
    have = n.shape(0)
    at = n.axis(n.attr("axis", 1), len(have)) if len(have) > 1 else 0
    block = n.attr("block_size", 0)
    to = element_dtype(n.attr("output_dtype"), n.place) if n.attr("output_dtype", 0) else n.dtype(1)
    scale = spread(n, n[1], have, at, block)
    zero = spread(n, n[2], have, at, block) if n.has(2) else None
    return dequantised(n, n[0], scale, zero, to)


def centred(n: Call, i: int, zero: int, to: DType, per_row: bool = True) -> str:
    """Operand `i` minus its zero point (operand `zero`), as `to`. A vector of zero points has one for each row of the operand, or one for
    each column."""
    x = n.b.cast(n[i], to) if to == I32 else n.b.cast(n.b.cast(n[i], I32), to)
    if not n.has(zero):
        return x
    point = n.b.cast(n[zero], to) if to == I32 else n.b.cast(n.b.cast(n[zero], I32), to)
    shape = n.b.shape_of(point)
    if len(shape) == 1 and shape[0] != 1:
        point = n.b.expand_dims(point, 1) if per_row else point
    elif len(shape) == 1:
        point = n.b.reshape(point, ())
    return n.b.elementwise("sub", x, point)


def byte_product(n: Call, left: tuple[int, int], right: tuple[int, int]) -> str:
    """(a - its zero points) @ (b - its zero points) in i32, modulo 2^32. left, right: numbers of an operand and of its zero points.

    The library and kernels on the matrix unit multiply the stored bytes; zero points are corrections behind the sums:

        sum k: (a - z)(b - y)  =  sum k: a b  -  y (sum k: a)  -  z (sum k: b)  +  inner z y

    Exact: both sides are equal modulo 2^32. Operands that are vectors or wider than a byte are centred first, and summed by a kernel.
    """
    a, b = n[left[0]], n[right[0]]
    shapes = n.b.shape_of(a), n.b.shape_of(b)
    if any(n.b.dtype_of(v) not in (I8, U8) for v in (a, b)) or any(len(s) < 2 for s in shapes) or shapes[0][-1] != shapes[1][-2]:
        return integer_product(n, centred(n, *left, I32), centred(n, *right, I32, per_row=False), I32)
    total, inner = n.b.matmul(a, b, dtype=I32), shapes[0][-1]
    z = _zero_points(n, left[1], per_row=True)
    y = _zero_points(n, right[1], per_row=False)
    if y is not None:
        total = n.b.elementwise("sub", total, n.b.elementwise("mul", n.b.reduce(n.b.cast(a, I32), "sum", (-1,), keepdims=True), y))
    if z is None:
        return total
    columns = n.b.reduce(n.b.cast(b, I32), "sum", (-2,), keepdims=True)
    if y is not None:
        columns = n.b.elementwise("sub", columns, n.b.elementwise("mul", y, inner))
    return n.b.elementwise("sub", total, n.b.elementwise("mul", columns, z))


def _zero_points(n: Call, i: int, per_row: bool) -> str | None:
    """Zero points in i32, in a shape that broadcasts to the product; None where there are none. A vector has one for each row of the left
    operand, or one for each column of the right one."""
    if not n.has(i):
        return None
    point = n.b.cast(n[i], I32)
    shape = n.b.shape_of(point)
    if len(shape) == 1 and shape[0] != 1:
        return n.b.expand_dims(point, 1) if per_row else point
    return n.b.reshape(point, ()) if len(shape) == 1 else point


@onnx_op("MatMulInteger")
def matmul_integer(n: Call) -> str:
    return byte_product(n, (0, 2), (1, 3))


@onnx_op("QLinearMatMul")
def qlinear_matmul(n: Call) -> str:
    """Operands a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero. Products and sums are exact in i32, scaling is f32."""
    total = byte_product(n, (0, 2), (3, 5))
    a_scale = n[1] if len(n.shape(1)) != 1 or n.shape(1)[0] == 1 else n.b.expand_dims(n[1], 1)
    scale = n.b.elementwise("mul", n.b.cast(a_scale, F32), n.b.cast(n[4], F32))
    real = n.b.elementwise("mul", n.b.cast(total, F32), scale)
    return quantised(n, real, n.b.cast(n[6], F32), n[7] if n.has(7) else None, n.dtype(7))


def integer_convolution(n: Call, x: str, w: str, x_shape: Sequence[int], w_shape: Sequence[int]) -> str:
    """Convolution of whole numbers held in f64, where products and sums of 8-bit numbers are exact."""
    dims = len(x_shape) - 2
    strides, dilations = n.attr("strides", [1] * dims), n.attr("dilations", [1] * dims)
    padded = n.b.pad(x, [(0, 0), (0, 0), *paddings(n, x_shape[2:], w_shape[2:], strides, dilations)])
    return n.b.convolution(padded, w, None, strides, [(0, 0)] * dims, dilations, n.attr("group", 1))


@onnx_op("ConvInteger")
def conv_integer(n: Call) -> str:
    x, w = centred(n, 0, 2, F64), _centred_filter(n, 1, 3)
    return n.b.cast(integer_convolution(n, x, w, n.shape(0), n.shape(1)), I32)


def _centred_filter(n: Call, i: int, zero: int) -> str:
    """The weight minus its zero point: a single one, or one for each output channel."""
    w = n.b.cast(n.b.cast(n[i], I32), F64)
    if not n.has(zero):
        return w
    point = n.b.cast(n.b.cast(n[zero], I32), F64)
    return n.b.elementwise("sub", w, n.b.reshape(point, (-1, *(1,) * (len(n.shape(i)) - 1))))


@onnx_op("QLinearConv")
def qlinear_conv(n: Call) -> str:
    """Operands x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias (i32, in units of x_scale * w_scale)."""
    total = integer_convolution(n, centred(n, 0, 2, F64), _centred_filter(n, 3, 5), n.shape(0), n.shape(3))
    around = (-1, *(1,) * (len(n.shape(0)) - 2))
    if n.has(8):
        total = n.b.elementwise("add", total, n.b.reshape(n.b.cast(n[8], F64), around))
    w_scale = n.b.reshape(n[4], around) if len(n.shape(4)) else n[4]
    scale = n.b.elementwise("mul", n.b.reshape(n[1], ()), w_scale)
    real = n.b.elementwise("mul", n.b.cast(total, F32), scale)
    return quantised(n, real, n.b.reshape(n[6], ()), n.b.reshape(n[7], ()) if n.has(7) else None, n.dtype(7))
