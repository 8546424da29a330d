"""Products of converted 16-bit values on the device: as exact as f32, beside double precision."""
from __future__ import annotations

import pytest
import torch

import tilefuse

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
                                                  reason="needs a CUDA device of compute capability 9.0")]


class Router(torch.nn.Module):
    """Logits of a router in f32."""

    def __init__(self, dtype: torch.dtype, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(96, width).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """f32 of both operands, multiplied."""
        return torch.nn.functional.linear(x.float(), self.weight.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "width"), [(64, 512), (333, 1000), (2048, 4096)])
def test_logits_are_as_exact_as_in_f32(dtype: torch.dtype, rows: int, width: int) -> None:
    """Within 2^-19 of the sum of absolute products."""
    module = Router(dtype, width).cuda().eval()
    x = torch.randn(rows, width, device="cuda").to(dtype)
    with torch.no_grad():
        program = tilefuse.compile(module, (x,))
        got, wanted = program(x), x.double() @ module.weight.double().T
        most = x.double().abs() @ module.weight.double().abs().T
    assert got.dtype == torch.float32 and ((got.double() - wanted).abs() <= most * 2.0**-19).all()


class Upcast(torch.nn.Module):
    """Attention with scores in f32, its queries scaled before the product."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Powers are rounded to the values' type."""
        scores = (q.float() * q.shape[-1] ** -0.5) @ k.float().transpose(-1, -2)
        return torch.softmax(scores, -1).to(v.dtype) @ v


@pytest.mark.parametrize("keys", [200, 1024])
def test_scores_in_f32_are_walked(keys: int) -> None:
    """Within twice the error of eager torch."""
    q, k, v = (torch.randn(2, 4, keys, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    module = Upcast()
    program = tilefuse.compile(module, (q, k, v))
    wanted = torch.softmax((q.double() / 8) @ k.double().mT, -1) @ v.double()
    error, eager = ((x.double() - wanted).abs().max() for x in (program(q, k, v), module(q, k, v)))
    assert error <= 2 * eager and [x["template"] for x in program.explain(json=True)["kernels"]] == ["pipelined_walk"]
