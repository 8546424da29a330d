"""First values of parameters. Every function draws from a generator that the caller seeds, so that a network is reproducible.

A network's constructor takes `seed` and hands one generator to its layers in order; `generator(seed)` makes it.
Source: Glorot and Bengio 2010 (xavier), He et al. 2015 (kaiming); bounds as torch.nn documents its defaults.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, Union

import numpy as np

import tilefuse.array as ta
from tilefuse.arrays.arguments import whole_number
from tilefuse.arrays.functions.creation import checked_shape

Seed = Union[int, np.random.Generator, None]


def generator(seed: Seed) -> np.random.Generator:
    """A generator from a number; a generator is handed through. None: a fixed one, since results must not change from run to run."""
    if isinstance(seed, np.random.Generator):
        return seed
    number = 0 if seed is None else whole_number(seed, "a seed")
    return np.random.default_rng(number if number >= 0 else number % (1 << 64))


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Inputs and outputs that each weight connects. Shapes: [outputs, inputs, *window]; fewer dimensions count as one of each."""
    if len(shape) < 2:
        return max(prod(shape), 1), max(prod(shape), 1)
    window = prod(shape[2:])
    return shape[1] * window, shape[0] * window


def filled(shape: Sequence[int], value: float, dtype: Any = None, device: Any = None) -> Any:
    """An array of one number, `value`, as data: nothing is compiled to make it."""
    return ta.asarray(np.full(checked_shape(shape), value, np.float32), dtype=ta.float32 if dtype is None else dtype, device=device)


def uniform(shape: Sequence[int], low: float, high: float, seed: Seed = None, dtype: Any = None) -> Any:
    """Numbers spread evenly over [low, high)."""
    return _array(generator(seed).uniform(low, high, checked_shape(shape)), dtype)


def normal(shape: Sequence[int], mean: float = 0.0, deviation: float = 1.0, seed: Seed = None, dtype: Any = None) -> Any:
    """Normally distributed numbers with this mean and standard deviation."""
    return _array(generator(seed).normal(mean, deviation, checked_shape(shape)), dtype)


def kaiming_uniform(shape: Sequence[int], seed: Seed = None, gain: float = sqrt(2.0), dtype: Any = None) -> Any:
    """Uniform with variance gain^2 / inputs: preserves the size of activations through layers with ReLU."""
    bound = gain * sqrt(3.0 / fans(shape)[0])
    return uniform(shape, -bound, bound, seed, dtype)


def kaiming_normal(shape: Sequence[int], seed: Seed = None, gain: float = sqrt(2.0), dtype: Any = None) -> Any:
    """Normal with variance gain^2 / inputs."""
    return normal(shape, 0.0, gain / sqrt(fans(shape)[0]), seed, dtype)


def xavier_uniform(shape: Sequence[int], seed: Seed = None, gain: float = 1.0, dtype: Any = None) -> Any:
    """Uniform with variance 2 gain^2 / (inputs + outputs)."""
    bound = gain * sqrt(6.0 / sum(fans(shape)))
    return uniform(shape, -bound, bound, seed, dtype)


def inverse_root(shape: Sequence[int], inputs: int, seed: Seed = None, dtype: Any = None) -> Any:
    """Uniform within 1 / sqrt(inputs) of zero: initial values of linear layers and convolutions."""
    bound = 1.0 / sqrt(max(whole_number(inputs, "the number of inputs"), 1))
    return uniform(shape, -bound, bound, seed, dtype)


def _array(values: np.ndarray[Any, Any], dtype: Any) -> Any:
    # Drawn in double precision, so that one seed gives the same network in every dtype, up to rounding.
    return ta.asarray(values, dtype=ta.float32 if dtype is None else dtype)
