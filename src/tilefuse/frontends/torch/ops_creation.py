"""Torch operators that compute nothing: conversions, copies, constants, counting.

Copies and detached views are the tensor itself: a graph has no memory that could be written twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilefuse.frontends.torch.ops import Scalar, TorchBuilder, Value, dtype_from_torch, lowers
from tilefuse.ir.dtype import I64
from tilefuse.ir.scalar import call, const


@lowers("prims.convert_element_type.default")
def convert_element_type(b: TorchBuilder, x: Value, dtype: torch.dtype) -> str:
    return b.cast(x, dtype_from_torch(dtype))


@lowers("aten._to_copy.default", "aten.to.dtype")
def to_copy(b: TorchBuilder, x: Value | Scalar, dtype: torch.dtype | None = None, *rest: Any, **ignored: Any) -> str:
    """A value in another type; functions that torch vectorises convert numbers too."""
    return b.cast(x, b.result_dtype) if isinstance(x, Value) else b.full(b.result_shape, x, b.result_dtype)


@lowers(
    "aten.clone.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default",
    "aten.alias_copy.default",
    "prims.device_put.default",
    "aten.detach_.default",
)
def identity(b: TorchBuilder, x: Value, *ignored: Any, **also_ignored: Any) -> str:
    return x


@lowers("aten.copy.default")
def copy(b: TorchBuilder, target: Value, source: Value, non_blocking: bool = False) -> str:
    return b.broadcast_to(b.cast(source, b.result_dtype), b.result_shape)


@lowers("aten.full.default", "aten.full_like.default", "aten.fill.Scalar")
def full(b: TorchBuilder, like: Any, value: Scalar, *ignored: Any, **also_ignored: Any) -> str:
    return b.full(b.result_shape, value, b.result_dtype)


@lowers("aten.new_full.default")
def new_full(b: TorchBuilder, like: Value, size: Sequence[int], value: Scalar, **ignored: Any) -> str:
    return b.full(b.result_shape, value, b.result_dtype)


@lowers("aten.fill.Tensor")
def fill_tensor(b: TorchBuilder, x: Value, value: Value) -> str:
    return b.broadcast_to(b.cast(value, b.result_dtype), b.result_shape)


@lowers("aten.scalar_tensor.default")
def scalar_tensor(b: TorchBuilder, value: Scalar, **ignored: Any) -> str:
    return b.full((), value, b.result_dtype)


@lowers(
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    "aten.zero.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.empty_strided.default",
    "aten.new_empty_strided.default",
    "prims.empty_strided.default",
)
def zeros(b: TorchBuilder, *ignored: Any, **also_ignored: Any) -> str:
    """Zeros; also for memory whose contents torch leaves open, so that every run gives the same."""
    return b.full(b.result_shape, 0, b.result_dtype)


@lowers("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(b: TorchBuilder, *ignored: Any, **also_ignored: Any) -> str:
    return b.full(b.result_shape, 1, b.result_dtype)


@lowers("aten.arange.start_step", "aten.arange.start", "aten.arange.default")
def arange(b: TorchBuilder, first: Scalar, stop: Scalar | None = None, step: Scalar = 1, **ignored: Any) -> str:
    start = 0 if stop is None else first
    return b.iota(b.result_shape, 0, b.result_dtype, start, step)


@lowers("prims.iota.default")
def iota(b: TorchBuilder, length: int, *, start: int, step: int, **ignored: Any) -> str:
    return b.iota((length,), 0, b.result_dtype, start, step)


@lowers("tilefuse.random_uniform.default")
def random_uniform(b: TorchBuilder, seed: Value, number: int, shape: Sequence[int]) -> str:
    """Random numbers as a function of a seed: made of nothing else, wherever they are asked for."""
    return b.random_uniform(b.result_shape, _key(b, seed, number))


@lowers("tilefuse.random_below.default")
def random_below(b: TorchBuilder, seed: Value, number: int, shape: Sequence[int], limit: float) -> str:
    """Where `random_uniform` is below a limit: one expression, of which kernels compare bits."""
    return b.bernoulli(b.result_shape, float(limit), _key(b, seed, number))


@lowers("tilefuse.random_normal.default")
def random_normal(b: TorchBuilder, seed: Value, number: int, shape: Sequence[int]) -> str:
    """As `random_uniform`, normally distributed."""
    return b.random_normal(b.result_shape, _key(b, seed, number))


def _key(b: TorchBuilder, seed: Value, number: int) -> str:
    return b.pointwise(lambda e: call("add", e, const(number, I64)), seed, work=I64, out=I64, name="key")
