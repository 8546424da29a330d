"""The table of torch operators that tilefuse expresses, and the builder their lowerings work with.

A lowering is a function (builder, *arguments) of the operator's own arguments: tensors arrive as `Value` names, everything
else as Python literals. It gives a value name, or a tuple of them for an operator with several results. The table is filled
by the `torch_ops_<theme>` files; an operator that is not in it, or whose lowering declines, becomes a call of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union

import torch

from tilefuse.base.errors import UnsupportedOpError
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_elementwise import broadcast_shapes, converted
from tilefuse.ir.dtype import BF16, BOOL, F8E4M3, F8E5M2, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType, compute_dtype
from tilefuse.ir.scalar import Expr, const

DTYPE_BY_TORCH: dict[torch.dtype, DType] = {
    torch.float64: F64,
    torch.float32: F32,
    torch.float16: F16,
    torch.bfloat16: BF16,
    torch.float8_e4m3fn: F8E4M3,
    torch.float8_e5m2: F8E5M2,
    torch.int64: I64,
    torch.int32: I32,
    torch.int16: I16,
    torch.int8: I8,
    torch.uint64: U64,
    torch.uint32: U32,
    torch.uint16: U16,
    torch.uint8: U8,
    torch.bool: BOOL,
}
TORCH_BY_DTYPE: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in DTYPE_BY_TORCH.items()}


class Value(str):
    """A value's name, as a type distinct from the strings that operators take as arguments."""

    __slots__ = ()


Scalar = Union[int, float, bool]
Operand = Union[Value, Scalar]
Lowering = Callable[..., Any]

TORCH_OPS: dict[str, Lowering] = {}

F = TypeVar("F", bound=Lowering)


def lowers(*operators: str) -> Callable[[F], F]:
    """Enters a function into the table under full operator names such as "aten.add.Tensor"."""

    def register(function: F) -> F:
        for name in operators:
            assert name not in TORCH_OPS, name
            TORCH_OPS[name] = function
        return function

    return register


def dtype_from_torch(dtype: torch.dtype) -> DType:
    """Our dtype. Raises: UnsupportedOpError for complex and quantised types."""
    known = DTYPE_BY_TORCH.get(dtype)
    if known is None:
        raise UnsupportedOpError(f"tensors of type {dtype} are not supported", hint="supported: " + ", ".join(map(str, DTYPE_BY_TORCH)))
    return known


def decline(reason: str) -> UnsupportedOpError:
    """The error by which a lowering leaves its operator to torch."""
    return UnsupportedOpError(reason)


class TorchBuilder(TensorBuilder):
    """`TensorBuilder` plus the properties of the current operator that lowerings need.

    expected: types that torch itself derived for the operator's results (one per result; None for results that are no tensor).
    operands_dense: whether every operand is row-major in torch's memory.
    seed, random_calls: the value holding the run's random seed ("" = none yet), and how many operators drew from it.
    saved_seeds: number of seeds that the graph draws as values, for operators of the backward part too.
    feeds_library_only: whether nothing that could share a kernel with the operator reads its result.
    feeds_library: whether a library call or the caller reads its result, which so lies in memory in any case.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.expected: tuple[tuple[DType, tuple[int, ...]] | None, ...] = ()
        self.operands_dense = True
        self.feeds_library_only = False
        self.feeds_library = False
        self.seed = ""
        self.random_calls = 0
        self.saved_seeds = 0

    @property
    def result_dtype(self) -> DType:
        """Dtype of the first result."""
        assert self.expected[0] is not None
        return self.expected[0][0]

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        assert self.expected[0] is not None
        return self.expected[0][1]

    def pointwise(
        self, fn: Callable[..., Expr], *xs: Operand, work: DType | None = None, out: DType | None = None, name: str = "map"
    ) -> str:
        """`fn` on broadcast operands, each converted to `work`, the result converted to `out` (that of the result).

        `work` is by default the dtype in which arithmetic on `out` is done; bool counts as i32, so that add is "or" and mul is "and".
        """
        want = out or self.result_dtype
        inner = work or (I32 if want == BOOL else compute_dtype(want))
        shapes = [self.shape_of(x) for x in xs if isinstance(x, str)]
        shape = broadcast_shapes(*(shapes or [self.result_shape]))
        axes = axis_names(len(shape))
        body = fn(*(self.read_as(x, inner, shape, axes) if isinstance(x, str) else const(x, inner) for x in xs))
        return self.make_map(name, want, shape, axes, converted(body, self.expression_dtype(body), want))

    def common_dtype(self, *xs: Operand) -> DType:
        """The dtype torch promotes the operands to: kinds first, then dimensioned tensors before scalars before Python numbers."""
        items: list[Any] = [_stand_in(TORCH_BY_DTYPE[self.dtype_of(x)], self.rank_of(x) > 0) if isinstance(x, str) else x for x in xs]
        if len(items) == 1:
            return self.dtype_of(xs[0]) if isinstance(xs[0], str) else self.result_dtype
        dimensioned = [i for i in items if isinstance(i, torch.Tensor) and i.dim()]
        promoted = torch.result_type(items[0], items[1])
        for item in items[2:]:
            promoted = torch.result_type(_stand_in(promoted, bool(dimensioned)), item)
        return dtype_from_torch(promoted)

    def tensor(self, x: Operand, dtype: DType | None = None) -> str:
        """`x` as a value of `dtype` (that of the result where None); numbers become 0-dimensional constants."""
        want = dtype or self.result_dtype
        return self.cast(x, want) if isinstance(x, str) else self.full((), x, want)


_STAND_INS: dict[tuple[torch.dtype, bool], torch.Tensor] = {}


def _stand_in(dtype: torch.dtype, dimensioned: bool) -> torch.Tensor:
    """A tensor without memory that takes part in promotion like one of this dtype and rank."""
    key = (dtype, dimensioned)
    if key not in _STAND_INS:
        _STAND_INS[key] = torch.empty((1,) if dimensioned else (), dtype=dtype, device="meta")
    return _STAND_INS[key]


def dims(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes of a reduction counted from the front; None and the empty list mean all."""
    if axes is None or (not isinstance(axes, int) and len(axes) == 0):
        return tuple(range(rank))
    listed = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted({a % max(rank, 1) for a in listed})) if rank else ()
