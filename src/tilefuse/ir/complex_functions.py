"""Functions of complex numbers as expressions of their real and imaginary parts.

A complex number z = a + bi is the pair (a, b) of expressions of one real type, f32 or f64. Signed zeros, infinities and NaN follow the C
standard (annex G), which the array API standard repeats. An operand that a `select` does not choose is replaced by a harmless number
before the function that would be infinite or NaN there, because the adjoint of the function is multiplied by zero, not left out.
"""
from __future__ import annotations

from collections.abc import Callable
from math import inf, log, nan, pi, sqrt

from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Expr, call, const

Parts = tuple[Expr, Expr]
# Names an expression that several others use, so that neither kernels nor gradients hold it several times.
Let = Callable[[Expr], Expr]

# |a| from which cosh(a) and sinh(a) are exp(|a|) / 2 in every bit, so that tanh(a) is 1 and a square still has room.
FLAT_TANH = {"f32": 10.0, "f64": 20.0}
# |z| from which 1 / z is atanh(z) but for the turn of a quarter, in every bit; its square still has room.
FAR = {"f32": 1e9, "f64": 1e18}
# |a| or |b| from which |a| + |z| may overflow, and below which b / sqrt(|z|) may lose bits; the powers of four that bring them back.
LARGE = {"f32": 1e38, "f64": 1e307}
SMALL = {"f32": 1e-36, "f64": 1e-300}
GROWTH = {"f32": 2.0**48, "f64": 2.0**108}


def _add(a: Expr, b: Expr) -> Expr:
    return call("add", a, b)


def _sub(a: Expr, b: Expr) -> Expr:
    return call("sub", a, b)


def _mul(a: Expr, b: Expr) -> Expr:
    return call("mul", a, b)


def _div(a: Expr, b: Expr) -> Expr:
    return call("div", a, b)


def _neg(a: Expr) -> Expr:
    return call("neg", a)


def _abs(a: Expr) -> Expr:
    return call("abs", a)


def _sel(condition: Expr, a: Expr, b: Expr) -> Expr:
    return call("select", condition, a, b)


def _and(a: Expr, b: Expr) -> Expr:
    return call("logical_and", a, b)


def _or(a: Expr, b: Expr) -> Expr:
    return call("logical_or", a, b)


def _zero(a: Expr, t: DType) -> Expr:
    return call("eq", a, const(0, t))


def _finite(a: Expr) -> Expr:
    return call("isfinite", a)


def _infinite(z: Parts) -> Expr:
    return _or(call("isinf", z[0]), call("isinf", z[1]))


def _signed(size: float, sign: Expr, t: DType) -> Expr:
    return call("copysign", const(size, t), sign)


# Arithmetic


def add(t: DType, let: Let, x: Parts, y: Parts) -> Parts:
    """x + y."""
    return _add(x[0], y[0]), _add(x[1], y[1])


def subtract(t: DType, let: Let, x: Parts, y: Parts) -> Parts:
    """x - y."""
    return _sub(x[0], y[0]), _sub(x[1], y[1])


def multiply(t: DType, let: Let, x: Parts, y: Parts) -> Parts:
    """x * y, by the four products."""
    (a, b), (c, d) = x, y
    return _sub(_mul(a, c), _mul(b, d)), _add(_mul(a, d), _mul(b, c))


def divide(t: DType, let: Let, x: Parts, y: Parts) -> Parts:
    """x / y, divided by the larger part of y first so that no square overflows (Smith 1962). Of y = 0: x times infinity."""
    (a, b), (c, d) = x, y
    by_real = call("ge", _abs(c), _abs(d))
    large, small = _sel(by_real, c, d), _sel(by_real, d, c)
    ratio = let(_div(small, _sel(_zero(large, t), const(1, t), large)))
    size = let(_add(large, _mul(small, ratio)))
    first, second = _sel(by_real, a, b), _sel(by_real, b, a)
    imaginary = _sub(second, _mul(first, ratio))
    return _div(_add(first, _mul(second, ratio)), size), _div(_sel(by_real, imaginary, _neg(imaginary)), size)


def reciprocal(t: DType, let: Let, x: Parts) -> Parts:
    """1 / x."""
    return divide(t, let, (const(1, t), const(0, t)), x)


def negative(t: DType, let: Let, x: Parts) -> Parts:
    """-x."""
    return _neg(x[0]), _neg(x[1])


