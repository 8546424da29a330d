"""Programs of few rows whose weights are on their way before the kernel ahead has ended, on a device: results of changing inputs."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tilefuse

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class Layers(torch.nn.Module):
    """Norm, product and residual, `depth` times, of weights that the program owns."""

    def __init__(self, width: int, depth: int, norms: bool) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(width + depth)
        self.norms = norms
        self.weights = torch.nn.ParameterList(torch.randn(width, width, generator=made) / width**0.5 for _ in range(depth))
        self.scales = torch.nn.ParameterList(torch.rand(width, generator=made) + 0.5 for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layers."""
        for w, s in zip(self.weights, self.scales, strict=True):
            h = x
            if self.norms:
                h = (x.to(s.dtype) * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)) * s
            x = x + F.linear(h, w)
        return x


@pytest.mark.parametrize(("rows", "width", "depth", "norms"), [
    (1, 4096, 1, True), (1, 4096, 3, True), (1, 1024, 4, True), (16, 4096, 1, False), (16, 4096, 4, False), (5, 1536, 4, False)])
@pytest.mark.parametrize("graph", [False, True], ids=["launches", "graph"])
def test_layers_of_few_rows(rows: int, width: int, depth: int, norms: bool, graph: bool) -> None:
    """Inputs change on the same stream right before each call; every second call follows another without a pause."""
    model = Layers(width, depth, norms).to(torch.bfloat16).cuda()
    exact = Layers(width, depth, norms).to(torch.bfloat16).double().cuda()
    x = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        program = tilefuse.compile(model, (x,), cuda_graph=graph)
        made = torch.Generator("cuda").manual_seed(3)
        for _ in range(6):
            x.copy_(torch.randn(rows, width, device="cuda", generator=made))
            first = program(x).clone()
            assert torch.equal(first, program(x))
            wanted = exact(x.double())
            error = (first.double() - wanted).norm() / wanted.norm()
            assert error < (4 * depth + 4) * 2.0**-9, f"relative error {error.item():.3g}"
