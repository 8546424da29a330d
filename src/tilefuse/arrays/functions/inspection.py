"""Facts that `tilefuse.array` gives about its data types, devices and abilities."""

from __future__ import annotations

from typing import Any

from tilefuse.arrays.array import Array, installed
from tilefuse.arrays.types import (
    DEFAULT_COMPLEX,
    DEFAULT_FLOAT,
    DEFAULT_INT,
    PUBLIC_NAMES,
    FloatFacts,
    IntegerFacts,
    as_dtype,
    as_scalar,
    float_facts,
    integer_facts,
    is_kind,
    may_convert,
    met_by_number,
    promote_all,
)
from tilefuse.ir.dtype import DType


def _dtype_of(subject: Any) -> DType:
    return subject.dtype if isinstance(subject, Array) else as_dtype(subject)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion may turn the type `from_` (or an array's) into the type `to`."""
    return may_convert(_dtype_of(from_), as_dtype(to))


def finfo(type: Any, /) -> FloatFacts:
    """Limits of a floating-point type (or of an array's)."""
    return float_facts(_dtype_of(type))


def iinfo(type: Any, /) -> IntegerFacts:
    """Limits of an integer type (or of an array's)."""
    return integer_facts(_dtype_of(type))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a type is of a kind: "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating",
    "numeric", a type.

    A tuple of kinds: whether it is of any.
    """
    return is_kind(as_dtype(dtype), kind)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The type in which arrays, data types and Python numbers meet."""
    numbers = [n for n in (as_scalar(a) for a in arrays_and_dtypes) if n is not None]
    met = promote_all(_dtype_of(a) for a in arrays_and_dtypes if as_scalar(a) is None)
    for number in numbers:
        met = met_by_number(met, number)
    return met


def _known(device: Any) -> None:
    if device is not None:
        installed().device_named(device)


class NamespaceFacts:
    """Result of `__array_namespace_info__()`."""

    def capabilities(self) -> dict[str, Any]:
        """Masks as subscripts and shapes that depend on data are there where values are: not while a function is traced."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """Where arrays are made when nothing is said."""
        return installed().default_device()

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Types of numbers, positions and results where nothing is said. Raises: UserError."""
        _known(device)
        return {"real floating": DEFAULT_FLOAT, "complex floating": DEFAULT_COMPLEX, "integral": DEFAULT_INT, "indexing": DEFAULT_INT}

    def devices(self) -> list[str]:
        """The host and every GPU."""
        return installed().devices()

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The types of the standard that arrays may have, by name. (Narrow floats exist besides.) Raises: UserError."""
        _known(device)
        standard = {n: d for n, d in PUBLIC_NAMES.items() if not d.is_float or d.bits >= 32}
        return standard if kind is None else {n: d for n, d in standard.items() if is_kind(d, kind)}


def __array_namespace_info__() -> NamespaceFacts:
    """Facts of the namespace, as the array API standard asks for them."""
    return NamespaceFacts()


