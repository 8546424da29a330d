"""Pairs of assignments that round f32 to neighbouring elements of 16 bits: the device has one instruction for both.

    h[4] = f16(a);  h[5] = f16(b);      ->      tf_round_pair(h + 4, a, b);

Rounded one after the other, two elements take a register each until the compiler packs them, which is late where a product reads them.
"""
from __future__ import annotations

from collections.abc import Callable

from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import F32, I64
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Call
from tilefuse.kernel.ir import Assign, KExpr, Reg, Stmt
from tilefuse.kernel.writer import identifier

ROUNDED_PAIRS = ("f16", "bf16")


def rounded_pair(s: Stmt, following: Stmt, text: Callable[[KExpr], str]) -> str:
    """Text of two statements that are such a pair; "" for others. text: prints an expression."""
    match s, following:
        case (Assign(Reg(name, dtype, Affine() as place), Call(fn, (first,))),
              Assign(Reg(other, _, Affine() as behind), Call(also, (second,)))):
            in_pairs = name == other and place.is_const and place.const % 2 == 0 and behind == place + 1
            rounds = fn == also == dtype.name in ROUNDED_PAIRS and all(dtype_of(e, lambda _: I64) == F32 for e in (first, second))
            return f"tf_round_pair({identifier(name)} + {place.const}, {text(first)}, {text(second)});" if in_pairs and rounds else ""
    return ""
