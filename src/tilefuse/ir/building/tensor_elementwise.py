"""Elementwise building blocks of `TensorBuilder`: constants, broadcasting, conversions, scalar functions.

Every method appends one map (or nothing, where the result is the operand itself) and gives a value's name. Operands are
value names or Python numbers; numbers become constants of the type the arithmetic is done in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Union

import numpy as np

from tilefuse.base.errors import AxisError, ShapeError, TypeMismatchError
from tilefuse.ir.affine import Affine, axis, linearise, number, row_major_strides, simplify
from tilefuse.ir.building.build import GraphBuilder, axis_names
from tilefuse.ir.dtype import BOOL, DTYPES, I32, I64, DType, compute_dtype
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import NUMPY_DTYPES, Bound, Const, Expr, Guard, Index, Read, call, cast, const

Operand = Union[str, int, float, bool]

# Up to this many elements a constant array is written into the body; larger ones are constant inputs.
INLINE_CONSTANT_ELEMENTS = 64

# Functions whose operands may be bool as they are; other functions compute on bool as i32.
_BOOL_FUNCTIONS = frozenset(
    {"logical_and", "logical_or", "logical_xor", "logical_not", "bit_and", "bit_or", "bit_xor", "bit_not", "select"}
)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all `shapes` broadcast to, by numpy's rule.

    Raises: ShapeError when two extents differ and neither is 1.
    """
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for at, extent in enumerate(shape, rank - len(shape)):
            if extent == 1 or extent == out[at]:
                continue
            if out[at] != 1:
                raise ShapeError(
                    f"shapes {' and '.join(str(tuple(s)) for s in shapes)} do not broadcast: "
                    f"extents {out[at]} and {extent} in dimension {at}"
                )
            out[at] = extent
    return tuple(out)


def converted(e: Expr, have: DType, want: DType) -> Expr:
    """`e` of type `have` as `want`; between two storage types through the type their arithmetic is done in."""
    if have == want:
        return e
    if not have.is_arithmetic and not want.is_arithmetic:
        return cast(cast(e, compute_dtype(have)), want)
    return cast(e, want)


def normal_axis(at: int, rank: int) -> int:
    """`at` counted from the front. Raises: AxisError when it is outside [-rank, rank)."""
    if not -rank <= at < max(rank, 1):
        raise AxisError(f"axis {at} is outside a tensor of {rank} dimensions", hint=f"legal: {-rank} to {rank - 1}" if rank else None)
    return at % max(rank, 1)


