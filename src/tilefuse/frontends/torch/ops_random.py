"""Random torch operators: a function of (seed, row-major position), so that a fused kernel draws what the reference draws.

One seed a run comes from torch's default generator (`torch.manual_seed` reproduces it); each operator derives its own key
from it. Random numbers that the backward pass needs are functions of a seed that is a value (`own/random_numbers.py`).
"""

from __future__ import annotations

from typing import Any

from tilefuse.frontends.torch.ops import TorchBuilder, Value, decline, lowers
from tilefuse.ir.dtype import BOOL, F32, I64, compute_dtype
from tilefuse.ir.scalar import call, const


def _seed(b: TorchBuilder) -> str:
    """A key of its own: the run's seed plus the number of random operators before."""
    if not b.seed:
        b.seed = b.random_seed(0)
    b.random_calls += 1
    number = b.random_calls
    return b.pointwise(lambda e: call("add", e, const(number, I64)), Value(b.seed), work=I64, out=I64, name="key")


def _check_generator(generator: Any) -> None:
    if generator is not None:
        raise decline("a random generator of its own")


@lowers("tilefuse.random_seed.default")
def random_seed(b: TorchBuilder, device: Any) -> str:
    """A seed of its own, as a value."""
    b.saved_seeds += 1
    return b.random_seed(b.saved_seeds)


@lowers("aten.native_dropout.default")
def native_dropout(b: TorchBuilder, x: Value, p: float, train: bool | None) -> tuple[str, str]:
    if train is False:
        return x, b.full(b.shape_of(x), True, BOOL)
    return b.dropout(x, float(p), _seed(b))


@lowers("aten.bernoulli.default")
def bernoulli(b: TorchBuilder, probability: Value, *, generator: Any = None) -> str:
    _check_generator(generator)
    return b.bernoulli(b.result_shape, probability, _seed(b), b.result_dtype)


@lowers("aten.bernoulli.p")
def bernoulli_p(b: TorchBuilder, x: Value, p: float = 0.5, *, generator: Any = None) -> str:
    _check_generator(generator)
    return b.bernoulli(b.result_shape, float(p), _seed(b), b.result_dtype)


@lowers("aten.rand.default", "aten.rand_like.default", "aten.rand.generator")
def rand(b: TorchBuilder, like: Any, *, generator: Any = None, **ignored: Any) -> str:
    _check_generator(generator)
    return b.random_uniform(b.result_shape, _seed(b), b.result_dtype)


@lowers("aten.randn.default", "aten.randn_like.default", "aten.randn.generator")
def randn(b: TorchBuilder, like: Any, *, generator: Any = None, **ignored: Any) -> str:
    _check_generator(generator)
    return b.random_normal(b.result_shape, _seed(b), b.result_dtype)


@lowers("aten.uniform.default")
def uniform(b: TorchBuilder, x: Value, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> str:
    _check_generator(generator)
    return b.random_uniform(b.result_shape, _seed(b), b.result_dtype, float(low), float(high))


@lowers("aten.normal_functional.default")
def normal(b: TorchBuilder, x: Value, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> str:
    _check_generator(generator)
    return b.random_normal(b.result_shape, _seed(b), b.result_dtype, float(mean), float(std))


@lowers("aten.exponential.default")
def exponential(b: TorchBuilder, x: Value, rate: float = 1.0, *, generator: Any = None) -> str:
    _check_generator(generator)
    work = compute_dtype(b.result_dtype)
    u = b.random_uniform(b.result_shape, _seed(b), F32)
    return b.pointwise(lambda e: call("div", call("neg", call("log1p", call("neg", e))), const(rate, work)), Value(u), name="exponential")


@lowers("aten.randint.default", "aten.randint.low", "aten.randint_like.default", "aten.randint_like.low_dtype")
def randint(b: TorchBuilder, *args: Any, generator: Any = None, **ignored: Any) -> str:
    _check_generator(generator)
    numbers = [a for a in args if isinstance(a, int) and not isinstance(a, bool)]
    low, high = numbers if len(numbers) == 2 else (0, numbers[0])
    return _integers(b, low, high)


def _integers(b: TorchBuilder, low: int, high: int) -> str:
    """Uniform integers in [low, high): 24 random bits scaled, so ranges beyond 2^24 are torch's."""
    if not 0 < high - low <= 1 << 24:
        raise decline("random integers over more than 2^24 values")
    u = b.random_uniform(b.result_shape, _seed(b), F32)
    drawn = b.pointwise(lambda e: call("floor", call("mul", e, const(high - low, F32))), Value(u), work=F32, out=I64, name="randint")
    return b.pointwise(lambda e: call("add", e, const(low, I64)), Value(drawn), work=I64, name="randint")
