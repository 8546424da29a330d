"""The operator table: one record a scalar function, one rule for conversions. Monoids have a table beside it (`monoids.py`).

Interpreter, verifier, printers, cost, autodiff and docs read only these records. A C text names each of its arguments exactly once (`{0}`,
`{1}`, ...), so nesting never duplicates work; a function that needs an argument twice is a `tf_` function of the support headers, listed
with its meaning in `SUPPORT_FUNCTIONS`.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tilefuse.base.errors import InternalError, NameLookupError, TypeMismatchError, nearest
from tilefuse.ir import meaning as m
from tilefuse.ir.dtype import BOOL, DTYPES, I64, DType
from tilefuse.ir.scalar import NUMPY_DTYPES, Call, Const, Guard, Index, Lookup, Read, saturated

# Which dtypes a function accepts. "any" also takes storage types: it moves values and computes nothing.
OPERAND_CLASSES: dict[str, tuple[str, ...]] = {
    "float": ("f32", "f64"),
    "int": ("i32", "i64", "u32", "u64"),
    "number": ("f32", "f64", "i32", "i64", "u32", "u64"),
    "bool": ("bool",),
    "int_bool": ("i32", "i64", "u32", "u64", "bool"),
    "arithmetic": ("f32", "f64", "i32", "i64", "u32", "u64", "bool"),
    "counter": ("i64",),
    "any": tuple(DTYPES),
}

# Type names in generated C++. The narrow floats are classes of the support headers with an explicit constructor from float
# (round to nearest even) and `tf_float(x)`, which gives the exact value back.
C_TYPES: dict[str, str] = {
    "f64": "double", "f32": "float", "f16": "tf_f16", "bf16": "tf_bf16", "f8e4m3": "tf_f8e4m3", "f8e5m2": "tf_f8e5m2",
    "i64": "long long", "i32": "int", "i16": "short", "i8": "signed char",
    "u64": "unsigned long long", "u32": "unsigned int", "u16": "unsigned short", "u8": "unsigned char", "bool": "bool",
}


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """All that is known of a scalar function.

    operands  class of all operands (a key of OPERAND_CLASSES); `select` alone has a bool before them
    result    "same" as the operands, or a dtype's name
    meaning   numpy arrays of one shape -> array
    cuda, host   C++ text by operand dtype; `{n}` is argument n, once each
    adjoint   one expression text an argument, in x0 x1 x2, y (the result) and g (the result's adjoint); "0" where it is zero, "unknown"
              where it is something else that no function here computes (differentiating is an error then)
    Units: flops in floating-point operations as issued by the f32 CUDA text, roughly; for cost models, not for roofline claims.
    """

    name: str
    arity: int
    operands: str
    result: str
    meaning: m.Meaning
    cuda: Mapping[str, str]
    host: Mapping[str, str]
    adjoint: tuple[str, ...]
    flops: int
    doc: str

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Names of the dtypes the operands may have."""
        return OPERAND_CLASSES[self.operands]


SCALAR_OPS: dict[str, ScalarOp] = {}


def _define(name: str, arity: int, operands: str, meaning: m.Meaning, cuda: str | Mapping[str, str], host: str | Mapping[str, str] | None,
            adjoint: tuple[str, ...], flops: int, doc: str, result: str = "same") -> None:
    """Enters one record; a single text holds for every dtype, and `host=None` repeats the CUDA text."""
    names = OPERAND_CLASSES[operands]
    cuda_texts = dict.fromkeys(names, cuda) if isinstance(cuda, str) else dict(cuda)
    host_texts = cuda_texts if host is None else dict.fromkeys(names, host) if isinstance(host, str) else dict(host)
    SCALAR_OPS[name] = ScalarOp(name, arity, operands, result, meaning, cuda_texts, host_texts, adjoint, flops, doc)


def _libm(name: str, arity: int, meaning: m.Meaning, adjoint: tuple[str, ...], flops: int, doc: str, function: str | None = None,
          host: str = "std::") -> None:
    """A function of the C mathematics library, under its own name or `function`; on the host with `host` before the name."""
    stem = function or name
    args = "(" + ", ".join(f"{{{n}}}" for n in range(arity)) + ")"
    _define(name, arity, "float", meaning, {"f32": f"{stem}f{args}", "f64": f"{stem}{args}"}, f"{host}{stem}{args}", adjoint, flops, doc)


def _wrapping(operator: str) -> dict[str, str]:
    """Texts of an operator whose signed overflow wraps: C++ leaves it undefined, so it goes through the unsigned type."""
    text = f"({{0}} {operator} {{1}})"
    return {
        "f32": text, "f64": text, "u32": text, "u64": text,
        "i32": f"(int)((unsigned int){{0}} {operator} (unsigned int){{1}})",
        "i64": f"(long long)((unsigned long long){{0}} {operator} (unsigned long long){{1}})",
    }


def _for_int(text: str) -> dict[str, str]:
    return dict.fromkeys(OPERAND_CLASSES["int"], text)


def _for_float(text: str) -> dict[str, str]:
    return dict.fromkeys(OPERAND_CLASSES["float"], text)


def _sign(x: m.Array) -> m.Array:
    return np.asarray(np.sign(x)).astype(x.dtype)


_wide = m.rounded_from_f64

# Arithmetic
_define("add", 2, "number", np.add, _wrapping("+"), None, ("g", "g"), 1, "a + b; integers wrap")
_define("sub", 2, "number", np.subtract, _wrapping("-"), None, ("g", "neg(g)"), 1, "a - b; integers wrap")
_define("mul", 2, "number", np.multiply, _wrapping("*"), None, ("mul(g, x1)", "mul(g, x0)"), 1, "a * b; integers wrap")
_define("neg", 1, "number", np.negative,
        {"f32": "(-{0})", "f64": "(-{0})", "u32": "(0u - {0})", "u64": "(0ull - {0})",
         "i32": "(int)(0u - (unsigned int){0})", "i64": "(long long)(0ull - (unsigned long long){0})"},
        None, ("neg(g)",), 1, "-a; integers wrap")
_define("abs", 1, "number", np.abs, "tf_abs({0})", None, ("mul(g, sign(x0))",), 1, "absolute value; the smallest integer stays itself")
_define("sign", 1, "number", _sign, "tf_sign({0})", None, ("0",), 2, "-1, 0 or 1; NaN stays NaN")
_define("minimum", 2, "number", np.minimum, "tf_minimum({0}, {1})", _for_int("tf_minimum({0}, {1})") | _for_float("tf_smaller({0}, {1})"),
        ("select(lt(x0, x1), g, select(eq(x0, x1), mul(0.5, g), 0.0))", "select(lt(x1, x0), g, select(eq(x0, x1), mul(0.5, g), 0.0))"),
        1, "the smaller; NaN if either is NaN; of zeros either")
_define("maximum", 2, "number", np.maximum, "tf_maximum({0}, {1})", _for_int("tf_maximum({0}, {1})") | _for_float("tf_larger({0}, {1})"),
        ("select(gt(x0, x1), g, select(eq(x0, x1), mul(0.5, g), 0.0))", "select(gt(x1, x0), g, select(eq(x0, x1), mul(0.5, g), 0.0))"),
        1, "the larger; NaN if either is NaN; of zeros either")
_define("fmin", 2, "number", np.fmin, "tf_fmin({0}, {1})", None,
        ("select(le(x0, x1), g, select(isnan(x1), g, 0.0))", "select(lt(x1, x0), g, select(isnan(x0), g, 0.0))"),
        1, "the smaller; a NaN loses to a number")
_define("fmax", 2, "number", np.fmax, "tf_fmax({0}, {1})", None,
        ("select(ge(x0, x1), g, select(isnan(x1), g, 0.0))", "select(gt(x1, x0), g, select(isnan(x0), g, 0.0))"),
        1, "the larger; a NaN loses to a number")
_define("div", 2, "float", np.divide, "({0} / {1})", None, ("div(g, x1)", "neg(div(mul(g, y), x1))"), 8, "a / b, correctly rounded")
_define("truncdiv", 2, "int", m.truncdiv, "tf_truncdiv({0}, {1})", None, ("0", "0"), 20, "quotient toward zero; 0 where b is 0")
_define("floordiv", 2, "number", m.floordiv, "tf_floordiv({0}, {1})", None, ("0", "0"), 20,
        "quotient rounded down; integers: 0 where b is 0")
_define("mod", 2, "number", m.mod, "tf_mod({0}, {1})", None, ("g", "neg(mul(g, floordiv(x0, x1)))"), 20,
        "remainder with the divisor's sign, as Python; integers: 0 where b is 0")
_define("fmod", 2, "number", m.fmod,
        {"f32": "fmodf({0}, {1})", "f64": "fmod({0}, {1})"} | _for_int("tf_fmod({0}, {1})"),
        {"f32": "std::fmod({0}, {1})", "f64": "std::fmod({0}, {1})"} | _for_int("tf_fmod({0}, {1})"),
        ("g", "neg(mul(g, trunc(div(x0, x1))))"), 20, "remainder with the dividend's sign, as C; integers: 0 where b is 0")
_define("pow", 2, "number", m.power,
        {"f32": "powf({0}, {1})", "f64": "pow({0}, {1})"} | _for_int("tf_pow({0}, {1})"),
        {"f32": "std::pow({0}, {1})", "f64": "std::pow({0}, {1})"} | _for_int("tf_pow({0}, {1})"),
        ("mul(g, select(eq(x1, 0.0), 0.0, mul(x1, pow(x0, sub(x1, 1.0)))))",
         "mul(g, select(eq(y, 0.0), 0.0, select(logical_and(eq(x0, 0.0), eq(x1, 0.0)), 0.0, mul(y, log(x0)))))"), 40,
        "a to the b; integers wrap, and a negative exponent gives 0 but for the bases 1 and -1")
_libm("fma", 3, m.fma, ("mul(g, x1)", "mul(g, x0)", "g"), 2, "a * b + c, rounded once")

# Functions of one real
_define("reciprocal", 1, "float", np.reciprocal, {"f32": "(1.0f / {0})", "f64": "(1.0 / {0})"}, None,
        ("neg(mul(g, mul(y, y)))",), 8, "1 / a")
_libm("sqrt", 1, np.sqrt, ("div(g, mul(2.0, y))",), 8, "square root, correctly rounded")
_define("rsqrt", 1, "float", _wide(lambda x: 1 / np.sqrt(x)), {"f32": "rsqrtf({0})", "f64": "rsqrt({0})"},
        {"f32": "(1.0f / std::sqrt({0}))", "f64": "(1.0 / std::sqrt({0}))"}, ("mul(-0.5, mul(g, mul(y, mul(y, y))))",), 4, "1 / sqrt(a)")
_libm("cbrt", 1, _wide(np.cbrt), ("div(g, mul(3.0, mul(y, y)))",), 20, "cube root")
_libm("exp", 1, _wide(np.exp), ("mul(g, y)",), 8, "e to the a", host="tf_")
_libm("exp2", 1, _wide(np.exp2), ("mul(0.6931471805599453, mul(g, y))",), 4, "2 to the a", host="tf_")
_libm("expm1", 1, _wide(np.expm1), ("mul(g, add(y, 1.0))",), 16, "exp(a) - 1 without cancellation", host="tf_")
_libm("log", 1, _wide(np.log), ("div(g, x0)",), 10, "natural logarithm", host="tf_")
_libm("log2", 1, _wide(np.log2), ("div(g, mul(0.6931471805599453, x0))",), 10, "logarithm to base 2", host="tf_")
_libm("log10", 1, _wide(np.log10), ("div(g, mul(2.302585092994046, x0))",), 12, "logarithm to base 10", host="tf_")
_libm("log1p", 1, _wide(np.log1p), ("div(g, add(1.0, x0))",), 16, "log(1 + a) without cancellation", host="tf_")
_libm("sin", 1, _wide(np.sin), ("mul(g, cos(x0))",), 20, "sine")
_libm("cos", 1, _wide(np.cos), ("neg(mul(g, sin(x0)))",), 20, "cosine")
_libm("tan", 1, _wide(np.tan), ("mul(g, add(1.0, mul(y, y)))",), 30, "tangent")
_libm("asin", 1, _wide(np.arcsin), ("mul(g, rsqrt(sub(1.0, mul(x0, x0))))",), 20, "inverse sine")
_libm("acos", 1, _wide(np.arccos), ("neg(mul(g, rsqrt(sub(1.0, mul(x0, x0)))))",), 20, "inverse cosine")
_libm("atan", 1, _wide(np.arctan), ("div(g, add(1.0, mul(x0, x0)))",), 20, "inverse tangent")
_libm("sinh", 1, _wide(np.sinh), ("mul(g, cosh(x0))",), 20, "hyperbolic sine")
_libm("cosh", 1, _wide(np.cosh), ("mul(g, sinh(x0))",), 20, "hyperbolic cosine")
_libm("tanh", 1, _wide(np.tanh), ("mul(g, sub(1.0, mul(y, y)))",), 16, "hyperbolic tangent", host="tf_")
_libm("asinh", 1, _wide(np.arcsinh), ("mul(g, rsqrt(add(mul(x0, x0), 1.0)))",), 30, "inverse hyperbolic sine")
_libm("acosh", 1, _wide(np.arccosh), ("mul(g, rsqrt(sub(mul(x0, x0), 1.0)))",), 30, "inverse hyperbolic cosine")
_libm("atanh", 1, _wide(np.arctanh), ("div(g, sub(1.0, mul(x0, x0)))",), 30, "inverse hyperbolic tangent")
_libm("erf", 1, m.erf, ("mul(1.1283791670955126, mul(g, exp(neg(mul(x0, x0)))))",), 20, "error function", host="tf_")
_libm("erfc", 1, m.erfc, ("mul(-1.1283791670955126, mul(g, exp(neg(mul(x0, x0)))))",), 30, "1 - erf(a) without cancellation")
_define("erfinv", 1, "float", m.erfinv, {"f32": "erfinvf({0})", "f64": "erfinv({0})"}, "tf_erfinv({0})",
        ("mul(0.886226925452758, mul(g, exp(mul(y, y))))",), 40, "inverse of erf; infinite at -1 and 1, NaN beyond")
_libm("lgamma", 1, m.lgamma, ("mul(g, digamma(x0))",), 60, "log |gamma(a)|; infinite at 0, -1, -2, ...")
_define("digamma", 1, "float", m.digamma, "tf_digamma({0})", None, ("mul(g, polygamma(1.0, x0))",), 60,
        "derivative of lgamma; NaN at -1, -2, ...; infinite with the opposite sign at a zero")
_define("polygamma", 2, "float", m.polygamma, "tf_polygamma({0}, {1})", None, ("0", "mul(g, polygamma(add(x0, 1.0), x1))"), 120,
        "derivative number a of digamma at b, a = 1, ..., 60, else NaN; infinite (a odd) or NaN at 0, -1, ...; NaN for a > 1, b < -4096")
_define("sigmoid", 1, "float", m.sigmoid, "tf_sigmoid({0})",
        {"f32": "(1.0f / (1.0f + tf_exp(-{0})))", "f64": "tf_sigmoid({0})"}, ("mul(g, mul(y, sub(1.0, y)))",), 16, "1 / (1 + exp(-a))")
_libm("floor", 1, np.floor, ("0",), 1, "largest integer not above a")
_libm("ceil", 1, np.ceil, ("0",), 1, "smallest integer not below a")
_libm("round", 1, np.rint, ("0",), 1, "nearest integer, halves to even", function="rint")
_libm("trunc", 1, np.trunc, ("0",), 1, "nearest integer toward zero")
_libm("atan2", 2, _wide(np.arctan2),
      tuple(f"select(eq(add(mul(x0, x0), mul(x1, x1)), 0.0), 0.0, mul(g, div({part}, add(mul(x0, x0), mul(x1, x1)))))"
            for part in ("x1", "neg(x0)")),
      30, "angle of the point (b, a)")
_libm("hypot", 2, _wide(np.hypot), ("mul(g, div(x0, y))", "mul(g, div(x1, y))"), 16, "sqrt(a^2 + b^2) without overflow")
_libm("copysign", 2, np.copysign, ("mul(g, copysign(1.0, mul(sign(x0), x1)))", "0"), 1, "|a| with the sign of b")
_libm("nextafter", 2, np.nextafter, ("g", "0"), 8, "the neighbour of a toward b")

# Comparison and selection
# The comparison that is true where another one is false (of NaN: eq and ne alone), and the same comparison of exchanged operands.
NEGATED = {"eq": "ne", "ne": "eq", "ge": "lt", "gt": "le", "le": "gt", "lt": "ge"}
EXCHANGED = {"eq": "eq", "ne": "ne", "ge": "le", "gt": "lt", "le": "ge", "lt": "gt"}
_COMPARISONS: tuple[tuple[str, str, m.Meaning, str], ...] = (
    ("eq", "==", np.equal, "a = b"),
    ("ne", "!=", np.not_equal, "a differs from b; true for NaN"),
    ("lt", "<", np.less, "a < b"),
    ("le", "<=", np.less_equal, "a <= b"),
    ("gt", ">", np.greater, "a > b"),
    ("ge", ">=", np.greater_equal, "a >= b"),
)
_PREDICATES: tuple[tuple[str, m.Meaning, str], ...] = (
    ("isnan", np.isnan, "whether a is NaN"),
    ("isinf", np.isinf, "whether a is infinite"),
    ("isfinite", np.isfinite, "neither NaN nor infinite"),
    ("signbit", np.signbit, "whether the sign bit is set (also of -0 and NaN)"),
)
for _name, _symbol, _meaning, _doc in _COMPARISONS:
    _define(_name, 2, "arithmetic", _meaning, f"({{0}} {_symbol} {{1}})", None, ("0", "0"), 1, _doc, result="bool")
for _name, _meaning, _doc in _PREDICATES:
    _define(_name, 1, "float", _meaning, f"tf_{_name}({{0}})", None, ("0",), 1, _doc, result="bool")
_define("select", 3, "any", np.where, "({0} ? {1} : {2})", None, ("0", "select(x0, g, 0.0)", "select(x0, 0.0, g)"), 1,
        "b where the condition a holds, else c; both are evaluated")

# Logic and bits
_define("logical_and", 2, "bool", np.logical_and, "bool({0} & {1})", None, ("0", "0"), 1, "both (evaluated without a branch)")
_define("logical_or", 2, "bool", np.logical_or, "bool({0} | {1})", None, ("0", "0"), 1, "at least one (evaluated without a branch)")
_define("logical_xor", 2, "bool", np.logical_xor, "({0} != {1})", None, ("0", "0"), 1, "exactly one")
_define("logical_not", 1, "bool", np.logical_not, "(!{0})", None, ("0",), 1, "not")
_BITWISE: tuple[tuple[str, str, m.Meaning, str], ...] = (
    ("bit_and", "&", np.bitwise_and, "bits set in both"),
    ("bit_or", "|", np.bitwise_or, "bits set in at least one"),
    ("bit_xor", "^", np.bitwise_xor, "bits set in exactly one"),
)
for _name, _symbol, _meaning, _doc in _BITWISE:
    _text = f"({{0}} {_symbol} {{1}})"
    _define(_name, 2, "int_bool", _meaning, _for_int(_text) | {"bool": f"(bool){_text}"}, None, ("0", "0"), 1, _doc)
_define("bit_not", 1, "int_bool", np.invert, _for_int("(~{0})") | {"bool": "(!{0})"}, None, ("0",), 1, "every bit flipped")
_define("shift_left", 2, "int", m.shift_left, "tf_shift_left({0}, {1})", None, ("0", "0"), 1,
        "a * 2^b, wrapping; 0 where b is out of range")
_define("shift_right", 2, "int", m.shift_right, "tf_shift_right({0}, {1})", None, ("0", "0"), 1,
        "floor(a / 2^b); only sign bits are left where b is out of range")

# Subscripts
IN_RANGE = "in_range"
_define(IN_RANGE, 2, "counter", m.held_in_range, "tf_minimum(tf_maximum({0}, 0ll), tf_maximum({1}, 1ll) - 1)", None, ("0", "0"), 2,
        "a, which must be one of 0 .. b - 1 (b constant): the executors raise for any other, or move it there where checks are off")

# Counter-based random numbers: the same bits in the interpreter, on the host and on a device. Numbers of a call of the generator: those of
# counters that follow each other from a multiple of it on.
RANDOM_NUMBERS_A_CALL = 4
_RANDOM: tuple[tuple[str, m.Meaning, str, str], ...] = (
    ("random_bits", m.random_bits, "u32", "word (b mod 4) of Philox-4x32-10 with key a and counter (b div 4)"),
    ("random_uniform", m.random_uniform, "f32", "uniform in [0, 1) from the upper 24 bits of random_bits"),
    ("random_normal", m.random_normal, "f32", "standard normal by Box and Muller; counters 2n and 2n + 1 share a pair of words"),
)
for _name, _meaning, _result, _doc in _RANDOM:
    _define(_name, 2, "counter", _meaning, f"tf_{_name}({{0}}, {{1}})", None, ("0", "0"), 40, _doc, result=_result)

# CUDA texts of f32 functions in kernels whose data has 16 bits or fewer: a few hardware instructions, relative error below 2^-16
# (for exp below (2 + |a|) * 2^-23, as much as rounding its argument costs), special values as the exact ones, but results below
# 2^-124 may be 0. sin and cos are missing: near a multiple of pi no short form has that error.
NARROW_CUDA: dict[str, str] = {
    name: f"tf_narrow_{name}({', '.join(f'{{{n}}}' for n in range(SCALAR_OPS[name].arity))})"
    for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "div", "reciprocal", "sigmoid", "sqrt", "tanh", "erf", "random_normal")
}
# Costs of the short forms. Units: operations, as `ScalarOp.flops`, counted in the instructions of sm_90.
NARROW_FLOPS: dict[str, int] = {
    "exp": 2, "exp2": 1, "expm1": 8, "log": 9, "log2": 9, "log1p": 7, "div": 6, "reciprocal": 4, "sigmoid": 4, "sqrt": 4, "tanh": 10,
    "erf": 17, "random_normal": 25,
}
# Texts of factor * (1 + f(scale * a)), as in GELU: where f is near -1, adding the two would lose the approximation's accuracy. {1}: scale,
# factor and the factor's binary logarithm, constants of f32.
NARROW_ONE_PLUS: dict[str, str] = {"erf": "tf_narrow_one_plus_erf({0}, {1})", "tanh": "tf_narrow_one_plus_tanh({0}, {1})"}
# Costs of these forms. Units: as `NARROW_FLOPS`.
NARROW_ONE_PLUS_FLOPS: dict[str, int] = {"erf": 10, "tanh": 4}
# Texts of factor * f(scale * a), and their costs. {1} and units: as above.
NARROW_SCALED: dict[str, str] = {"exp": "tf_narrow_scaled_exp({0}, {1})"}
NARROW_SCALED_FLOPS: dict[str, int] = {"exp": 2}

