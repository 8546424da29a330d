"""Pairs of neighbouring elements that the device computes together."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilefuse.ir.affine import number
from tilefuse.ir.dtype import BF16, F16, F32, I8, I32, U8, U32, DType
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import Assign, KExpr, Reg
from tilefuse.printers.rounded_pairs import rounded_pair

BYTE = Reg("q", U8, number(3))
WIDE, UNSIGNED = Call("i32", (BYTE,)), Call("u32", (BYTE,))
LOW, HIGH = Call("bit_and", (WIDE, const(15, I32))), Call("shift_right", (WIDE, const(4, I32)))
SCALE = Call("f32", (Reg("s", F16, number(0)),))


def text_of(first: KExpr, second: KExpr, dtype: DType = F16) -> str:
    """The printed pair of two values, rounded into neighbouring elements."""
    a, b = (Assign(Reg("h", dtype, number(4 + n)), Call(dtype.name, (e,))) for n, e in enumerate((first, second)))
    return rounded_pair(a, b, lambda e: e.name if isinstance(e, Reg) else "?", lambda e: str(e.const))


def less(e: KExpr, offset: float = 8.0) -> KExpr:
    """A value of f32 minus a constant."""
    return Call("sub", (Call("f32", (e,)), const(offset, F32)))


@pytest.mark.parametrize(("first", "second", "printed"), [
    (less(LOW), less(HIGH), "tf_widen_halves<8>(h + 4, q, 3);"),
    (Call("f32", (LOW,)), Call("f32", (HIGH,)), "tf_widen_halves<0>(h + 4, q, 3);"),
    (Call("f32", (Call("sub", (LOW, const(7, I32))),)), Call("f32", (Call("sub", (HIGH, const(7, I32))),)),
     "tf_widen_halves<7>(h + 4, q, 3);"),
    (Call("mul", (less(LOW), SCALE)), Call("mul", (less(HIGH), SCALE)), "tf_widen_halves<8>(h + 4, q, 3); tf_scale_pair(h + 4, s);"),
    (Call("f32", (Call("bit_and", (HIGH, const(15, I32))),)), Call("f32", (HIGH,)), "tf_round_pair("),
], ids=["offset", "no offset", "whole offset", "scale", "the same half twice"])
def test_halves_of_a_byte(first: KExpr, second: KExpr, printed: str) -> None:
    """Both halves of one element, low before high, minus the same number, times one scale of the type."""
    assert text_of(first, second).startswith(printed)


@pytest.mark.parametrize(("first", "second"), [
    (less(HIGH), less(LOW)), (less(LOW), less(HIGH, 7.0)), (less(LOW, 0.5), less(HIGH, 0.5)), (less(LOW, 200.0), less(HIGH, 200.0)),
    (less(LOW), less(Call("shift_right", (Call("i32", (replace(BYTE, index=number(2)),)), const(4, I32))))),
    (less(Call("bit_and", (Call("i32", (replace(BYTE, dtype=I8),)), const(15, I32)))), less(HIGH)),
    (less(Call("bit_and", (WIDE, const(7, I32)))), less(HIGH)),
    tuple(Call("f32", (Call("sub", (e, const(8, U32))),)) for e in (Call("bit_and", (UNSIGNED, const(15, U32))),
                                                                    Call("shift_right", (UNSIGNED, const(4, U32)))))],
    ids=["high first", "two offsets", "no whole number", "beyond bf16", "two bytes", "signed", "other bits", "wraps below zero"])
def test_other_values_are_rounded_one_by_one(first: KExpr, second: KExpr) -> None:
    """No pair of halves."""
    assert "tf_widen_halves" not in text_of(first, second)


@pytest.mark.parametrize("offset", range(16))
def test_halves_are_exact_by_their_bits(offset: int) -> None:
    """1024 + n in f16 and 128 + n in bf16, minus as much and the offset: every value of four bits, without rounding."""
    n = np.arange(16)
    halves = (np.uint16(0x6400) | n.astype(np.uint16)).view(np.float16) - np.full(16, 0x6400 + offset, np.uint16).view(np.float16)
    assert (halves == n - offset).all()
    wide = ((0x4300 | n) << 16).astype(np.uint32).view(np.float32) - np.full(16, (0x4300 + offset) << 16, np.uint32).view(np.float32)
    assert (wide == n - offset).all() and (wide.view(np.uint32) & 0xffff == 0).all()
    assert BF16.bits == 16
