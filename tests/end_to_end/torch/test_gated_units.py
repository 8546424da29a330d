"""Gated linear units of torch on an H200's plan: both halves of the product, and what joins them, in one kernel."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilefuse.driver.compile import generate_sources
from tilefuse.target.device import H200


class Gated(nn.Module):
    """glu(x w' + b)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * hidden, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.both(x))


def test_gated_linear_unit_is_one_kernel() -> None:
    """Torch splits the product's columns by tensor_split, which was a call of its own."""
    with torch.no_grad():
        made = generate_sources(Gated(1024, 4096).eval(), [torch.zeros(4096, 1024, dtype=torch.bfloat16)], device=H200)
    assert not made.plan.library_calls and [k.program.template for k in made.plan.kernels] == ["pipelined"]