# Functions that the texts of the records call. T is any dtype of the function's record; all are inline, for host and device, and none
# traps.
SUPPORT_FUNCTIONS: dict[str, str] = {
    "tf_float": "float tf_float(N): exact value of a narrow float (tf_f16, tf_bf16, tf_f8e4m3, tf_f8e5m2)",
    "tf_f16": "class, 2 bytes: explicit tf_f16(float), nearest even, overflow to infinity, NaN kept; trivially copyable",
    "tf_bf16": "class, 2 bytes: explicit tf_bf16(float), nearest even, overflow to infinity, NaN kept; trivially copyable",
    "tf_f8e4m3": "class, 1 byte: explicit tf_f8e4m3(float), nearest even, saturates: beyond 448 and infinities to 448, NaN kept",
    "tf_f8e5m2": "class, 1 byte: explicit tf_f8e5m2(float), nearest even, overflow to infinity, NaN kept",
    "tf_abs": "T tf_abs(T a): |a|; clears the sign bit of floats; the smallest integer stays itself; unsigned unchanged",
    "tf_sign": "T tf_sign(T a): -1, 0, 1; +0 for either zero; NaN for NaN",
    "tf_minimum": "T tf_minimum(T a, T b): the smaller; NaN if either is NaN (any NaN); of two zeros either",
    "tf_maximum": "T tf_maximum(T a, T b): the larger; NaN if either is NaN (any NaN); of two zeros either",
    "tf_smaller": "F tf_smaller(F a, F b), host only: as tf_minimum, without a branch",
    "tf_larger": "F tf_larger(F a, F b), host only: as tf_maximum, without a branch",
    "tf_fmin": "T tf_fmin(T a, T b): the smaller; the other one if one is NaN (fminf for floats)",
    "tf_fmax": "T tf_fmax(T a, T b): the larger; the other one if one is NaN (fmaxf for floats)",
    "tf_truncdiv": "I tf_truncdiv(I a, I b): quotient toward zero; 0 if b is 0; the smallest integer by -1 gives itself",
    "tf_floordiv": "T tf_floordiv(T a, T b): integers: quotient rounded down, 0 if b is 0, the smallest by -1 gives itself."
                   " Floats: a / b if b is 0; else r = fmod(a, b), q = (a - r) / b, q -= 1 if r != 0 and the signs of r and b differ;"
                   " if q is 0 the zero with the sign of a / b, else f = floor(q), plus 1 if q - f > 0.5",
    "tf_mod": "T tf_mod(T a, T b): integers: a - b * tf_floordiv(a, b), 0 if b is 0."
              " Floats: r = fmod(a, b); if r is 0 the zero with the sign of b; if the signs of r and b differ r + b",
    "tf_fmod": "I tf_fmod(I a, I b): a - b * tf_truncdiv(a, b), 0 if b is 0",
    "tf_pow": "I tf_pow(I a, I b): repeated squaring, wrapping; b < 0 gives 1 for a = 1, 1 or -1 for a = -1, else 0",
    **{f"tf_{name}": f"F tf_{name}(F a), host only: {what}; f32 without branches, within 2 units in the last place"
       for name, what in (("exp", "e to the a"), ("exp2", "2 to the a"), ("expm1", "exp(a) - 1"), ("log", "natural logarithm"),
                          ("log2", "logarithm to base 2"), ("log10", "logarithm to base 10"), ("log1p", "log(1 + a)"),
                          ("tanh", "hyperbolic tangent"), ("erf", "error function"))},
    "tf_erfinv": "F tf_erfinv(F a), host only: inverse of erf within 4 units in the last place; +-infinity at +-1, NaN beyond",
    "tf_digamma": "F tf_digamma(F a): see ir/meaning.py for the series",
    "tf_polygamma": "F tf_polygamma(F order, F a): see ir/meaning.py for the series",
    "tf_sigmoid": "F tf_sigmoid(F a): 1 / (1 + exp(-a)); CUDA f32: the quotient within 1 unit in the last place",
    "tf_isnan": "bool tf_isnan(F a)",
    "tf_isinf": "bool tf_isinf(F a)",
    "tf_isfinite": "bool tf_isfinite(F a)",
    "tf_signbit": "bool tf_signbit(F a)",
    "tf_shift_left": "I tf_shift_left(I a, I b): a * 2^b wrapping, 0 unless 0 <= b < bits",
    "tf_shift_right": "I tf_shift_right(I a, I b): a >> b (arithmetic if signed); unless 0 <= b < bits: 0, or -1 for negative a",
    "tf_random_bits": "unsigned int tf_random_bits(long long seed, long long counter): word (counter mod 4) of Philox-4x32-10, key"
                      " (low, high half of seed), counter (low, high half of (counter div 4), 0, 0). Also (seed, B block, int place)"
                      " for the counter 4 * block + place; B is long long, or unsigned int where the block is known to fit",
    "tf_random_uniform": "float tf_random_uniform(as tf_random_bits): (tf_random_bits >> 8) * 2^-24",
    "tf_random_normal": "float tf_random_normal(as tf_random_bits): sqrt(-2 log(1 - u)) * cos(2 pi v), sin for an odd counter; u and v"
                        " from words 0 and 1, or 2 and 3 where counter mod 4 is 2 or 3, as in tf_random_uniform",
}


