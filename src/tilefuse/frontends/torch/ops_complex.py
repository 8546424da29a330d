"""Torch operators on complex tensors that become maps, reductions and views over pairs of reals.

A complex tensor is its pairs of reals in a last dimension of two. Arithmetic follows torch's formulas on both parts, a real operand
counting as a complex one with imaginary part 0 (so that infinities and NaN travel as in torch). All other operators (transforms, complex
division, other transcendental functions) are left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, Union

from tilefuse.frontends.torch.ops import TORCH_OPS, Scalar, TorchBuilder, Value, decline
from tilefuse.ir.affine import axis, number
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import broadcast_shapes, converted
from tilefuse.ir.complex_functions import COMPLEX_FUNCTIONS, Parts, multiply
from tilefuse.ir.dtype import F64, I64, DType, compute_dtype
from tilefuse.ir.graph import Type
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import LEAVES, Expr, Index, Read, call, const

Operand = Union[Value, Scalar, complex]


class Pairs:
    """Context of a lowering: the builder, and which values are pairs of reals."""

    def __init__(self, b: TorchBuilder, complexes: Collection[str]) -> None:
        self.b = b
        self.complexes = complexes

    def shape(self, x: Operand) -> tuple[int, ...]:
        """The shape that torch sees."""
        if not isinstance(x, Value):
            return ()
        have = self.b.shape_of(x)
        return have[:-1] if x in self.complexes else have

    def rank(self, x: Value) -> int:
        return len(self.shape(x))

    def parts(self, x: Operand, work: DType, shape: Sequence[int], axes: Sequence[str]) -> Parts:
        """Real and imaginary part of the element that broadcasts to position `axes` of `shape`, as `work`."""
        if not isinstance(x, Value):
            value = complex(x)
            return const(value.real, work), const(value.imag, work)
        have, dtype = self.shape(x), self.b.dtype_of(x)
        lead = len(shape) - len(have)
        at = tuple(number(0) if extent == 1 else axis(axes[lead + d]) for d, extent in enumerate(have))
        if x not in self.complexes:
            return converted(Read(x, at), dtype, work), const(0, work)
        real, imaginary = (converted(Read(x, (*at, number(part))), dtype, work) for part in (0, 1))
        return real, imaginary

    def complex_map(self, fn: Callable[..., Parts], *xs: Operand, name: str = "complex") -> str:
        """A complex result: `fn` on the parts of the broadcast operands gives its parts."""
        dtype, work, shape, axes, parts = self._broadcast(xs, complex_result=True)
        return self._joined(name, dtype, work, shape, axes, *fn(*parts))

    def function(self, name: str, *xs: Operand) -> str:
        """A function of complex numbers from the table of `ir/complex_functions.py`, whose shared subexpressions are maps of their own."""
        dtype, work, shape, axes, parts = self._broadcast(xs, complex_result=True)

        def let(e: Expr) -> Expr:
            if isinstance(e, LEAVES):
                return e
            return self.b.read(self.b.make_map(name, dtype_of(e, self.b.dtype_of), shape, axes, e), shape, axes)

        parts_of_result = COMPLEX_FUNCTIONS[name](work, let, *parts)
        assert isinstance(parts_of_result, tuple), name
        return self._joined(name, dtype, work, shape, axes, *parts_of_result)

    def _joined(self, name: str, dtype: DType, work: DType, shape: Sequence[int], axes: Sequence[str], real: Expr, imaginary: Expr) -> str:
        which = "part"
        body = call("select", call("eq", Index(axis(which)), const(0, I64)), real, imaginary)
        return self.b.make_map(name, dtype, (*shape, 2), (*axes, which), converted(body, work, dtype))

    def real_map(self, fn: Callable[..., Expr], *xs: Operand, name: str) -> str:
        """A real result: `fn` on the parts of the broadcast operands gives its element."""
        dtype, work, shape, axes, parts = self._broadcast(xs, complex_result=False)
        return self.b.make_map(name, dtype, shape, axes, converted(fn(*parts), work, dtype))

    def _broadcast(self, xs: Sequence[Operand], complex_result: bool) -> tuple[DType, DType, tuple[int, ...], tuple[str, ...], list[Parts]]:
        dtype = self.b.result_dtype
        work = compute_dtype(dtype)
        shape = broadcast_shapes(*(self.shape(x) for x in xs))
        axes = axis_names(len(shape))
        return dtype, work, shape, axes, [self.parts(x, work, shape, axes) for x in xs]


Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)

COMPLEX_OPS: dict[str, Lowering] = {}


def lowers_complex(*operators: str) -> Callable[[F], F]:
    """Enters a function into the table under full operator names."""

    def register(function: F) -> F:
        for name in operators:
            assert name not in COMPLEX_OPS, name
            COMPLEX_OPS[name] = function
        return function

    return register


def _product(x: Parts, y: Parts) -> Parts:
    return multiply(F64, lambda e: e, x, y)


def _each(fn: str) -> Callable[..., Parts]:
    """A function applied to real and imaginary parts apart."""
    return lambda *xs: (call(fn, *(x[0] for x in xs)), call(fn, *(x[1] for x in xs)))


@lowers_complex("aten.mul.Tensor", "aten.mul.Scalar")
def mul(p: Pairs, x: Operand, y: Operand) -> str:
    return p.complex_map(_product, x, y, name="mul")


def _sum_of(p: Pairs, fn: str, x: Operand, y: Operand, alpha: Scalar | complex) -> str:
    """`fn` of x and alpha * y; torch multiplies by an alpha of one, too, which is seen in infinite numbers only."""
    if alpha == 1:
        return p.complex_map(_each(fn), x, y, name=fn)
    return p.complex_map(lambda a, b, c: _each(fn)(a, _product(c, b)), x, y, alpha, name=fn)


@lowers_complex("aten.add.Tensor", "aten.add.Scalar")
def add(p: Pairs, x: Operand, y: Operand, alpha: Scalar | complex = 1) -> str:
    return _sum_of(p, "add", x, y, alpha)


@lowers_complex("aten.sub.Tensor", "aten.sub.Scalar")
def sub(p: Pairs, x: Operand, y: Operand, alpha: Scalar | complex = 1) -> str:
    return _sum_of(p, "sub", x, y, alpha)


@lowers_complex("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(p: Pairs, x: Operand, y: Operand, alpha: Scalar | complex = 1) -> str:
    return sub(p, y, x, alpha)


@lowers_complex("aten.div.Tensor", "aten.div.Scalar")
def div(p: Pairs, x: Operand, y: Operand) -> str:
    """Part by part where the divisor is real."""
    if y in p.complexes or isinstance(y, complex):
        return p.function("div", x, y)
    return p.complex_map(lambda a, b: (call("div", a[0], b[0]), call("div", a[1], b[0])), x, y, name="div")


@lowers_complex("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(p: Pairs, x: Operand, y: Operand) -> str:
    """Squares and cubes as products, other powers by length and angle."""
    if y in (2, 3) and not isinstance(y, Value):
        return p.complex_map(lambda a: _product(a, a) if y == 2 else _product(_product(a, a), a), x, name="pow")
    return p.function("pow", x, y)


def _of_table(name: str) -> Lowering:
    return lambda p, x: p.function(name, x)


for _name in ("exp", "expm1", "log", "log2", "log10", "log1p", "sqrt", "reciprocal", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
              "cosh", "tanh", "asinh", "acosh", "atanh"):
    lowers_complex(f"aten.{_name}.default")(_of_table(_name))


@lowers_complex("aten.neg.default")
def neg(p: Pairs, x: Value) -> str:
    return p.complex_map(_each("neg"), x, name="neg")


@lowers_complex("aten._conj.default", "aten.conj.default", "aten._conj_physical.default", "aten.conj_physical.default")
def conj(p: Pairs, x: Value) -> str:
    return p.complex_map(lambda a: (a[0], call("neg", a[1])), x, name="conj")


@lowers_complex("aten.where.self")
def where(p: Pairs, condition: Value, x: Operand, y: Operand) -> str:
    def chosen(c: Parts, a: Parts, b: Parts) -> Parts:
        holds = call("ne", c[0], const(0, dtype_of(c[0], p.b.dtype_of)))
        return call("select", holds, a[0], b[0]), call("select", holds, a[1], b[1])

    return p.complex_map(chosen, condition, x, y, name="where")


@lowers_complex("aten.abs.default")
def magnitude(p: Pairs, x: Value) -> str:
    return p.real_map(lambda a: call("hypot", *a), x, name="abs")


@lowers_complex("aten.angle.default")
def angle(p: Pairs, x: Value) -> str:
    return p.real_map(lambda a: call("atan2", a[1], a[0]), x, name="angle")


@lowers_complex("aten.real.default")
def real(p: Pairs, x: Value) -> str:
    return p.real_map(lambda a: a[0], x, name="real")


@lowers_complex("aten.imag.default")
def imag(p: Pairs, x: Value) -> str:
    return p.real_map(lambda a: a[1], x, name="imag")


@lowers_complex("aten.complex.default")
def joined(p: Pairs, x: Value, y: Value) -> str:
    return p.complex_map(lambda a, b: (a[0], b[0]), x, y, name="complex")


@lowers_complex("aten.polar.default")
def polar(p: Pairs, length: Value, turn: Value) -> str:
    def at(a: Parts, b: Parts) -> Parts:
        return call("mul", a[0], call("cos", b[0])), call("mul", a[0], call("sin", b[0]))

    return p.complex_map(at, length, turn, name="polar")


@lowers_complex("aten.view_as_real.default", "aten.view_as_complex.default", "aten.clone.default", "aten.alias.default",
                "aten.detach.default", "aten.resolve_conj.default", "aten.lift_fresh_copy.default")
def same(p: Pairs, x: Value, **_: object) -> str:
    """The same pairs; for the first two only torch's name of the type changes."""
    shape = p.b.shape_of(x)
    axes = axis_names(len(shape))
    return p.b.make_map("pairs", p.b.dtype_of(x), shape, axes, p.b.read(x, shape, axes))


