"""Sums of a tile that threads add in f32, and the accumulators of the tensor cores beside them."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import Assign, Declare, KExpr, Reg, Stmt
from tilefuse.templates.staged.pipelined.state import ProductState


def partial_sums(w: ProductState) -> tuple[Reg, ...]:
    """Accumulators for the products of one slot, an array for each product; sets the sums of the tile to zero."""
    parts = tuple(Reg(w.fresh(f"{p.node.name}_part"), total.dtype) for p, total in zip(w.form.products, w.totals, strict=True))
    w.emit(*(Declare(part.name, part.dtype, w.plan.sums) for part in parts))
    w.emit(*for_each_sum(w, lambda total: const(0, total.dtype)))
    if w.form.splits_operands:
        # The first addition comes before the first products.
        for part in parts:
            with w.loop("sum", w.plan.sums, unroll=w.unroll) as n:
                w.emit(Assign(replace(part, index=n), const(0, part.dtype)))
    return parts


def low_sums(w: ProductState) -> tuple[Reg, ...]:
    """Accumulators for the products with low parts, an array for each product; the first slot's products set them."""
    lows = tuple(Reg(w.fresh(f"{p.node.name}_low"), F32) for p in w.form.products)
    w.emit(*(Declare(low.name, low.dtype, w.plan.sums) for low in lows))
    return lows


def added(w: ProductState, parts: tuple[Reg, ...]) -> tuple[Stmt, ...]:
    """Adds the products of one slot to the sums of the tile. Exact: to one rounding in f32."""
    return for_each_sum(w, lambda total, part: Call("add", (total, part)), parts)


def for_each_sum(w: ProductState, value: Callable[..., KExpr], *arrays: tuple[Reg, ...]) -> tuple[Stmt, ...]:
    """Every sum of the tile from its value and those at its place of other arrays."""
    with w.nested() as inside, w.loop("sum", w.plan.sums, unroll=w.unroll) as n:
        for at_place in zip(w.totals, *arrays, strict=True):
            own, *others = (replace(r, index=n) for r in at_place)
            w.emit(Assign(own, value(own, *others)))
    return tuple(inside.statements)
