"""The rules by which scalar expressions are rewritten. Every rule says whether it is exact; inexact ones can be switched off.

Exact means: equal bit for bit for every operand, up to which NaN. The tests try every exact rule on NaN, infinities, zeros of
both signs and subnormals. A rule must not repeat a subexpression that is more than a read or a constant: bodies are trees, and
a repeated subexpression is computed twice.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilefuse.ir.dtype import BOOL, DTYPES, F32, DType
from tilefuse.ir.ops import NEGATED, SCALAR_OPS
from tilefuse.ir.scalar import NUMPY_DTYPES, Call, Const, Expr, Guard, call, cast, children, const, is_cast

Types = Callable[[Expr], DType]


@dataclass(frozen=True, slots=True)
class Rule:
    """One local rewrite; `apply` gives the replacement, or None where it does not match.

    roots: functions at whose calls the rule is tried ("convert": any conversion, "guard"); empty: at every call.
    examples: texts of expressions that the rule must rewrite, over reads %x[], %y[] of f32, %h[] of f16, %n[] of i32, %k[] of i64
        and %b[] of bool.
    """

    name: str
    exact: bool
    apply: Callable[[Expr, Types], Expr | None]
    examples: tuple[str, ...]
    roots: frozenset[str]
    doc: str


EXTREMA = frozenset({"maximum", "minimum", "fmax", "fmin"})
COMMUTATIVE = EXTREMA | {"add", "mul", "eq", "ne", "logical_and", "logical_or", "logical_xor", "bit_and", "bit_or", "bit_xor"}

RULES: list[Rule] = []
RuleFunction = Callable[[Expr, Types], Expr | None]


def rule(*examples: str, exact: bool = True, everywhere: bool = False) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as a rule; its name in kebab-case is the rule's name.

    A rule is tried only where the root is that of one of its examples, so every function it rewrites needs an example;
    `everywhere` lifts that.
    """

    def register(fn: RuleFunction) -> RuleFunction:
        heads = (text.partition("(")[0] for text in examples)
        roots = frozenset() if everywhere else frozenset("convert" if h in DTYPES else h for h in heads)
        RULES.append(Rule(fn.__name__.replace("_", "-"), exact, fn, examples, roots, (fn.__doc__ or "").strip()))
        return fn

    return register


def is_number(e: Expr, value: float) -> bool:
    """Whether `e` is the constant `value`, with zeros told apart by sign."""
    if not isinstance(e, Const) or e.dtype == BOOL:
        return False
    constant = e.value
    return constant == value and (not e.dtype.is_float or math.copysign(1.0, constant) == math.copysign(1.0, value))


def is_small(e: Expr) -> bool:
    """Whether `e` may be repeated: a constant, a read, or a conversion of one."""
    return isinstance(e, Call) and is_cast(e) and not children(e.args[0]) or not children(e)


def lossless(have: DType, to: DType) -> bool:
    """Whether every value of `have` is a value of `to`, so that converting there and on is converting directly."""
    if have in (to, BOOL):
        return True
    if have.is_float:
        return to.is_float and (to.name == "f64" or (to == F32 and have.bits <= 16))
    if to.is_float:
        mantissa = {"f64": 53, "f32": 24}.get(to.name, 0)
        return have.bits - (have.kind == "int") <= mantissa
    if to.is_integer:
        return have.bits < to.bits if have.kind == "uint" or to.kind == "int" else False
    return False


# Neutral and absorbing elements


@rule("add(%x[], -0.0:f32)", "add(-0.0:f32, %x[])", "add(%n[], 0:i32)")
def add_negative_zero(e: Expr, types: Types) -> Expr | None:
    """x + (-0.0) -> x; for integers x + 0 -> x. With +0.0 it is not exact: -0.0 + 0.0 is +0.0."""
    match e:
        case Call("add", (x, Const() as c)) | Call("add", (Const() as c, x)):
            return x if is_number(c, -0.0 if c.dtype.is_float else 0) else None
    return None