def conjugate(t: DType, let: Let, x: Parts) -> Parts:
    """a - bi."""
    return x[0], _neg(x[1])


def magnitude(t: DType, let: Let, x: Parts) -> Expr:
    """|x| without overflow. Its gradient at 0 is 0."""
    nothing = _and(_zero(x[0], t), _zero(x[1], t))
    return _sel(nothing, const(0, t), call("hypot", _sel(nothing, const(1, t), x[0]), x[1]))


def angle(t: DType, let: Let, x: Parts) -> Expr:
    """The angle of the point (a, b), in (-pi, pi]."""
    return call("atan2", x[1], x[0])


def sign(t: DType, let: Let, x: Parts) -> Parts:
    """x / |x|; 0 for 0."""
    size = let(magnitude(t, let, x))
    nothing = _zero(size, t)
    whole = _sel(nothing, const(1, t), size)
    return _sel(nothing, size, _div(x[0], whole)), _sel(nothing, size, _div(x[1], whole))


def rounded(t: DType, let: Let, x: Parts) -> Parts:
    """Both parts to the nearest integer, halves to even."""
    return call("round", x[0]), call("round", x[1])


# Comparison


def equal(t: DType, let: Let, x: Parts, y: Parts) -> Expr:
    """Whether both parts are equal."""
    return _and(call("eq", x[0], y[0]), call("eq", x[1], y[1]))


def not_equal(t: DType, let: Let, x: Parts, y: Parts) -> Expr:
    """Whether a part differs."""
    return _or(call("ne", x[0], y[0]), call("ne", x[1], y[1]))


def is_finite(t: DType, let: Let, x: Parts) -> Expr:
    """Whether both parts are finite."""
    return _and(_finite(x[0]), _finite(x[1]))


def is_infinite(t: DType, let: Let, x: Parts) -> Expr:
    """Whether a part is infinite."""
    return _infinite(x)


def is_nan(t: DType, let: Let, x: Parts) -> Expr:
    """Whether a part is NaN."""
    return _or(call("isnan", x[0]), call("isnan", x[1]))


# Exponentials and hyperbolic functions


def exponential(t: DType, let: Let, x: Parts) -> Parts:
    """exp(a) (cos b + i sin b)."""
    a, b = x
    size = let(call("exp", a))
    endless, real = _and(call("isinf", a), call("logical_not", _finite(b))), _zero(b, t)
    imaginary = _sel(endless, _sel(call("lt", a, const(0, t)), const(0, t), const(nan, t)), _mul(size, call("sin", b)))
    return _sel(_or(endless, real), size, _mul(size, call("cos", b))), _sel(real, b, imaginary)


def exponential_minus_one(t: DType, let: Let, x: Parts) -> Parts:
    """exp(x) - 1 without cancellation: expm1(a) cos b - 2 sin(b / 2)^2 + i exp(a) sin b."""
    a, b = x
    less, half = call("expm1", a), call("sin", _mul(const(0.5, t), b))
    endless, real = _and(call("isinf", a), call("logical_not", _finite(b))), _zero(b, t)
    whole = _sub(_mul(less, call("cos", b)), _mul(const(2, t), _mul(half, half)))
    # The standard gives +0 for -0, too. (A rule that is exact up to the sign of a zero would drop a sum with 0.)
    return _sel(_or(endless, real), _sel(_zero(a, t), const(0, t), less), whole), exponential(t, let, x)[1]


def hyperbolic_sine(t: DType, let: Let, x: Parts) -> Parts:
    """sinh a cos b + i cosh a sin b."""
    a, b = x
    size, lost = call("sinh", a), call("logical_not", _finite(b))
    alone = _or(_zero(b, t), _and(lost, _or(_zero(a, t), call("isinf", a))))
    return _sel(alone, size, _mul(size, call("cos", b))), _sel(_zero(b, t), b, _mul(call("cosh", a), call("sin", b)))


def hyperbolic_cosine(t: DType, let: Let, x: Parts) -> Parts:
    """cosh a cos b + i sinh a sin b."""
    a, b = x
    size, lost = call("cosh", a), call("logical_not", _finite(b))
    alone = _or(_zero(b, t), _and(lost, call("isinf", a)))
    # Zero with the sign of the product, also where one factor is infinite or NaN and the other zero.
    nothing = _mul(_signed(0, a, t), _signed(1, b, t))
    flat = _or(_zero(b, t), _and(_zero(a, t), lost))
    return _sel(alone, size, _mul(size, call("cos", b))), _sel(flat, nothing, _mul(call("sinh", a), call("sin", b)))