def conversion_text(source: DType, to: DType) -> str:
    """C++ text (CUDA and host alike) that converts `{0}` from `source` to `to`.

    Floats to integers truncate; through a wider signed integer where C++ would leave small negative values undefined.
    Anything to a narrow float goes through f32, as `convert` does.
    """
    if source == to:
        return "{0}"
    narrow_source = source.is_float and source.bits < 32
    value = "tf_float({0})" if narrow_source else "{0}"
    if to.name == "bool":
        return f"({value} != 0)"
    if to.is_float and to.bits < 32:
        return f"{C_TYPES[to.name]}({value if source.name == 'f32' or narrow_source else '(float)' + value})"
    if to.name == "f32" and narrow_source:
        return value
    if source.is_float and to.is_integer and (to.bits < 32 or to.name == "u32"):
        return f"({C_TYPES[to.name]})({'long long' if to.name == 'u32' else 'int'}){value}"
    return f"({C_TYPES[to.name]}){value}"


def convert(x: m.Array, source: DType, to: DType) -> m.Array:
    """numpy meaning of a conversion. A narrow float is reached by way of f32; f8e4m3, which has no infinity, saturates."""
    target = NUMPY_DTYPES[to.name]
    if source == to:
        return x
    with np.errstate(all="ignore"):
        if to.name == "bool":
            return np.asarray(x != np.asarray(0, dtype=x.dtype)) if source.bits >= 32 or not source.is_float else x.astype(np.float32) != 0
        if to.is_float and to.bits < 32:
            return np.asarray(saturated(x.astype(np.float32), to), dtype=target)
        if source.is_float and to.is_integer:
            wide = x.astype(np.float64)
            if to.name == "u64":
                return wide.astype(np.uint64)
            return wide.astype(np.int64).astype(target)
        if source.is_float and source.bits < 32:
            return x.astype(np.float32).astype(target)
        return x.astype(target)


