"""ONNX elementwise operators: arithmetic, comparison, logic, conversion, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from tilefuse.frontends.onnx.call import Call, onnx_op
from tilefuse.frontends.onnx.model import element_dtype
from tilefuse.ir.dtype import BOOL, F8E4M3, F8E5M2, F32, F64, DType, compute_dtype
from tilefuse.ir.scalar import NUMPY_DTYPES, Expr, call, const

# ONNX operator -> scalar function applied to the one operand.
UNARY = {
    "Abs": "abs",
    "Neg": "neg",
    "Sign": "sign",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Sqrt": "sqrt",
    "Exp": "exp",
    "Log": "log",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Tanh": "tanh",
    "Asinh": "asinh",
    "Acosh": "acosh",
    "Atanh": "atanh",
    "Erf": "erf",
    "Sigmoid": "sigmoid",
    "Reciprocal": "reciprocal",
    "Not": "logical_not",
    "BitwiseNot": "bit_not",
    "IsNaN": "isnan",
}
# ONNX operator -> scalar function of two broadcast operands of one type.
BINARY = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
    "Equal": "eq",
    "Less": "lt",
    "LessOrEqual": "le",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "BitwiseAnd": "bit_and",
    "BitwiseOr": "bit_or",
    "BitwiseXor": "bit_xor",
}
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def operands(n: Call) -> list[str]:
    """The operands; below opset 7 the second one is aligned by the attributes `broadcast` and `axis`."""
    operands = n.all()
    if n.attr("broadcast") and len(operands) == 2 and n.attr("axis") is not None:
        rank, have = n.b.rank_of(operands[0]), n.b.shape_of(operands[1])
        operands[1] = n.b.reshape(operands[1], (*have, *(1,) * (rank - n.axis(n.attr("axis"), rank) - len(have))))
    return operands


@onnx_op(*UNARY)
def unary(n: Call) -> str:
    return n.b.elementwise(UNARY[n.op], n[0])


@onnx_op(*BINARY)
def binary(n: Call) -> str:
    return n.b.elementwise(BINARY[n.op], *operands(n))


@onnx_op("Div")
def div(n: Call) -> str:
    """Integers are divided toward zero."""
    a, b = operands(n)
    return n.b.elementwise("div" if n.b.dtype_of(a).is_float else "truncdiv", a, b)


@onnx_op("Mod")
def mod(n: Call) -> str:
    return n.b.elementwise("fmod" if n.attr("fmod", 0) else "mod", *operands(n))


@onnx_op("Pow")
def power(n: Call) -> str:
    """The result has the base's type; mixed types are computed in the wider float, if any is a float."""
    power_array = n.operand(1).array
    if power_array is not None and power_array.size == 1 and power_array.ndim <= len(n.shape(0)):
        factors = {1.0: 1, 2.0: 2, 3.0: 3}.get(float(power_array.reshape(-1)[0]))
        if factors is not None:
            return product_of(n, n[0], factors)
    base, exponent = operands(n)
    have, other = n.b.dtype_of(base), n.b.dtype_of(exponent)
    if have == other:
        return n.b.elementwise("pow", base, exponent)
    work = compute_dtype(have if have.is_float or not other.is_float else other)
    return n.b.cast(n.b.elementwise("pow", n.b.cast(base, work), n.b.cast(exponent, work)), have)


def product_of(n: Call, x: str, factors: int) -> str:
    """`x` to a small whole power. Exact for squares; a cube is rounded twice, where `pow` may be off by as much."""
    return n.b.expression(lambda e: reduce(lambda a, b: call("mul", a, b), [e] * factors), x, dtype=n.b.dtype_of(x), name="power")


@onnx_op("BitShift")
def bit_shift(n: Call) -> str:
    return n.b.elementwise("shift_left" if n.needed_attr("direction") == "LEFT" else "shift_right", n[0], n[1])


@onnx_op(*VARIADIC)
def variadic(n: Call) -> str:
    return reduce(lambda a, b: n.b.elementwise(VARIADIC[n.op], a, b), n.all())


@onnx_op("Mean")
def mean(n: Call) -> str:
    total = reduce(lambda a, b: n.b.elementwise("add", a, b), n.all())
    return n.b.elementwise("div", total, float(len(n.inputs)))


@onnx_op("Where")
def where(n: Call) -> str:
    return n.b.where(n[0], n[1], n[2])


@onnx_op("IsInf")
def is_inf(n: Call) -> str:
    signs = [sign for sign, name in ((math.inf, "detect_positive"), (-math.inf, "detect_negative")) if n.attr(name, 1)]
    if len(signs) == 2:
        return n.b.elementwise("isinf", n[0])
    if not signs:
        return n.b.full(n.shape(0), False, BOOL)
    return n.b.elementwise("eq", n[0], signs[0])


