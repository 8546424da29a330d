"""ComplexBuilder: tensor programs with complex values, written as programs over their pairs of reals.

A value of type c64[S] is f32[S, 2] in the graph: `types` has the first, the nodes have the second. The methods of `TensorBuilder` work on
complex values because all of them end in one of the few here, which split expressions into parts. Where no value is complex, the
graph is the one that `TensorBuilder` makes.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tilefuse.base.errors import TypeMismatchError
from tilefuse.ir.affine import axis, number
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_elementwise import broadcast_shapes, normal_axes, normal_axis
from tilefuse.ir.building.tensor_reduce import Axes, kept_shape
from tilefuse.ir.complex_expression import PART_AXIS, Split, Splitter
from tilefuse.ir.dtype import COMPLEX_OF, PART_OF, DType
from tilefuse.ir.graph import Attribute, Type
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import LEAVES, Bound, Call, Expr, Guard, Index, Read, call, const

# Operators of the framework that are called with complex tensors.
COMPLEX_CALLS = ("linalg_", "_fft_")


def physical(type: Type) -> Type:
    """The type that a value has in a graph: pairs of reals for complex numbers."""
    return Type(PART_OF[type.dtype], (*type.shape, 2)) if type.dtype.is_complex else type


class ComplexBuilder(TensorBuilder):
    """`TensorBuilder` over values that may be complex."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._splitter = Splitter(self.dtype_of)

    # Common end of all methods

    def input(self, name: str, dtype: DType, shape: Sequence[int], *, constant: bool = False) -> str:
        """Declares an input; its pairs of reals where the type is complex."""
        type_ = Type(dtype, tuple(shape))
        have = physical(type_)
        return self._typed(super().input(name, have.dtype, have.shape, constant=constant), type_)

    def expression_dtype(self, e: Expr) -> DType:
        """The dtype of an expression, a complex one of complex expressions. Raises: TypeMismatchError on misuse of a function."""
        return self._splitter.dtype(e)

    def map(self, name: str, dtype: DType, shape: Sequence[int], axes: Sequence[str], body: Expr) -> str:
        """A map over the pairs of a complex result. Raises: TypeMismatchError for a function that takes real numbers only."""

        def let(e: Expr) -> Expr:
            if isinstance(e, LEAVES):
                return e
            part = super(ComplexBuilder, self).map("part", dtype_of(e, self._splitter.part_dtype_of), shape, axes, e)
            return self.read(part, shape, axes)

        split = Splitter(self.dtype_of, let).split(body)
        if not isinstance(split, Split):
            return super().map(name, dtype, shape, axes, split)
        have = physical(Type(dtype, tuple(shape)))
        return self._typed(super().map(name, have.dtype, have.shape, (*axes, PART_AXIS), split.merged()), Type(dtype, tuple(shape)))

    def reduce_node(self, monoid: str, dtype: DType, shape: Sequence[int], axes: Sequence[str], over: Sequence[tuple[str, int]],
                    body: Expr, name: str = "") -> str:
        """A sum of the pairs; a product has no such node. Raises: TypeMismatchError for another reduction of complex numbers."""
        split = self._splitter.split(body)
        if not isinstance(split, Split):
            return super().reduce_node(monoid, dtype, shape, axes, over, split, name)
        if monoid != "sum":
            raise _without_order(monoid)
        have = physical(Type(dtype, tuple(shape)))
        value = super().reduce_node(monoid, have.dtype, have.shape, (*axes, PART_AXIS), over, split.merged(), name)
        return self._typed(value, Type(dtype, tuple(shape)))

    def scatter_node(self, monoid: str, base: str, over: Sequence[tuple[str, int]], target: Sequence[Expr], body: Expr) -> str:
        """A scatter of the pairs. Raises: TypeMismatchError where complex numbers are combined otherwise than by a sum."""
        split = self._splitter.split(body)
        if not isinstance(split, Split):
            return super().scatter_node(monoid, base, over, target, body)
        if monoid not in ("set", "sum"):
            raise _without_order(monoid)
        with self._as_pairs(base):
            value = super().scatter_node(monoid, base, [*over, (PART_AXIS, 2)], [*target, Index(axis(PART_AXIS))], split.merged())
        return self._typed(value, self.types[base])

    def library(self, name: str, operator: str, type: Type, operands: Sequence[str],
                attributes: Mapping[str, Attribute] | None = None) -> str:
        """A call that sees complex tensors; products and means are written over the pairs.

        Raises: TypeMismatchError for an operator that takes real numbers only.
        """
        if not any(self.dtype_of(o).is_complex for o in operands) and not type.dtype.is_complex:
            return super().library(name, operator, type, operands, attributes)
        if operator == "matmul":
            return self._complex_product(operands[0], operands[1])
        if operator == "mean":
            with self._as_pairs(*operands):
                return self._typed(super().library(name, operator, physical(type), operands, attributes), type)
        namespace, _, function = operator.partition(".")
        if namespace != "aten" or not function.startswith(COMPLEX_CALLS):
            raise TypeMismatchError(f"{operator} takes real numbers, not complex ones")
        named = dict(attributes or {})
        named["args"] = self._complex_operands(named.get("args", ()), operands)
        return self._typed(super().library(name, operator, physical(type), operands, named), type)

    def _complex_operands(self, template: Attribute, operands: Sequence[str]) -> Attribute:
        """The arguments of a call, the operands that are complex marked as such."""
        match template:
            case ("%", int(n)) if self.dtype_of(operands[n]).is_complex:
                return "complex", n
            case tuple():
                return tuple([self._complex_operands(t, operands) for t in template])
        return template

    def _typed(self, value: str, type: Type) -> str:
        self.types[value] = type
        return value

    @contextmanager
    def _as_pairs(self, *values: str) -> Iterator[None]:
        """Inside, complex values are represented by their pairs in the graph."""
        before = {v: self.types[v] for v in values}
        self.types.update({v: physical(t) for v, t in before.items()})
        try:
            yield
        finally:
            self.types.update(before)

    # Between complex and real values

    def pairs(self, x: str) -> str:
        """The pairs of reals of complex numbers. Shapes: [*S] -> [*S, 2]"""
        have = physical(self.types[x])
        axes = (*axis_names(len(have.shape) - 1), PART_AXIS)
        return super().map("pairs", have.dtype, have.shape, axes, Read(x, tuple(map(axis, axes))))

    def from_pairs(self, x: str) -> str:
        """The complex numbers of pairs of reals. Shapes: [*S, 2] -> [*S]"""
        *shape, _ = self.shape_of(x)
        axes = (*axis_names(len(shape)), PART_AXIS)
        value = super().map("complex", self.dtype_of(x), (*shape, 2), axes, Read(x, tuple(map(axis, axes))))
        return self._typed(value, Type(COMPLEX_OF[self.dtype_of(x)], tuple(shape)))

    def joined(self, real: str, imaginary: str) -> str:
        """real + i imaginary, of values of one type. Shapes: both broadcast to the result"""
        shape = broadcast_shapes(self.shape_of(real), self.shape_of(imaginary))
        axes = axis_names(len(shape))
        body = Call("complex", (self.read(real, shape, axes), self.read(imaginary, shape, axes)))
        return self.make_map("complex", COMPLEX_OF[self.dtype_of(real)], shape, axes, body)

    # Operators that are no map, sum or call of pairs

    def reduce(
        self, x: str, monoid: str, axes: Axes = None, keepdims: bool = False, dtype: DType | None = None
    ) -> str:
        """As `TensorBuilder.reduce`; a product of complex numbers halves the elements until one is left.

        Raises: TypeMismatchError for monoids that need an order of complex numbers.
        """
        if not self.dtype_of(x).is_complex or monoid != "prod":
            return super().reduce(x, monoid, axes, keepdims, dtype)
        shape = self.shape_of(x)
        over = normal_axes(axes, len(shape))
        kept_dims = [d for d in range(len(shape)) if d not in over]
        rest = [shape[d] for d in kept_dims]
        count = 1
        for d in over:
            count *= shape[d]
        total = self.reshape(self.permute(self.cast(x, dtype or self.dtype_of(x)), [*over, *kept_dims]), [count, *rest])
        if not count:
            total, count = self.full((1, *rest), 1, self.dtype_of(total)), 1
        while count > 1:
            half = count // 2
            made_half = self.elementwise("mul", self.slice(total, [0], [half], axes=[0]), self.slice(total, [half], [2 * half], axes=[0]))
            last = [self.slice(total, [count - 1], [count], axes=[0])] if count % 2 else []
            total, count = self.concatenate([made_half, *last], 0), half + len(last)
        return self.reshape(total, kept_shape(shape, over, keepdims))

    def scan(
        self, x: str, monoid: str, axis_at: int, exclusive: bool = False, reverse: bool = False, dtype: DType | None = None
    ) -> str:
        """As `TensorBuilder.scan`; a running product of complex numbers doubles the reach of each element until it covers the axis."""
        if not self.dtype_of(x).is_complex:
            return super().scan(x, monoid, axis_at, exclusive, reverse, dtype)
        if monoid not in ("sum", "prod") or exclusive or reverse:
            raise _without_order(f"a running {monoid}")
        x = self.cast(x, dtype or self.dtype_of(x))
        type_ = self.types[x]
        d = normal_axis(axis_at, len(type_.shape))
        if not type_.shape:
            return x
        if monoid == "sum":
            with self._as_pairs(x):
                running = super().scan(x, monoid, d)
            return self._typed(running, type_)
        reach = 1
        while reach < type_.shape[d]:
            x, reach = self._times_earlier(x, d, reach), 2 * reach
        return x

    def _times_earlier(self, x: str, d: int, distance: int) -> str:
        """Each element times the one so far before it along an axis, where there is one."""
        shape = self.shape_of(x)
        axes = axis_names(len(shape))
        here = self.read(x, shape, axes)
        back = axis(axes[d]) - distance
        before = Read(x, tuple(back if n == d else e for n, e in enumerate(here.index)))
        one = const(1, self.dtype_of(x))
        return self.make_map("prod", self.dtype_of(x), shape, axes, call("mul", Guard((Bound(back, 0, shape[d]),), before, one), here))

    def _complex_product(self, a: str, b: str) -> str:
        """One real product: the pairs of a row of `a` are a row of twice the length, and each element of `b` is a square of four.

            [a0 a0i a1 a1i ...]  @  [ b0   b0i ]   =  [c c_i]
                                    [-b0i  b0  ]

        Shapes: a: [*B, M, K], b: [*B, K, N] -> [*B, M, N]
        """
        *lead, m, k = self.shape_of(a)
        *batch, _, n = self.shape_of(b)
        dtype = self.dtype_of(a)
        part = PART_OF[dtype]
        axes = axis_names(len(batch) + 4)
        row, column = axis(axes[-3]), axis(axes[-1])
        at = tuple(number(0) if s == 1 else axis(e) for s, e in zip((*batch, k, 1, n), axes[:-1], strict=True))
        where = (*at[:len(batch)], at[len(batch)], at[len(batch) + 2])
        real, imaginary = (Read(b, (*where, number(which))) for which in (0, 1))
        same: Expr = Guard((Bound(row - column, 0, 1),), real, Guard((Bound(row, 0, 1),), imaginary, call("neg", imaginary)))
        squares = super().map("squares", part, (*batch, k, 2, n, 2), axes, same)
        right = self.reshape(squares, [*batch, 2 * k, 2 * n])
        with self._as_pairs(a):
            left = self.reshape(a, [*lead, m, 2 * k])
        product = self.matmul(left, right)
        shape = (*broadcast_shapes(lead, batch), m, n)
        return self._typed(self.reshape(product, [*shape, 2]), Type(dtype, shape))