@lowers_complex("aten.sgn.default")
def sgn(p: Pairs, x: Value) -> str:
    """x / |x|; 0 for 0."""
    def unit(a: Parts) -> Parts:
        length = call("hypot", *a)
        zero = call("eq", length, const(0, dtype_of(length, p.b.dtype_of)))
        return call("select", zero, length, call("div", a[0], length)), call("select", zero, length, call("div", a[1], length))

    return p.complex_map(unit, x, name="sgn")


@lowers_complex("aten.new_zeros.default", "aten.zeros.default", "aten.zeros_like.default")
def zeros(p: Pairs, *_: object, **__: object) -> str:
    return p.b.full(p.b.result_shape, 0, p.b.result_dtype)


@lowers_complex("aten.copy.default")
def copied(p: Pairs, x: Value, source: Value, non_blocking: bool = False) -> str:
    if x not in p.complexes:
        raise decline("complex numbers copied to real ones")
    return p.b.broadcast_to(p.complex_map(lambda a: a, source, name="copy"), p.b.result_shape)


@lowers_complex("aten.slice_scatter.default")
def slice_scatter(p: Pairs, x: Value, source: Value, dim: int = 0, *rest: Any) -> str:
    if source not in p.complexes:
        raise decline("real numbers among complex ones")
    result: str = TORCH_OPS["aten.slice_scatter.default"](p.b, x, source, dim % p.rank(x), *rest)
    return result


