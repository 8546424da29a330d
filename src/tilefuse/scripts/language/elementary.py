"""Elementary functions and scripts over them: records that the frontend of scripts reads, and that planning and scheduling share.

An elementary function is a map, a reduction or a nesting of both, written as routines in C (`load`, `compute`, `store`) with facts about
them. One instance of a function processes one element of each parameter: a sub-vector or a tile of a matrix. Its routines are calls for
one thread each and never synchronise: where threads exchange words, the generated code does it, from the thread-to-data mappings. The
same routine text is compiled for the device and for the host. Source: Filipovic, Madzin, Fousek, Matyska, "Optimizing CUDA Code by Kernel
Fusion: Application on BLAS", sections 3.2 and 4.3.
"""
from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping as Table
from dataclasses import dataclass, field
from enum import Enum
from math import prod

from tilefuse.base.source import Span
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import DType
from tilefuse.ir.ops import C_TYPES


class HigherOrder(Enum):
    """The higher-order function that an elementary function implements. Nested ones run on a grid of two dimensions."""

    MAP = "map"
    REDUCE = "reduce"
    NESTED_MAP = "nested map"
    NESTED_REDUCE = "nested reduce"

    @property
    def nested(self) -> bool:
        """Whether instances form a grid of two dimensions."""
        return self in (HigherOrder.NESTED_MAP, HigherOrder.NESTED_REDUCE)

    @property
    def reduces(self) -> bool:
        """Whether outputs of several instances are combined."""
        return self in (HigherOrder.REDUCE, HigherOrder.NESTED_REDUCE)


@dataclass(frozen=True)
class Parameter:
    """An argument or result of a function: a scalar (no extents), a vector (one) or a matrix (two). `extents` are names of sizes.

    dtype  element type, if it differs from the function's (the index that iamax returns); None: the function's
    """

    name: str
    extents: tuple[str, ...]
    dtype: DType | None = None

    @property
    def kind(self) -> str:
        """scalar, vector or matrix."""
        return ("scalar", "vector", "matrix")[len(self.extents)]


@dataclass(frozen=True)
class ThreadMapping:
    """The words of an element that a thread holds in registers: slot (s0, s1, ...) of thread (tx, ty) is the word at `at`.

    slots  extents of the thread's register array, last one fastest
    at     one coordinate for each dimension of the element, affine in tx, ty, s0, s1, ...
    Two functions exchange an element in registers if and only if slots and coordinates are equal. A word that several threads hold is a
    copy if the parameter is read, and a partial value if it is the output of a reduction. A scalar that a reduction computes has no
    coordinates: every thread holds a partial value of the one word.
    """

    slots: tuple[int, ...]
    at: tuple[Affine, ...]

    @property
    def words(self) -> int:
        """Words that one thread holds."""
        return prod(self.slots)


@dataclass(frozen=True)
class SharedPlace:
    """An element in shared memory, row-major, rows `pad` words longer so that columns are read without bank conflicts."""

    pad: int = 0


Place = ThreadMapping | SharedPlace


@dataclass(frozen=True)
class Geometry:
    """Threads of one instance and the size of its elements, all numbers known.

    threads   (x, y): threads that an instance needs; thread = tx + x * ty
    extents   words of an element along each size name of the function
    macros    names the routine text may use, with their values (BX, BY and those of the implementation)
    """

    threads: tuple[int, int]
    extents: Table[str, int]
    macros: Table[str, int]


@dataclass(frozen=True)
class Implementation:
    """One way to compute a function, for one geometry: its routines, and the places of their elements.

    places    parameter name -> place; scalars have none
    routines  routine name ("load A", "compute", "store y", "combine", "finish") -> name of the C function
    source    the C text that defines these functions, macros not yet replaced; `file` holds it
    """

    name: str
    geometry: Geometry
    places: Table[str, Place]
    routines: Table[str, str]
    source: str
    file: str = ""


