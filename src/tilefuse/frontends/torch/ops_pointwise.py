"""Elementwise torch operators: arithmetic, comparison, logic, activations.

Each is one map. Operands of different types are converted to the compute dtype of the result type that torch derived; a
16-bit result is computed in f32 and rounded once, as torch's own kernels do.
"""

from __future__ import annotations

import math

from tilefuse.frontends.torch.ops import TORCH_OPS, Operand, Scalar, TorchBuilder, Value, lowers
from tilefuse.ir.dtype import BOOL, I32, DType, compute_dtype
from tilefuse.ir.scalar import Expr, call, const

# Functions whose name in torch is ours.
_UNARY = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
    "digamma",
    "sigmoid",
    "neg",
    "abs",
)
_ROUNDING = ("floor", "ceil", "trunc")
_BINARY = ("mul", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign", "nextafter")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _number(value: Scalar, t: DType) -> Expr:
    return const(value, t)


def _enter_unary(name: str) -> None:
    @lowers(f"aten.{name}.default")
    def lower(b: TorchBuilder, x: Value) -> str:
        return b.pointwise(lambda e: call(name, e), x, name=name)


def _enter_rounding(name: str) -> None:
    @lowers(f"aten.{name}.default")
    def lower(b: TorchBuilder, x: Value) -> str:
        return b.pointwise(lambda e: call(name, e), x, name=name) if b.result_dtype.is_float else x


def _enter_binary(name: str) -> None:
    def lower(b: TorchBuilder, x: Operand, y: Operand) -> str:
        if b.result_dtype.is_integer and name in ("fmax", "fmin"):
            return b.pointwise(lambda p, q: call("maximum" if name == "fmax" else "minimum", p, q), x, y, name=name)
        return b.pointwise(lambda p, q: call(name, p, q), x, y, name=name)

    for overload in ("default", "Tensor", "Scalar", "other"):
        TORCH_OPS[f"aten.{name}.{overload}"] = lower


def _enter_comparison(name: str) -> None:
    def lower(b: TorchBuilder, x: Operand, y: Operand) -> str:
        common = b.common_dtype(x, y)
        work = I32 if common == BOOL else compute_dtype(common)
        # A Python number takes the tensors' type before it is compared, so it is rounded to that type first.
        sides = [x if isinstance(x, str) else const(x, common).value for x in (x, y)]
        return b.pointwise(lambda p, q: call(name, p, q), *sides, work=work, name=name)

    for overload in ("Tensor", "Scalar"):
        TORCH_OPS[f"aten.{name}.{overload}"] = lower


for _name in _UNARY:
    _enter_unary(_name)
# The imaginary part of a conjugate is a lazily negated view.
lowers("aten._neg_view.default")(TORCH_OPS["aten.neg.default"])
for _name in _ROUNDING:
    _enter_rounding(_name)
for _name in _BINARY:
    _enter_binary(_name)
for _name in _COMPARISONS:
    _enter_comparison(_name)


# Arithmetic


@lowers("aten.add.Tensor", "aten.add.Scalar")
def add(b: TorchBuilder, x: Operand, y: Operand, alpha: Scalar = 1) -> str:
    return _scaled_sum(b, "add", x, y, alpha)


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def sub(b: TorchBuilder, x: Operand, y: Operand, alpha: Scalar = 1) -> str:
    return _scaled_sum(b, "sub", x, y, alpha)


@lowers("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(b: TorchBuilder, x: Operand, y: Operand, alpha: Scalar = 1) -> str:
    return _scaled_sum(b, "sub", y, x, alpha)


def _scaled_sum(b: TorchBuilder, fn: str, x: Operand, y: Operand, alpha: Scalar) -> str:
    if alpha == 1:
        return b.pointwise(lambda p, q: call(fn, p, q), x, y, name=fn)
    return b.pointwise(lambda p, q, a: call(fn, p, call("mul", q, a)), x, y, alpha, name=fn)


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor", "prims.div.default")
def div(b: TorchBuilder, x: Operand, y: Operand) -> str:
    if b.result_dtype.is_integer:
        return b.pointwise(lambda p, q: call("truncdiv", p, q), x, y, name="div")
    return b.pointwise(lambda p, q: call("div", p, q), x, y, name="div")


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(b: TorchBuilder, x: Operand, y: Operand, rounding_mode: str | None = None) -> str:
    if rounding_mode is None:
        return div(b, x, y)
    if rounding_mode == "floor":
        return b.pointwise(lambda p, q: call("floordiv", p, q), x, y, name="floordiv")
    if b.result_dtype.is_float:
        return b.pointwise(lambda p, q: call("trunc", call("div", p, q)), x, y, name="truncdiv")
    return b.pointwise(lambda p, q: call("truncdiv", p, q), x, y, name="truncdiv")


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(b: TorchBuilder, x: Operand, y: Operand) -> str:
    return div_mode(b, x, y, "floor")


@lowers("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(b: TorchBuilder, x: Operand, y: Operand) -> str:
    return b.pointwise(lambda p, q: call("mod", p, q), x, y, name="remainder")


@lowers("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(b: TorchBuilder, x: Operand, y: Operand) -> str:
    return b.pointwise(lambda p, q: call("fmod", p, q), x, y, name="fmod")


def _power(x: Expr, exponent: Scalar, t: DType) -> Expr:
    """x to a known power. Exact: 2 and 3 are products, as in torch's own kernels; 0.5 is a square root."""
    if exponent == 0:
        return _number(1, t)
    if exponent == 1:
        return x
    if exponent == 2:
        return call("mul", x, x)
    if exponent == 3:
        return call("mul", call("mul", x, x), x)
    if t.is_float and exponent == 0.5:
        return call("sqrt", x)
    if t.is_float and exponent == -0.5:
        return call("rsqrt", x)
    if t.is_float and exponent == -1:
        return call("reciprocal", x)
    if t.is_float and exponent == -2:
        return call("reciprocal", call("mul", x, x))
    return call("pow", x, _number(exponent, t))


@lowers("aten.pow.Tensor_Scalar")
def pow_scalar(b: TorchBuilder, x: Value, exponent: Scalar) -> str:
    work = compute_dtype(b.result_dtype) if b.result_dtype != BOOL else I32
    return b.pointwise(lambda e: _power(e, exponent, work), x, name="pow")


@lowers("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def pow_tensor(b: TorchBuilder, x: Operand, y: Operand) -> str:
    return b.pointwise(lambda p, q: call("pow", p, q), x, y, name="pow")


@lowers("aten.addcmul.default")
def addcmul(b: TorchBuilder, x: Value, y: Value, z: Value, value: Scalar = 1) -> str:
    return b.pointwise(lambda p, q, r, v: call("add", p, call("mul", v, call("mul", q, r))), x, y, z, value, name="addcmul")


@lowers("prims.fma.default")
def fma(b: TorchBuilder, x: Value, y: Value, z: Value) -> str:
    return b.pointwise(lambda p, q, r: call("fma", p, q, r), x, y, z, name="fma")


@lowers("aten.addcdiv.default")
def addcdiv(b: TorchBuilder, x: Value, y: Value, z: Value, value: Scalar = 1) -> str:
    return b.pointwise(lambda p, q, r, v: call("add", p, call("mul", v, call("div", q, r))), x, y, z, value, name="addcdiv")


@lowers("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(b: TorchBuilder, start: Value, end: Value, weight: Operand) -> str:
    """start + weight * (end - start), from whichever end is nearer."""
    t = compute_dtype(b.result_dtype)

    def body(p: Expr, q: Expr, w: Expr) -> Expr:
        step = call("sub", q, p)
        near = call("add", p, call("mul", w, step))
        far = call("sub", q, call("mul", step, call("sub", _number(1, t), w)))
        if not isinstance(weight, str):
            return near if abs(weight) < 0.5 else far
        return call("select", call("lt", call("abs", w), _number(0.5, t)), near, far)

    return b.pointwise(body, start, end, weight, name="lerp")


@lowers("aten.angle.default")
def angle(b: TorchBuilder, x: Value) -> str:
    """Of real numbers: 0 or pi; NaN stays."""
    wide = Value(b.cast(x, b.result_dtype))
    work = compute_dtype(b.result_dtype)

    def turn(e: Expr) -> Expr:
        negative = call("lt", e, const(0, work))
        return call("select", call("isnan", e), e, call("select", negative, const(math.pi, work), const(0, work)))

    return b.pointwise(turn, wide, name="angle")


@lowers("aten.sign.default", "aten.sgn.default")
def sign(b: TorchBuilder, x: Value) -> str:
    """-1, 0 or 1; of NaN 0, as torch has it."""

    def body(e: Expr, one: Expr, zero: Expr, minus: Expr) -> Expr:
        return call("select", call("gt", e, zero), one, call("select", call("lt", e, zero), minus, zero))

    return b.pointwise(body, x, 1, 0, -1, name="sign")


@lowers("aten.round.default")
def round_even(b: TorchBuilder, x: Value) -> str:
    return b.pointwise(lambda e: call("round", e), x, name="round") if b.result_dtype.is_float else x


@lowers("aten.round.decimals")
def round_decimals(b: TorchBuilder, x: Value, decimals: int = 0) -> str:
    if not b.result_dtype.is_float:
        return x
    work = compute_dtype(b.result_dtype)
    ten = _number(float(10 ** abs(decimals)), work)
    there, back = ("mul", "div") if decimals >= 0 else ("div", "mul")
    return b.pointwise(lambda e: call(back, call("round", call(there, e, ten)), ten), x, name="round")


# Predicates, logic, bits


def _enter_predicate(name: str) -> None:
    @lowers(f"aten.{name}.default")
    def lower(b: TorchBuilder, x: Value) -> str:
        have = b.dtype_of(x)
        if have.is_float:
            return b.pointwise(lambda e: call(name, e), x, work=compute_dtype(have), name=name)
        if name == "signbit" and have.kind == "int":
            return b.pointwise(lambda e: call("lt", e, const(0, compute_dtype(have))), x, work=compute_dtype(have), name=name)
        return b.full(b.shape_of(x), name == "isfinite", BOOL)


for _name in ("isnan", "isinf", "isfinite", "signbit"):
    _enter_predicate(_name)


def _enter_logical(name: str) -> None:
    @lowers(f"aten.{name}.default")
    def lower(b: TorchBuilder, x: Operand, y: Operand) -> str:
        return b.pointwise(lambda p, q: call(name, p, q), x, y, work=BOOL, name=name)


for _name in ("logical_and", "logical_or", "logical_xor"):
    _enter_logical(_name)


@lowers("aten.logical_not.default")
def logical_not(b: TorchBuilder, x: Value) -> str:
    return b.pointwise(lambda e: call("logical_not", e), x, work=BOOL, name="logical_not")


def _enter_bits(torch_name: str, name: str) -> None:
    def lower(b: TorchBuilder, x: Operand, y: Operand) -> str:
        return b.pointwise(lambda p, q: call(name, p, q), x, y, work=compute_dtype(b.result_dtype), name=name)

    for overload in ("Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor"):
        TORCH_OPS[f"aten.{torch_name}.{overload}"] = lower


for _name, _ours in (
    ("bitwise_and", "bit_and"),
    ("bitwise_or", "bit_or"),
    ("bitwise_xor", "bit_xor"),
    ("__and__", "bit_and"),
    ("__or__", "bit_or"),
    ("__xor__", "bit_xor"),
    ("bitwise_left_shift", "shift_left"),
    ("bitwise_right_shift", "shift_right"),
    ("__lshift__", "shift_left"),
    ("__rshift__", "shift_right"),
):
    _enter_bits(_name, _ours)


@lowers("aten.bitwise_not.default")
def bitwise_not(b: TorchBuilder, x: Value) -> str:
    return b.pointwise(lambda e: call("bit_not", e), x, work=compute_dtype(b.result_dtype), name="bit_not")


# Selection


@lowers("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(b: TorchBuilder, condition: Value, x: Operand, y: Operand) -> str:
    return b.where(b.cast(condition, BOOL), b.tensor(x), b.tensor(y))


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(b: TorchBuilder, x: Value, mask: Value, value: Operand) -> str:
    return b.where(b.cast(mask, BOOL), b.tensor(value), x)


@lowers("aten.clamp.default", "aten.clamp.Tensor", "aten.hardtanh.default", "aten.clip.default", "aten.clip.Tensor")
def clamp(
    b: TorchBuilder,
    x: Value,
    min_val: Operand | None = None,
    max_val: Operand | None = None,
    *,
    min: Operand | None = None,
    max: Operand | None = None,
) -> str:
    low, high = (min_val if min is None else min), (max_val if max is None else max)
    return _clamp(b, x, low, high)


def _clamp(b: TorchBuilder, x: Value, low: Operand | None, high: Operand | None) -> str:
    limits = [v for v in (low, high) if v is not None]

    def body(e: Expr, *rest: Expr) -> Expr:
        bounds = list(rest)
        if low is not None:
            e = call("maximum", e, bounds.pop(0))
        return call("minimum", e, bounds.pop(0)) if high is not None else e

    return b.pointwise(body, x, *limits, name="clamp")


@lowers("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(b: TorchBuilder, x: Value, low: Operand) -> str:
    return _clamp(b, x, low, None)


@lowers("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(b: TorchBuilder, x: Value, high: Operand) -> str:
    return _clamp(b, x, None, high)


# Activations


@lowers("aten.relu.default")
def relu(b: TorchBuilder, x: Value) -> str:
    return b.pointwise(lambda e, zero: call("maximum", e, zero), x, 0, name="relu")


@lowers("aten.leaky_relu.default")
def leaky_relu(b: TorchBuilder, x: Value, slope: float = 0.01) -> str:
    return b.pointwise(lambda e, zero, s: call("select", call("gt", e, zero), e, call("mul", e, s)), x, 0, slope, name="leaky_relu")


@lowers("aten.elu.default")
def elu(b: TorchBuilder, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> str:
    def body(e: Expr, zero: Expr, a: Expr, s: Expr, i: Expr) -> Expr:
        return call("select", call("gt", e, zero), call("mul", e, s), call("mul", call("mul", a, s), call("expm1", call("mul", e, i))))

    return b.pointwise(body, x, 0, alpha, scale, input_scale, name="elu")


@lowers("aten.silu.default")
def silu(b: TorchBuilder, x: Value) -> str:
    return b.pointwise(lambda e: call("mul", e, call("sigmoid", e)), x, name="silu")


@lowers("aten.gelu.default")
def gelu(b: TorchBuilder, x: Value, approximate: str = "none") -> str:
    t = compute_dtype(b.result_dtype)

    def exact(e: Expr) -> Expr:
        return call(
            "mul", call("mul", e, _number(0.5, t)), call("add", _number(1, t), call("erf", call("mul", e, _number(math.sqrt(0.5), t))))
        )

    def by_tanh(e: Expr) -> Expr:
        cube = call("mul", call("mul", e, e), e)
        inner = call("mul", _number(math.sqrt(2 / math.pi), t), call("add", e, call("mul", _number(0.044715, t), cube)))
        return call("mul", call("mul", _number(0.5, t), e), call("add", _number(1, t), call("tanh", inner)))

    return b.pointwise(by_tanh if approximate == "tanh" else exact, x, name="gelu")