# Conversions


def convert(n: Call, x: str, to: DType) -> str:
    """`x` as `to`. Into 8-bit floats, values beyond the range become the largest, unless `saturate` is 0.

    Conversions to f8e4m3 saturate and those to f8e5m2 do not; the other wish takes a comparison.
    """
    have = n.b.dtype_of(x)
    if to not in (F8E4M3, F8E5M2) or not have.is_float:
        return n.b.cast(x, to)
    work = compute_dtype(have)
    if to == F8E5M2 and n.attr("saturate", 1):
        x = n.b.clamp(n.b.cast(x, work), -largest_finite(to), largest_finite(to))
    if to == F8E4M3 and not n.attr("saturate", 1):
        # 464 lies half way to the next step, which would be 480: beyond it nothing rounds to 448.
        beyond = const(464.0, work)
        x = n.b.expression(
            lambda e: call("select", call("gt", call("abs", e), beyond), const(math.nan, work), e), x, dtype=work, name="cast"
        )
    return n.b.cast(x, to)


@onnx_op("Cast")
def cast(n: Call) -> str:
    return convert(n, n[0], element_dtype(n.needed_attr("to"), n.place))


@onnx_op("CastLike")
def cast_like(n: Call) -> str:
    return convert(n, n[0], n.dtype(1))


# Activations. Each is one map; parameters are attributes with the standard's defaults.

Activation = Callable[[Expr, Callable[[float], Expr], Callable[[str, float], float]], Expr]


def _positive(x: Expr, c: Callable[[float], Expr], then: Expr, otherwise: Expr) -> Expr:
    return call("select", call("lt", x, c(0.0)), otherwise, then)


def _elu(x: Expr, c: Callable[[float], Expr], p: Callable[[str, float], float]) -> Expr:
    return _positive(x, c, x, call("mul", c(p("alpha", 1.0)), call("expm1", x)))


def _selu(x: Expr, c: Callable[[float], Expr], p: Callable[[str, float], float]) -> Expr:
    negative = call("mul", c(p("alpha", 1.67326319217681884765625)), call("expm1", x))
    return call("mul", c(p("gamma", 1.05070102214813232421875)), call("select", call("gt", x, c(0.0)), x, negative))


def _celu(x: Expr, c: Callable[[float], Expr], p: Callable[[str, float], float]) -> Expr:
    alpha = p("alpha", 1.0)
    return _positive(x, c, x, call("mul", c(alpha), call("expm1", call("div", x, c(alpha)))))


def _hard_sigmoid(x: Expr, c: Callable[[float], Expr], p: Callable[[str, float], float]) -> Expr:
    line = call("add", call("mul", x, c(p("alpha", 0.2))), c(p("beta", 0.5)))
    return call("maximum", c(0.0), call("minimum", c(1.0), line))


def _hard_swish(x: Expr, c: Callable[[float], Expr], p: Callable[[str, float], float]) -> Expr:
    line = call("add", call("mul", x, c(1.0 / 6.0)), c(0.5))
    return call("mul", x, call("maximum", c(0.0), call("minimum", c(1.0), line)))


def _softplus(x: Expr, c: Callable[[float], Expr], p: Callable[[str, float], float]) -> Expr:
    """max(x, 0) + log1p(exp(-|x|)): does not overflow."""
    return call("add", call("maximum", x, c(0.0)), call("log1p", call("exp", call("neg", call("abs", x)))))


def _gelu_tanh(x: Expr, c: Callable[[float], Expr]) -> Expr:
    cube = call("mul", x, call("mul", x, x))
    inner = call("mul", c(math.sqrt(2.0 / math.pi)), call("add", x, call("mul", c(0.044715), cube)))
    return call("mul", call("mul", c(0.5), x), call("add", c(1.0), call("tanh", inner)))


def _gelu_erf(x: Expr, c: Callable[[float], Expr]) -> Expr:
    return call("mul", call("mul", c(0.5), x), call("add", c(1.0), call("erf", call("mul", x, c(math.sqrt(0.5))))))