class AdjointBuilder(ComplexBuilder):
    """`ComplexBuilder` whose products turn a complex operand by the conjugate of its transpose, as adjoints want it."""

    @classmethod
    @contextmanager
    def within(cls, b: TensorBuilder, values: Iterable[str]) -> Iterator[AdjointBuilder]:
        """A builder that adds to the graph of another one, in which these values are pairs of reals."""
        builder = cls(b.name)
        builder.inputs, builder.nodes, builder.constant_data, builder.span = b.inputs, b.nodes, b.constant_data, b.span
        builder.types, builder._counts = dict(b.types), b._counts
        for value in values:
            have = b.types[value]
            builder.types[value] = Type(COMPLEX_OF[have.dtype], have.shape[:-1])
        before = len(b.nodes)
        yield builder
        b.types.update({node.name: node.type for node in b.nodes[before:]})

    def matmul(self, a: str, b: str, transpose_a: bool = False, transpose_b: bool = False, precision: str = "default",
               dtype: DType | None = None) -> str:
        """As `TensorBuilder.matmul`; the transposed operands of complex products are conjugated."""
        if not self.dtype_of(a).is_complex:
            return super().matmul(a, b, transpose_a, transpose_b, precision, dtype)
        left, right = (self.transpose(self.elementwise("conj", x), -1, -2) if is_turned else x
                       for x, is_turned in ((a, transpose_a), (b, transpose_b)))
        return super().matmul(left, right, False, False, precision)


def _without_order(what: str) -> TypeMismatchError:
    return TypeMismatchError(f"complex numbers have no order, so no {what}", hint="take it of abs(x), real(x) or imag(x)")
