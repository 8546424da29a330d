"""torch's grouped products: experts of a mixture on the host, their gradients, plans for a device, forms that stay torch's call."""
from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

import tilefuse
from tilefuse.runtime.calls.grouped_products import grouped_product
from tilefuse.target.device import H200

ROWS, COLUMNS, INNER, GROUPS = 100, 64, 72, 5


def _operands(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(3)
    gate, up = (torch.randn(GROUPS, COLUMNS, INNER, dtype=dtype) * INNER**-0.5 for _ in range(2))
    return torch.randn(ROWS, INNER, dtype=dtype), gate, up, torch.randn(GROUPS, INNER, COLUMNS, dtype=dtype) * COLUMNS**-0.5


def layer(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, ends: torch.Tensor,
          weight: torch.Tensor) -> torch.Tensor:
    """A mixture's layer behind the sort of its rows."""
    h = F.silu(torch._grouped_mm(x, gate.transpose(-2, -1), ends)) * torch._grouped_mm(x, up.transpose(-2, -1), ends)
    return torch._grouped_mm(h, down.transpose(-2, -1), ends) * weight


@pytest.mark.parametrize("ends", [(20, 40, 60, 80, 100), (0, 20, 20, 37, 100), (100, 100, 100, 100, 100), (1, 2, 3, 4, 100)])
def test_a_layer_of_experts_is_torchs(ends: Sequence[int]) -> None:
    """Equal groups, empty ones, one with all rows, some with one."""
    values = (*_operands(), torch.tensor(ends, dtype=torch.int32), torch.rand(ROWS, 1, dtype=torch.bfloat16))
    program = tilefuse.compile(layer, values)
    got, want = program(*values), layer(*values)
    assert float((got.float() - want.float()).norm()) <= 2.0**-6 * float(want.float().norm())


def test_gradients_of_experts_are_torchs() -> None:
    """Through torch.compile: gradients of matrices are sums over each group's rows, and stay torch's call."""
    ends, weight = torch.tensor([0, 20, 20, 37, 100], dtype=torch.int32), torch.rand(ROWS, 1, dtype=torch.bfloat16)
    gradients: list[list[torch.Tensor | None]] = []
    for function in (layer, torch.compile(layer, backend="tilefuse", dynamic=False)):
        own = x, gate, up, down = tuple(v.requires_grad_() for v in _operands())
        function(x, gate, up, down, ends, weight).float().square().sum().backward()
        gradients.append([v.grad for v in own])
    for want, got in zip(*gradients, strict=True):
        assert want is not None and got is not None
        assert float((got.float() - want.float()).norm()) <= 2.0**-6 * float(want.float().norm())


def test_a_layer_of_experts_is_two_kernels_on_a_device() -> None:
    """Gate and up share the rows' tiles; the router's weights are a map behind the product of down. No call is left."""
    ends, weight = torch.tensor([0, 20, 20, 37, 100], dtype=torch.int32), torch.rand(ROWS, 1, dtype=torch.bfloat16)
    made = tilefuse.compile(layer, (*_operands(), ends, weight), target="h200")
    assert [sum(n.kind == "library.grouped_matmul" for n in k.program.graph.nodes) for k in made.plan.kernels] == [2, 1]
    assert len(made.spec.steps) == 2 and H200.name in made.explain()


@pytest.mark.parametrize("form", ["columns", "inner axis"])
def test_other_groups_stay_torchs_call(form: str) -> None:
    """Groups of columns, and of the inner axis."""
    x, w = torch.randn(3, 16, 32).bfloat16(), torch.randn(32, 48).bfloat16()
    ends = torch.tensor([16, 32, 48] if form == "columns" else [8, 16, 32], dtype=torch.int32)
    values = (x if form == "columns" else x[0], w, ends)

    def function(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x, w, ends)

    program = tilefuse.compile(function, values)
    assert "aten._grouped_mm.default" in program.explain()
    assert torch.equal(program(*values), function(*values))


@pytest.mark.parametrize("ends", [(3, 64, 70), (64, 3, 90), (0, 0, 0), (-5, 300, 20)])
def test_the_call_defines_every_row(ends: Sequence[int]) -> None:
    """Rows behind the last group are zeros; falling offsets end empty groups, and none reaches beyond the rows."""
    x, w = torch.randn(80, 16), torch.randn(3, 16, 24)
    got, first = grouped_product(x, w, torch.tensor(ends)), 0
    for group, end in enumerate((*ends, 80)):
        last = max(first, min(end, 80))
        want = x[first:last] @ w[group] if group < 3 else torch.zeros(last - first, 24)
        assert torch.allclose(got[first:last], want, atol=1e-5)
        first = last
