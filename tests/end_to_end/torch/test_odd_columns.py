"""Layers whose columns no power of two divides: an H200's plans, run by the checking host executor, beside f64."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tilefuse.driver import torch_backend

OPTIONS = {"plan_for": "h200", "check": True, "strict": True}


def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = torch.tanh(x @ w) + x
    return x


def gated(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """A cell of a recurrence: gates side by side in one product."""
    width = x.shape[1]
    h = torch.zeros_like(x)
    for w in weights:
        gates = torch.cat([x, h], 1) @ w.repeat(2, 3)
        a, b, c = gates.split(width, 1)
        h = torch.sigmoid(a) * h + torch.tanh(b) * F.gelu(c)
    return h


@pytest.mark.parametrize(("form", "rows", "width", "dtype"), [
    (layers, 8, 250, torch.float32), (layers, 37, 251, torch.float32), (layers, 5, 13, torch.float32), (layers, 16, 101, torch.bfloat16),
    (gated, 100, 10, torch.float32), (gated, 33, 30, torch.float16)])
def test_results_and_gradients_are_those_of_f64(form, rows: int, width: int, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(8)
    torch._dynamo.reset()
    torch_backend.reset()
    x = torch.randn(rows, width).to(dtype).requires_grad_()
    weights = [(torch.randn(width, width) / width**0.5).to(dtype).requires_grad_() for _ in range(2)]
    y = torch.compile(form, backend=torch_backend.backend, dynamic=False, options=OPTIONS)(x, *weights)
    g = torch.randn(y.shape).to(dtype)
    results = (y, *torch.autograd.grad(y, [x, *weights], g))
    wide = [t.detach().double().requires_grad_() for t in (x, *weights)]
    exact = form(*wide)
    bound = {torch.float32: 1e-5, torch.float16: 2.0**-7, torch.bfloat16: 2.0**-4}[dtype]
    for ours, truth in zip(results, (exact, *torch.autograd.grad(exact, wide, g.double())), strict=True):
        assert (ours.double() - truth).abs().max() <= bound * truth.abs().max()
