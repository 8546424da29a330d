"""Variances of long rows on the host, against f64: shares of threads that end within a stretch, and values far from 0."""
from __future__ import annotations

import pytest
import torch

import tilefuse

# Chains of 64 squares a lane round up to 64 times, and those of numbers on a coarse grid not at random: 3e-7 as measured.
# An eager variance of values near 5000, which is computed in f64, is 3e-8 off, one computed with means in f32 1e-5.
TOLERANCE = 8e-7


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
