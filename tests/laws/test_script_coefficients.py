"""Law: an operand whose coefficient is exactly 0 is not looked at, in programs of routines and of meanings, by number and by argument.

As the reference BLAS documents it: y need not be set on entry where beta is 0, nor A and x where alpha is; with 1 nothing is lost.
"""
from __future__ import annotations

import numpy as np
import pytest

from tilefuse import blas

M, N = 21, 35
# Call, shapes of its operands, which of them each coefficient belongs to (by name), the value.
CALLS = {
    "saxpy": ("saxpy({alpha}, x, y)", {"x": (N,), "y": (N,)}, {"alpha": "x"}, lambda a, b, x, y: a * x + y),
    "swaxpby": ("swaxpby({alpha}, x, {beta}, y)", {"x": (N,), "y": (N,)}, {"alpha": "x", "beta": "y"}, lambda a, b, x, y: a * x + b * y),
    "sgemv": ("sgemv({alpha}, A, x, {beta}, y)", {"A": (M, N), "x": (N,), "y": (M,)}, {"alpha": "Ax", "beta": "y"},
              lambda a, b, A, x, y: a * (A @ x) + b * y),
    "sgemtv": ("sgemtv({alpha}, A, x, {beta}, y)", {"A": (M, N), "x": (M,), "y": (N,)}, {"alpha": "Ax", "beta": "y"},
               lambda a, b, A, x, y: a * (A.T @ x) + b * y),
    "sger": ("sger({alpha}, x, y, A)", {"x": (M,), "y": (N,), "A": (M, N)}, {"alpha": "xy"}, lambda a, b, x, y, A: A + a * np.outer(x, y)),
}


@pytest.mark.parametrize("kind", ["template", "routines"])
@pytest.mark.parametrize("given", ["number", "argument"])
@pytest.mark.parametrize("name", CALLS)
def test_zero_means_not_looked_at(name: str, given: str, kind: str) -> None:
    """NaN in what is not looked at, pairs of 0, 1 and other numbers. Bound: as many roundings as a word has terms, and four."""
    call, shapes, owners, value = CALLS[name]
    rng = np.random.default_rng(4)
    arrays = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    kinds = {1: "vector", 2: "matrix"}
    declared = " ".join(f"{kinds[len(shape)]} {n};" for n, shape in shapes.items())
    by_argument = blas.compile(f"{declared} scalar alpha, beta; input {', '.join([*owners, *shapes])}; "
                               f"z = {call.format(alpha='alpha', beta='beta')}; return z;", kind=kind)
    for alpha, beta in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (-2.5, 0.5)):
        coefficients = {"alpha": alpha, "beta": beta}
        unread = "".join(operands for c, operands in owners.items() if coefficients[c] == 0.0)
        seen = {n: np.full_like(a, np.nan) if n in unread else a for n, a in arrays.items()}
        if given == "argument":
            found = by_argument(*(coefficients[c] for c in owners), *seen.values())
        else:
            used = [n for n in shapes if n in call]
            found = blas.compile(f"{declared} input {', '.join(used)}; z = {call.format(**coefficients)}; return z;",
                                 kind=kind)(*(seen[n] for n in used))
        wide = {n: np.zeros(a.shape) if n in unread else a.astype(np.float64) for n, a in arrays.items()}
        bound = (max(M, N) + 4) * 2.0**-24 * value(abs(alpha), abs(beta), **{n: abs(a) for n, a in wide.items()})
        assert (abs(found - value(alpha, beta, **wide)) <= bound).all(), f"alpha {alpha}, beta {beta}"