@dataclass(frozen=True)
class ElementaryFunction:
    """A function of the library, for one floating-point type.

    name          its own name in the library (sgemv)
    called        name by which scripts call it, if it differs from `name`: functions of one call name differ in the number of their
                  inputs (sgemv(A, x) and sgemv(alpha, A, x, beta, y)); "" for the name itself
    over          reductions: the size names that are reduced away; empty for maps
    operator      reductions: "+", "max", "min", or "combine" if a routine combines partial values of type `state`
    neutral       C text of the neutral element: REAL, or an initialiser in braces of type `state`
    padding       parameter -> C text of the value of words outside the data (0 where not named)
    meaning       output name -> tensor expression text (docs/blas.md); empty if the routines alone define the function
    implementations  one for each geometry that the metadata lists, the preferred one first
    transposed    name of the function that computes the same for operands stored column-major; "" if there is none
    turned        order of this function's inputs, by number, as the transposed function takes them; () for the same order
    positions     `compute` also takes the first word of its element: one INDEX for each size name, in order of first occurrence, before tx
    state         reductions with a `combine` routine: name of the struct type of partial values, defined in the source; else ""
    finishes      reductions with a `finish` routine: it computes the output from the combined partial value
    triangle      nested reductions: "lower" or "upper" if the result does not depend on words on the other side of the diagonal. Tiles
                  wholly there are skipped; its two sizes are equal. "" for whole matrices
    """

    name: str
    kind: HigherOrder
    dtype: DType
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    over: tuple[str, ...] = ()
    operator: str = ""
    neutral: str = "0"
    padding: Table[str, str] = field(default_factory=dict)
    meaning: Table[str, str] = field(default_factory=dict)
    implementations: tuple[Implementation, ...] = ()
    transposed: str = ""
    turned: tuple[int, ...] = ()
    positions: bool = False
    state: str = ""
    finishes: bool = False
    called: str = ""
    brief: str = ""
    origin: str = ""
    triangle: str = ""

    @functools.cached_property
    def sizes(self) -> tuple[str, ...]:
        """Names of sizes, in order of first occurrence."""
        return tuple(dict.fromkeys(e for p in (*self.inputs, *self.outputs) for e in p.extents))

    @functools.cached_property
    def timed_name(self) -> str:
        """The name with a digest of all that decides the function's time: another text of a routine has other times."""
        routines = [(i.name, i.geometry, sorted(i.places.items()), sorted(i.routines.items()), i.source) for i in self.implementations]
        text = repr((self.kind, self.dtype, self.inputs, self.outputs, self.over, self.operator, self.neutral, sorted(self.padding.items()),
                     sorted(self.meaning.items()), self.positions, self.state, self.finishes, self.triangle, routines))
        return f"{self.name}@{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def parameter(self, name: str) -> Parameter:
        """The input or output of that name."""
        return next(p for p in (*self.inputs, *self.outputs) if p.name == name)


@dataclass(frozen=True)
class ComposedFunction:
    """A function that consists of calls of others: these replace a script's call of it.

    calls  text of statements in the language of scripts; names that are neither inputs nor outputs are local
    """

    name: str
    dtype: DType
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    calls: str
    called: str = ""
    brief: str = ""
    origin: str = ""


def routine_macros(function: ElementaryFunction, implementation: Implementation) -> dict[str, str]:
    """Names that the routine text may use, with their replacements. The caller adds INDEX and CONTIGUOUS_<parameter>.

    REAL, VEC (words in 16 bytes), BX, BY (threads of an instance), TILE_<SIZE> (words of an element along a size), PAD_<parameter> (value
    of words outside the data), WORDS_<parameter> (words a thread holds), PITCH_<parameter> (words from row to row in shared memory), and
    the macros of the implementation. Names of sizes are in capitals, names of parameters as they are written.
    """
    geometry = implementation.geometry
    macros = {name: str(value) for name, value in geometry.macros.items()}
    macros["REAL"] = C_TYPES[function.dtype.name]
    for parameter in (*function.inputs, *function.outputs):
        place = implementation.places.get(parameter.name)
        if parameter.extents:
            macros[f"PAD_{parameter.name}"] = f"REAL({function.padding.get(parameter.name, '0')})"
        if isinstance(place, ThreadMapping):
            macros[f"WORDS_{parameter.name}"] = str(place.words)
        elif isinstance(place, SharedPlace) and len(parameter.extents) == 2:
            macros[f"PITCH_{parameter.name}"] = str(geometry.extents[parameter.extents[1]] + place.pad)
    return macros


