"""Reductions along the walked axis."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Expr


@dataclass(frozen=True)
class Total:
    """A reduction along the walked axis.

    monoid  "max" or "sum"
    body    its element over LEAD, ROW and WALK, in terms of scores, of boundary values, and of the maximum it is relative to
    top     that maximum ("": none)
    shift   what the element subtracts before exp, the maximum itself or an expression of it: what has been summed up is multiplied by
            exp(old - new) when it changes
    late    (function, row value): functions of the whole when it is done, in order; those of `late.py` take a condition
    """

    value: str
    monoid: str
    dtype: DType
    body: Expr
    top: str = ""
    shift: Expr | None = None
    late: tuple[tuple[str, Expr], ...] = ()
