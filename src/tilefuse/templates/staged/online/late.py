"""Functions that apply a condition of a row to what is summed up, when the walk is done.

    zero_where       0 where it holds: rows that a mask hides whole, in forms of softmax that say so
    infinite_where   infinite where it holds
"""
from __future__ import annotations

from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import KExpr

ZERO_WHERE, INFINITE_WHERE = "zero_where", "infinite_where"
VALUE_BY_FUNCTION = {ZERO_WHERE: 0.0, INFINITE_WHERE: float("inf")}


def applied(fn: str, element: KExpr, factor: KExpr) -> KExpr:
    """An element with a late factor, or a late condition, of its row."""
    if fn not in VALUE_BY_FUNCTION:
        return Call(fn, (element, factor))
    return Call("select", (factor, const(VALUE_BY_FUNCTION[fn], kernel_dtype(element)), element))
