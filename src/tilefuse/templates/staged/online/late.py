"""Functions that apply a condition of a row to the row's sums, when the walk is done.

    zero_where       0 where it holds: rows that a mask hides whole, in forms of softmax that say so
    infinite_where   infinite where it holds
"""
from __future__ import annotations

from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import KExpr

ZERO_WHERE, INFINITE_WHERE = "zero_where", "infinite_where"
CONDITIONAL = (ZERO_WHERE, INFINITE_WHERE)


def applied(fn: str, element: KExpr, factor: KExpr) -> KExpr:
    """An element with a late factor, or a late condition, of its row."""
    if fn not in CONDITIONAL:
        return Call(fn, (element, factor))
    return Call("select", (factor, const(float("inf") if fn == INFINITE_WHERE else 0.0, kernel_dtype(element)), element))