@rule("add(%x[], 0.0:f32)", "add(0.0:f32, %x[])", exact=False)
def add_zero(e: Expr, types: Types) -> Expr | None:
    """x + 0.0 -> x. Differs only in the sign of zero: -0.0 + 0.0 is +0.0."""
    match e:
        case Call("add", (x, Const() as c)) | Call("add", (Const() as c, x)) if c.dtype.is_float and is_number(c, 0.0):
            return x
    return None


@rule("sub(%x[], 0.0:f32)", "sub(%n[], 0:i32)")
def subtract_zero(e: Expr, types: Types) -> Expr | None:
    """x - (+0.0) -> x."""
    match e:
        case Call("sub", (x, Const() as c)) if is_number(c, 0):
            return x
    return None


@rule("mul(%x[], 1.0:f32)", "mul(1:i32, %n[])", "div(%x[], 1.0:f32)", "truncdiv(%n[], 1:i32)", "pow(%x[], 1.0:f32)")
def multiply_by_one(e: Expr, types: Types) -> Expr | None:
    """x * 1, x / 1 and x to the power 1 -> x."""
    match e:
        case Call("mul", (Const() as c, x)) if is_number(c, 1):
            return x
        case Call("mul" | "div" | "pow" | "truncdiv", (x, Const() as c)) if is_number(c, 1):
            return x
    return None


@rule("mul(%x[], -1.0:f32)", "mul(-1:i32, %n[])", "div(%x[], -1.0:f32)")
def multiply_by_minus_one(e: Expr, types: Types) -> Expr | None:
    """x * (-1) and x / (-1) -> -x."""
    match e:
        case Call("mul", (Const() as c, x)) if is_number(c, -1):
            return call("neg", x)
        case Call("mul" | "div", (x, Const() as c)) if is_number(c, -1):
            return call("neg", x)
    return None


@rule("mul(%n[], 0:i32)", "mul(0:i32, %n[])")
def multiply_integer_by_zero(e: Expr, types: Types) -> Expr | None:
    """n * 0 -> 0 for integers. For floats it is not exact (inf, NaN, sign)."""
    match e:
        case Call("mul", (_, Const() as c)) | Call("mul", (Const() as c, _)) if c.dtype.is_integer and is_number(c, 0):
            return c
    return None


@rule("div(%x[], 4.0:f32)", "div(%x[], 0.125:f32)")
def divide_by_power_of_two(e: Expr, types: Types) -> Expr | None:
    """x / 2^k -> x * 2^-k. Exact: both round the same real number, and 2^-k is a normal number."""
    match e:
        case Call("div", (x, Const() as c)) if c.dtype.is_float and not is_number(c, 1):
            mantissa, exponent = math.frexp(abs(c.value))
            if mantissa == 0.5 and abs(exponent) <= 100:
                return call("mul", x, const(1.0 / c.value, c.dtype))
    return None


@rule("maximum(%x[], -inf:f32)", "minimum(inf:f32, %x[])")
def neutral_extremum(e: Expr, types: Types) -> Expr | None:
    """max(x, -inf) and min(x, inf) -> x; NaN stays NaN on both sides."""
    match e:
        case Call("maximum" | "minimum" as fn, (x, Const() as c)) | Call("maximum" | "minimum" as fn, (Const() as c, x)):
            if c.dtype.is_float and is_number(c, -math.inf if fn == "maximum" else math.inf):
                return x
    return None


@rule("maximum(%x[], %x[])", "minimum(%n[], %n[])", "logical_and(%b[], %b[])", "logical_or(%b[], %b[])", "bit_and(%n[], %n[])",
      "bit_or(%n[], %n[])", "fmax(%x[], %x[])", "fmin(%x[], %x[])")
def idempotent_operation(e: Expr, types: Types) -> Expr | None:
    """max(x, x), min(x, x), x and x, x or x -> x."""
    match e:
        case Call("maximum" | "minimum" | "fmax" | "fmin" | "logical_and" | "logical_or" | "bit_and" | "bit_or", (a, b)) if a == b:
            return a
    return None


