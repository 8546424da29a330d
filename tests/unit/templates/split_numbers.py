"""Operands of products of f32, what they give in f64 and in an f32 loop, and how far split products may be from that."""
from __future__ import annotations

import numpy as np

ROWS, COLUMNS = 32, 21
# Unit roundoffs of f32 and of a number of 11 bits.
U, U_TF32 = 2.0**-24, 2.0**-11
MAX = float(np.finfo(np.float32).max)
SPECIALS: dict[str, float] = {"infinite": np.inf, "negative infinite": -np.inf, "nan": np.nan, "largest": MAX, "negative largest": -MAX,
                              "rounds up": float(np.float32(MAX * (1 - 2.0**-12))), "large": 1e30, "one": 1.0, "zero": 0.0}


def f32_loop(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Multiply-adds in f32, in order; times two, as the pattern."""
    total = np.zeros((x.shape[0], w.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for k in range(x.shape[1]):
            total = (x[:, k:k + 1] * w[k:k + 1] + total).astype(np.float32)
        return total + total


def exact_product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """In f64, times two."""
    with np.errstate(all="ignore"):
        return 2 * (x.astype(np.float64) @ w.astype(np.float64))


def sum_of_sizes(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The same of absolute values."""
    return exact_product(np.abs(x), np.abs(w))


def bound(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Largest error: of halves left out and cut, 2^-22 and twice 2^-23 of each term, and of the sum's roundings.

    Source: Higham 2002, section 3.1, first order; Ootomo and Yokota 2022, section 3.
    """
    return sum_of_sizes(x, w) * (U_TF32**2 + 4 * U + 3 * x.shape[1] * U) + 1e-42


def draw(kind: str, inner: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x, w = rng.standard_normal((ROWS, inner)), rng.standard_normal((inner, COLUMNS))
    if kind == "ill-scaled":
        scale = 2.0 ** rng.integers(-30, 30, inner)
        x, w = x * scale, w / scale[:, None] * 2.0 ** rng.integers(-10, 10, (inner, 1))
    if kind == "cancelling":
        half = inner // 2
        x[:, half:2 * half], w[half:2 * half] = x[:, :half], -w[:half] * (1 + rng.integers(-4, 5, (half, COLUMNS)) * 2.0**-22)
    if kind == "positive":
        x, w = np.abs(x), np.abs(w)
    return x.astype(np.float32), w.astype(np.float32)
