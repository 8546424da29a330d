"""`Array`: a handle on a tensor expression, computed when its data is needed. Writing to it gives it another expression.

Arithmetic records a node and returns at once. Printing, `float()`, `bool()`, `.numpy()`, DLPack and `evaluate` compute. The computing is
the driver's: it installs itself here as the `Evaluator`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, Union

import numpy as np

from tilefuse.arrays.functions.subscript import Plan, lower_subscript, mask_in, subscript_plan, with_arrays
from tilefuse.arrays.lowering import ELEMENTWISE, lower_elementwise, operand_dtype
from tilefuse.arrays.methods import ArrayMethods, function_of_arrays
from tilefuse.arrays.nodes import (
    MOST_RECORDINGS,
    ArrayNode,
    Lowering,
    Recording,
    Source,
    played,
    record,
    record_known,
    recording,
    user_span,
)
from tilefuse.arrays.types import NAME_OF, Scalar, as_scalar, number_constant, promote
from tilefuse.base.errors import InternalError, ShapeError, SharingError, TypeMismatchError, UserError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_complex import ComplexBuilder
from tilefuse.ir.dtype import DType

__all__ = ["Array", "Evaluator", "apply", "apply_all", "binary", "installed", "install", "unary"]


class Evaluator(Protocol):
    """Services that arrays need of the driver: data, devices, and the computing itself. Buffers are torch tensors."""

    def compute(self, nodes: Sequence[ArrayNode]) -> None:
        """Computes the nodes that have no buffer yet."""

    def default_device(self) -> str:
        """Where arrays are made when nothing is said: "cuda:0" where there is a GPU, else "host"."""

    def device_named(self, given: Any) -> str:
        """The name of a device that the user gave. Raises: UserError."""

    def devices(self) -> list[str]:
        """The names of all devices."""

    def source(self, data: Any, dtype: DType | None, device: str | None, copy: bool | None) -> Source:
        """A leaf over the caller's memory where that is possible (and `copy` allows it), else over a copy."""

    def moved(self, node: ArrayNode, device: str, copy: bool) -> Source:
        """A leaf with the data of a computed node on another device."""

    def is_settled(self, nodes: Sequence[ArrayNode]) -> bool:
        """Whether the values are there or can be computed now, and no assignment to a variable will change them."""

    def elements(self, buffer: Any, key: tuple[Any, ...]) -> Any:
        """The elements at index tensors, copied."""

    def is_lone(self, buffer: Any) -> bool:
        """Whether no other tensor and no other library sees the memory."""

    def host_array(self, node: ArrayNode) -> np.ndarray[Any, Any]:
        """The data of a computed node as a numpy array (of its memory, where it lies on the host)."""


_installed: list[Evaluator] = []
# Called with a node and the requested kind of value ("bool", "float", ...) before it is computed; a tracer refuses here. Specific to this
# context: other threads may trace or compute meanwhile.
value_hooks: ContextVar[tuple[Callable[[ArrayNode, str], None], ...]] = ContextVar("tilefuse_value_hooks", default=())

# The trace under way in this context: another object each time. Arrays remember in which trace they were made.
current_trace: ContextVar[object | None] = ContextVar("tilefuse_current_trace", default=None)


def install(evaluator: Evaluator) -> None:
    """Makes `evaluator` the one that arrays compute with."""
    _installed[:] = [evaluator]


def installed() -> Evaluator:
    """The evaluator. Raises: InternalError before one was installed."""
    if not _installed:
        raise InternalError("arrays have no evaluator", hint="import tilefuse.array")
    return _installed[0]