@rule("maximum(maximum(%x[], 1.0:f32), 2.0:f32)", "minimum(minimum(%x[], 1.0:f32), -3.0:f32)", "maximum(maximum(%n[], 0:i32), 0:i32)")
def nested_extremum(e: Expr, types: Types) -> Expr | None:
    """max(max(x, a), b) -> max(x, max(a, b)) for constants; not where zeros of different sign meet."""
    match e:
        case Call("maximum" | "minimum" as fn, (Call(inner, (x, Const() as a)), Const() as b)) if inner == fn:
            if a == b:
                return e.args[0]
            if a.value != b.value and a.value == a.value and b.value == b.value:
                keep_a = (a.value > b.value) == (fn == "maximum")
                return call(fn, x, a if keep_a else b)
    return None


# Inverse and repeated functions


@rule("neg(neg(%x[]))", "logical_not(logical_not(%b[]))", "bit_not(bit_not(%n[]))")
def double_inverse(e: Expr, types: Types) -> Expr | None:
    """-(-x), not not b -> x."""
    match e:
        case Call("neg" | "logical_not" | "bit_not" as fn, (Call(inner, (x,)),)) if inner == fn:
            return x
    return None


@rule("abs(neg(%x[]))", "abs(abs(%x[]))", "abs(abs(%n[]))")
def absolute_of_signed(e: Expr, types: Types) -> Expr | None:
    """|-x| and ||x|| -> |x|; not for unsigned integers, whose negation wraps."""
    match e:
        case Call("abs", (Call("neg" | "abs", (x,)),)) if types(x).kind != "uint":
            return call("abs", x)
    return None


@rule("add(%x[], neg(%y[]))", "sub(%x[], neg(%y[]))", "add(neg(%x[]), %y[])")
def signed_operand(e: Expr, types: Types) -> Expr | None:
    """x + (-y) -> x - y, x - (-y) -> x + y, (-x) + y -> y - x."""
    match e:
        case Call("add", (x, Call("neg", (y,)))):
            return call("sub", x, y)
        case Call("sub", (x, Call("neg", (y,)))):
            return call("add", x, y)
        case Call("add", (Call("neg", (x,)), y)):
            return call("sub", y, x)
    return None


@rule("floor(floor(%x[]))", "ceil(round(%x[]))", "trunc(floor(%x[]))", "round(ceil(%x[]))", "sign(sign(%x[]))")
def rounding_of_integer(e: Expr, types: Types) -> Expr | None:
    """Rounding of a rounded value, and the sign of a sign."""
    match e:
        case Call("floor" | "ceil" | "round" | "trunc", (Call("floor" | "ceil" | "round" | "trunc", _) as inner,)):
            return inner
        case Call("sign", (Call("sign", _) as inner,)):
            return inner
    return None


# Conversions


@rule("f32(%x[])", "i32(%n[])", "bool(%b[])")
def conversion_to_own_type(e: Expr, types: Types) -> Expr | None:
    """f32(x) -> x where x is f32."""
    match e:
        case Call(fn, (x,)) if fn in DTYPES and types(x).name == fn:
            return x
    return None


@rule("f16(f32(%h[]))", "f64(f32(%h[]))", "f16(f64(%x[]))", "i64(i32(%b[]))", "f32(f64(%x[]))")
def conversion_through_wider_type(e: Expr, types: Types) -> Expr | None:
    """T(M(x)) -> T(x) where M holds every value of x's type; not from one storage type to another, which has no direct way."""
    match e:
        case Call(to, (Call(middle, (x,)),)) if to in DTYPES and middle in DTYPES:
            have, target = types(x), DTYPES[to]
            if lossless(have, DTYPES[middle]) and (have == target or have.is_arithmetic or target.is_arithmetic):
                return x if have == target else cast(x, target)
    return None


@rule("f32(f16(%x[]))", "f32(bf16(%x[]))", exact=False)
def conversion_round_trip(e: Expr, types: Types) -> Expr | None:
    """f32(f16(x)) and f32(bf16(x)) -> x for x of f32: an intermediate value keeps its precision.

    The result is closer to exact arithmetic by at most one rounding of the narrow type, and does not overflow there. Off with
    `eager_rounding`. Conversions to f8 stay: they are quantisation on purpose.
    """
    match e:
        case Call("f32", (Call("f16" | "bf16", (x,)),)) if types(x) == F32:
            return x
    return None


