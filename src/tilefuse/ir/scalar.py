"""Scalar expressions: the body of a node. Immutable trees of constants, reads, index values, calls and guards.

The functions, their types and their texts are in `ops.py`; this file only defines the tree and visits of it.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Union

import ml_dtypes
import numpy as np

from tilefuse.base.construction import quickly_built
from tilefuse.ir.affine import Affine, Extents, substitute
from tilefuse.ir.dtype import DTYPES, PART_OF, DType

NUMPY_DTYPES: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16), "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "i64": np.dtype(np.int64), "i32": np.dtype(np.int32), "i16": np.dtype(np.int16), "i8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64), "u32": np.dtype(np.uint32), "u16": np.dtype(np.uint16), "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
LARGEST_F32 = float(np.finfo(np.float32).max)

# Expression type of one level: of the graph (`Expr`), of a pattern (`domain.resolved.Resolved`), of a kernel (`kernel.ir.KExpr`).
Operand = TypeVar("Operand", covariant=True)


@dataclass(frozen=True, slots=True)
class Const:
    """A constant, stored as its shortest exact text so that NaN equals NaN and -0.0 differs from 0.0."""

    text: str
    dtype: DType

    @property
    def value(self) -> int | float | bool:
        """The number; a complex one where the type is complex, which no constant of a graph has."""
        if self.dtype.kind == "bool":
            return self.text == "true"
        if self.dtype.is_complex:
            real, imaginary = self.text.split(",")
            return complex(float(real), float(imaginary))  # type: ignore[return-value]
        return float(self.text) if self.dtype.is_float else int(self.text)


@quickly_built
@dataclass(frozen=True, slots=True)
class Read:
    """An element of a named value at affine subscripts, one a dimension."""

    value: str
    index: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """An element of a named value at data-dependent subscripts (integer expressions). Legal only in gather nodes.

    A subscript outside its extent is clamped into it, so that no memory outside the value is ever touched; frontends
    add the wrap of negative subscripts where their framework has it.
    """

    value: str
    subscripts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """The value of an index expression, as i64."""

    affine: Affine


@quickly_built
@dataclass(frozen=True, slots=True)
class Call(Generic[Operand]):
    """A scalar function of `ops.SCALAR_OPS`, or a conversion: then `fn` is the name of the target dtype."""

    fn: str
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """The predicate low <= index < high."""

    index: Affine
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Guard(Generic[Operand]):
    """`then` where all bounds hold, else `otherwise`. Only the chosen branch is evaluated: the other's reads may be out of range."""

    bounds: tuple[Bound, ...]
    then: Operand
    otherwise: Operand


GraphLeaf = Union[Read, Lookup]
Expr = Union[Const, Read, Lookup, Index, "Call[Expr]", "Guard[Expr]"]
LEAVES = (Const, Read, Index)


def const(value: complex | np.generic, dtype: DType) -> Const:
    """The constant `value` rounded to `dtype`. Exact: the text is the shortest that gives back the rounded value.

    Requires: a complex value has a complex type.
    """
    if dtype.is_complex:
        whole = complex(value)
        return Const(",".join(const(part, PART_OF[dtype]).text for part in (whole.real, whole.imag)), dtype)
    number: Any = value
    if dtype.kind == "bool":
        return Const("true" if value else "false", dtype)
    if dtype.is_integer:
        wrapped = int(number) % (1 << dtype.bits)
        if dtype.kind == "int" and wrapped >= 1 << (dtype.bits - 1):
            wrapped -= 1 << dtype.bits
        return Const(str(wrapped), dtype)
    try:
        wide = float(number)
    except OverflowError:  # an integer beyond the range of f64
        wide = float("inf") if int(number) > 0 else float("-inf")
    if dtype.name == "f64":
        rounded: Any = wide
    elif dtype.name == "f32" and abs(wide) < LARGEST_F32:
        rounded = np.float32(wide)
    else:
        with np.errstate(all="ignore"):  # overflow to infinity is meant; the context is slow, hence the cases before
            rounded = NUMPY_DTYPES[dtype.name].type(saturated(np.float64(wide), dtype))
    number = float(rounded)
    if number != number:
        return Const("nan", dtype)
    if number in (float("inf"), float("-inf")):
        return Const("inf" if number > 0 else "-inf", dtype)
    text = repr(float(rounded)) if dtype.name == "f64" or dtype.bits < 32 else str(np.float32(rounded))
    return Const(repr(float(text)), dtype)


def saturated(x: Any, dtype: DType) -> Any:
    """`x` limited to 448 where `dtype` is f8e4m3, which has no infinity: devices and torch convert in this way. NaN stays."""
    return np.clip(x, -448, 448) if dtype.name == "f8e4m3" else x


def cast(x: Expr, to: DType) -> Expr:
    """`x` converted to `to` (always written out; `simplify` drops conversions that change nothing)."""
    return Call(to.name, (x,))


def call(fn: str, *args: Expr) -> Call[Expr]:
    """The application of a scalar function."""
    return Call(fn, args)