def _result_of(fn: str, args: tuple[DType, ...], text: Callable[[], str]) -> DType:
    if fn in DTYPES:
        if len(args) != 1:
            raise TypeMismatchError(f"conversion {fn} takes one operand, got {len(args)}", where=text())
        return DTYPES[fn]
    op = SCALAR_OPS.get(fn)
    if op is None:
        raise NameLookupError(f"unknown scalar function {fn}", where=text(), hint=nearest(fn, [*SCALAR_OPS, *DTYPES]))
    if len(args) != op.arity:
        raise TypeMismatchError(f"{fn} takes {op.arity} operands, got {len(args)}", where=text())
    operands = args
    if fn == "select":
        if args[0] != BOOL:
            raise TypeMismatchError(f"the condition of select must be bool, got {args[0]}", where=text())
        operands = args[1:]
    if any(t != operands[0] for t in operands):
        raise TypeMismatchError(f"operands of {fn} differ in dtype: {', '.join(map(str, operands))}", where=text())
    if operands[0].name not in op.dtypes:
        hint = None if operands[0].is_arithmetic else f"{operands[0]} is a storage type: convert to an arithmetic type and back"
        raise TypeMismatchError(f"{fn} takes {' '.join(op.dtypes)}, got {operands[0]}", where=text(), hint=hint)
    return operands[0] if op.result == "same" else DTYPES[op.result]