@rule("ne(i32(%b[]), 0:i32)", "ne(f32(%b[]), 0.0:f32)")
def truth_of_converted_bool(e: Expr, types: Types) -> Expr | None:
    """b != 0 of a converted bool -> b."""
    match e:
        case Call("ne", (Call(middle, (x,)), Const() as c)) if middle in DTYPES and types(x) == BOOL and not c.value:
            return x
    return None


# Choices and comparisons


@rule("select(true:bool, %x[], %y[])", "select(%b[], %x[], %x[])", "select(false:bool, %x[], %y[])", "select(%b[], true:bool, false:bool)")
def settled_select(e: Expr, types: Types) -> Expr | None:
    """select with a constant condition or equal branches, or between true and false."""
    match e:
        case Call("select", (c, Const("true", _), Const("false", _))):
            return c
        case Call("select", (c, Const("false", _), Const("true", _))):
            return call("logical_not", c)
        case Call("select", (Const() as c, a, b)):
            return a if c.value else b
        case Call("select", (_, a, b)) if a == b:
            return a
    return None


@rule("select(logical_not(%b[]), %x[], %y[])")
def select_of_not(e: Expr, types: Types) -> Expr | None:
    """select(not b, x, y) -> select(b, y, x)."""
    match e:
        case Call("select", (Call("logical_not", (c,)), a, b)):
            return call("select", c, b, a)
    return None


@rule("logical_and(%b[], true:bool)", "logical_and(false:bool, %b[])", "logical_or(%b[], false:bool)", "logical_or(true:bool, %b[])",
      "logical_xor(%b[], false:bool)", "logical_xor(%b[], true:bool)")
def logical_with_constant(e: Expr, types: Types) -> Expr | None:
    """and, or, xor with true or false."""
    match e:
        case Call("logical_and" | "logical_or" | "logical_xor" as fn, (x, Const() as c)) | Call(
            "logical_and" | "logical_or" | "logical_xor" as fn, (Const() as c, x)
        ):
            if fn == "logical_xor":
                return call("logical_not", x) if c.value else x
            return x if bool(c.value) == (fn == "logical_and") else c
    return None


@rule("eq(%n[], %n[])", "lt(%x[], %x[])", "ne(%n[], %n[])", "ge(%n[], %n[])", "le(%n[], %n[])", "gt(%x[], %x[])")
def comparison_with_itself(e: Expr, types: Types) -> Expr | None:
    """x < x and x > x are false; for integers also x == x is true and the rest follows. x == x of floats tells NaN."""
    match e:
        case Call("lt" | "gt", (a, b)) if a == b:
            return const(False, BOOL)
        case Call("eq" | "le" | "ge" | "ne" as fn, (a, b)) if a == b and not types(a).is_float:
            return const(fn != "ne", BOOL)
    return None


@rule("lt(random_uniform(%k[], %k[]), 0.9:f32)", "ge(random_uniform(%k[], %k[]), 0.1:f32)")
def comparison_of_uniform(e: Expr, types: Types) -> Expr | None:
    """u < p and u >= p of a uniform random number -> the same comparison of its bits with ceil(p * 2^24) * 2^8, for 0 < p < 1.

    Exact: u is (bits >> 8) / 2^24, so u < p where bits >> 8 is below the next integer from p * 2^24.
    """
    match e:
        case Call("lt" | "ge" as fn, (Call("random_uniform", args), Const() as p)) if 0 < p.value < 1:
            limit = math.ceil(float(np.float32(p.value)) * 2**24)
            return call(fn, Call("random_bits", args), const(limit << 8, DTYPES["u32"]))
    return None


@rule("logical_not(eq(%x[], %y[]))", "logical_not(ne(%x[], %y[]))", "logical_not(lt(%n[], 3:i32))")
def negated_comparison(e: Expr, types: Types) -> Expr | None:
    """not (x == y) -> x != y; for integers also not (x < y) -> x >= y. With NaN the latter is not exact."""
    match e:
        case Call("logical_not", (Call(fn, (a, b)),)) if fn in NEGATED and (fn in ("eq", "ne") or not types(a).is_float):
            return call(NEGATED[fn], a, b)
    return None


# Powers