def hyperbolic_tangent(t: DType, let: Let, x: Parts) -> Parts:
    """The quotient of sinh x and cosh x, from tan b and sinh a without overflow (Kahan 1987)."""
    a, b = x
    far = call("gt", _abs(a), const(FLAT_TANH[t.name], t))
    near = _sel(far, const(0, t), a)
    turn, rise = let(call("tan", b)), let(call("sinh", near))
    bend = _add(const(1, t), _mul(turn, turn))
    steep = _mul(bend, rise)
    size = let(_add(const(1, t), _mul(steep, rise)))
    fall = call("exp", _mul(const(-2, t), _abs(_sel(far, a, const(1, t)))))
    waves = _mul(_mul(const(4, t), call("sin", b)), call("cos", b))
    lost = _and(_finite(a), call("logical_not", _finite(b)))
    real = _sel(far, _sel(lost, const(nan, t), _signed(1, a, t)), _div(_mul(call("cosh", near), steep), size))
    ends = _sel(call("isinf", a), _signed(0, b, t), _mul(waves, fall))
    imaginary = _sel(_zero(b, t), b, _sel(far, ends, _div(turn, size)))
    return _sel(_and(_zero(a, t), call("logical_not", _finite(b))), a, real), imaginary


# Logarithms, roots and powers


def _log_size(t: DType, let: Let, x: Parts) -> Expr:
    """log |x|; near |x| = 1 from the squares' distance to 1, where the logarithm of a rounded |x| would lose all digits."""
    a, b = _abs(x[0]), _abs(x[1])
    over = call("ge", a, b)
    large, small = _sel(over, a, b), _sel(over, b, a)
    size = let(call("hypot", *x))
    near = _and(call("gt", size, const(0.5, t)), call("lt", size, const(2, t)))
    distance = _add(_mul(_sub(large, const(1, t)), _add(large, const(1, t))), _mul(small, small))
    close = _mul(const(0.5, t), call("log1p", _sel(near, distance, const(0, t))))
    return _sel(near, close, call("log", size))


def logarithm(t: DType, let: Let, x: Parts) -> Parts:
    """log |x| and the angle."""
    return _log_size(t, let, x), angle(t, let, x)


def logarithm_to(base: float) -> Callable[[DType, Let, Parts], Parts]:
    """The logarithm to another base."""

    def scaled(t: DType, let: Let, x: Parts) -> Parts:
        one = const(1 / log(base), t)
        size, turn = logarithm(t, let, x)
        return _mul(one, size), _mul(one, turn)

    return scaled


def logarithm_plus_one(t: DType, let: Let, x: Parts) -> Parts:
    """log(1 + x); for small x from a (a + 2) + b^2, the distance of |1 + x|^2 to 1."""
    a, b = x
    near = _and(call("lt", _abs(a), const(0.5, t)), call("lt", _abs(b), const(0.5, t)))
    distance = _add(_mul(a, _add(a, const(2, t))), _mul(b, b))
    close = _mul(const(0.5, t), call("log1p", _sel(near, distance, const(0, t))))
    one_more = _add(const(1, t), a)
    return _sel(near, close, _log_size(t, let, (one_more, b))), call("atan2", b, one_more)


def square_root(t: DType, let: Let, x: Parts) -> Parts:
    """The root with a real part that is not negative, without overflow or lost bits between."""
    large = call("gt", call("maximum", _abs(x[0]), _abs(x[1])), const(LARGE[t.name], t))
    small = call("lt", call("maximum", _abs(x[0]), _abs(x[1])), const(SMALL[t.name], t))
    grown = GROWTH[t.name]
    scale = _sel(large, const(1 / 16, t), _sel(small, const(grown, t), const(1, t)))
    back = _sel(large, const(4, t), _sel(small, const(1 / sqrt(grown), t), const(1, t)))
    a, b, back = let(_mul(x[0], scale)), let(_mul(x[1], scale)), let(back)
    nothing = _and(_zero(a, t), _zero(b, t))
    length = call("hypot", _sel(nothing, const(1, t), a), b)
    root = let(call("sqrt", _mul(const(0.5, t), _add(_abs(_sel(nothing, const(1, t), a)), length))))
    other = _mul(back, _div(_mul(const(0.5, t), _abs(b)), root))
    root = _mul(back, root)
    right = call("logical_not", call("lt", a, const(0, t)))
    real, imaginary = _sel(right, root, other), call("copysign", _sel(right, other, root), x[1])
    upright, level = call("isinf", x[1]), call("isinf", x[0])
    # Of a = infinity: (inf, 0), of a = -infinity: (0, inf); NaN in the other part stays in the part that would be zero.
    lost = _mul(const(0, t), x[1])
    ends = _sel(right, const(inf, t), _abs(lost)), _sel(right, lost, _signed(inf, x[1], t))
    real = _sel(upright, const(inf, t), _sel(level, ends[0], _sel(nothing, const(0, t), real)))
    return real, _sel(upright, x[1], _sel(level, ends[1], _sel(nothing, x[1], imaginary)))


