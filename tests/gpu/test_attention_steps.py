"""Training steps with attention on a device: gradients by kernels that draw the forward's mask again."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.test_pipelined_walks import has_warpgroup_products
from tilefuse.driver.torch_backend import backend
from tilefuse.frontends.torch.own.random_numbers import RANDOM_BELOW, RANDOM_SEED

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]
BATCH, HEADS, WIDTH = 2, 8, 64


@pytest.mark.parametrize(("length", "drop", "hides", "called"), [
    (512, 0.1, False, False), (512, 0.1, True, False), (197, 0.3, False, False), (256, 0.0, False, False), (512, 0.1, False, True)])
def test_gradients_are_those_of_the_drawn_mask(length: int, drop: float, hides: bool, called: bool) -> None:
    """Products and a softmax in bf16, or torch's operator, against f64 with the same mask, which the generator's state decides; the step
    keeps little memory."""
    lowest = torch.finfo(torch.bfloat16).min

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if called:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=drop)
        s = q @ k.mT * WIDTH**-0.5
        return F.dropout(torch.softmax(s + mask if hides else s, -1, dtype=torch.float32).to(q.dtype), drop) @ v

    torch._dynamo.reset()
    random = torch.Generator("cuda").manual_seed(1)
    q, k, v = (torch.randn(BATCH, HEADS, length, WIDTH, device="cuda", generator=random).bfloat16().requires_grad_() for _ in range(3))
    mask = torch.zeros(BATCH, 1, 1, length, device="cuda", dtype=torch.bfloat16)
    mask[1, ..., length // 2:] = lowest
    call = torch.compile(attention, backend=backend, dynamic=False, options={"attention_gradients": "kernels"})
    call(q, k, v, mask).sum().backward()
    q.grad = k.grad = v.grad = None
    torch.manual_seed(7)
    factors = RANDOM_BELOW(RANDOM_SEED("cuda"), 1, [BATCH, HEADS, length, length], 1 - drop).double() / (1 - drop)
    torch.manual_seed(7)
    before = torch.cuda.memory_allocated()
    y = call(q, k, v, mask)
    assert torch.cuda.memory_allocated() - before < 2 * BATCH * HEADS * length * length or length < 256
    g = torch.randn(y.shape, device="cuda", generator=random).bfloat16()
    y.backward(g)
    x, z, w = (t.detach().double().requires_grad_() for t in (q, k, v))
    s = x @ z.mT * WIDTH**-0.5
    reference = torch.softmax(s + mask.double() if hides else s, -1) * factors @ w
    for one, two in zip((y, q.grad, k.grad, v.grad), (reference, *torch.autograd.grad(reference, (x, z, w), g.double())), strict=True):
        assert one is not None
        assert (one.double() - two).abs().max() <= 2.0**-5 * max(two.abs().max().item(), 1.0)
