"""Rows of small products that one kernel recomputes, on a device: odd lengths, where rows begin between vectors of memory."""
from __future__ import annotations

import pytest
import torch

from tilefuse.driver.torch_backend import backend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("width", [5, 7, 33])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_small_products(rows: int, width: int) -> None:
    """Sums, a difference and a second product, against f64."""
    def run(a: torch.Tensor, b: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((a @ b) * t).sum(-1), (t - a @ b).sum(-1), a @ b @ t.mT

    generator = torch.Generator("cuda").manual_seed(7)
    a, b, t = (torch.randn(shape, device="cuda", generator=generator) for shape in ((rows, width), (width, width), (rows, width)))
    for found, wanted in zip(torch.compile(run, backend=backend, dynamic=False)(a, b, t), run(a.double(), b.double(), t.double())):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
