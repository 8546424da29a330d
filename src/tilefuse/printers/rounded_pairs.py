"""Pairs of assignments to neighbouring elements of 16 bits that the device computes together: roundings of f32, 8-bit integers made wider.

    h[4] = f16(a);  h[5] = f16(b);                              ->      tf_round_pair(h + 4, a, b);
    h[4] = bf16(f32(q[0]));  h[5] = bf16(f32(q[1]));            ->      tf_widen_pair(h + 4, q, 0);         q: i8
    h[4] = bf16(mul(f32(q[0]), f32(s)));  ..                    ->      the same; tf_scale_pair(h + 4, s);  s: bf16
    h[4] = f16(sub(f32(q[0] & 15), 8));  .. f32(q[0] >> 4) ..   ->      tf_widen_halves<8>(h + 4, q, 0);    q: u8

Rounded one after the other, two elements take a register each until the compiler packs them, which is late where a product reads them.
"""
from __future__ import annotations

from collections.abc import Callable

from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import F32, I8, I64, U8, DType
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Call, Const
from tilefuse.kernel.ir import Assign, KExpr, Reg, Stmt
from tilefuse.kernel.writer import identifier

ROUNDED_PAIRS = ("f16", "bf16")
# Bits of half an 8-bit integer, and types that hold these, and differences of two such numbers, exactly.
HALF_BITS = 4
WIDE_INTEGERS = ("i16", "i32", "i64")
EXACT_OF_HALVES = (*ROUNDED_PAIRS, "f32", *WIDE_INTEGERS)


def rounded_pair(s: Stmt, following: Stmt, text: Callable[[KExpr], str], index: Callable[[Affine], str]) -> str:
    """Text of two statements that are such a pair; "" for others. text, index: print an expression, and a subscript."""
    match s, following:
        case (Assign(Reg(name, dtype, Affine() as place), Call(fn, (first,))),
              Assign(Reg(other, _, Affine() as behind), Call(also, (second,)))):
            if name != other or not _is_even(place) or behind != place + 1 or not fn == also == dtype.name or fn not in ROUNDED_PAIRS:
                return ""
            target = f"{identifier(name)} + {index(place)}"
            scaled = _scaled_pair(first, second, dtype)
            values = scaled[:2] if scaled else (first, second)
            narrow, halves = _narrow_pair(*values), _halves(*values)
            if narrow is not None or halves is not None:
                if narrow is not None:
                    widened = f"tf_widen_pair({target}, {identifier(narrow.name)}, {index(narrow.index or Affine())});"
                elif halves is not None:
                    widened = f"tf_widen_halves<{halves[1]}>({target}, {identifier(halves[0].name)}, {index(halves[0].index or Affine())});"
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


def _halves(first: KExpr, second: KExpr) -> tuple[Reg, int] | None:
    """The register of an unsigned 8-bit integer whose low and high 4 bits two values are, and a whole number that is subtracted from both;
    None for other expressions.

    Exact: these are whole numbers of few bits in any type.
    """
    low, high = _half(first), _half(second)
    if low is None or high is None or low[::2] != high[::2] or (low[1], high[1]) != (0, HALF_BITS):
        return None
    return low[0], low[2]


def _half(e: KExpr) -> tuple[Reg, int, int] | None:
    """The register of which an expression has 4 bits, the place of the lowest, and the number that is subtracted."""
    match e:
        case Call("sub", (inner, Const() as offset)) if offset.dtype.name in EXACT_OF_HALVES and offset.value in range(1 << HALF_BITS):
            half = _half(inner)
            return (*half[:2], int(offset.value)) if half and not half[2] else None
        case Call("bit_and", (Call("shift_right", _) as inner, Const(value=15))):
            return _half(inner)
        case Call("bit_and", (inner, Const(value=15))):
            narrow = _integer(inner)
            return (narrow, 0, 0) if narrow is not None else None
        case Call("shift_right", (inner, Const(value=4))):
            narrow = _integer(inner)
            return (narrow, HALF_BITS, 0) if narrow is not None else None
        case Call(fn, (Call() as inner,)) if fn in EXACT_OF_HALVES:
            return _half(inner)
    return None


def _integer(e: KExpr) -> Reg | None:
    """The register of an unsigned 8-bit integer, made wider or not."""
    while isinstance(e, Call) and e.fn in WIDE_INTEGERS and len(e.args) == 1:
        e = e.args[0]
    return e if isinstance(e, Reg) and e.dtype == U8 else None


def _is_even(place: Affine) -> bool:
    """Whether a subscript is even wherever it is evaluated."""
    return place.const % 2 == 0 and all(c % 2 == 0 for _, c in place.terms)
