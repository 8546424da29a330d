"""Where the coefficients of `printers/support/cuda_narrow.cuh` come from: polynomials fitted in f64 with nearly the least largest error.

`python -m tests.unit.templates.fit_narrow` prints them. Lawson's iteration: a least-squares fit again and again, each time with the
weights multiplied by the errors, tends to the fit whose largest weighted error is smallest.
Source: Lawson 1961, "Contributions to the theory of linear least maximum approximations"; only the idea is used.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def lawson(columns: Sequence[Array], wanted: Array, weight: Array, rounds: int = 150) -> Array:
    """Coefficients of the columns whose largest weighted error, of those met, is smallest."""
    matrix, share = np.stack(columns, 1), np.full(len(wanted), 1.0 / len(wanted))
    best, smallest = np.zeros(len(columns)), math.inf
    for _ in range(rounds):
        scale = np.sqrt(share) * weight
        found = np.linalg.lstsq(matrix * scale[:, None], wanted * scale, rcond=None)[0]
        error = np.abs(weight * (matrix @ found - wanted))
        if error.max() < smallest:
            best, smallest = found, error.max()
        share = share * (error + 1e-300)
        share /= share.sum()
    return best


def both_sides(reach: float) -> Array:
    """Points on both sides of 0, which is left out."""
    return np.concatenate([np.linspace(-reach, -reach / 2000, 2000), np.linspace(reach / 2000, reach, 2000)])


def fits() -> dict[str, Array]:
    """Coefficients by support function, lowest power first."""
    erf, erfc = np.vectorize(math.erf), np.vectorize(math.erfc)
    size = ((1 - np.cos(np.linspace(0, np.pi, 1501))) / 2 * 5.0)[1:]
    tail = erfc(size)
    found = {"tf_narrow_erfc_of_size": lawson([size ** (k + 1) for k in range(7)], np.log2(tail), math.log(2) * tail / (tail + 1e-5))}
    x = np.linspace(0.35 / 2000, 0.35, 2000)
    y = erf(x) / x
    found["tf_narrow_erf"] = lawson([x ** (2 * k) for k in range(3)], y, 1 / y)
    for name, function, reach, powers in (("tanh", np.tanh, 0.125, [2]), ("log1p", np.log1p, 0.03125, [1, 2]),
                                          ("expm1", np.expm1, 0.25, [1, 2, 3])):
        x = both_sides(reach)
        y = function(x) / x
        found[f"tf_narrow_{name}"] = lawson([x**k for k in powers], y - 1, 1 / y)
    return found


if __name__ == "__main__":
    for name, coefficients in fits().items():
        print(name, [float(np.float32(c)) for c in coefficients])