def dtype_of(e: object, read_dtype: Callable[[str], DType]) -> DType:
    """Data type of an expression; `read_dtype` gives that of a named value. Also takes kernel expressions, whose leaves carry theirs.

    Raises: TypeMismatchError where operands do not fit a function, NameLookupError for an unknown function; errors of `read_dtype`.
    """
    match e:
        case Const(_, dtype):
            return dtype
        case Read(value, _):
            return read_dtype(value)
        case Index():
            return I64
        case Call(fn, args):
            return _result_of(fn, tuple([dtype_of(a, read_dtype) for a in args]), lambda: f"a call of {fn}")
        case Guard(_, then, otherwise):
            first, second = dtype_of(then, read_dtype), dtype_of(otherwise, read_dtype)
            if first != second:
                raise TypeMismatchError(f"the branches of a guard differ in dtype: {first} and {second}")
            return first
        case Lookup(value, subscripts):
            for s in subscripts:
                index_dtype = dtype_of(s, read_dtype)
                if not index_dtype.is_integer:
                    raise TypeMismatchError(f"a subscript of lookup(%{value}, ...) is {index_dtype}, not an integer")
            return read_dtype(value)
    own = getattr(e, "dtype", None)
    if isinstance(own, DType):
        return own
    raise InternalError(f"not a scalar expression: {e!r}")


def flops_of(e: object) -> int:
    """Estimated floating-point operations of one evaluation of `e`, an expression of any level. Units: operations; a guard counts its
    dearer branch, a leaf nothing.
    """
    match e:
        case Call(fn, args):
            own = SCALAR_OPS[fn].flops if fn in SCALAR_OPS else 1
            return own + sum(flops_of(a) for a in args)
        case Guard(_, then, otherwise):
            return max(flops_of(then), flops_of(otherwise))
        case Lookup(_, subscripts):
            return sum(flops_of(s) for s in subscripts)
    return 0