def normal_axes(axes: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Sorted distinct axes counted from the front; None means all. Raises: ShapeError when one is out of range."""
    if axes is None:
        return tuple(range(rank))
    listed = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted({normal_axis(a, rank) for a in listed})) if rank else ()


class ElementwiseBuilder(GraphBuilder):
    """Constants, broadcasting, conversions and scalar functions over tensors.

    hint: name for the next nodes ("" = named after the operator); frontends set it to the user's name.
    constant_data: contents of the constant inputs that the builder made itself.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.hint = ""
        self.constant_data: dict[str, np.ndarray] = {}

    def shape_of(self, x: str) -> tuple[int, ...]:
        """Shape of a value."""
        return self.types[x].shape

    def dtype_of(self, x: str) -> DType:
        """Data type of a value."""
        return self.types[x].dtype

    def rank_of(self, x: str) -> int:
        """Number of dimensions of a value."""
        return len(self.types[x].shape)

    def expression_dtype(self, e: Expr) -> DType:
        """The dtype of an expression over values of this builder. Raises: TypeMismatchError on misuse of a function."""
        return dtype_of(e, self.dtype_of)

    def make_map(self, default: str, dtype: DType, shape: Sequence[int], axes: Sequence[str], body: Expr) -> str:
        """A map named `hint` or `default`. An empty result becomes a map of a constant, so that nothing is read out of range."""
        if prod(shape) == 0:
            body = const(0, dtype)
        return self.map(self.hint or default, dtype, shape, axes, body)

    def read(self, x: str, shape: Sequence[int], axes: Sequence[str]) -> Read:
        """The element of `x` that broadcasts to position `axes` of `shape`."""
        have = self.shape_of(x)
        lead = len(shape) - len(have)
        return Read(x, tuple(number(0) if extent == 1 else axis(axes[lead + d]) for d, extent in enumerate(have)))

    def read_as(self, x: str, want: DType, shape: Sequence[int], axes: Sequence[str]) -> Expr:
        """As `read`, converted to `want`."""
        return converted(self.read(x, shape, axes), self.dtype_of(x), want)

    # Constants

    def full(self, shape: Sequence[int], scalar: int | float | bool, dtype: DType) -> str:
        """A tensor whose every element is `scalar`."""
        return self.make_map("full", dtype, shape, axis_names(len(shape)), const(scalar, dtype))

    def iota(self, shape: Sequence[int], axis_at: int, dtype: DType = I64, start: int | float = 0, step: int | float = 1) -> str:
        """start + step * position along one axis.

        Exact: integers exactly; floats as start + step * float(position), each operation rounded once.
        """
        axes = axis_names(len(shape))
        along = normal_axis(axis_at, len(shape))
        position: Affine = number(0) if shape[along] == 1 else axis(axes[along])
        if isinstance(start, int) and isinstance(step, int):
            body = converted(Index(position * step + start), I64, dtype)
        else:
            work = compute_dtype(dtype)
            scaled = call("mul", const(step, work), cast(Index(position), work))
            body = converted(call("add", const(start, work), scaled), work, dtype)
        return self.make_map("iota", dtype, shape, axes, body)

    def constant_array(self, data: np.ndarray, dtype: DType | None = None) -> str:
        """A tensor with the contents `data`: a constant, an arithmetic progression or nested guards when small, else a constant input.

        Raises: TypeMismatchError when the array's type is none of ours.
        """
        kind = dtype or _dtype_of_array(data)
        if data.size == 0:
            return self.full(data.shape, 0, kind)
        if data.size > INLINE_CONSTANT_ELEMENTS:
            name = self.input(self.hint or "constant", kind, data.shape, constant=True)
            self.constant_data[name] = np.ascontiguousarray(data).astype(NUMPY_DTYPES[kind.name], copy=False)
            return name
        axes = axis_names(data.ndim)
        extents = dict(zip(axes, data.shape, strict=True))
        flat = simplify(linearise(tuple(axis(a) for a in axes), row_major_strides(data.shape)), extents)
        items = [const(v, kind) for v in data.reshape(-1)]
        return self.make_map("constant", kind, data.shape, axes, _progression(items, kind, flat) or _choose(items, 0, flat))

    # Functions

    def elementwise(self, fn: str, *xs: Operand, dtype: DType | None = None) -> str:
        """`fn` applied to broadcast operands of one dtype, computed in its compute dtype and rounded back to it (or to `dtype`).

        Comparisons give bool. On bool operands arithmetic is done in i32 (so that add is "or" and mul is "and").
        Raises: TypeMismatchError when operands differ in dtype or none is a value.
        """
        values = [x for x in xs if isinstance(x, str)]
        if fn == "select":
            raise TypeMismatchError("select chooses between operands of any type; use where()")
        if not values:
            raise TypeMismatchError(f"{fn} needs at least one tensor operand, got {xs}")
        have = self.dtype_of(values[0])
        for x in values:
            if self.dtype_of(x) != have:
                raise TypeMismatchError(
                    f"{fn}: operands have types {', '.join(str(self.types[v]) for v in values)}",
                    hint="convert them to one dtype with cast()",
                )
        work = I32 if have == BOOL and fn not in _BOOL_FUNCTIONS else compute_dtype(have)
        shape = broadcast_shapes(*(self.shape_of(x) for x in values))
        axes = axis_names(len(shape))
        body: Expr = call(fn, *(self.read_as(x, work, shape, axes) if isinstance(x, str) else const(x, work) for x in xs))
        natural = self.expression_dtype(body)
        want = dtype or (have if natural == work else natural)
        return self.make_map(fn, want, shape, axes, converted(body, natural, want))

    def expression(
        self, fn: Callable[..., Expr], *xs: Operand, dtype: DType, name: str = "expression", shape: Sequence[int] | None = None
    ) -> str:
        """`fn` applied to the broadcast operands as expressions; its result is converted to `dtype`.

        Every operand arrives in the compute dtype of its own type.

        Numbers arrive as constants of the compute dtype of `dtype`. `shape` is needed where no operand is a value.
        """
        values = [x for x in xs if isinstance(x, str)]
        full_shape = broadcast_shapes(*(self.shape_of(x) for x in values), *(() if shape is None else (shape,)))
        axes = axis_names(len(full_shape))
        arguments = [
            self.read_as(x, compute_dtype(self.dtype_of(x)), full_shape, axes) if isinstance(x, str) else const(x, compute_dtype(dtype))
            for x in xs
        ]
        body = fn(*arguments)
        return self.make_map(name, dtype, full_shape, axes, converted(body, self.expression_dtype(body), dtype))

    def cast(self, x: str, dtype: DType) -> str:
        """`x` converted to `dtype`; `x` itself where it has that type."""
        if self.dtype_of(x) == dtype:
            return x
        shape = self.shape_of(x)
        axes = axis_names(len(shape))
        return self.make_map("cast", dtype, shape, axes, self.read_as(x, dtype, shape, axes))

    def where(self, condition: str, a: Operand, b: Operand) -> str:
        """`a` where the bool `condition` holds, else `b`. Exact: elements are copied.

        Raises: TypeMismatchError when both are numbers, or values of different dtypes.
        """
        values = [x for x in (a, b) if isinstance(x, str)]
        if not values or len({self.dtype_of(x) for x in values}) > 1:
            raise TypeMismatchError(
                f"where: operands have types {', '.join(str(self.types[v]) for v in values) or 'of numbers only'}",
                hint="convert them to one dtype with cast()",
            )
        have = self.dtype_of(values[0])
        shape = broadcast_shapes(self.shape_of(condition), *(self.shape_of(x) for x in values))
        axes = axis_names(len(shape))
        chosen = [self.read(x, shape, axes) if isinstance(x, str) else const(x, have) for x in (a, b)]
        return self.make_map("where", have, shape, axes, call("select", self.read_as(condition, BOOL, shape, axes), *chosen))

    def clamp(self, x: str, low: Operand | None = None, high: Operand | None = None) -> str:
        """`x` held inside [low, high] (either may be missing); NaN propagates; where low > high, high wins."""
        bound = [b for b in (low, high) if b is not None]
        if not bound:
            return x

        def body(value: Expr, *limits: Expr) -> Expr:
            rest = list(limits)
            if low is not None:
                value = call("maximum", value, rest.pop(0))
            return call("minimum", value, rest.pop(0)) if high is not None else value

        return self.expression(body, x, *bound, dtype=self.dtype_of(x), name="clamp")

    def one_hot(
        self,
        indices: str,
        depth: int,
        axis_at: int = -1,
        dtype: DType = I64,
        on: int | float | bool = 1,
        off: int | float | bool = 0,
        wrap: bool = False,
    ) -> str:
        """`on` where the position along a new axis of extent `depth` equals the index, else `off`.

        wrap: negative indices count from the end.
        """
        have = self.shape_of(indices)
        at = normal_axis(axis_at, len(have) + 1)
        shape = (*have[:at], depth, *have[at:])
        axes = axis_names(len(shape))
        kept_axes = (*axes[:at], *axes[at + 1 :])
        index = self.read_as(indices, I64, have, kept_axes)
        if wrap:
            index = call("select", call("lt", index, const(0, I64)), call("add", index, const(depth, I64)), index)
        here: Expr = Index(number(0) if depth == 1 else axis(axes[at]))
        return self.make_map("one_hot", dtype, shape, axes, call("select", call("eq", index, here), const(on, dtype), const(off, dtype)))


def _dtype_of_array(data: np.ndarray) -> DType:
    for name, dtype in NUMPY_DTYPES.items():
        if dtype == data.dtype:
            return DTYPES[name]
    raise TypeMismatchError(f"arrays of type {data.dtype} are not supported", hint=f"supported: {', '.join(NUMPY_DTYPES)}")


def _progression(items: list[Const], dtype: DType, flat: Affine) -> Expr | None:
    """The constant, or for integers start + step * position, that gives all items; None where they are neither."""
    if all(item == items[0] for item in items):
        return items[0]
    if not dtype.is_integer:
        return None
    values = [int(item.value) for item in items]
    step = values[1] - values[0]
    if any(v != values[0] + step * n for n, v in enumerate(values)):
        return None
    return converted(Index(flat * step + values[0]), I64, dtype)


def _choose(items: list[Const], first: int, flat: Affine) -> Expr:
    """A balanced tree of guards on the flat position; equal neighbours share a leaf."""
    if all(item == items[0] for item in items):
        return items[0]
    half = len(items) // 2
    left, right = _choose(items[:half], first, flat), _choose(items[half:], first + half, flat)
    return Guard((Bound(flat, first, first + half),), left, right)
