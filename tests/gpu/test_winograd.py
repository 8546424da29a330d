"""Convolutions over transformed tiles on a device: blocks with bias, residual and activation, against f64."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tilefuse

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class Block(torch.nn.Module):
    """relu(convolution(x) + r)."""

    def __init__(self, channels: int, features: int, padding: int) -> None:
        super().__init__()
        torch.manual_seed(channels + features)
        self.convolution = torch.nn.Conv2d(channels, features, 3, padding=padding)

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        """The block."""
        return torch.relu(self.convolution(x) + r)


@pytest.fixture
def strict() -> Iterator[None]:
    """Convolutions and products of f32 without tf32."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("channels", "features", "side", "padding", "batch"), [
    (64, 64, 56, 1, 4), (33, 20, 13, 1, 3), (128, 96, 14, 0, 2), (16, 48, 7, 2, 1)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["row-major", "channels last"])
def test_blocks_of_f32(channels: int, features: int, side: int, padding: int, batch: int, memory_format: torch.memory_format) -> None:
    """Errors are those of f32 with the growth of F(4x4, 3x3), far from those of tf32 (5e-4)."""
    model, places = Block(channels, features, padding).eval().cuda(), side + 2 * padding - 2
    x = torch.randn(batch, channels, side, side, device="cuda").to(memory_format=memory_format)
    r = torch.randn(batch, features, places, places, device="cuda").to(memory_format=memory_format)
    with torch.no_grad():
        program = tilefuse.compile(model, (x, r), winograd="always")
        ours = program(x, r)
        exact = Block(channels, features, padding).eval().cuda().double()(x.double(), r.double())
    assert "planned as F(" in program.explain()
    assert (ours.double() - exact).abs().max() < 2e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_blocks_of_sixteen_bits(dtype: torch.dtype) -> None:
    """F(2x2, 3x3): products are rounded to the type once more than a convolution's sum."""
    model = Block(64, 32, 1).eval().cuda().to(dtype)
    x, r = torch.randn(2, 64, 15, 14, device="cuda").to(dtype), torch.randn(2, 32, 15, 14, device="cuda").to(dtype)
    with torch.no_grad():
        program = tilefuse.compile(model, (x, r), winograd="always")
        ours, exact = program(x, r), Block(64, 32, 1).eval().cuda().to(dtype).double()(x.double(), r.double())
    assert "planned as F(2x2, 3x3)" in program.explain()
    assert (ours.double() - exact).abs().max() < 16 * torch.finfo(dtype).eps
