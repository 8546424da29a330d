"""Data-dependent subscripts of kernels: their type, and their clamping to an extent."""
from __future__ import annotations

from tilefuse.ir.dtype import I64, DType
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import KExpr


def kernel_dtype(e: KExpr) -> DType:
    """Data type of a kernel expression, from the types of its leaves."""
    return dtype_of(e, lambda _: I64)


def clamped(subscript: KExpr, extent: int) -> KExpr:
    """A data-dependent subscript clamped to 0 .. extent - 1, as i64."""
    whole: KExpr = subscript if kernel_dtype(subscript) == I64 else Call("i64", (subscript,))
    return Call("minimum", (Call("maximum", (whole, const(0, I64))), const(max(extent - 1, 0), I64)))