@lowers_complex("aten.constant_pad_nd.default")
def constant_pad(p: Pairs, x: Value, padding: Sequence[int], value: Scalar | complex = 0) -> str:
    if value != 0:
        raise decline("padding with a complex number")
    result: str = TORCH_OPS["aten.constant_pad_nd.default"](p.b, x, [0, 0, *padding])
    return result


@lowers_complex("aten._to_copy.default", "prims.convert_element_type.default")
def to_copy(p: Pairs, x: Value, *_: object, dtype: object = None, device: object = None, **__: object) -> str:
    if device is not None:
        raise decline("a copy to a device")
    if p.b.expected[0] == _type_of(p, x):
        return same(p, x)
    if len(p.b.result_shape) == len(p.shape(x)):
        # To a real type: torch drops the imaginary part.
        return p.b.cast(real(p, x), p.b.result_dtype)
    return p.complex_map(lambda a: a, x, name="cast")


def _type_of(p: Pairs, x: Value) -> tuple[DType, tuple[int, ...]]:
    type_: Type = p.b.types[x]
    return type_.dtype, type_.shape


@lowers_complex("aten.sum.dim_IntList", "aten.sum.default")
def total(p: Pairs, x: Value, axes: Sequence[int] | None = None, keepdim: bool = False, *, dtype: object = None) -> str:
    return p.b.reduce(p.b.cast(x, p.b.result_dtype), "sum", _over(p, x, axes), keepdim)


