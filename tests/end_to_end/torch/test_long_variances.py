"""Variances on the host, against f64: values far from 0 along every walk, and shares of threads that end within a stretch."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tilefuse

# Squares are summed in f64: a few roundings of the result to f32 make 1e-7 as measured (eager 6e-8); chains of 64 squares in f32, of
# numbers on a coarse grid, round one way and make 5e-7.
TOLERANCE = 2e-7


@pytest.mark.parametrize("offset", [0.0, 4999.5])
@pytest.mark.parametrize("length", [1_060_921, 1 << 20, (1 << 20) + 16, 300_000])
def test_a_long_variance_is_that_of_eager(length: int, offset: float) -> None:
    x = torch.rand(length, generator=torch.Generator().manual_seed(length)) + offset
    found, = tilefuse.compile(lambda x: x.var(), (x,), device="host")(x),
    torch.testing.assert_close(found.double(), x.double().var(), rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize("length", [1 << 16, 100_003])
def test_variances_of_long_rows_are_those_of_eager(length: int) -> None:
    x = torch.rand(3, length, generator=torch.Generator().manual_seed(length)) + 4999.5
    found, = tilefuse.compile(lambda x: x.std(1), (x,), device="host")(x),
    torch.testing.assert_close(found.double(), x.double().std(1), rtol=TOLERANCE, atol=0)


Moments = Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]

SHIFTED: dict[str, tuple[Moments, tuple[int, ...]]] = {
    "columns": (lambda x: x.var(0), (1000, 64)),
    "odd columns": (lambda x: x.var(0), (1003, 33)),
    "few columns": (lambda x: x.std(0), (4096, 4)),
    "a middle axis": (lambda x: x.var(1), (5, 301, 7)),
    "two axes": (lambda x: x.var((0, 2)), (99, 5, 4)),
    "rows of 3": (lambda x: x.std(1), (300, 3)),
    "rows of 4": (lambda x: x.var(1), (1 << 12, 4)),
    "odd rows": (lambda x: x.std(-1), (64, 9)),
    "rows with a tail": (lambda x: x.std(-1), (7, 2051)),
    "rows of a part of an image": (lambda x: x.var((0, 2)), (9, 5, 1000)),
    "channels last": (lambda x: x.permute(0, 3, 1, 2).var((0, 2, 3)), (7, 9, 5, 20)),
}


@pytest.mark.parametrize("case", SHIFTED)
def test_a_spread_far_from_0_is_that_of_eager(case: str) -> None:
    f, shape = SHIFTED[case]
    x = torch.rand(shape, generator=torch.Generator().manual_seed(len(case))) + 4999.5
    _compare(f, x, TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_spread_of_halves_far_from_0_is_that_of_eager(dtype: torch.dtype) -> None:
    """Halves between 900 and 1000 are whole numbers, their f32 squares and sums are not exact."""
    x = (torch.rand((3000, 33), generator=torch.Generator().manual_seed(5)) * 100 + 900).to(dtype)
    _compare(lambda x: x.to(torch.promote_types(x.dtype, torch.float32)).var(0), x, TOLERANCE)


NORMS: dict[str, tuple[Moments, tuple[int, ...]]] = {
    "var_mean": (lambda x: torch.var_mean(x, 0), (1000, 33)),
    "batch_norm": (lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[1:], (70, 5, 3, 3)),
    "batch_norm of rows": (lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[1:], (1001, 20)),
    "group_norm": (lambda x: torch.native_group_norm(x, None, None, 4, 6, 3, 3, 1e-5)[1:], (4, 6, 3)),
    "layer_norm": (lambda x: torch.native_layer_norm(x, (5,), None, None, 1e-5)[1:], (100, 5)),
}


@pytest.mark.parametrize("case", NORMS)
def test_statistics_of_norms_far_from_0(case: str) -> None:
    f, shape = NORMS[case]
    x = torch.rand(shape, generator=torch.Generator().manual_seed(len(case))) + 4999.5
    _compare(f, x, TOLERANCE)


@pytest.mark.parametrize(("shape", "dim"), [((4, 1024, 256), 1), ((1000, 37), 0), ((7, 2051), 1), ((300, 64), 1),
                                            ((40, 16, 30, 30), (0, 2, 3))])
def test_means_beside_variances_are_those_of_eager(shape: tuple[int, ...], dim: int | tuple[int, ...]) -> None:
    """Torch sums them in f64: four times its error is two roundings. Numbers on a coarse grid make f32 chains round one way."""
    x = torch.randint(0, 1000, shape, generator=torch.Generator().manual_seed(1)) / 10
    spread, mean = tilefuse.compile(lambda x: torch.var_mean(x, dim), (x,), device="host")(x)
    _, eager = torch.var_mean(x, dim)
    _, exact = torch.var_mean(x.double(), dim)
    assert ((mean - exact) / exact).abs().max() <= 4 * ((eager - exact) / exact).abs().max()


def test_infinite_sums_beside_variances() -> None:
    x = torch.ones(4, 96)
    x[1, 5], x[2, 7], x[3, 9] = float("inf"), float("nan"), float("-inf")
    total, spread = tilefuse.compile(lambda x: (x.sum(1), x.var(1)), (x,), device="host")(x)
    torch.testing.assert_close(total, x.sum(1), equal_nan=True)
    torch.testing.assert_close(spread, x.var(1), equal_nan=True)


def _compare(f: Moments, x: torch.Tensor, tolerance: float) -> None:
    found, whole = tilefuse.compile(f, (x,), device="host")(x), f(x.double())
    pairs = zip(found, whole, strict=True) if isinstance(whole, tuple) else [(found, whole)]
    for ours, exact in pairs:
        torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=0)
