"""Random programs of symbolic arrays: every result is kept, so that kernels have several results of different shapes."""
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import tilefuse.array as ta
from tilefuse.arrays.array import Array

Step = Callable[["Maker"], Array]


class Maker:
    """Draws steps over the arrays made so far. Whole numbers in small ranges: floats are exact, so orders of sums do not matter."""

    def __init__(self, seed: int, shape: tuple[int, ...]) -> None:
        self.random = random.Random(seed)
        draw = np.random.default_rng(seed)
        self.shape = shape
        self.leaves = [ta.asarray(draw.integers(-3, 4, s).astype(t), device="host") for s, t in (
            (shape, "float32"), (shape, "int32"), (shape[-1:], "float32"), ((*shape[:-1], 1), "float64"))]
        self.made: list[Array] = list(self.leaves)
        self.index = ta.asarray(draw.integers(-shape[-1], shape[-1], (shape[-1],)), device="host")

    def pick(self) -> Array:
        """One of the arrays so far, later ones more often."""
        return self.made[-1 - min(int(self.random.expovariate(0.5)), len(self.made) - 1)]

    def whole(self) -> Array:
        """An array of the full shape."""
        x = self.pick()
        return x if x.shape == self.shape else ta.broadcast_to(x, self.shape) if self._fits(x) else self.leaves[0]

    def _fits(self, x: Array) -> bool:
        return x.ndim <= len(self.shape) and all(e in (1, s) for e, s in zip(x.shape[::-1], self.shape[::-1]))

    def axis(self, x: Array) -> int:
        """One of the dimensions of `x`."""
        return self.random.randrange(-x.ndim, x.ndim)

    def step(self) -> None:
        """Makes one more array. Values stay small: what grows is clipped."""
        name, fn = self.random.choice(STEPS)
        made = fn(self)
        if made.dtype.kind != "bool" and name in GROWING:
            made = ta.clip(made, -20, 20)
        self.made.append(made)

    @property
    def results(self) -> list[Array]:
        """Description of the program, without the data."""
        return self.made[len(self.leaves):]


def _numbers(x: Array) -> Array:
    return ta.astype(x, "int32") if x.dtype.kind == "bool" else x


def _binary(name: str) -> Step:
    return lambda m: getattr(ta, name)(_numbers(m.whole()), _numbers(m.whole()))


def _with_number(name: str) -> Step:
    return lambda m: getattr(ta, name)(_numbers(m.pick()), m.random.choice((-2, -1, 1, 2, 3)))


def _reduced(name: str, keepdims: bool) -> Step:
    def step(m: Maker) -> Array:
        x = m.whole() if name in ("any", "all") else _numbers(m.whole())
        axis: Any = m.random.choice((None, m.axis(x), tuple(range(x.ndim))[-2:]))
        if name.startswith("arg") and isinstance(axis, tuple):
            axis = axis[0]
        return getattr(ta, name)(x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]

    return step


def _running(m: Maker) -> Array:
    x = _numbers(m.whole())
    return ta.cumulative_sum(x, axis=m.axis(x))


def _where(m: Maker) -> Array:
    x, y = m.whole(), m.whole()
    return ta.where(x > 0 if x.dtype.kind != "bool" else x, _numbers(x), _numbers(y))


def _moved(m: Maker) -> Array:
    x = m.whole()
    axis = m.axis(x)
    return m.random.choice((lambda: ta.flip(x, axis=axis), lambda: ta.roll(x, m.random.randrange(-4, 5), axis=axis),
                            lambda: ta.reshape(ta.reshape(x, (-1,)), x.shape), lambda: ta.put(x, (..., 0), 1),
                            lambda: ta.put(x, (..., slice(None, None, -2)), x[..., :1]), lambda: ta.put(x, (..., m.index), True),
                            lambda: ta.put(x, x != x[..., :1], False), lambda: ta.put(x, (slice(1, None), ..., m.index), True),
                            lambda: ta.pad(x, 1)[(slice(1, -1),) * x.ndim]))()


def _joined(m: Maker) -> Array:
    x, y = m.whole(), m.whole()
    return ta.concat([x, y], axis=m.axis(x))


def _taken(m: Maker) -> Array:
    x = m.whole()
    return m.random.choice((lambda: ta.take(x, m.index, axis=-1), lambda: x[..., ::2], lambda: x[..., 0], lambda: x[None, ..., 1:]))()


def _turned(m: Maker) -> Array:
    x = m.whole()
    return ta.permute_dims(x, tuple(m.random.sample(range(x.ndim), x.ndim)))


def _product(m: Maker) -> Array:
    x, y = (ta.astype(ta.clip(_numbers(m.whole()), -4, 4), "float32") for _ in range(2))
    return x @ ta.matrix_transpose(y)


STEPS: tuple[tuple[str, Step], ...] = (
    *((n, _binary(n)) for n in ("add", "subtract", "multiply", "maximum", "minimum", "less", "not_equal")),
    *((n, _with_number(n)) for n in ("add", "multiply", "floor_divide", "remainder", "greater")),
    *((n, _reduced(n, k)) for n in ("sum", "max", "min", "any", "all", "argmax") for k in (False, True)),
    ("running", _running), ("running", _running), ("where", _where), ("moved", _moved), ("moved", _moved), ("joined", _joined),
    ("taken", _taken), ("turned", _turned), ("product", _product),
)
GROWING = {"add", "subtract", "multiply", "sum", "running", "product"}
