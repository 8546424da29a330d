"""The eleven sequences in float64 with a bound on the rounding of any program for them.

Every result is a sum of products of inputs. A word that is rounded at most k times on the way from the inputs lies within
gamma_k = k u / (1 - k u) of its value, times the sum of the magnitudes of its terms, in whatever order the terms are added.
Source: Higham 2002, sections 3.1 and 3.5.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.blas import ALPHA, BETA, Linear, doubled

UNITS = {"f32": 2.0**-24, "f64": 2.0**-53}
REALS = {"f32": np.float32, "f64": np.float64}
# The shapes of the inputs for matrices of m x n; vectors without a matrix have n words.
SHAPES = {"axpydot": "n n n", "atax": "mn n", "bicgk": "mn n m", "gemv": "mn n m", "gemvt": "mn m n", "scal": "n",
          "gemver": "mn m n m n m n", "gesummv": "mn mn n", "madd": "mn mn", "vadd": "n n n", "waxpby": "n n"}


@dataclass(frozen=True)
class Rounded:
    """A value that was rounded at most `count` times; `size`: the sum of the magnitudes of its terms."""

    value: np.ndarray
    size: np.ndarray
    count: int

    def __add__(self, other: Rounded) -> Rounded:
        return Rounded(self.value + other.value, self.size + other.size, max(self.count, other.count) + 1)

    def __rmul__(self, number: float) -> Rounded:
        return Rounded(number * self.value, abs(number) * self.size, self.count + 1)

    def __matmul__(self, other: Rounded) -> Rounded:
        terms = self.value.shape[-1]
        return Rounded(self.value @ other.value, self.size @ other.size, self.count + other.count + terms + 1)

    @property
    def transposed(self) -> Rounded:
        """The transposed matrix."""
        return Rounded(self.value.T, self.size.T, self.count)

    def bound(self, unit: float) -> np.ndarray:
        """How far a program's words may be from the value."""
        return self.count * unit / (1 - self.count * unit) * self.size


def outer(x: Rounded, y: Rounded) -> Rounded:
    """x y'"""
    return Rounded(np.outer(x.value, y.value), np.outer(x.size, y.size), x.count + y.count + 1)


def _gemvt(a: Rounded, y: Rounded, z: Rounded) -> tuple[Rounded, ...]:
    x = BETA * (a.transposed @ y) + z
    return x, ALPHA * (a @ x)


def _gemver(a: Rounded, u1: Rounded, v1: Rounded, u2: Rounded, v2: Rounded, y: Rounded, z: Rounded) -> tuple[Rounded, ...]:
    b = a + outer(u1, v1) + outer(u2, v2)
    return (b, *_gemvt(b, y, z))


def _axpydot(w: Rounded, v: Rounded, u: Rounded) -> tuple[Rounded, ...]:
    z = w + -ALPHA * v
    return z, z @ u


FORMS: Mapping[str, Callable[..., tuple[Rounded, ...]]] = {
    "axpydot": _axpydot,
    "atax": lambda a, x: (a.transposed @ (a @ x),),
    "bicgk": lambda a, p, r: (a @ p, a.transposed @ r),
    "gemv": lambda a, x, y: (ALPHA * (a @ x) + BETA * y,),
    "gemvt": _gemvt,
    "scal": lambda x: (ALPHA * x,),
    "gemver": _gemver,
    "gesummv": lambda a, b, x: (ALPHA * (a @ x) + BETA * (b @ x),),
    "madd": lambda a, b: (a + b,),
    "vadd": lambda w, y, z: (w + y + z,),
    "waxpby": lambda x, y: (ALPHA * x + BETA * y,),
}


@dataclass(frozen=True)
class Bounded:
    """A sequence for matrices of m x n words in one element type."""

    sequence: Linear
    dtype: str
    extents: tuple[int, int]

    @property
    def script(self) -> str:
        """The script in this type."""
        return self.sequence.script if self.dtype == "f32" else doubled(self.sequence.script)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs by name, in order."""
        from tilefuse.scripts.language.syntax import parse_script

        size = dict(zip("mn", self.extents, strict=True))
        letters = SHAPES[self.sequence.name].split()
        names = [name.text for name in parse_script(self.script, self.sequence.name).inputs]
        return {n: tuple(size[c] for c in word) for n, word in zip(names, letters, strict=True)}


def drawn(case: Bounded, seed: int) -> dict[str, np.ndarray]:
    """Normal inputs by name."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(REALS[case.dtype]) for name, shape in case.shapes.items()}


def reference(case: Bounded, arguments: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The results in float64, and how far a program's may be from them."""
    wide = [a.astype(np.float64) for a in arguments.values()]
    results = FORMS[case.sequence.name](*(Rounded(a, abs(a), 0) for a in wide))
    # The reference is rounded as well, as often in f64.
    units = UNITS[case.dtype] + UNITS["f64"]
    return [r.value for r in results], [r.bound(units) for r in results]
