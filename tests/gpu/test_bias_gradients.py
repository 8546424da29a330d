"""Training steps of attention with a learned bias on a device: calls and plain products, biases of heads, dense, and from a table."""
from __future__ import annotations

import pytest
import torch

from benchmarks.attention.biases import BOUND, error_of, gradients, step_of
from tests.gpu.test_pipelined_walks import has_warpgroup_products
from tilefuse.driver import torch_backend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


@pytest.mark.parametrize("name", ["call/bf16/heads/4x8x512x64", "call/f16/dense/2x4x200x64", "call/bf16/heads/8x4x197x32",
                                  "plain/bf16/table/4x8x512x64", "plain/f16/heads/8x4x256x128"])
def test_gradients_of_a_learned_bias(name: str) -> None:
    """Every gradient against double precision, the same in every run; calls by kernels that store the elements of the bias' gradient."""
    step = step_of(name)
    inputs = step.inputs(torch.device("cuda"))
    g = torch.randn(step.shape, device="cuda").to(step.dtype)
    torch._dynamo.reset()
    run = torch.compile(step.run, backend=torch_backend.backend, dynamic=False, options={"attention_gradients": "kernels"})
    first, second = (gradients(run, inputs, g) for _ in range(2))
    assert error_of(step, inputs, g, first) <= BOUND[step.dtype]
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    operators = [str(getattr(s, "operator", "")) for part in torch_backend.compiled_parts() for s in part.program.spec.steps]
    assert step.form == "plain" or not any("attention_backward" in o for o in operators)
