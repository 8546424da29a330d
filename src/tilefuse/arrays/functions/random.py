"""Random arrays: functions of (key, position), so that a fused kernel, the host and the reference draw the same numbers.

A draw takes its key from `seed=` or from the generator. Inside a trace the generator's keys are computed from one traced key, so that a
compiled function draws anew at each call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilefuse.arrays.arguments import of_arrays, real_number, whole_number
from tilefuse.arrays.array import Array, apply, installed
from tilefuse.arrays.functions.creation import Shape, checked_shape
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.types import DEFAULT_FLOAT, as_dtype
from tilefuse.base.errors import ShapeError, TypeMismatchError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F32, I64, DType
from tilefuse.ir.scalar import call, const

# Any odd number with well mixed bits: keys of neighbouring draws differ in about half of theirs.
_STRIDE = 0x9E3779B97F4A7C15
_MASK = (1 << 63) - 1


@dataclass
class TracedKey:
    """The key that draws of a trace take theirs from, and how many did."""

    key: Array
    num_drawn: int = 0


# The key of the trace in progress in this context.
_traced: ContextVar[TracedKey | None] = ContextVar("tilefuse_traced_key", default=None)


class Generator:
    """A sequence of keys from a seed. Threads share it: each draw takes a key that no other gets."""

    def __init__(self, seed: int = 0) -> None:
        self._guard = threading.Lock()
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Starts the sequence of `seed`."""
        with self._guard:
            self._seed, self._count = whole_number(seed, "a seed"), 0

    def key(self, device: str) -> Array:
        """The next key. Shapes: i64[1]"""
        traced = _traced.get()
        if traced is not None:
            traced.num_drawn += 1
            return apply(lower_key, (traced.key,), (const(_mixed(0, traced.num_drawn), I64),))
        return fixed_key(self.next_number(), device)

    def next_number(self) -> int:
        """The next key as a number."""
        with self._guard:
            self._count += 1
            return _mixed(self._seed, self._count)

    @contextmanager
    def tracing(self, key: Array) -> Iterator[TracedKey]:
        """Draws inside, of this context, take their keys from `key` (i64[1])."""
        traced_key = TracedKey(key)
        before = _traced.set(traced_key)
        try:
            yield traced_key
        finally:
            _traced.reset(before)


def _mixed(seed: int, count: int) -> int:
    return (seed * 0xBF58476D1CE4E5B9 + count * _STRIDE) & _MASK


def fixed_key(number: int, device: str) -> Array:
    """A key that is data, so that another key needs no other program."""
    return Array(installed().source(np.asarray([number], dtype=np.int64), I64, device, None))


def lower_key(b: TensorBuilder, key: str, number: Any) -> str:
    """The key plus a number."""
    return b.elementwise("add", key, number.value)


generator = Generator()


def seed(seed: int) -> None:
    """Starts the global generator anew."""
    generator.seed(seed)


def _key(seed: Any, device: str) -> Array:
    if seed is None:
        return generator.key(device)
    if isinstance(seed, Array):
        if seed.dtype != I64 or seed.shape not in ((), (1,)):
            raise TypeMismatchError(f"a seed is one int64, not an array {seed.dtype}{list(seed.shape)}", where=user_span())
        return seed
    return fixed_key(_mixed(whole_number(seed, "a seed"), 0), device)


def _made(name: str, shape: Shape, dtype: Any, device: Any, seed: Any, *settings: Any) -> Array:
    place = installed().default_device() if device is None else installed().device_named(device)
    chosen_dtype = DEFAULT_FLOAT if dtype is None else as_dtype(dtype)
    return apply(lower_random, (_key(seed, place),), (name, checked_shape(shape), chosen_dtype, *settings))


def lower_random(b: TensorBuilder, key: str, name: str, shape: tuple[int, ...], dtype: DType, *settings: Any) -> str:
    """A map of the key and the position."""
    if name == "uniform":
        return b.random_uniform(shape, key, dtype, *settings)
    if name == "normal":
        return b.random_normal(shape, key, dtype, *settings)
    if name == "bernoulli":
        return b.bernoulli(shape, settings[0], key, dtype)
    low, high = settings
    u = b.random_uniform(shape, key, F32)
    drawn = b.expression(lambda e: call("floor", call("mul", e, const(high - low, F32))), u, dtype=I64, name="randint")
    return b.cast(b.elementwise("add", drawn, low), dtype)


def uniform(shape: Shape = (), *, low: float = 0.0, high: float = 1.0, dtype: Any = None, device: Any = None, seed: Any = None) -> Array:
    """Uniform numbers in [low, high). seed: a number or a key (int64) of this draw's own; else the generator's next."""
    return _made("uniform", shape, dtype, device, seed, real_number(low, "low"), real_number(high, "high"))


def normal(shape: Shape = (), *, mean: float = 0.0, std: float = 1.0, dtype: Any = None, device: Any = None, seed: Any = None) -> Array:
    """Normally distributed numbers with this mean and standard deviation `std`."""
    return _made("normal", shape, dtype, device, seed, real_number(mean, "mean"), real_number(std, "std"))


def bernoulli(p: float = 0.5, shape: Shape = (), *, dtype: Any = "bool", device: Any = None, seed: Any = None) -> Array:
    """True with probability `p`."""
    return _made("bernoulli", shape, dtype, device, seed, real_number(p, "p"))


def integers(low: int, high: int, shape: Shape = (), *, dtype: Any = None, device: Any = None, seed: Any = None) -> Array:
    """Uniform integers in [low, high), of which there are at most 2^24."""
    low, high = whole_number(low, "low"), whole_number(high, "high")
    if not 0 < high - low <= 1 << 24:
        raise ShapeError(f"integers in [{low}, {high}): between 1 and 2^24 values", where=user_span())
    return _made("integers", shape, I64 if dtype is None else dtype, device, seed, low, high)


@of_arrays
def dropout(x: Array, p: float = 0.5, *, seed: Any = None) -> Array:
    """`x` with each element zeroed with probability `p` and the others divided by 1 - p.

    seed: a number or a key (int64) of this draw's own; else the generator's next.
    Raises: TypeMismatchError for a `p` outside [0, 1] or elements that are no floats.
    """
    share = real_number(p, "p")
    if not x.dtype.is_float or not 0 <= share <= 1:
        raise TypeMismatchError(f"dropout takes floats and a probability, got {x.dtype} and {p}", where=user_span())
    return apply(lower_dropout, (x, _key(seed, x.device)), (share,))


def lower_dropout(b: TensorBuilder, x: str, key: str, p: float) -> str:
    """The kept elements, scaled."""
    return b.dropout(x, p, key)[0]
