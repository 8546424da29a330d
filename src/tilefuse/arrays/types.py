"""Data types of symbolic arrays: names, promotion, Python numbers, and the facts of `finfo` and `iinfo`.

Promotion follows the Python array API standard; where the standard leaves a mix open, the result is the one that loses least
surprise: an integer meets a float as the float, a bool meets a number as the number. A Python number takes the type of the array
that it meets (a float that meets integers gives the default float).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import TypeMismatchError, nearest
from tilefuse.ir.dtype import (
    BF16,
    BOOL,
    C64,
    C128,
    COMPLEX_OF,
    DTYPES,
    F8E4M3,
    F8E5M2,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    PART_OF,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from tilefuse.ir.scalar import NUMPY_DTYPES, Const, const

Number = bool | int | float
Scalar = bool | int | float | complex

# Names that the standard (and numpy) use, by which arrays print their type.
PUBLIC_NAMES: dict[str, DType] = {
    "bool": BOOL, "int8": I8, "int16": I16, "int32": I32, "int64": I64, "uint8": U8, "uint16": U16, "uint32": U32, "uint64": U64,
    "float16": F16, "bfloat16": BF16, "float32": F32, "float64": F64,
    "complex64": C64, "complex128": C128, "float8_e4m3fn": F8E4M3, "float8_e5m2": F8E5M2,
}
NAME_OF: dict[DType, str] = {dtype: name for name, dtype in PUBLIC_NAMES.items()}
DEFAULT_FLOAT, DEFAULT_INT, DEFAULT_COMPLEX = F32, I64, C64
_BY_NUMPY: dict[np.dtype[Any], DType] = {kind: DTYPES[name] for name, kind in NUMPY_DTYPES.items()}
_BY_NUMPY |= {np.dtype(np.complex64): C64, np.dtype(np.complex128): C128}

KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (BOOL,),
    "signed integer": (I8, I16, I32, I64),
    "unsigned integer": (U8, U16, U32, U64),
    "integral": (I8, I16, I32, I64, U8, U16, U32, U64),
    "real floating": (F8E4M3, F8E5M2, F16, BF16, F32, F64),
    "complex floating": (C64, C128),
    "numeric": (I8, I16, I32, I64, U8, U16, U32, U64, F8E4M3, F8E5M2, F16, BF16, F32, F64, C64, C128),
}


def known_types() -> str:
    """The hint for a type that arrays do not have."""
    return f"known: {', '.join(PUBLIC_NAMES)}"


def as_dtype(given: Any) -> DType:
    """The data type that `given` names: a type of ours, its name ("float32", "f32"), a numpy or torch type, or bool, int, float, complex.

    Raises: TypeMismatchError for anything else.
    """
    if isinstance(given, DType):
        return given
    by_python = {bool: BOOL, int: DEFAULT_INT, float: DEFAULT_FLOAT, complex: DEFAULT_COMPLEX}
    if isinstance(given, type) and given in by_python:
        return by_python[given]
    text = str(given).removeprefix("torch.")
    dtype = PUBLIC_NAMES.get(text) or DTYPES.get(text)
    if dtype is None and isinstance(given, (np.dtype, type)):
        try:
            dtype = _BY_NUMPY.get(np.dtype(given))
        except TypeError:
            dtype = None
    if dtype is None:
        raise TypeMismatchError(f"there is no data type {given!r}", where=user_span(),
                                hint=nearest(text, PUBLIC_NAMES) or known_types())
    return dtype


def promote(first: DType, second: DType) -> DType:
    """The type in which values of both types meet.

    Raises: TypeMismatchError for uint64 with a signed integer: no type holds both.
    """
    if first == second:
        return first
    if first.kind == "bool" or second.kind == "bool":
        return second if first.kind == "bool" else first
    if first.is_complex or second.is_complex:
        return _with_complex(first, second)
    if first.is_float or second.is_float:
        if not (first.is_float and second.is_float):
            return first if first.is_float else second
        if first.bits == second.bits:
            return F32
        return first if first.bits > second.bits else second
    if first.kind == second.kind:
        return first if first.bits > second.bits else second
    signed, unsigned = (first, second) if first.kind == "int" else (second, first)
    if signed.bits > unsigned.bits:
        return signed
    wider = {8: I16, 16: I32, 32: I64}.get(unsigned.bits)
    if wider is None:
        raise TypeMismatchError(f"no integer type holds both {NAME_OF[signed]} and uint64", where=user_span(),
                                hint="convert one of them with astype")
    return wider


def _with_complex(first: DType, second: DType) -> DType:
    """The complex type whose parts hold those of both; an integer is held by any."""
    parts = [PART_OF.get(t, t) for t in (first, second) if not t.is_integer]
    return COMPLEX_OF[F64 if F64 in parts else F32]


def promote_all(dtypes: Iterable[DType]) -> DType:
    """As `promote`, of one or more types."""
    listed = list(dtypes)
    if not listed:
        raise TypeMismatchError("result_type needs at least one array or data type", where=user_span())
    met = listed[0]
    for dtype in listed[1:]:
        met = promote(met, dtype)
    return met


def met_by_number(dtype: DType, number: Scalar) -> DType:
    """The type in which a Python number meets an array of `dtype`."""
    if dtype.is_complex:
        return dtype
    if isinstance(number, complex):
        return promote(dtype, DEFAULT_COMPLEX) if dtype.is_float else DEFAULT_COMPLEX
    if isinstance(number, bool) or dtype.is_float:
        return dtype
    if isinstance(number, float):
        return DEFAULT_FLOAT
    return DEFAULT_INT if dtype.kind == "bool" else dtype


def as_number(given: Any) -> Number | None:
    """A Python or numpy scalar as a Python number; None for anything but a real number."""
    if isinstance(given, (bool, int, float)):
        return given
    if isinstance(given, np.generic):
        if given.dtype.kind in "biuf" or given.dtype in _BY_NUMPY:
            value = given.item()
            return value if isinstance(value, (bool, int, float)) else float(value)
    return None


def as_scalar(given: Any) -> Scalar | None:
    """As `as_number`, or a complex number; None for anything but a number."""
    if isinstance(given, complex) or isinstance(given, np.generic) and given.dtype.kind == "c":
        return complex(given)
    return as_number(given)


def number_constant(number: Scalar, dtype: DType) -> Const:
    """The number as an element of `dtype`.

    Raises: TypeMismatchError for an integer outside the range of an integer type, and for a complex number of a real type.
    """
    if isinstance(number, complex) and not dtype.is_complex:
        raise TypeMismatchError(f"{NAME_OF[dtype]} does not hold the complex number {number}", where=user_span())
    if dtype.is_integer and not isinstance(number, (float, complex)):
        low, high = integer_range(dtype)
        if not low <= operator.index(number) <= high:
            raise TypeMismatchError(f"{number} is outside {NAME_OF[dtype]}, which holds {low} to {high}", where=user_span())
    return const(number, dtype)


def integer_range(dtype: DType) -> tuple[int, int]:
    """Least and greatest value of an integer type."""
    return (0, (1 << dtype.bits) - 1) if dtype.kind == "uint" else (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)


def is_kind(dtype: DType, kind: Any) -> bool:
    """Whether `dtype` is of a kind: a name of the standard, a data type, or a tuple of those.

    Raises: TypeMismatchError for an unknown kind.
    """
    if isinstance(kind, tuple):
        return any(is_kind(dtype, one) for one in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise TypeMismatchError(f"there is no kind of data types {kind!r}", where=user_span(),
                                    hint=nearest(kind, KINDS) or f"known: {', '.join(KINDS)}")
        return dtype in KINDS[kind]
    return dtype == as_dtype(kind)


def may_convert(source: DType, to: DType) -> bool:
    """Whether promotion may turn `source` into `to`, so that no value is lost but the low bits of an integer in a float."""
    if source == to or source.kind == "bool":
        return True
    if to.kind == "bool" or source.is_complex and not to.is_complex or source.is_float and not (to.is_float or to.is_complex):
        return False
    if source.kind == to.kind or not source.is_integer or to.is_integer:
        try:
            return promote(source, to) == to
        except TypeMismatchError:
            return False
    return True


@dataclass(frozen=True, slots=True)
class FloatFacts:
    """Result of `finfo`: figures of the parts of a complex type. `eps` is the distance from 1 to the next larger number."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IntegerFacts:
    """Result of `iinfo`."""

    bits: int
    max: int
    min: int
    dtype: DType


def float_facts(dtype: DType) -> FloatFacts:
    """Raises: TypeMismatchError where `dtype` is no float."""
    dtype = PART_OF.get(dtype, dtype)
    if not dtype.is_float:
        raise TypeMismatchError(f"finfo tells of floating-point types, not of {NAME_OF.get(dtype, dtype)}", where=user_span(),
                                hint="use iinfo")
    facts: Any = ml_dtypes.finfo
    limits = facts(NUMPY_DTYPES[dtype.name])
    return FloatFacts(dtype.bits, float(limits.eps), float(limits.max), float(limits.min), float(limits.smallest_normal), dtype)


def integer_facts(dtype: DType) -> IntegerFacts:
    """Raises: TypeMismatchError where `dtype` is no integer."""
    if not dtype.is_integer:
        raise TypeMismatchError(f"iinfo tells of integer types, not of {NAME_OF.get(dtype, dtype)}", where=user_span(), hint="use finfo")
    low, high = integer_range(dtype)
    return IntegerFacts(dtype.bits, high, low, dtype)
