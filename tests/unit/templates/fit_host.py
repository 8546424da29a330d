"""Where the coefficients of `printers/support/host_math.h` come from: polynomials fitted in f64, rounded to f32 from the lowest power up.

`python -m tests.unit.templates.fit_host` prints them. Each fit is Lawson's (`fit_narrow.py`). A coefficient is rounded when it is found,
and those above it are fitted again around it, so that they take up its rounding.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tests.unit.templates.fit_narrow import Array, lawson


def rounded(x: Array, powers: Sequence[int], wanted: Array, weight: Array) -> Array:
    """Coefficients in f32 of `powers` of x: each rounded in turn, the rest fitted to what is left."""
    left, found = wanted.copy(), []
    for n, power in enumerate(powers):
        fitted = lawson([x**p for p in powers[n:]], left, weight)
        found.append(float(np.float32(fitted[0])))
        left = left - found[-1] * x**power
    return np.array(found)


def spread(low: float, high: float, count: int = 801) -> Array:
    """Chebyshev points of an interval, 0 left out."""
    x = (low + high) / 2 + (high - low) / 2 * np.cos(np.linspace(0, np.pi, count))
    return x[np.abs(x) > 1e-3]


def fits() -> dict[str, Array]:
    """Coefficients by support function, lowest power first."""
    found: dict[str, Array] = {}
    half = math.log(2) / 2 * 1.001
    x = spread(-half, half)
    found["tf_exp_tail: (exp(r) - 1 - r) / r^2"] = rounded(x, range(6), (np.expm1(x) - x) / x**2, np.abs(x**2 / np.expm1(x)))
    x = spread(-0.5005, 0.5005)
    found["tf_exp2_reduced: (2^f - 1) / f"] = rounded(x, range(6), np.expm1(x * math.log(2)) / x, np.abs(x) * 2.0**-x)
    x = spread(0.0, 0.56)
    found["tf_tanh, near 0: tanh(x) / x - 1 in x^2"] = rounded(x * x, range(1, 6), np.tanh(x) / x - 1, x / np.tanh(x))
    x = spread(math.sqrt(0.5) - 1, math.sqrt(2) - 1)
    found["tf_log_tail: (log(1 + f) - f + f^2 / 2) / f^3"] = rounded(x, range(8), (np.log1p(x) - x + x * x / 2) / x**3,
                                                                     np.abs(x**3 / np.log1p(x)))
    erf, erfc = np.vectorize(math.erf), np.vectorize(math.erfc)
    x = spread(0.0, 0.93)
    found["tf_erf, near 0: erf(x) / x - 1 in x^2"] = rounded(x * x, range(7), erf(x) / x - 1, x / erf(x))
    x = spread(0.92, 4.0)
    found["tf_erf, beyond: -log2(erfc(|x|))"] = rounded(x, range(7), -np.log2(erfc(x)), erfc(x) / erf(x))
    return found


if __name__ == "__main__":
    for name, coefficients in fits().items():
        print(name, [float(c) for c in coefficients])
