"""Dropouts of a training step on a device: masks that the backward draws again are those of the forward, and only a seed is kept."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tilefuse.driver.torch_backend import backend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_gradients_are_those_of_the_drawn_masks() -> None:
    """Two dropouts of one graph, of two calls whose backward comes in the other order."""
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.dropout(torch.tanh(x), 0.25), F.dropout(torch.exp(-x * x), 0.5)

    torch._dynamo.reset()
    call = torch.compile(step, backend=backend, dynamic=False)
    xs = [torch.randn(512, 1024, device="cuda", requires_grad=True) for _ in range(2)]
    results = [call(x) for x in xs]
    for x, (a, b) in reversed(list(zip(xs, results, strict=True))):
        (a.sum() + b.sum()).backward()
        y = x.detach().double()
        expected = (a != 0) / 0.75 * (1 - torch.tanh(y) ** 2) + (b != 0) / 0.5 * -2 * y * torch.exp(-y * y)
        assert x.grad is not None
        torch.testing.assert_close(x.grad, expected.float(), rtol=1e-4, atol=1e-5)


def test_a_large_mask_leaves_no_memory_behind() -> None:
    """Of x * dropout(y) the step keeps x and y, which are arguments, and a seed."""
    torch._dynamo.reset()
    x, y = (torch.randn(4096, 4096, device="cuda", requires_grad=True) for _ in range(2))
    call = torch.compile(lambda x, y: (x * F.dropout(y, 0.1)).sum(), backend=backend, dynamic=False)
    call(x, y).backward()
    before = torch.cuda.memory_allocated()
    total = call(x, y)
    assert torch.cuda.memory_allocated() - before < x.numel() / 8
    total.backward()
