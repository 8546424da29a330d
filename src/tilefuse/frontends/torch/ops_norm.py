"""Normalisation operators of torch: layer, group, batch, instance and RMS norm.

Statistics are computed in f32 at least. Torch's own decompositions turn their gradients into maps and reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from tilefuse.frontends.torch.ops import TORCH_BY_DTYPE, TorchBuilder, Value, lowers
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.dtype import compute_dtype
from tilefuse.ir.scalar import Expr, call, const


@lowers("aten.native_layer_norm.default")
def native_layer_norm(
    b: TorchBuilder, x: Value, normalized_shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[str, ...]:
    rank = b.rank_of(x)
    normalised = b.layer_norm(x, tuple(range(rank - len(normalized_shape), rank)), weight, bias, eps)
    return _as_expected(b, normalised)


@lowers("aten.native_group_norm.default")
def native_group_norm(
    b: TorchBuilder, x: Value, weight: Value | None, bias: Value | None, batch: int, channels: int, spatial: int, groups: int, eps: float
) -> tuple[str, ...]:
    return _as_expected(b, b.group_norm(x, groups, weight, bias, eps))


@lowers("aten._fused_rms_norm.default")
def fused_rms_norm(b: TorchBuilder, x: Value, normalized_shape: Sequence[int], weight: Value | None, eps: float | None) -> tuple[str, ...]:
    rank = b.rank_of(x)
    small = torch.finfo(TORCH_BY_DTYPE[compute_dtype(b.dtype_of(x))]).eps if eps is None else eps
    return _as_expected(b, b.rms_norm(x, tuple(range(rank - len(normalized_shape), rank)), weight, small))


def _as_expected(b: TorchBuilder, values: Sequence[str]) -> tuple[str, ...]:
    """Results converted and reshaped to the types torch derived (statistics may be 16 bits wide there)."""
    fitted = []
    for value, expected in zip(values, b.expected):
        assert expected is not None
        fitted.append(b.reshape(b.cast(value, expected[0]), list(expected[1])))
    return tuple(fitted)


@lowers(
    "aten._native_batch_norm_legit_functional.default",
    "aten._batch_norm_with_update_functional.default",
    "aten.batch_norm_with_update_functional.default",
)
def batch_norm_functional(
    b: TorchBuilder, x: Value, weight: Value | None, bias: Value | None, running_mean: Value, running_var: Value, *rest: bool | float
) -> tuple[str | None, ...]:
    """Results: y, saved mean, saved 1 / deviation, (reserve,) new running mean, new running variance."""
    training = bool(rest[0]) if len(rest) == 3 else True
    momentum, eps = (float(v) for v in rest[-2:])
    if not training:
        y, mean, rstd = _evaluated(b, x, weight, bias, running_mean, running_var, eps)
        # Torch derives f32 for running statistics of narrow types, too.
        return tuple(b.cast(v, known[0]) if known else v for v, known in zip((y, mean, rstd, running_mean, running_var), b.expected))
    y, mean, variance, rstd = _trained(b, x, weight, bias, eps)
    count = prod(b.shape_of(x)) // max(b.shape_of(x)[1], 1)
    unbiased = count / (count - 1) if count > 1 else float("nan")
    new_mean = _blended(b, running_mean, mean, momentum, 1.0, -2)
    new_var = _blended(b, running_var, variance, momentum, unbiased, -1)
    listed: list[str | None] = [y, _flat(b, mean, 1), _flat(b, rstd, 2)]
    if len(b.expected) == 6:
        assert b.expected[3] is not None
        listed.append(b.full(b.expected[3][1], 0, b.expected[3][0]))
    return (*listed, new_mean, new_var)


@lowers("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    b: TorchBuilder, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[str, ...]:
    y, mean, _, rstd = _trained(b, x, weight, bias, eps)
    return y, _flat(b, mean, 1), _flat(b, rstd, 2)


@lowers("aten._native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    b: TorchBuilder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[str, ...]:
    return _evaluated(b, x, weight, bias, running_mean, running_var, eps)


@lowers("aten._batch_norm_no_update.default")
def batch_norm_no_update(
    b: TorchBuilder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[str, ...]:
    y, mean, rstd = _evaluated(b, x, weight, bias, running_mean, running_var, eps)
    assert b.expected[3] is not None
    return y, mean, rstd, b.full(b.expected[3][1], 0, b.expected[3][0])


def _over(b: TorchBuilder, x: str) -> tuple[int, ...]:
    return tuple(d for d in range(b.rank_of(x)) if d != 1)


def _trained(b: TorchBuilder, x: str, weight: str | None, bias: str | None, eps: float) -> tuple[str, str, str, str]:
    """y, and mean, variance and 1 / deviation with extent 1 on all but the channel."""
    wide = b.cast(x, compute_dtype(b.dtype_of(x)))
    axes = _over(b, x)
    mean, variance = b.mean(wide, axes, True), b.variance(wide, axes, 0, True)
    rstd = b.elementwise("rsqrt", b.elementwise("add", variance, eps))
    return _normalised(b, x, mean, rstd, weight, bias), mean, variance, rstd


def _evaluated(
    b: TorchBuilder, x: str, weight: str | None, bias: str | None, running_mean: str, running_var: str, eps: float
) -> tuple[str, str, str]:
    work = compute_dtype(b.dtype_of(x))
    mean, variance = _columns(b, running_mean, x), _columns(b, running_var, x)
    rstd = b.elementwise("rsqrt", b.elementwise("add", b.cast(variance, work), eps))
    empty = []
    for at in (1, 2):
        expected = b.expected[at]
        assert expected is not None
        source = (mean, rstd)[at - 1]
        empty.append(_flat(b, source, at) if prod(expected[1]) else b.full(expected[1], 0, expected[0]))
    return _normalised(b, x, b.cast(mean, work), rstd, weight, bias), empty[0], empty[1]


def _normalised(b: TorchBuilder, x: str, mean: str, rstd: str, weight: str | None, bias: str | None) -> str:
    """(x - mean) * rstd * weight + bias as one map."""
    shape, have = b.shape_of(x), b.dtype_of(x)
    work = compute_dtype(have)
    axes = axis_names(len(shape))
    body: Expr = call(
        "mul", call("sub", b.read_as(x, work, shape, axes), b.read_as(mean, work, shape, axes)), b.read_as(rstd, work, shape, axes)
    )
    if weight is not None:
        body = call("mul", body, b.read_as(_columns(b, weight, x), work, shape, axes))
    if bias is not None:
        body = call("add", body, b.read_as(_columns(b, bias, x), work, shape, axes))
    return b.make_map("batch_norm", have, shape, axes, converted(body, work, have))


def _columns(b: TorchBuilder, per_channel: str, x: str) -> str:
    """A value per channel with the rank of `x`."""
    return b.reshape(per_channel, [-1 if d == 1 else 1 for d in range(b.rank_of(x))])


def _flat(b: TorchBuilder, value: str, result: int) -> str:
    expected = b.expected[result]
    assert expected is not None
    return b.reshape(b.cast(value, expected[0]), list(expected[1]))


def _blended(b: TorchBuilder, running: str, batch: str, momentum: float, factor: float, result: int) -> str:
    """(1 - momentum) * running + momentum * factor * batch, in the dtype that torch derives (f32 also for narrow running statistics)."""
    have, shape = b.dtype_of(running), b.shape_of(running)
    expected = b.expected[result]
    stored = have if expected is None else expected[0]
    work = compute_dtype(have)
    axes = axis_names(len(shape))
    fresh = b.read_as(b.reshape(batch, list(shape)), work, shape, axes)
    body = call(
        "add",
        call("mul", const(1.0 - momentum, work), b.read_as(running, work, shape, axes)),
        call("mul", const(momentum * factor, work), fresh),
    )
    return b.make_map("running", stored, shape, axes, converted(body, work, stored))
