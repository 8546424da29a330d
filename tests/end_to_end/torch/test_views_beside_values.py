"""Values and views of them that kernels of the host compute together or apart: every element is written, at large sizes too."""
from __future__ import annotations

import pytest
import torch

import tilefuse

ROUNDOFF = 2.0**-24


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    r = torch.exp(x)
    n = x.shape[1]
    return r, r[:, : n // 2].unsqueeze(-1).expand(-1, -1, 2).reshape(x.shape).sum(1)


@pytest.mark.parametrize("shape", [(2048, 2052), (1024, 8200)])
def test_rows_of_which_a_sum_reads_one_half_are_written_whole(shape: tuple[int, int]) -> None:
    """Bounds: an exponential is within 4 roundoffs; a sum of n terms adds n of the sum of their magnitudes, in any order."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    r, s = tilefuse.compile(halves, (x,))(x)
    wanted_r, wanted_s = halves(x.double())
    assert ((r - wanted_r).abs() <= 4 * ROUNDOFF * wanted_r).all()
    assert ((s - wanted_s).abs() <= (shape[1] + 4) * ROUNDOFF * wanted_s).all()


@pytest.mark.parametrize("shape", [(3, 5, 7), (6, 9, 31)])
def test_softmaxes_over_every_axis_of_one_array(shape: tuple[int, ...]) -> None:
    """Sums that one thread does alone, inside the loop along a row: what depends on their loop is not kept for the row."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(11))

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, -1), torch.softmax(x, 0), torch.log_softmax(x, 1), torch.softmax(-x, 1)

    # A maximum and its differences are exact to a rounding each, exponentials to 4, sums of n terms to n; logarithms to 4 of their size.
    num_roundoffs = max(shape) + 16
    for given, wanted in zip(tilefuse.compile(function, (x,))(x), function(x.double()), strict=True):
        assert ((given - wanted).abs() <= num_roundoffs * ROUNDOFF * (wanted.abs() + x.abs().max())).all()