def in_range(index: Expr, extent: int, index_dtype: DType) -> Expr:
    """`index` (of `index_dtype`, i64) as a subscript that must be one of 0 .. extent - 1: the executors raise for any other."""
    return Call("in_range", (index, const(extent, index_dtype)))


def checked_extent(e: object) -> int | None:
    """The extent that a subscript is checked against, None for one without a check."""
    if isinstance(e, Call) and e.fn == "in_range" and isinstance(e.args[1], Const):
        return int(e.args[1].value)
    return None


def is_cast(e: Expr) -> bool:
    """Whether `e` is a conversion."""
    return isinstance(e, Call) and e.fn in DTYPES


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions of `e`."""
    match e:
        case Const() | Read() | Index():
            return ()
        case Lookup(_, subscripts):
            return subscripts
        case Call(_, args):
            return args
        case Guard(_, then, otherwise):
            return (then, otherwise)
    raise TypeError(f"not a scalar expression: {e!r}")


def walk(e: Expr) -> Iterator[Expr]:
    """`e` and all its subexpressions, parents first."""
    stack = [e]
    while stack:
        top = stack.pop()
        yield top
        if isinstance(top, Call):
            stack.extend(top.args[::-1])
        elif not isinstance(top, LEAVES):
            stack.extend(children(top)[::-1])


def reads(e: Expr) -> list[str]:
    """Names of the values read (directly or by lookup), each once, in order of occurrence."""
    return list(dict.fromkeys(x.value for x in walk(e) if isinstance(x, (Read, Lookup))))


def index_maps(e: Expr) -> tuple[Affine, ...]:
    """Subscripts of a read, or the affine of an index; none of other expressions, whose parts may have some."""
    return e.index if isinstance(e, Read) else (e.affine,) if isinstance(e, Index) else ()


def indexed_axes(e: Expr) -> frozenset[str]:
    """Axes that the reads and indices in an expression depend on, conditions of guards left out."""
    return frozenset[str]().union(*(i.axes() for x in walk(e) for i in index_maps(x)))


def axes_in(e: Expr) -> frozenset[str]:
    """Axes that an expression depends on, by reads, indices and conditions of guards."""
    return indexed_axes(e).union(*(b.index.axes() for x in walk(e) if isinstance(x, Guard) for b in x.bounds))


def choice_of_range(ranges: Sequence[tuple[int, int, Expr]], along: Affine) -> Expr:
    """The expression of the range (low, high, expression) in which an index lies, as a balanced tree of guards.

    Requires: ranges are adjacent and hold every value of the index.
    """
    if len(ranges) == 1:
        return ranges[0][2]
    half = len(ranges) // 2
    bound = Bound(along, ranges[0][0], ranges[half][0])
    return Guard((bound,), choice_of_range(ranges[:half], along), choice_of_range(ranges[half:], along))


def rebuild(e: Expr, new: tuple[Expr, ...]) -> Expr:
    """`e` with its direct subexpressions replaced; `e` itself if they are the same objects."""
    old = children(e)
    if all(a is b for a, b in zip(old, new, strict=True)):
        return e
    match e:
        case Lookup(value, _):
            return Lookup(value, new)
        case Call(fn, _):
            return Call(fn, new)
        case Guard(bounds, _, _):
            return Guard(bounds, new[0], new[1])
    raise TypeError(f"has no subexpressions: {e!r}")


def transform(e: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """`e` rewritten bottom-up by `fn`; `e` itself if nothing changed."""
    if isinstance(e, LEAVES):
        return fn(e)
    if isinstance(e, Call):  # most nodes are calls, and every pass comes through here
        new = [transform(x, fn) for x in e.args]
        for old, x in zip(e.args, new):
            if x is not old:
                return fn(Call(e.fn, tuple(new)))
        return fn(e)
    return fn(rebuild(e, tuple([transform(x, fn) for x in children(e)])))


def rename_reads(e: Expr, names: Mapping[str, str]) -> Expr:
    """`e` with every read or lookup of a key of `names` turned into one of its value; `e` itself if none occurs."""

    def one(x: Expr) -> Expr:
        match x:
            case Read(value, index) if value in names:
                return Read(names[value], index)
            case Lookup(value, subscripts) if value in names:
                return Lookup(names[value], subscripts)
        return x

    return transform(e, one)


def substitute_axes(e: Expr, by_axis: Mapping[str, Affine], extents: Extents | None = None) -> Expr:
    """`e` with axes replaced in every subscript, bound and index value. `extents` are those of the new axes."""

    def sub(a: Affine) -> Affine:
        return substitute(a, by_axis, extents)

    def one(x: Expr) -> Expr:
        match x:
            case Read(value, index):
                return Read(value, tuple(sub(a) for a in index))
            case Index(affine):
                return Index(sub(affine))
            case Guard(bounds, then, otherwise):
                return Guard(tuple(Bound(sub(b.index), b.low, b.high) for b in bounds), then, otherwise)
        return x

    return transform(e, one)
