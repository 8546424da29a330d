"""Sums down the columns of products' results on a device: every case of the host's tests, and gradients of a model's size."""
from __future__ import annotations

import pytest
import torch

from tests.gpu.test_pipelined_products import has_warpgroup_products, run_thrice
from tests.unit.templates.staged.pipelined.test_column_sums import CASES
from tilefuse.driver import torch_backend
from tilefuse.driver.compile import present_device

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


@pytest.mark.parametrize("name", CASES)
def test_column_sums(name: str) -> None:
    """Against f64, equal from call to call."""
    case = CASES[name]
    program = case.program(present_device()[0])
    inputs = case.inputs(program.graph)
    _, results = run_thrice(program, inputs, {})
    case.check(program.graph, inputs, [r.cpu().float().numpy().ravel() for r in results])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradient_of_a_bias_behind_gelu(dtype: torch.dtype, approximate: str) -> None:
    """The gradient goes on as a result, its column sums are the bias's; one kernel holds product, gradient and partial sums."""
    generator = torch.Generator("cuda").manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator).to(dtype)

    g, w, h = drawn(8192, 768), drawn(768, 3072) / 16, drawn(64, 128, 3072)

    def step(g: torch.Tensor, w: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.ops.aten.gelu_backward((g @ w).view(h.shape), h, approximate=approximate)
        return made, made.sum((0, 1), dtype=torch.float32)

    torch_backend.reset()
    compiled = torch.compile(step, backend=torch_backend.backend, dynamic=False, options={"strict": True})
    with torch.no_grad():
        elements, sums = compiled(g, w, h)
        wide = torch.ops.aten.gelu_backward((g.double() @ w.double()).view(h.shape), h.double(), approximate=approximate)
    (part,) = torch_backend.compiled_parts()
    assert any(k["template"] == "pipelined" and len(k["writes"]) == 2 for k in part.program.explain(json=True)["kernels"])
    assert (elements.double() - wide).norm() <= 2.0**-7 * wide.norm()
    assert (sums.double() - elements.double().sum((0, 1))).abs().max() <= 8192 * 2.0**-24 * elements.abs().double().sum((0, 1)).max()
