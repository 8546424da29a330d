"""Products that write over their residuals on a GPU: layers whose peak of memory falls by it, with the norm of rows or without."""
from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tilefuse.driver import torch_backend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class Layers(nn.Module):
    """Feed-forward layers with residuals, and the norm of each row behind them."""

    def __init__(self, width: int, count: int, normed: bool) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(count))
        self.back = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(count))
        self.norms = nn.ModuleList(nn.LayerNorm(width) if normed else nn.Identity() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for wide, back, norm in zip(self.wide, self.back, self.norms):
            x = norm(x + back(torch.nn.functional.gelu(wide(x))))
        return x


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [4096, 8191])
def test_layers_hold_one_activation_less(rows: int, dtype: torch.dtype, normed: bool) -> None:
    torch.manual_seed(3)
    torch._dynamo.reset()
    torch_backend.reset()
    exact = Layers(768, 3, normed).cuda()
    model = copy.deepcopy(exact).to(dtype).eval()
    compiled = torch.compile(model, backend=torch_backend.backend, dynamic=False, options={"strict": True})
    x = torch.randn(rows, 768, device="cuda", dtype=dtype)
    kept = x.clone()
    with torch.no_grad():
        first = compiled(x).clone()
        wanted, eager = exact.double()(x.double()), model(x)
        assert all(torch.equal(compiled(x), first) for _ in range(5))
    assert torch.equal(x, kept)
    assert (first - wanted).abs().max() <= 2 * (eager - wanted).abs().max() + 1e-3 * wanted.abs().max()
    names = [k["name"] for p in torch_backend.compiled_parts() for k in p.program.explain(json=True)["kernels"]]
    assert any("_in_place" in name for name in names), names
