"""Meanings of the scalar functions in numpy: the definitions behind `ops.SCALAR_OPS`.

Every function takes arrays of one dtype (broadcast together) and keeps it, unless its name says otherwise. Transcendental
functions of f32 are computed in f64 and rounded once, so that they serve as the reference for approximations.
Nothing here raises on special values or divides by zero with a trap; callers silence numpy's warnings.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Meaning = Callable[..., Array]

PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)


def rounded_from_f64(fn: Callable[..., Array]) -> Meaning:
    """`fn` evaluated in f64 and rounded back to the operands' dtype."""

    def meaning(*args: Array) -> Array:
        return np.asarray(fn(*(np.asarray(a, dtype=np.float64) for a in args))).astype(np.asarray(args[0]).dtype)

    return meaning


def elementwise(fn: Callable[[float], float]) -> Meaning:
    """A one-argument function of Python floats applied to every element, in f64."""

    def meaning(x: Array) -> Array:
        flat = np.asarray(x, dtype=np.float64)
        out = np.fromiter((fn(v) for v in flat.ravel().tolist()), dtype=np.float64, count=flat.size)
        return out.reshape(flat.shape).astype(np.asarray(x).dtype)

    return meaning


def _lgamma(x: float) -> float:
    if x == -math.inf or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


def _digamma(x: float) -> float:
    """Recurrence up to 10, then the asymptotic series. Source: Abramowitz and Stegun, 6.3.5, 6.3.7 and 6.3.18."""
    if x == -math.inf:
        return math.nan
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if x == math.floor(x):
            return math.nan
        return _digamma(1 - x) - math.pi / math.tan(math.pi * (x - math.floor(x)))
    if not math.isfinite(x):
        return x
    below = 0.0
    while x < 10:
        below -= 1 / x
        x += 1
    s = 1 / (x * x)
    tail = s * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132 - s * (691 / 32760 - s / 12))))))
    return below + math.log(x) - 0.5 / x - tail


# Bernoulli numbers B_2, B_4, ... of the asymptotic series of `polygamma`.
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
# Below this only the first derivative of digamma is computed: the others would need a turn of the recurrence a unit.
LEAST_OF_POLYGAMMA = -4096.0
MOST_OF_POLYGAMMA = 60.0


def _polygamma(order: float, point: float) -> float:
    """Recurrence up to 10 + order, then the asymptotic series. Source: Abramowitz and Stegun, 6.4.6, 6.4.7 and 6.4.11."""
    if not 1 <= order <= MOST_OF_POLYGAMMA or order != math.floor(order) or math.isnan(point) or point == -math.inf:
        return math.nan
    if point == math.inf:
        return 0.0
    if point <= 0 and point == math.floor(point):
        return math.inf if order % 2 else math.nan
    x = np.float64(point)  # whose powers overflow without an exception
    if x < 0 and order == 1:
        return float((math.pi / np.sin(math.pi * (x - np.rint(x)))) ** 2) - _polygamma(1, float(1 - x))
    if x < LEAST_OF_POLYGAMMA:
        return math.nan
    factorial = math.gamma(order)
    total = np.float64(0)
    while x < 10 + order:
        total += order * factorial / x ** (order + 1)
        x += 1
    part = factorial / x**order
    total += part + part * order / (2 * x)
    for n, bernoulli in enumerate(BERNOULLI):
        part *= (2 * n + order) * (2 * n + order + 1) / ((2 * n + 1) * (2 * n + 2)) / (x * x)
        total += bernoulli * part
    return float(total if order % 2 else -total)


def polygamma(order: Array, x: Array) -> Array:
    """`_polygamma` of all elements, in f64."""
    flat = np.broadcast_arrays(np.asarray(order, np.float64), np.asarray(x, np.float64))
    out = np.fromiter(map(_polygamma, *(v.ravel().tolist() for v in flat)), dtype=np.float64, count=flat[1].size)
    return out.reshape(flat[1].shape).astype(np.asarray(x).dtype)


