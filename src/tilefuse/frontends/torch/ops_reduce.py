"""Reducing torch operators: sums, extrema, moments, norms, softmax, scans.

f16 and bf16 accumulate in f32 and round once. Means, variances and softmax stay composites, which a pass expands, so that every
frontend gives the same text for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilefuse.frontends.torch.ops import TORCH_OPS, Scalar, TorchBuilder, Value, dims, lowers
from tilefuse.ir.dtype import BOOL, I64, compute_dtype

Axes = int | Sequence[int] | None


@lowers("aten.sum.default")
def sum_all(b: TorchBuilder, x: Value, *, dtype: torch.dtype | None = None) -> str:
    return b.reduce(x, "sum", None, False, b.result_dtype)


@lowers("aten.sum.dim_IntList")
def sum_dims(b: TorchBuilder, x: Value, dim: Axes = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> str:
    return b.reduce(x, "sum", dims(dim, b.rank_of(x)), keepdim, b.result_dtype)


@lowers("aten.mean.default")
def mean_all(b: TorchBuilder, x: Value, *, dtype: torch.dtype | None = None) -> str:
    return mean_dims(b, x, None, False, dtype=dtype)


@lowers("aten.mean.dim")
def mean_dims(b: TorchBuilder, x: Value, dim: Axes = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> str:
    return b.mean(b.cast(x, b.result_dtype), dims(dim, b.rank_of(x)), keepdim)


@lowers("aten.prod.default")
def prod_all(b: TorchBuilder, x: Value, *, dtype: torch.dtype | None = None) -> str:
    return b.reduce(x, "prod", None, False, b.result_dtype)


@lowers("aten.prod.dim_int")
def prod_dim(b: TorchBuilder, x: Value, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> str:
    return b.reduce(x, "prod", dims(dim, b.rank_of(x)), keepdim, b.result_dtype)


def _enter_extremum(name: str) -> None:
    @lowers(f"aten.a{name}.default")
    def over_dims(b: TorchBuilder, x: Value, dim: Axes = (), keepdim: bool = False) -> str:
        return b.reduce(x, name, dims(dim, b.rank_of(x)), keepdim)

    @lowers(f"aten.{name}.default")
    def over_all(b: TorchBuilder, x: Value) -> str:
        return b.reduce(x, name)

    @lowers(f"aten.{name}.dim")
    def with_positions(b: TorchBuilder, x: Value, dim: int, keepdim: bool = False) -> tuple[str, str]:
        axes = dims(dim, b.rank_of(x))
        return b.reduce(x, name, axes, keepdim), b.reduce(x, f"arg{name}", axes, keepdim)

    @lowers(f"aten.arg{name}.default")
    def position(b: TorchBuilder, x: Value, dim: int | None = None, keepdim: bool = False) -> str:
        return b.reduce(x, f"arg{name}", dims(dim, b.rank_of(x)), keepdim)


for _name in ("max", "min"):
    _enter_extremum(_name)


@lowers("aten.aminmax.default")
def aminmax(b: TorchBuilder, x: Value, *, dim: int | None = None, keepdim: bool = False) -> tuple[str, str]:
    axes = dims(dim, b.rank_of(x))
    return b.reduce(x, "min", axes, keepdim), b.reduce(x, "max", axes, keepdim)


def _enter_quantifier(name: str) -> None:
    def lower(b: TorchBuilder, x: Value, dim: Axes = None, keepdim: bool = False) -> str:
        reduced = b.reduce(b.cast(x, BOOL), name, dims(dim, b.rank_of(x)), keepdim)
        return b.cast(reduced, b.result_dtype)

    for overload in ("default", "dim", "dims"):
        TORCH_OPS[f"aten.{name}.{overload}"] = lower


for _name in ("any", "all"):
    _enter_quantifier(_name)


@lowers("aten.var.correction")
def var(b: TorchBuilder, x: Value, dim: Axes = None, *, correction: Scalar | None = None, keepdim: bool = False) -> str:
    return b.variance(x, dims(dim, b.rank_of(x)), 1 if correction is None else correction, keepdim)


@lowers("aten.std.correction")
def std(b: TorchBuilder, x: Value, dim: Axes = None, *, correction: Scalar | None = None, keepdim: bool = False) -> str:
    return b.standard_deviation(x, dims(dim, b.rank_of(x)), 1 if correction is None else correction, keepdim)


@lowers("aten.var_mean.correction")
def var_mean(b: TorchBuilder, x: Value, dim: Axes = None, *, correction: Scalar | None = None, keepdim: bool = False) -> tuple[str, str]:
    return var(b, x, dim, correction=correction, keepdim=keepdim), b.mean(x, dims(dim, b.rank_of(x)), keepdim)


@lowers("aten.std_mean.correction")
def std_mean(b: TorchBuilder, x: Value, dim: Axes = None, *, correction: Scalar | None = None, keepdim: bool = False) -> tuple[str, str]:
    return std(b, x, dim, correction=correction, keepdim=keepdim), b.mean(x, dims(dim, b.rank_of(x)), keepdim)


@lowers("aten.logsumexp.default")
def logsumexp(b: TorchBuilder, x: Value, dim: Axes, keepdim: bool = False) -> str:
    return b.logsumexp(b.cast(x, b.result_dtype), dims(dim, b.rank_of(x)), keepdim)


@lowers("aten.linalg_vector_norm.default")
def vector_norm(
    b: TorchBuilder, x: Value, ord: float = 2.0, dim: Axes = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> str:
    return b.norm(b.cast(x, b.result_dtype), float(ord), dims(dim, b.rank_of(x)), keepdim)


def _enter_softmax(name: str) -> None:
    @lowers(f"aten._{name}.default")
    def half_to_float(b: TorchBuilder, x: Value, dim: int, half_to_float: bool) -> str:
        wide = b.cast(x, b.result_dtype)
        if b.rank_of(x) == 0:
            return b.reshape(_softmax(b, name, b.reshape(wide, [1]), 0), [])
        return _softmax(b, name, wide, dim)

    @lowers(f"aten.{name}.int")
    def over_axis(b: TorchBuilder, x: Value, dim: int, dtype: torch.dtype | None = None) -> str:
        return half_to_float(b, x, dim, False)


def _softmax(b: TorchBuilder, name: str, x: str, dim: int) -> str:
    return b.softmax(x, dim) if name == "softmax" else b.log_softmax(x, dim)


for _name in ("softmax", "log_softmax"):
    _enter_softmax(_name)


@lowers("aten._safe_softmax.default")
def safe_softmax(b: TorchBuilder, x: Value, dim: int, dtype: torch.dtype | None = None) -> str:
    return b.safe_softmax(b.cast(x, b.result_dtype), dim)


@lowers("aten.cumsum.default")
def cumsum(b: TorchBuilder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> str:
    return b.scan(x, "sum", dim, dtype=b.result_dtype)


@lowers("aten.cumprod.default")
def cumprod(b: TorchBuilder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> str:
    return b.scan(x, "prod", dim, dtype=b.result_dtype)


def _enter_running_extremum(name: str) -> None:
    @lowers(f"aten.cum{name}.default")
    def with_positions(b: TorchBuilder, x: Value, dim: int) -> tuple[str, str]:
        """The extremum so far and where it stands: the last of equal elements, the last NaN once there is one."""
        if not b.rank_of(x):
            return x, b.full((), 0, I64)
        running = b.scan(x, name, dim)
        shape, at = b.shape_of(x), dim % b.rank_of(x)
        is_it = b.elementwise("eq", x, running)
        if b.dtype_of(x).is_float:
            is_it = b.elementwise("logical_or", is_it, b.elementwise("isnan", x))
        return running, b.scan(b.where(is_it, b.iota(shape, at, I64), 0), "max", dim)


for _name in ("max", "min"):
    _enter_running_extremum(_name)


@lowers("aten.logcumsumexp.default")
def logcumsumexp(b: TorchBuilder, x: Value, dim: int) -> str:
    return b.scan(b.cast(x, b.result_dtype), "logaddexp", dim)


@lowers("aten.nansum.default")
def nansum(b: TorchBuilder, x: Value, dim: Axes = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> str:
    have = b.dtype_of(x)
    without_nan = x if not have.is_float else b.where(b.elementwise("isnan", b.cast(x, compute_dtype(have)), dtype=BOOL), 0, x)
    return b.reduce(without_nan, "sum", dims(dim, b.rank_of(x)), keepdim, b.result_dtype)


@lowers("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(b: TorchBuilder, x: Value, dim: Axes = None) -> str:
    return b.reduce(b.cast(x, BOOL), "sum", dims(dim, b.rank_of(x)), False, b.result_dtype)