def _over(p: Pairs, x: Value, axes: Sequence[int] | None) -> tuple[int, ...]:
    rank = p.rank(x)
    return tuple(range(rank)) if not axes else tuple(sorted({a % max(rank, 1) for a in axes})) if rank else ()


@lowers_complex("aten.mean.dim", "aten.mean.default")
def mean(p: Pairs, x: Value, axes: Sequence[int] | None = None, keepdim: bool = False, *, dtype: object = None) -> str:
    return p.b.mean(p.b.cast(x, p.b.result_dtype), _over(p, x, axes), keepdim)


@lowers_complex("aten.permute.default")
def permute(p: Pairs, x: Value, order: Sequence[int]) -> str:
    rank = p.rank(x)
    return p.b.permute(x, [*(d % max(rank, 1) for d in order), rank])


@lowers_complex("aten.transpose.int")
def transpose(p: Pairs, x: Value, first: int, second: int) -> str:
    rank = max(p.rank(x), 1)
    return p.b.transpose(x, first % rank, second % rank) if p.rank(x) else x


@lowers_complex("aten.t.default")
def t(p: Pairs, x: Value) -> str:
    return p.b.transpose(x, 0, 1) if p.rank(x) == 2 else x


@lowers_complex("aten.unsqueeze.default")
def unsqueeze(p: Pairs, x: Value, dim: int) -> str:
    return p.b.expand_dims(x, dim % (p.rank(x) + 1))


@lowers_complex("aten.flip.default")
def flip(p: Pairs, x: Value, axes: Sequence[int]) -> str:
    return p.b.flip(x, [a % p.rank(x) for a in axes]) if p.rank(x) else x


@lowers_complex("aten.cat.default")
def cat(p: Pairs, tensors: Sequence[Value], dim: int = 0) -> str:
    if any(x not in p.complexes for x in tensors):
        raise decline("real and complex tensors side by side")
    # Torch takes a one-dimensional tensor without elements beside tensors of any rank.
    joined = [x for x in tensors if p.shape(x) != (0,)] or tensors[:1]
    return p.b.concatenate([p.b.cast(x, p.b.result_dtype) for x in joined], dim % p.rank(joined[0]))


@lowers_complex("aten.unbind.int")
def unbind(p: Pairs, x: Value, dim: int = 0) -> tuple[str, ...]:
    at = dim % p.rank(x)
    return tuple(p.b.select(x, at, n) for n in range(p.shape(x)[at]))


# Their real lowerings look at the result's shape alone.
_BY_RESULT_SHAPE = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.expand.default",
                    "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
# Their second argument is the dimension along which they work.
_ALONG = ("aten.slice.Tensor", "aten.select.int")
# Their third argument is.
_PIECES = ("aten.split.Tensor", "aten.split_with_sizes.default")


def _with_shape(name: str) -> Lowering:
    return lambda p, x, *rest, **named: TORCH_OPS[name](p.b, x, *rest, **named)


def _along(name: str, place: int) -> Lowering:
    def lowering(p: Pairs, x: Value, *rest: Any) -> Any:
        listed = list(rest) + [0] * (place - len(rest))
        listed[place - 1] %= max(p.rank(x), 1)
        return TORCH_OPS[name](p.b, x, *listed)

    return lowering


for _name in _BY_RESULT_SHAPE:
    lowers_complex(_name)(_with_shape(_name))
for _name in _ALONG:
    lowers_complex(_name)(_along(_name, 1))
for _name in _PIECES:
    lowers_complex(_name)(_along(_name, 2))
