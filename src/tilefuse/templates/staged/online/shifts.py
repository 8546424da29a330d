"""Shifts that are a maximum wherever it is finite, as logarithms of sums have them: sums relative to the maximum itself, with other ends.

    sum exp(x - (m if finite else 0))    ->    sum exp(x - m);   at the end 0 where m is -inf, infinite where m is infinite

The logarithm of a sum then shares its maximum and its powers with a softmax of the same row.
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.ir.scalar import Call, Const, Expr, Read, const
from tilefuse.templates.staged.online.late import INFINITE_WHERE, ZERO_WHERE
from tilefuse.templates.staged.online.total import Total


def relative_to_top(t: Total) -> Total:
    """A sum of powers relative to its finite maximum as one relative to the maximum; other totals as they are."""
    match t.body, t.shift:
        case Call("exp", (Call("sub", (x, shift)),)), Call("select", (Call("isfinite", (Read() as top,)), same, Const() as zero)) \
                if t.monoid == "sum" and shift == t.shift and same == top and zero.value == 0 and top.value == t.top:
            infinity = const(float("inf"), t.dtype)
            ends: tuple[tuple[str, Expr], ...] = ((ZERO_WHERE, Call("eq", (top, const(-float("inf"), t.dtype)))),
                                                  (INFINITE_WHERE, Call("eq", (top, infinity))))
            return replace(t, body=Call("exp", (Call("sub", (x, top)),)), shift=top, late=(*ends, *t.late))
    return t


def same_total(totals: dict[str, Total], t: Total) -> str:
    """The name of an earlier total that is equal; "" for none."""
    return next((name for name, other in totals.items() if replace(t, value=name) == other), "")