def square(t: DType, let: Let, x: Parts) -> Parts:
    """x * x."""
    return multiply(t, let, x, x)


def power(t: DType, let: Let, x: Parts, y: Parts) -> Parts:
    """x to the power y by the length and angle of x; 1 where y is 0, and 0 to a power with a positive real part is 0."""
    nothing, one = _and(_zero(x[0], t), _zero(x[1], t)), _and(_zero(y[0], t), _zero(y[1], t))
    base = _sel(nothing, const(1, t), x[0])
    length, turn = call("hypot", base, x[1]), let(call("atan2", x[1], base))
    real = _zero(y[1], t)
    spin = let(_add(_mul(y[0], turn), _sel(real, const(0, t), _mul(y[1], _log_size(t, let, (base, x[1]))))))
    size = let(_mul(call("pow", length, y[0]), _sel(real, const(1, t), call("exp", _neg(_mul(y[1], turn))))))
    flat = _or(_zero(spin, t), _zero(size, t))
    polar = _sel(flat, size, _mul(size, call("cos", spin))), _sel(flat, _mul(const(0, t), spin), _mul(size, call("sin", spin)))
    empty = _sel(call("gt", y[0], const(0, t)), const(0, t), const(nan, t))
    endless = _sel(_and(real, call("lt", y[0], const(0, t))), const(inf, t), empty)
    return (_sel(one, const(1, t), _sel(nothing, endless, polar[0])),
            _sel(one, const(0, t), _sel(nothing, _sel(call("gt", y[0], const(0, t)), const(0, t), const(nan, t)), polar[1])))


# Inverse functions: by the roots of 1 - x and 1 + x, whose products are sums of numbers of one sign (Kahan 1987)


def _roots(t: DType, let: Let, x: Parts) -> tuple[Parts, Parts]:
    """Roots of 1 - x and 1 + x, of 0 where x is infinite."""
    endless = _infinite(x)
    a, b = let(_sel(endless, const(0, t), x[0])), let(_sel(endless, const(0, t), x[1]))
    one = const(1, t)
    left, right = square_root(t, let, (_sub(one, a), _neg(b))), square_root(t, let, (_add(one, a), b))
    return (let(left[0]), let(left[1])), (let(right[0]), let(right[1]))


def inverse_sine(t: DType, let: Let, x: Parts) -> Parts:
    """The number whose sine is x, its real part in [-pi/2, pi/2]."""
    (c, d), (e, f) = _roots(t, let, x)
    endless = _infinite(x)
    real = call("atan2", x[0], _sel(endless, _abs(x[1]), _sub(_mul(c, e), _mul(d, f))))
    imaginary = _sel(endless, _signed(inf, x[1], t), call("asinh", _sub(_mul(c, f), _mul(d, e))))
    return _sel(_zero(x[0], t), x[0], real), imaginary


def inverse_cosine(t: DType, let: Let, x: Parts) -> Parts:
    """The number whose cosine is x, its real part in [0, pi]."""
    (c, d), (e, f) = _roots(t, let, x)
    endless = _infinite(x)
    real = _sel(endless, call("atan2", _abs(x[1]), x[0]), _mul(const(2, t), call("atan2", c, e)))
    imaginary = _sel(endless, _signed(inf, _neg(x[1]), t), call("asinh", _sub(_mul(e, d), _mul(f, c))))
    return _sel(_and(_zero(x[0], t), call("isnan", x[1])), const(pi / 2, t), real), imaginary