ACTIVATIONS: dict[str, Activation] = {
    "Relu": lambda x, c, p: call("maximum", x, c(0)),
    "LeakyRelu": lambda x, c, p: _positive(x, c, x, call("mul", c(p("alpha", 0.01)), x)),
    "ThresholdedRelu": lambda x, c, p: call("select", call("gt", x, c(p("alpha", 1.0))), x, c(0.0)),
    "Elu": _elu,
    "Selu": _selu,
    "Celu": _celu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Softplus": _softplus,
    "Softsign": lambda x, c, p: call("div", x, call("add", c(1.0), call("abs", x))),
    "Mish": lambda x, c, p: call("mul", x, call("tanh", _softplus(x, c, p))),
    "Swish": lambda x, c, p: call("mul", x, call("sigmoid", call("mul", c(p("alpha", 1.0)), x))),
    "Affine": lambda x, c, p: call("add", call("mul", c(p("alpha", 1.0)), x), c(p("beta", 0.0))),
    "ScaledTanh": lambda x, c, p: call("mul", c(p("alpha", 1.0)), call("tanh", call("mul", c(p("beta", 1.0)), x))),
    "Sigmoid": lambda x, c, p: call("sigmoid", x),
    "Tanh": lambda x, c, p: call("tanh", x),
}


def activate(n: Call, x: str, name: str, parameter: Callable[[str, float], float]) -> str:
    """The activation `name` of `x`, computed in its compute dtype."""
    work = compute_dtype(n.b.dtype_of(x))
    return n.b.expression(
        lambda e: ACTIVATIONS[name](e, lambda value: const(value, work), parameter), x, dtype=n.b.dtype_of(x), name=name.lower()
    )


@onnx_op(*(name for name in ACTIVATIONS if name not in ("Affine", "ScaledTanh", "Sigmoid", "Tanh")))
def activation(n: Call) -> str:
    defaults = {"LeakyRelu": {"alpha": 0.0}} if n.version < 6 else {}
    return activate(n, n[0], n.op, lambda name, default: float(n.attr(name, defaults.get(n.op, {}).get(name, default))))


@onnx_op("Gelu")
def gelu(n: Call) -> str:
    work = compute_dtype(n.dtype(0))
    form = _gelu_tanh if n.attr("approximate", "none") == "tanh" else _gelu_erf
    return n.b.expression(lambda e: form(e, lambda value: const(value, work)), n[0], dtype=n.dtype(0), name="gelu")


@onnx_op("PRelu")
def prelu(n: Call) -> str:
    x, slope = n[0], n[1]
    rank, have = n.b.rank_of(x), n.b.shape_of(slope)
    if n.version < 7 and len(have) == 1 and rank > 1:  # one slope a channel
        slope = n.b.reshape(slope, (*have, *(1,) * (rank - 2)))
    work = compute_dtype(n.b.dtype_of(x))
    return n.b.expression(
        lambda e, s: _positive(e, lambda v: const(v, work), e, call("mul", s, e)), x, slope, dtype=n.b.dtype_of(x), name="prelu"
    )


@onnx_op("Shrink")
def shrink(n: Call) -> str:
    have = n.dtype(0)
    bias, edge, work = float(n.attr("bias", 0.0)), float(n.attr("lambd", 0.5)), compute_dtype(have) if have.is_float else F64
    x = n[0] if have.is_float else n.b.cast(n[0], work)  # the parameters of whole numbers may have fractions

    def body(x: Expr) -> Expr:
        above = call("sub", x, const(bias, work))
        below = call("add", x, const(bias, work))
        inner = call("select", call("gt", x, const(edge, work)), above, const(0, work))
        return call("select", call("lt", x, const(-edge, work)), below, inner)

    return n.b.cast(n.b.expression(body, x, dtype=have if have.is_float else work, name="shrink"), have)


@onnx_op("Clip")
def clip(n: Call) -> str:
    """Limits are operands from opset 11 on, attributes before."""
    if n.version < 11:
        largest = largest_finite(F32) if n.version >= 6 else None  # the limits' default from 6 on: infinities become finite
        return n.b.clamp(n[0], n.attr("min", None if largest is None else -largest), n.attr("max", largest))
    limits = [n[i] if n.has(i) else None for i in (1, 2)]
    limits = [None if x is None else n.b.reshape(x, ()) for x in limits]
    return n.b.clamp(n[0], *limits)


@onnx_op("Binarizer", domain="ai.onnx.ml")
def binarizer(n: Call) -> str:
    return n.b.cast(n.b.elementwise("gt", n[0], float(n.attr("threshold", 0.0))), n.dtype(0))


@onnx_op("BitCast")
def bit_cast(n: Call) -> str:
    """Between equal types only: the graph has no view of bits."""
    to = element_dtype(n.needed_attr("to"), n.place)
    have = n.dtype(0)
    if have == to:
        return n[0]
    if have.is_integer and to.is_integer and have.bits == to.bits:
        return n.b.cast(n[0], to)
    raise n.unsupported(f"reinterpreting the bits of {have} as {to}")


def largest_finite(dtype: DType) -> float:
    """The largest finite value of a float type."""
    limits: Callable[[np.dtype], Any] = ml_dtypes.finfo if dtype.bits < 32 else np.finfo
    return float(limits(NUMPY_DTYPES[dtype.name]).max)