@rule("pow(%x[], 2.0:f32)", "pow(f32(%h[]), 3.0:f32)", exact=False)
def small_power(e: Expr, types: Types) -> Expr | None:
    """x^2 -> x * x, x^3 -> x * x * x where x is cheap to repeat. Differs from a correctly rounded power by 1 unit in the last place."""
    match e:
        case Call("pow", (x, Const() as c)) if c.dtype.is_float and is_small(x):
            if is_number(c, 2):
                return call("mul", x, x)
            if is_number(c, 3):
                return call("mul", call("mul", x, x), x)
    return None


@rule("pow(%x[], 0.5:f32)", "pow(%x[], -0.5:f32)", "pow(%x[], -1.0:f32)", exact=False)
def root_power(e: Expr, types: Types) -> Expr | None:
    """x^0.5 -> sqrt(x), x^-0.5 -> rsqrt(x), x^-1 -> 1 / x. Differs at -inf and -0.0 for the roots, as frameworks do."""
    match e:
        case Call("pow", (x, Const() as c)) if c.dtype.is_float:
            for value, fn in ((0.5, "sqrt"), (-0.5, "rsqrt"), (-1.0, "reciprocal")):
                if is_number(c, value):
                    return call(fn, x)
    return None


# Constants


@rule("add(1.0:f32, 2.5:f32)", "i64(3:i32)", "lt(1:i32, 2:i32)", "f16(0.1:f32)", "select(true:bool, 1.0:f32, 2.0:f32)", everywhere=True)
def constant_operands(e: Expr, types: Types) -> Expr | None:
    """A function of constants -> its value, as the operator table defines it. Floats that no integer type holds stay."""
    if not isinstance(e, Call) or not e.args or e.fn.startswith("random_") or not all(isinstance(a, Const) for a in e.args):
        return None
    constants = [a for a in e.args if isinstance(a, Const)]
    if e.fn in DTYPES:
        return _converted_constant(constants[0], DTYPES[e.fn])
    dtype = types(e)
    with np.errstate(all="ignore"):
        value = SCALAR_OPS[e.fn].meaning(*(np.asarray(c.value, dtype=NUMPY_DTYPES[c.dtype.name]) for c in constants))
    return const(np.asarray(value).reshape(-1)[0], dtype)


def _converted_constant(c: Const, to: DType) -> Expr | None:
    value = c.value
    if to.is_integer and c.dtype.is_float:
        limit = 2.0 ** (to.bits - (to.kind == "int"))
        if not (-limit if to.kind == "int" else -1.0) < value < limit:
            return None
        value = int(value)
    return const(bool(value) if to == BOOL else value, to)


@rule("add(1.0:f32, %x[])", "mul(2:i32, %n[])", "maximum(2.0:f32, %x[])", "minimum(1.0:f32, %x[])", "fmax(1.0:f32, %x[])",
      "fmin(1.0:f32, %x[])", "eq(1.0:f32, %x[])", "ne(1.0:f32, %x[])", "logical_and(true:bool, %b[])", "bit_and(3:i32, %n[])",
      "bit_or(3:i32, %n[])", "bit_xor(3:i32, %n[])")
def constant_on_the_right(e: Expr, types: Types) -> Expr | None:
    """c + x -> x + c for commutative functions, so that equal expressions look equal.

    Not for the extremum with 0.0: which of two zeros it gives is not defined, but should not change either.
    """
    match e:
        case Call(fn, (Const() as c, x)) if fn in COMMUTATIVE and not isinstance(x, Const):
            if fn in EXTREMA and c.dtype.is_float and c.value == 0:
                return None
            return call(fn, x, c)
    return None


@rule("guard(0 <= 0 < 1 ? %x[] : %x[])")
def guard_of_equal_branches(e: Expr, types: Types) -> Expr | None:
    """A guard whose branches are equal -> the branch."""
    match e:
        case Guard(_, a, b) if a == b:
            return a
    return None


def rules_for(eager_rounding: bool) -> tuple[Rule, ...]:
    """The rules in use: all, or with `eager_rounding` only the exact ones."""
    return tuple(r for r in RULES if r.exact or not eager_rounding)
