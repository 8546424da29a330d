"""Pairs of assignments to neighbouring elements of 16 bits that the device computes together: roundings of f32, 8-bit integers made wider.

    h[4] = f16(a);  h[5] = f16(b);                              ->      tf_round_pair(h + 4, a, b);
    h[4] = bf16(f32(q[0]));  h[5] = bf16(f32(q[1]));            ->      tf_widen_pair(h + 4, q, 0);         q: i8
    h[4] = bf16(mul(f32(q[0]), f32(s)));  ..                    ->      the same; tf_scale_pair(h + 4, s);  s: bf16

Rounded one after the other, two elements take a register each until the compiler packs them, which is late where a product reads them.
"""
from __future__ import annotations

from collections.abc import Callable

from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import F32, I8, I64, DType
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Call
from tilefuse.kernel.ir import Assign, KExpr, Reg, Stmt
from tilefuse.kernel.writer import identifier

ROUNDED_PAIRS = ("f16", "bf16")


def rounded_pair(s: Stmt, following: Stmt, text: Callable[[KExpr], str], index: Callable[[Affine], str]) -> str:
    """Text of two statements that are such a pair; "" for others. text, index: print an expression, and a subscript."""
    match s, following:
        case (Assign(Reg(name, dtype, Affine() as place), Call(fn, (first,))),
              Assign(Reg(other, _, Affine() as behind), Call(also, (second,)))):
            if name != other or not _is_even(place) or behind != place + 1 or not fn == also == dtype.name or fn not in ROUNDED_PAIRS:
                return ""
            target = f"{identifier(name)} + {index(place)}"
            scaled = _scaled_pair(first, second, dtype)
            narrow = _narrow_pair(*scaled[:2]) if scaled else _narrow_pair(first, second)
            if narrow is not None:
                widened = f"tf_widen_pair({target}, {identifier(narrow.name)}, {index(narrow.index or Affine())});"
                return f"{widened} tf_scale_pair({target}, {text(scaled[2])});" if scaled else widened
            if all(dtype_of(e, lambda _: I64) == F32 for e in (first, second)):
                return f"tf_round_pair({target}, {text(first)}, {text(second)});"
    return ""


def _scaled_pair(first: KExpr, second: KExpr, dtype: DType) -> tuple[KExpr, KExpr, KExpr] | None:
    """Two values and the element of `dtype` that multiplies both; None for other expressions.

    Exact: an 8-bit integer is exact in 16 bits, and f32 holds its product with an element of 16 bits, so that both ways round once.
    """
    match first, second:
        case (Call("mul", (a, Call(F32.name, (Reg() as scale,)))), Call("mul", (b, Call(F32.name, (Reg() as again,))))):
            return (a, b, scale) if scale == again and scale.dtype == dtype else None
    return None


def _narrow_pair(first: KExpr, second: KExpr) -> Reg | None:
    """The register of the first of two neighbouring 8-bit integers that are made f32; None for other expressions."""
    match first, second:
        case (Call(F32.name, (Reg(name, dtype, Affine() as place) as register,)), Call(F32.name, (Reg(other, _, Affine() as behind),))):
            return register if dtype == I8 and name == other and _is_even(place) and behind == place + 1 else None
    return None


def _is_even(place: Affine) -> bool:
    """Whether a subscript is even wherever it is evaluated."""
    return place.const % 2 == 0 and all(c % 2 == 0 for _, c in place.terms)