def _erfinv(y: float) -> float:
    """A first guess (Winitzki's), then Newton's method on erf; near 1 on erfc, where erf loses its digits."""
    if not -1 < y < 1:
        return math.copysign(math.inf, y) if abs(y) == 1 else math.nan
    if y == 0:
        return y
    size = abs(y)
    log_term = math.log1p(-size * size)
    half = 2 / (math.pi * 0.147) + log_term / 2
    x = math.sqrt(math.sqrt(half * half - log_term / 0.147) - half)
    for _ in range(6):
        slope = 2 / math.sqrt(math.pi) * math.exp(-x * x)
        if slope == 0:
            break
        error = math.erf(x) - size if size < 0.5 else (1 - size) - math.erfc(x)
        step = error / slope
        x -= step / (1 + x * step)
    return math.copysign(x, y)


erf = elementwise(math.erf)
erfc = elementwise(math.erfc)
lgamma = elementwise(_lgamma)
digamma = elementwise(_digamma)
erfinv = elementwise(_erfinv)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    wide = np.asarray(x, dtype=np.float64)
    small = np.exp(-np.abs(wide))
    return np.asarray(np.where(wide >= 0, 1, small) / (1 + small)).astype(np.asarray(x).dtype)


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c. Exact: f32 within one double rounding; f64 rounds through the platform's long double."""
    dtype = np.asarray(a).dtype
    wide = np.float64 if dtype == np.float32 else np.longdouble
    return np.asarray(np.asarray(a, wide) * np.asarray(b, wide) + np.asarray(c, wide)).astype(dtype)


def truncdiv(a: Array, b: Array) -> Array:
    """Quotient rounded toward zero; 0 where b is 0; the smallest integer divided by -1 is itself."""
    if np.asarray(a).dtype.kind == "u":
        return floordiv(a, b)
    quotient = floordiv(a, b)
    safe = np.where(b == 0, 1, b)
    inexact = quotient * safe != a
    negative = (np.asarray(a) < 0) != (np.asarray(b) < 0)
    return np.where((b != 0) & inexact & negative, quotient + 1, quotient).astype(np.asarray(a).dtype)


def floordiv(a: Array, b: Array) -> Array:
    """Quotient rounded down. Integers: 0 where b is 0, and the smallest integer divided by -1 is itself. Floats: numpy's."""
    if np.asarray(a).dtype.kind == "f":
        return np.asarray(np.floor_divide(a, b))
    dtype = np.asarray(a).dtype
    safe = np.where(b == 0, 1, b).astype(dtype)
    if dtype.kind == "u":
        return np.where(b == 0, 0, np.floor_divide(a, safe)).astype(dtype)
    minus_one = np.asarray(b) == -1
    quotient = np.where(minus_one, np.negative(a), np.floor_divide(a, np.where(minus_one, 1, safe)))
    return np.where(b == 0, 0, quotient).astype(dtype)


def mod(a: Array, b: Array) -> Array:
    """a - b * floor(a / b): the sign of the divisor. Integers: 0 where b is 0. Floats: a zero has the divisor's sign."""
    if np.asarray(a).dtype.kind == "f":
        return np.asarray(np.remainder(a, b))
    dtype = np.asarray(a).dtype
    safe = np.where(b == 0, 1, b).astype(dtype)
    if dtype.kind == "i":
        safe = np.where(safe == -1, 1, safe).astype(dtype)
    return np.where(b == 0, 0, np.remainder(a, safe)).astype(dtype)


def fmod(a: Array, b: Array) -> Array:
    """a - b * trunc(a / b): the sign of the dividend. Integers: 0 where b is 0."""
    if np.asarray(a).dtype.kind == "f":
        return np.asarray(np.fmod(a, b))
    dtype = np.asarray(a).dtype
    safe = np.where((b == 0) | (b == -1), 1, b).astype(dtype)  # a multiple of -1 is one of 1, and numpy overflows on the former
    return np.where(b == 0, 0, np.fmod(a, safe)).astype(dtype)