@dataclass(frozen=True)
class Variable:
    """A variable of a script: its sizes as numbers, and its layout in memory.

    column_major   matrices: declared as column-major in the script; the shape is the matrix's own in either order
    strides        words from one index to the next, one for each dimension; () if it is dense in the declared order
    is_transposed  the calls read the transposed matrix: `shape` and `strides` are those of the transposed, `column_major` is false
    sizes          names of the extents, if calls give them; `shape` then has the expected ones
    leading        matrices: name of the leading dimension, if calls give it
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    column_major: bool = False
    strides: tuple[int, ...] = ()
    is_transposed: bool = False
    sizes: tuple[str, ...] = ()
    leading: str = ""

    @property
    def word_strides(self) -> tuple[int, ...]:
        """Words from one index to the next, one for each dimension."""
        if self.strides or not self.shape:
            return self.strides
        if len(self.shape) == 1:
            return (1,)
        return (1, max(self.shape[0], 1)) if self.column_major else (max(self.shape[1], 1), 1)

    @property
    def named_strides(self) -> tuple[str | int, ...]:
        """`word_strides`, with names for those that calls give. Vectors are dense."""
        if len(self.sizes) < 2:
            return self.word_strides if not self.sizes else (1,)
        by_columns = self.word_strides[0] == 1 and self.column_major
        across = self.leading or self.sizes[0 if by_columns else 1]
        return (1, across) if by_columns else (across, 1)


@dataclass(frozen=True)
class FunctionCall:
    """One call of a script. Arguments are names of variables or numbers.

    sizes  size name of the function -> extent
    named  size name of the function -> name of the extent in the script, if calls of the script give it; `sizes` then has expected ones
    """

    function: ElementaryFunction
    arguments: tuple[str | float, ...]
    results: tuple[str, ...]
    sizes: Table[str, int]
    span: Span | None = None
    named: Table[str, str] = field(default_factory=dict)

    @functools.cached_property
    def operands(self) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        """(parameter, variable, size names) of every vector or matrix that the call reads or writes, and of its scalar results."""
        read = zip(self.function.inputs, self.arguments, strict=True)
        operands = [(p.name, v, p.extents) for p, v in read if isinstance(v, str) and p.extents]
        return (*operands, *((p.name, v, p.extents) for p, v in zip(self.function.outputs, self.results, strict=True)))

    @functools.cached_property
    def grid_sizes(self) -> tuple[str, ...]:
        """Size names, those of the first matrix before the others, so that its rows lie along y."""
        parameters = (*self.function.inputs, *self.function.outputs)
        matrix = next((p.extents for p in parameters if len(p.extents) == 2), ())
        return tuple(dict.fromkeys((*matrix, *self.function.sizes)))


@dataclass(frozen=True)
class CallGraph:
    """A script with its sizes: its calls in an order that respects their data. Each name is assigned once."""

    name: str
    variables: Table[str, Variable]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    calls: tuple[FunctionCall, ...]

    def producer(self, name: str) -> int | None:
        """Number of the call that computes a variable; None for an input."""
        return self._producers.get(name)

    def readers(self, name: str) -> tuple[int, ...]:
        """Numbers of the calls that read a variable."""
        return self._readers.get(name, ())

    @functools.cached_property
    def _producers(self) -> dict[str, int]:
        return {result: k for k, call in enumerate(self.calls) for result in call.results}

    @functools.cached_property
    def _readers(self) -> dict[str, tuple[int, ...]]:
        readers: dict[str, dict[int, None]] = {}
        for k, call in enumerate(self.calls):
            for argument in call.arguments:
                if isinstance(argument, str):
                    readers.setdefault(argument, {})[k] = None
        return {name: tuple(calls) for name, calls in readers.items()}
