"""Context of an ONNX operator's lowering: its operands as values, its attributes, and the table of lowerings.

A `Value` is either known while importing (a numpy array: shapes, weights, folded constants) or computed (the name of a
value of the graph being built). Lowerings live in `onnx_ops_*.py`, one function an operator, registered by `onnx_op`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np

from tilefuse.base.errors import UnsupportedOpError, UserError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import DTYPES, DType
from tilefuse.ir.scalar import NUMPY_DTYPES

if TYPE_CHECKING:
    import onnx

NO_INPUTS: frozenset[str] = frozenset()
DTYPE_OF_NUMPY: dict[np.dtype, DType] = {numpy: DTYPES[name] for name, numpy in NUMPY_DTYPES.items()}


class ValueNeededError(UserError):
    """An operator's shape or structure depends on the values of graph inputs; `inputs` names them.

    Importing again with `values` for these inputs makes them constants.
    """

    def __init__(self, message: str, inputs: Sequence[str], *, where: str, hint: str) -> None:
        super().__init__(message, where=where, hint=hint)
        self.inputs = tuple(inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One ONNX value while importing.

    array    the data, where it is known
    name     the value's name in the builder, where it is computed
    items    the elements, where it is a sequence (then array and name are None)
    depends  graph inputs whose data reaches this value
    title    the model's name for it, for constants that it becomes
    """

    array: np.ndarray | None = None
    name: str | None = None
    items: tuple[Value, ...] | None = None
    depends: frozenset[str] = NO_INPUTS
    title: str = ""


# Result of a lowering that leaves the operator to its function body from the standard.
FUNCTION_BODY = Value()

Lowered = Union[str, np.ndarray, Value, None]
Lowering = Callable[["Call"], Union[Lowered, Sequence[Lowered]]]


class Importer(Protocol):
    """Services that lowerings need from the importer."""

    builder: TensorBuilder

    def materialise(self, value: Value, wanted: str) -> str: ...

    def run_subgraph(self, graph: onnx.GraphProto, arguments: Sequence[Value], call: Call) -> list[Value]: ...


class Call:
    """One operator of the model: operands, attributes and where it stands. `version` is the operator's, not the opset's."""

    def __init__(
        self,
        importer: Importer,
        op: str,
        domain: str,
        version: int,
        opset: int,
        label: str,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
        num_outputs: int,
    ) -> None:
        self.importer = importer
        self.op = op
        self.domain = domain
        self.version = version
        self.opset = opset
        self.label = label
        self.inputs = list(inputs)
        self.attributes = attributes
        self.num_outputs = num_outputs

    @property
    def b(self) -> TensorBuilder:
        return self.importer.builder

    @property
    def place(self) -> str:
        """How messages name this operator."""
        return f"node {self.label} ({self.domain + '.' if self.domain else ''}{self.op}, opset {self.opset})"

    def has(self, i: int) -> bool:
        """Whether operand `i` is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def operand(self, i: int) -> Value:
        """Operand `i`. Raises: UserError when the node leaves it out."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise self.wrong(f"operand {i} is missing")
        return value

    def __getitem__(self, i: int) -> str:
        """Operand `i` as a value of the graph; known data becomes a constant."""
        value = self.operand(i)
        if value.items is not None:
            raise self.unsupported("a sequence is used where a tensor is needed")
        return self.importer.materialise(value, f"{self.label}_{i}")

    def all(self) -> list[str]:
        """All operands as values of the graph."""
        return [self[i] for i in range(len(self.inputs))]

    def dtype(self, i: int) -> DType:
        """Data type of operand `i`."""
        value = self.operand(i)
        if value.array is not None:
            return dtype_of_array(value.array, self.place)
        return self.b.type_of(self[i]).dtype

    def shape(self, i: int) -> tuple[int, ...]:
        """Shape of operand `i`."""
        value = self.operand(i)
        return value.array.shape if value.array is not None else self.b.type_of(self[i]).shape

    def axis(self, axis: int, rank: int) -> int:
        """`axis` counted from the front. Raises: UserError when it is outside the rank."""
        if not -rank <= axis < max(rank, 1):
            raise self.wrong(f"axis {axis} is outside a tensor of {rank} dimensions")
        return axis % rank if rank else 0

    def known(self, i: int, what: str) -> np.ndarray:
        """The data of operand `i`, which must be known while importing.

        Raises: ValueNeededError when it depends on the values of graph inputs.
        """
        value = self.operand(i)
        if value.array is not None:
            return value.array
        needed = sorted(value.depends)
        raise ValueNeededError(
            f"{what} of {self.place} must be known when compiling, but {'it depends' if len(needed) == 1 else 'they depend'} "
            f"on the data of {', '.join(repr(n) for n in needed)}",
            needed,
            where=self.place,
            hint="give " + ", ".join(f"values={{{n!r}: array}}" for n in needed[:1]) + " to make it a constant",
        )

    def ints(self, i: int, what: str) -> list[int]:
        """The data of operand `i` as a flat list of integers; see `known`."""
        return [int(v) for v in self.known(i, what).reshape(-1)]

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or `default` where the node does not give it."""
        return self.attributes.get(name, default)

    def needed_attr(self, name: str) -> Any:
        """An attribute. Raises: UserError when the node does not give it."""
        if name not in self.attributes:
            raise self.wrong(f"attribute {name!r} is missing")
        return self.attributes[name]

    def unsupported(self, reason: str) -> UnsupportedOpError:
        """The error for what this frontend cannot express."""
        return UnsupportedOpError(f"ONNX operator {self.op} (opset {self.opset}): {reason}", where=self.place)

    def wrong(self, reason: str) -> UserError:
        """The error for a model that breaks the operator's rules."""
        return UserError(f"{self.place}: {reason}")


ONNX_OPS: dict[tuple[str, str], Lowering] = {}


# Why operators that have neither a lowering nor a function body cannot be expressed; others simply have none yet.
INEXPRESSIBLE: dict[str, str] = {
    **dict.fromkeys(("NonZero", "Unique", "NonMaxSuppression"), "the shape of its result depends on the data"),
    **dict.fromkeys(
        ("StringNormalizer", "StringSplit", "StringConcat", "RegexFullMatch", "TfIdfVectorizer", "LabelEncoder"), "it works on text"
    ),
    "ImageDecoder": "it decodes files",
    "Gradient": "it differentiates the graph around it",
}


def onnx_op(*names: str, domain: str = "") -> Callable[[Lowering], Lowering]:
    """Registers the lowering of the operators `names`. It returns a value (or several) for the node's outputs."""

    def register(lowering: Lowering) -> Lowering:
        for name in names:
            ONNX_OPS[domain, name] = lowering
        return lowering

    return register


def dtype_of_array(array: np.ndarray, where: str) -> DType:
    """Data type of an array. Raises: UnsupportedOpError for types tilefuse has not (strings, complex, 4-bit ...)."""
    dtype = DTYPE_OF_NUMPY.get(array.dtype)
    if dtype is None:
        raise UnsupportedOpError(
            f"ONNX tensor type {array.dtype.name} is not supported", where=where, hint=f"supported types: {', '.join(DTYPES)}"
        )
    return dtype