def power(a: Array, b: Array) -> Array:
    """a to the b. Integers: wrapping; a negative exponent gives 0, except for the bases 1 and -1."""
    dtype = np.asarray(a).dtype
    if dtype.kind == "f":
        return rounded_from_f64(np.power)(a, b)
    base, exponent = np.broadcast_arrays(a, b)
    positive = np.where(exponent < 0, 0, exponent).astype(dtype)
    result = np.power(base, positive)
    odd = (exponent & dtype.type(1)).astype(bool)
    inverse = np.where(base == 1, 1, np.where(base + dtype.type(1) == 0, np.where(odd, base, 1), 0)).astype(dtype)
    return np.where(exponent < 0, inverse, result).astype(dtype)


def shift_left(a: Array, b: Array) -> Array:
    """a * 2^b, wrapping; 0 where b is outside 0 .. bits - 1."""
    bits = np.asarray(a).dtype.itemsize * 8
    fits = (b >= 0) & (b < bits)
    return np.where(fits, np.left_shift(a, np.where(fits, b, 0)), 0).astype(np.asarray(a).dtype)


def shift_right(a: Array, b: Array) -> Array:
    """floor(a / 2^b); where b is outside 0 .. bits - 1, as if shifted by bits - 1 twice (0, or -1 for negative a)."""
    bits = np.asarray(a).dtype.itemsize * 8
    fits = (b >= 0) & (b < bits)
    fill = np.where(np.asarray(a) < 0, -1, 0) if np.asarray(a).dtype.kind == "i" else 0
    return np.where(fits, np.right_shift(a, np.where(fits, b, 0)), fill).astype(np.asarray(a).dtype)


def philox(seed: Array, counter: Array) -> tuple[Array, Array, Array, Array]:
    """The four words of Philox-4x32-10 for key = `seed` and counter = (`counter`, 0), both split into 32-bit halves, low first.

    Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", figure 2 and table 2.
    """
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    seed_bits, counter_bits = (np.asarray(x).astype(np.int64).view(np.uint64) for x in (seed, counter))
    seed_bits, counter_bits = np.broadcast_arrays(seed_bits, counter_bits)
    k0, k1 = seed_bits & low, seed_bits >> half
    c0, c1 = counter_bits & low, counter_bits >> half
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    m0, m1 = (np.uint64(m) for m in PHILOX_MULTIPLIERS)
    w0, w1 = (np.uint64(w) for w in PHILOX_WEYL)
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + w0) & low, (k1 + w1) & low
    return c0.astype(np.uint32), c1.astype(np.uint32), c2.astype(np.uint32), c3.astype(np.uint32)


def held_in_range(index: Array, extent: Array) -> Array:
    """`index` moved into 0 .. extent - 1."""
    return np.asarray(np.minimum(np.maximum(index, 0), np.maximum(extent, 1) - 1))


def random_block(seed: Array, counter: Array) -> tuple[Array, Array, Array, Array]:
    """The four words that counters 4n to 4n + 3 share: `philox` of n, which is `counter` div 4 (rounded down)."""
    return philox(seed, np.asarray(counter).astype(np.int64) >> np.int64(2))


def random_bits(seed: Array, counter: Array) -> Array:
    """Word (`counter` mod 4) of `random_block`, u32."""
    return np.asarray(np.choose(np.asarray(counter).astype(np.int64) & 3, random_block(seed, counter)))


def random_uniform(seed: Array, counter: Array) -> Array:
    """The upper 24 bits of `random_bits`, divided by 2^24: f32 in [0, 1)."""
    return ((random_bits(seed, counter) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)).astype(np.float32)


def random_normal(seed: Array, counter: Array) -> Array:
    """sqrt(-2 log(1 - u)) * cos(2 pi v) for an even counter, sin for an odd one, f32.

    u and v are words 0 and 1 of `random_block` made uniform where counter mod 4 is below 2, else words 2 and 3.
    Source: Box and Muller 1958, "A note on the generation of random normal deviates".
    """
    uniform = [(w >> np.uint32(8)).astype(np.float64) * 2.0**-24 for w in random_block(seed, counter)]
    place = np.asarray(counter).astype(np.int64) & 3
    u, v = (np.where(place < 2, uniform[n], uniform[n + 2]) for n in (0, 1))
    angle = 2.0 * np.pi * v
    return np.asarray(np.sqrt(-2.0 * np.log(1.0 - u)) * np.where(place & 1, np.sin(angle), np.cos(angle))).astype(np.float32)