class Array(ArrayMethods):
    """A tensor whose value is computed on demand. `node` defines it."""

    __slots__ = ("__weakref__", "node", "trace")
    # numpy leaves arithmetic with its own scalars and arrays to us.
    __array_ufunc__ = None
    __array_priority__ = 100

    def __init__(self, node: ArrayNode) -> None:
        self.node = node
        self.trace = current_trace.get()

    # Attributes

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of all dimensions."""
        return self.node.type.shape

    @property
    def dtype(self) -> DType:
        """Data type of the elements."""
        return self.node.type.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.node.type.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.node.type.num_elements

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.node.type.num_bytes

    @property
    def device(self) -> str:
        """Where it is computed: "host", "cuda:0", ..."""
        return self.node.device

    @property
    def T(self) -> Array:
        """The transpose of a matrix. Raises: ShapeError for another number of dimensions."""
        if self.ndim != 2:
            raise ShapeError(f".T is of matrices, this array has shape {self.shape}", where=user_span(),
                             hint=".mT transposes the last two dimensions; permute_dims takes any order")
        return self.mT

    @property
    def mT(self) -> Array:
        """With its last two dimensions exchanged. Raises: ShapeError below two dimensions."""
        if self.ndim < 2:
            raise ShapeError(f".mT needs two dimensions, this array has shape {self.shape}", where=user_span())
        return apply(lower_transpose, (self,))

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeMismatchError("an array without dimensions has no length", where=user_span())
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[n] for n in range(len(self)))

    def __hash__(self) -> int:
        return id(self)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        """The module of the array functions. Raises: UserError for a version of the standard that it does not follow."""
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise UserError(f"arrays follow the array API standard 2024.12, not {api_version}", where=user_span())
        return sys.modules["tilefuse.array"]

    # Its data

    def buffer(self, wanted: str = "data") -> Any:
        """The data as a torch tensor; computes it. `wanted`: the purpose, for the message of a tracer that refuses."""
        node = self.node
        if node.buffer is None:
            for hook in value_hooks.get():
                hook(node, wanted)
            installed().compute((node,))
        return node.buffer

    def numpy(self) -> np.ndarray[Any, Any]:
        """The data as a numpy array; of the same memory where the array lies on the host."""
        self.buffer("numpy")
        return installed().host_array(self.node)

    def item(self) -> Scalar:
        """The only element as a Python number. Raises: ShapeError where there are several."""
        return self._scalar("item")

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self.buffer("tolist").tolist()

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """The data on another device; the same array where it is there already."""
        if stream is not None:
            raise UserError("streams are torch's: set the current one", where=user_span(), hint="with torch.cuda.stream(s): ...")
        target = installed().device_named(device)
        if target == self.device:
            return self
        self.buffer("to_device")
        return Array(installed().moved(self.node, target, False))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        data = self.numpy()
        return data.astype(dtype, copy=bool(copy)) if dtype is not None else data.copy() if copy else data

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None, dl_device: tuple[Any, int] | None = None,
                   copy: bool | None = None) -> Any:
        buffer = self.buffer("DLPack")
        on_host, device_type = self.device == "host", None if dl_device is None else int(dl_device[0])
        if on_host and stream is not None or device_type not in (None, 1, int(buffer.__dlpack_device__()[0])):
            raise SharingError(f"an array on {self.device} cannot be exported to " + ("a stream" if on_host and stream is not None else
                               f"the DLPack device {tuple(dl_device or ())}"), where=user_span(), hint="move it with to_device first")
        how = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        return buffer.__dlpack__(**{name: value for name, value in how.items() if value is not None})

    def __dlpack_device__(self) -> tuple[Any, int]:
        place: tuple[Any, int] = self.buffer("DLPack").__dlpack_device__()
        return place

    def _scalar(self, kind: str) -> Scalar:
        if self.size != 1:
            raise ShapeError(f"only an array of one element has a {kind}, this one has shape {self.shape}", where=user_span(),
                             hint="any() and all() tell of whole arrays" if kind == "bool" else None)
        number: Scalar = self.buffer(kind).item()
        return number

    def _real_scalar(self, kind: str) -> float:
        if self.dtype.is_complex:
            raise TypeMismatchError(f"a complex number is no {kind}", where=user_span(), hint="real(x), imag(x) and abs(x) are real")
        number = self._scalar(kind)
        assert not isinstance(number, complex)
        return number

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __float__(self) -> float:
        return float(self._real_scalar("float"))

    def __int__(self) -> int:
        return int(self._real_scalar("int"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise TypeMismatchError(f"an index is an integer, not {NAME_OF[self.dtype]}", where=user_span())
        return int(self._real_scalar("index"))

    def __repr__(self) -> str:
        for hook in value_hooks.get():
            if self.node.buffer is None:
                hook(self.node, "repr")
        if isinstance(self.node, Source) and self.node.buffer is None:
            return f"Array({self.node.role} {self.node.name}, shape={self.shape}, dtype={NAME_OF[self.dtype]})"
        place = "" if self.device == "host" else f", device={self.device!r}"
        text = np.array2string(_printable(self.numpy()), separator=", ", prefix="Array(")
        shape = f", shape={self.shape}" if not self.size else ""
        return f"Array({text}{shape}, dtype={NAME_OF[self.dtype]}{place})"

    def __str__(self) -> str:
        return str(_printable(self.numpy()))

    def __format__(self, form: str) -> str:
        return format(self._scalar("number"), form) if form and not self.ndim else str(self)

    # Indexing

    def __getitem__(self, key: Any, /) -> Array:
        key = with_arrays(key, Array, self.node.device, as_part)
        if mask_in(key, Array):
            elements: Array = function_of_arrays("selected")(self, key)
            return elements
        plan, indices = subscript_plan(self.shape, key, Array)
        view = None if indices else _view(self.node, plan)
        if view is not None:
            return Array(record_known(lower_subscript, (self.node,), (plan,), view))
        return apply(lower_subscript, (self, *indices), (plan,))

    def __setitem__(self, key: Any, value: Any, /) -> None:
        if sys.getrefcount(self) < _REFERENCES_OF_NAMED:
            raise UserError("nothing holds the array that is written to: a subscript, .T and the like give arrays of their own",
                            where=user_span(), hint="write x[0, 1] = v, not x[0][1] = v; or name the part: row = x[0]; row[1] = v")
        function_of_arrays("write")(self, key, value)

    # Arithmetic

    def __add__(self, other: Any, /) -> Array: return binary("add", self, other)
    def __radd__(self, other: Any, /) -> Array: return binary("add", other, self)
    def __sub__(self, other: Any, /) -> Array: return binary("subtract", self, other)
    def __rsub__(self, other: Any, /) -> Array: return binary("subtract", other, self)
    def __mul__(self, other: Any, /) -> Array: return binary("multiply", self, other)
    def __rmul__(self, other: Any, /) -> Array: return binary("multiply", other, self)
    def __truediv__(self, other: Any, /) -> Array: return binary("divide", self, other)
    def __rtruediv__(self, other: Any, /) -> Array: return binary("divide", other, self)
    def __floordiv__(self, other: Any, /) -> Array: return binary("floor_divide", self, other)
    def __rfloordiv__(self, other: Any, /) -> Array: return binary("floor_divide", other, self)
    def __mod__(self, other: Any, /) -> Array: return binary("remainder", self, other)
    def __rmod__(self, other: Any, /) -> Array: return binary("remainder", other, self)
    def __pow__(self, other: Any, /) -> Array: return power(self, other)
    def __rpow__(self, other: Any, /) -> Array: return power(other, self)
    def __and__(self, other: Any, /) -> Array: return binary("bitwise_and", self, other)
    def __rand__(self, other: Any, /) -> Array: return binary("bitwise_and", other, self)
    def __or__(self, other: Any, /) -> Array: return binary("bitwise_or", self, other)
    def __ror__(self, other: Any, /) -> Array: return binary("bitwise_or", other, self)
    def __xor__(self, other: Any, /) -> Array: return binary("bitwise_xor", self, other)
    def __rxor__(self, other: Any, /) -> Array: return binary("bitwise_xor", other, self)
    def __lshift__(self, other: Any, /) -> Array: return binary("bitwise_left_shift", self, other)
    def __rlshift__(self, other: Any, /) -> Array: return binary("bitwise_left_shift", other, self)
    def __rshift__(self, other: Any, /) -> Array: return binary("bitwise_right_shift", self, other)
    def __rrshift__(self, other: Any, /) -> Array: return binary("bitwise_right_shift", other, self)
    def __lt__(self, other: Any, /) -> Array: return binary("less", self, other)
    def __le__(self, other: Any, /) -> Array: return binary("less_equal", self, other)
    def __gt__(self, other: Any, /) -> Array: return binary("greater", self, other)
    def __ge__(self, other: Any, /) -> Array: return binary("greater_equal", self, other)
    def __eq__(self, other: Any, /) -> Array: return binary("equal", self, other)  # type: ignore[override]
    def __ne__(self, other: Any, /) -> Array: return binary("not_equal", self, other)  # type: ignore[override]
    def __matmul__(self, other: Any, /) -> Array: return product(self, other)
    def __rmatmul__(self, other: Any, /) -> Array: return product(other, self)
    def __neg__(self) -> Array: return unary("negative", self)
    def __pos__(self) -> Array: return unary("positive", self)
    def __abs__(self) -> Array: return unary("abs", self)
    def __invert__(self) -> Array: return unary("bitwise_invert", self)


class _Probe:
    """Determines how many references the interpreter counts for the target of a write."""

    def __setitem__(self, key: Any, value: list[int], /) -> None:
        value.append(sys.getrefcount(self))


def _references_of_named() -> int:
    """References to an array that has a name or a place when it is written to; 0 where the interpreter counts no more than for others."""
    unnamed: list[int] = []
    named: list[int] = []
    _Probe()[0] = unnamed
    probe = _Probe()
    probe[0] = named
    return named[0] if named[0] > unnamed[0] else 0


_REFERENCES_OF_NAMED = _references_of_named()
Operand = Union[Array, bool, int, float, complex]

# Recordings by what was written: types of arrays and plain Python numbers (0.0 and -0.0 by their texts).
_known: dict[tuple[Any, ...], Recording] = {}
_PLAIN = (float, int, bool)


def as_part(data: Any, device: str) -> Array:
    """Data of a subscript, or of a value to write, as an array: where it lies, or else on this device. Raises: TypeMismatchError."""
    return Array(installed().source(data, None, None if hasattr(data, "__dlpack_device__") and not isinstance(data, np.ndarray) else device,
                                    None))


def apply_all(lowering: Lowering, operands: Sequence[Array], settings: tuple[Any, ...] = (), device: str = "") -> tuple[Array, ...]:
    """The results of a lowering as arrays; see `array_nodes.record`."""
    return tuple([Array(n) for n in record(lowering, [o.node for o in operands], settings, device)])


def apply(lowering: Lowering, operands: Sequence[Array], settings: tuple[Any, ...] = (), device: str = "") -> Array:
    """The result of a lowering with one."""
    return Array(record(lowering, [o.node for o in operands], settings, device)[0])


def copied(x: Array) -> Array:
    """The same values in memory of their own. An array without data has no memory to share."""
    if x.node.buffer is None or current_trace.get() is not None:
        return Array(x.node)
    return Array(record_known(lower_copy, (x.node,), (), x.node.buffer.clone()))


def lower_copy(b: TensorBuilder, x: str) -> str:
    """A node of its own, so that gradients find their way back."""
    return b.expression(lambda e: e, x, dtype=b.dtype_of(x), name="copy")


def lower_from_pairs(b: ComplexBuilder, x: str) -> str:
    """Pairs of reals as complex numbers."""
    return b.from_pairs(x)


def lower_pairs(b: ComplexBuilder, x: str) -> str:
    """Complex numbers as pairs of reals."""
    return b.pairs(x)


def unary(name: str, x: Array) -> Array:
    """A row of the elementwise table with one operand."""
    return elementwise(name, x)


def binary(name: str, x1: Any, x2: Any) -> Array:
    """A row of the elementwise table with two operands, one of which may be a Python number."""
    return elementwise(name, x1, x2)


def elementwise(name: str, *given: Any) -> Array:
    """A row of the elementwise table on arrays and Python numbers.

    Raises: TypeMismatchError for types that the function does not take; ShapeError for shapes that do not broadcast.
    """
    parts: list[Any] = [name]
    nodes: list[ArrayNode] = []
    for g in given:
        if isinstance(g, Array):
            parts.append(g.node.type_number)
            nodes.append(g.node)
        elif type(g) in _PLAIN:
            parts.append((type(g), g or repr(g)))
    key = tuple(parts) if len(parts) > len(given) else None
    known = _known.get(key) if key is not None else None
    if known is not None:
        return Array(played(known, nodes)[0])
    row = ELEMENTWISE[name]
    arrays = [g for g in given if isinstance(g, Array)]
    numbers = [g if isinstance(g, Array) else checked_number(name, g) for g in given]
    if not arrays:
        raise TypeMismatchError(f"{name} needs an array", where=user_span(), hint="asarray makes one of numbers")
    common = operand_dtype(row, [a.dtype for a in arrays], [n for n in numbers if not isinstance(n, Array)])
    where = iter(range(len(arrays)))
    arguments = tuple([next(where) if isinstance(n, Array) else number_constant(n, common) for n in numbers])
    recorded = recording(lower_elementwise, nodes, (name, common, arguments))
    if key is not None:
        if len(_known) > MOST_RECORDINGS:
            _known.clear()
        _known[key] = recorded
    return Array(played(recorded, nodes)[0])


def checked_number(name: str, given: Any) -> Scalar:
    """A Python number of a numpy or Python scalar. Raises: TypeMismatchError for anything else."""
    number = as_scalar(given)
    if number is None:
        raise TypeMismatchError(f"{name} takes arrays and numbers, not a {type(given).__name__}", where=user_span(),
                                hint="asarray takes numpy and torch arrays")
    return number


def power(x1: Any, x2: Any) -> Array:
    """x1 ** x2; a power with a small whole exponent is a product."""
    if isinstance(x1, Array) and type(x2) in (int, float) and x2 in (1, 2) and x1.dtype.kind != "bool":
        whole = x1.dtype.is_float or x1.dtype.is_complex or type(x2) is int
        return elementwise("positive" if x2 == 1 else "square", x1) if whole else elementwise("pow", x1, x2)
    return elementwise("pow", x1, x2)


def product(x1: Any, x2: Any) -> Array:
    """x1 @ x2: matrices in the last two dimensions, vectors where an operand has one.

    Shapes: x1: [*B, M, K], x2: [*B, K, N] -> [*B, M, N]
    Raises: ShapeError, TypeMismatchError.
    """
    for x in (x1, x2):
        if not isinstance(x, Array):
            raise TypeMismatchError(f"matmul takes arrays, not a {type(x).__name__}", where=user_span(), hint="asarray makes one")
    return apply(lower_product, (x1, x2))


def lower_product(b: TensorBuilder, x1: str, x2: str) -> str:
    """Floats by the matrix product of the library or a fused kernel; integers as a sum of products.

    Raises: ShapeError, TypeMismatchError.
    """
    for x in (x1, x2):
        if not b.rank_of(x):
            raise ShapeError("matmul takes vectors and matrices, not scalars", hint="use * for scalars")
    common = promote(b.dtype_of(x1), b.dtype_of(x2))
    if common.kind == "bool":
        raise TypeMismatchError("matmul takes numbers, not bool", hint="convert with astype")
    left, right = b.cast(x1, common), b.cast(x2, common)
    if common.is_float or common.is_complex:
        return b.matmul(left, right)
    lone = b.rank_of(left) == 1, b.rank_of(right) == 1
    left = b.expand_dims(left, 0) if lone[0] else left
    right = b.expand_dims(right, 1) if lone[1] else right
    if b.shape_of(left)[-1] != b.shape_of(right)[-2]:
        raise ShapeError(f"matmul of {b.types[x1]} and {b.types[x2]}: inner extents differ, "
                         f"{b.shape_of(left)[-1]} and {b.shape_of(right)[-2]}")
    terms = b.elementwise("mul", b.expand_dims(left, -1), b.expand_dims(right, -3))
    product = b.reduce(terms, "sum", -2)
    return b.squeeze(product, [d for d, is_vector in ((-2, lone[0]), (-1, lone[1])) if is_vector]) if any(lone) else product


def lower_transpose(b: TensorBuilder, x: str) -> str:
    """The last two dimensions exchanged."""
    return b.transpose(x, -2, -1)


def _view(source: ArrayNode, plan: Plan) -> Any:
    """The subscript of data that is there already, as a view of that data; None where there is none or torch has no such view.

    So loops over batches compile nothing. A variable's data may change under the view, so it is read when the result is.
    """
    if source.buffer is None or not installed().is_settled((source,)):
        return None
    return plan.of_tensor(source.buffer)


def _printable(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """numpy prints its own types only in its own manner."""
    return data if data.dtype.kind in "biufc" and data.dtype.isbuiltin == 1 else data.astype(np.float32)
