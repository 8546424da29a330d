"""Sums of products as users write them, in two sizes: sums that stay kernels and sums that become calls. For the host and for a device.

Expected values are those of double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SumCase:
    """A function of tensors, and the shapes of these, as multiples of a size where a number is negative: -2 is twice the size."""

    name: str
    function: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]

    def inputs(self, size: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
        """Random tensors with gradients."""
        generator = torch.Generator().manual_seed(7)
        drawn = (torch.randn([-n * size if n < 0 else n for n in shape], generator=generator) for shape in self.shapes)
        return [x.to(device, dtype).requires_grad_() for x in drawn]


CASES = [
    SumCase("broadcast", lambda a, b: (a[:, :, None] * b[None]).sum(1), ((-1, -2), (-2, -1))),
    SumCase("scores", lambda q, k: (q.unsqueeze(2) * k.unsqueeze(1)).sum(-1), ((3, -1, -1), (3, -1, -1))),
    SumCase("gram", lambda x: (x[:, None] * x[None]).sum(-1), ((-1, -2),)),
    SumCase("mean and activation", lambda a, b: torch.relu((a[:, :, None] * b).mean(1)) + 1, ((-1, -1), (-1, -2))),
    SumCase("three factors", lambda a, b, c: (a[:, :, None] * b * c[:, None] / 3).sum(1), ((-1, -2), (-2, -1), (-2,))),
    SumCase("two inner axes", lambda x, w: (x[:, :, :, None] * w.permute(1, 0, 2)[None]).sum((1, 2)), ((-1, 5, -1), (-1, 5, -1))),
    SumCase("batch in the middle", lambda x, w: (x.permute(1, 0, 2)[..., None] * w[None]).sum(2), ((4, -1, -1), (4, -1, -1))),
    SumCase("triangle", lambda a, b: (torch.tril(a)[:, :, None] * b[None]).sum(1), ((-1, -1), (-1, -1))),
    SumCase("masked", lambda a, b: torch.where(a > 0, a, 0).unsqueeze(2).mul(b).sum(1), ((-1, -1), (-1, -1))),
    SumCase("softmax weights", lambda s, v: (torch.softmax(s, -1)[..., None] * v).sum(-2), ((-1, -1), (-1, -1))),
    SumCase("attention", lambda q, k, v: (torch.softmax((q[:, :, None] * k[:, None]).sum(-1) / 4, -1)[..., None] * v[:, None]).sum(2),
            ((2, -1, 16), (2, -2, 16), (2, -2, 8))),
    SumCase("distances", lambda x, y, v: (torch.exp(-(x[:, None] - y).abs())[..., None] * v).sum(1), ((-1,), (-1,), (-1, -1))),
    SumCase("windows", lambda x, w: (x.unfold(1, 4, 2)[:, None] * w[:, None]).sum(-1), ((-1, -2), (-1, 4))),
    SumCase("einsum, turned", lambda x, w: torch.einsum("abc,cbd->dca", x, w), ((-1, 3, 5), (5, 3, -1))),
    SumCase("einsum, three operands", lambda x, y, z: torch.einsum("ik,kl,jl->ji", x, y, z), ((-1, -1), (-1, 7), (-2, 7))),
    SumCase("einsum, diagonal", lambda x, y: torch.einsum("iij,jk->ik", x, y), ((-1, -1, 5), (5, -1))),
    SumCase("einsum, outer", lambda x, y: torch.einsum("i,bj->bij", x, y), ((-1,), (3, -1))),
    SumCase("vector", lambda a, x: (a * x).sum(-1), ((-2, -1), (-1,))),
    SumCase("no elements", lambda a, b: (a[:, :, None] * b).sum(1), ((-1, 0), (0, -1))),
    SumCase("one inner element", lambda a, b: (a[:, :, None] * b).sum(1), ((-1, 1), (1, -1))),
]
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def check(case: SumCase, size: int, dtype: torch.dtype, device: str, compiled: Callable[..., torch.Tensor]) -> None:
    """Result and gradients against double precision: sums of a few hundred products, rounded to the type a few times."""
    inputs = case.inputs(size, dtype, device)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    pairs = []
    for function, operands in ((compiled, inputs), (case.function, wide)):
        result = function(*operands)
        weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64, device=device).reshape(result.shape).to(result.dtype)
        pairs.append([result.detach(), *torch.autograd.grad((result * weights).sum(), operands)])
    for computed, expected in zip(*pairs, strict=True):
        assert computed.shape == expected.shape and computed.dtype == dtype
        error = (computed.double() - expected).norm() / expected.norm().clamp(min=1e-30)
        assert error < 8 * UNIT[dtype] + 64 * UNIT[torch.float32], f"relative error {error.item():.3g}"