def inverse_hyperbolic_cosine(t: DType, let: Let, x: Parts) -> Parts:
    """The inverse cosine turned by a quarter, to a real part that is not negative."""
    real, imaginary = inverse_cosine(t, let, x)
    return _abs(imaginary), call("copysign", real, x[1])


def inverse_hyperbolic_tangent(t: DType, let: Let, x: Parts) -> Parts:
    """log((1 + x) / (1 - x)) / 2, from the distances to 1."""
    size = call("maximum", _abs(x[0]), _abs(x[1]))
    endless = _infinite(x)
    far = _or(endless, call("gt", size, const(FAR[t.name], t)))
    half = const(0.5, t)
    a, b = let(_sel(far, half, _abs(x[0]))), let(_sel(far, half, x[1]))
    complement = _sub(const(1, t), a)
    distance = _add(_mul(complement, complement), _mul(b, b))
    near = _mul(const(0.25, t), call("log1p", _div(_mul(const(4, t), a), distance)))
    turn = _mul(half, call("atan2", _mul(const(2, t), b), _sub(_mul(complement, _add(const(1, t), a)), _mul(b, b))))
    distant = _and(far, call("logical_not", endless))
    one = const(1, t)
    inverse = divide(t, let, (one, const(0, t)), (_sel(distant, x[0], one), _sel(distant, x[1], const(0, t))))[0]
    real = _sel(endless, const(0, t), _sel(far, _abs(inverse), near))
    imaginary = _sel(_and(far, call("logical_not", call("isnan", x[1]))), _signed(pi / 2, x[1], t), _sel(far, x[1], turn))
    return _sel(_zero(x[0], t), x[0], call("copysign", real, x[0])), imaginary


def _turned(function: Callable[[DType, Let, Parts], Parts], t: DType, let: Let, x: Parts) -> Parts:
    """-i function(i x)."""
    real, imaginary = function(t, let, (_neg(x[1]), x[0]))
    return imaginary, _neg(real)


def inverse_hyperbolic_sine(t: DType, let: Let, x: Parts) -> Parts:
    """The inverse sine, turned by a quarter."""
    return _turned(inverse_sine, t, let, x)


def inverse_tangent(t: DType, let: Let, x: Parts) -> Parts:
    """The inverse hyperbolic tangent, turned by a quarter."""
    return _turned(inverse_hyperbolic_tangent, t, let, x)


def sine(t: DType, let: Let, x: Parts) -> Parts:
    """The hyperbolic sine, turned by a quarter."""
    return _turned(hyperbolic_sine, t, let, x)


def cosine(t: DType, let: Let, x: Parts) -> Parts:
    """The hyperbolic cosine of i x."""
    return hyperbolic_cosine(t, let, (_neg(x[1]), x[0]))


def tangent(t: DType, let: Let, x: Parts) -> Parts:
    """The hyperbolic tangent, turned by a quarter."""
    return _turned(hyperbolic_tangent, t, let, x)


# Functions of complex numbers with a real result, and with a bool.
GIVES_REAL = frozenset(("abs", "angle", "real", "imag"))
GIVES_BOOL = frozenset(("eq", "ne", "isfinite", "isinf", "isnan"))
# Scalar functions of `ops.py` by name, on complex operands: (type of the parts, let, operands) -> parts, or one real or bool expression.
COMPLEX_FUNCTIONS: dict[str, Callable[..., Parts | Expr]] = {
    "add": add, "sub": subtract, "mul": multiply, "div": divide, "reciprocal": reciprocal, "neg": negative, "abs": magnitude,
    "sign": sign, "round": rounded, "eq": equal, "ne": not_equal, "isfinite": is_finite, "isinf": is_infinite, "isnan": is_nan,
    "exp": exponential, "expm1": exponential_minus_one, "sinh": hyperbolic_sine, "cosh": hyperbolic_cosine, "tanh": hyperbolic_tangent,
    "log": logarithm, "log2": logarithm_to(2), "log10": logarithm_to(10), "log1p": logarithm_plus_one, "sqrt": square_root, "pow": power,
    "asin": inverse_sine, "acos": inverse_cosine, "atan": inverse_tangent, "asinh": inverse_hyperbolic_sine,
    "acosh": inverse_hyperbolic_cosine, "atanh": inverse_hyperbolic_tangent, "sin": sine, "cos": cosine, "tan": tangent,
    "conj": conjugate, "angle": angle, "real": lambda t, let, x: x[0], "imag": lambda t, let, x: x[1],
}
