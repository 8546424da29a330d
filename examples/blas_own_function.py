"""A step of iterative shrinkage for sparse least squares, with two functions of one's own beside the shipped ones.

    x  <-  soft(t * step, x - step * A^T (A x - b))

The library in blas_own_function/ is what a user writes: metadata and routines, no line of tilefuse. It is checked first, then used.
"""
from __future__ import annotations

from pathlib import Path

import numpy as np

import tilefuse.blas
from tilefuse.tools.check_library import check_library

OWN = Path(__file__).with_suffix("")
SCRIPT = """
matrix A;  vector b, x;  scalar step, t;
input A, b, x, step, t;

r = sgemv(1, A, x, -1, b);        // r = A x - b
g = sgemtv(A, r);                 // the gradient
down = snegate(step);
y = saxpy(down, g, x);
z = ssoft(t, y);                  // a function of our own
k = snonzeros(z);                 // and a reduction
return z, k;
"""


def main() -> None:
    slips = check_library(OWN, every_geometry=False)
    assert not slips, "\n".join(map(str, slips))
    step_of = tilefuse.blas.compile(SCRIPT, library=[str(OWN)], name="shrinkage")

    rng = np.random.default_rng(0)
    a = (rng.standard_normal((120, 300)) / np.sqrt(120)).astype(np.float32)
    truth = np.zeros(300, np.float32)
    truth[rng.choice(300, 8, replace=False)] = rng.choice([-1, 1], 8) * rng.uniform(1, 3, 8)
    b = (a @ truth).astype(np.float32)
    step = np.float32(1 / np.linalg.norm(a, 2) ** 2)
    weight = np.float32(0.1)

    x = np.zeros(300, np.float32)
    for _ in range(200):
        x, nonzeros = step_of(a, b, x, float(step), float(step * weight))

    expected = np.zeros(300)
    for _ in range(200):
        moved = expected - float(step) * (a.astype(np.float64).T @ (a.astype(np.float64) @ expected - b))
        expected = np.sign(moved) * np.maximum(np.abs(moved) - float(step * weight), 0)
    print(f"{int(nonzeros)} words of 300 are not 0; largest difference from NumPy in f64 {np.abs(x - expected).max():.1e}")
    assert np.abs(x - expected).max() < 1e-4


if __name__ == "__main__":
    main()
