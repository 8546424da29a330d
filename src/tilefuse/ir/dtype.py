"""Data types of tensors and scalars: one frozen record each, compared by name.

A complex type is that of a value while a graph is written (`ir/building/tensor_complex.py`). In the graph such a value is its pairs of
reals in a last dimension of two.

16-bit and 8-bit floats and 8/16-bit integers are storage types: arithmetic happens in f32, f64, i32, i64, u32, u64
or bool, after an explicit conversion, so that precision is visible in the graph.
"""
from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, repr=False)
class DType:
    """One data type. Units: `bits` in bits, `itemsize` bytes of one element in memory. `kind` is "float", "int", "uint", "bool" or
    "complex"."""

    name: str
    bits: int
    kind: str
    # Stored: prices of a plan ask it a hundred thousand times.
    itemsize: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "itemsize", max(self.bits // 8, 1))

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether it is a signed or unsigned integer type."""
        return self.kind in ("int", "uint")

    @property
    def is_complex(self) -> bool:
        """Whether it is a complex type."""
        return self.kind == "complex"

    @property
    def is_arithmetic(self) -> bool:
        """Whether scalar functions compute in this type; others are storage types."""
        return self.name in ("f32", "f64", "i32", "i64", "u32", "u64", "bool", "c64", "c128")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


F64 = DType("f64", 64, "float")
F32 = DType("f32", 32, "float")
F16 = DType("f16", 16, "float")
BF16 = DType("bf16", 16, "float")
F8E4M3 = DType("f8e4m3", 8, "float")
F8E5M2 = DType("f8e5m2", 8, "float")
I64 = DType("i64", 64, "int")
I32 = DType("i32", 32, "int")
I16 = DType("i16", 16, "int")
I8 = DType("i8", 8, "int")
U64 = DType("u64", 64, "uint")
U32 = DType("u32", 32, "uint")
U16 = DType("u16", 16, "uint")
U8 = DType("u8", 8, "uint")
BOOL = DType("bool", 8, "bool")

DTYPES: dict[str, DType] = {
    t.name: t for t in (F64, F32, F16, BF16, F8E4M3, F8E5M2, I64, I32, I16, I8, U64, U32, U16, U8, BOOL)
}

# Whole numbers that f32 holds exactly lie below this one.
EXACT_F32 = 1 << 24

# Not in `DTYPES`: no value of a graph has them.
C64 = DType("c64", 64, "complex")
C128 = DType("c128", 128, "complex")
PART_OF: dict[DType, DType] = {C64: F32, C128: F64}
COMPLEX_OF: dict[DType, DType] = {part: whole for whole, part in PART_OF.items()}


def compute_dtype(dtype: DType) -> DType:
    """The type in which arithmetic on values stored as `dtype` is done: f32 for narrow floats, i32 / u32 for narrow integers."""
    if dtype.is_arithmetic:
        return dtype
    if dtype.is_float:
        return F32
    return I32
