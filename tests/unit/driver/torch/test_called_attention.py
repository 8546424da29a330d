"""Calls of the library's attention with dropout in joint graphs: written out with a mask of a seed, and gradients from logarithms."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from tilefuse.base.options import Options
from tilefuse.driver.torch.partition import prepare
from tilefuse.frontends.torch.own.attention import ATTENTION_BACKWARD
from tilefuse.frontends.torch.own.random_numbers import RANDOM_BELOW, RANDOM_SEED
from tilefuse.target.device import H200

A = torch.ops.aten
BATCH, HEADS, ROWS, WIDTH, DROP = 2, 3, 64, 32, 0.25
Step = Callable[..., tuple[torch.Tensor, ...]]


def flash(causal: bool = False, drop: float = DROP) -> Step:
    """A step with the kernels for calls without a bias; results of the forward, then gradients."""
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, l, first, second, most_q, most_k, seed, offset, _ = A._scaled_dot_product_flash_attention(q, k, v, drop, causal, scale=0.3)
        return y * 2.0, *A._scaled_dot_product_flash_attention_backward(
            g * 2.0, q, k, v, y, l, first, second, most_q, most_k, drop, causal, seed, offset, scale=0.3)
    return step


def efficient(numbers: bool, of_bias: bool = False) -> Step:
    """A step with the kernels that take a bias: numbers, or 0 and -inf."""
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bias = torch.where(mask, torch.full((), 0.0), torch.full((), float("-inf")))
        bias = mask * 0.5 if numbers else bias
        y, l, seed, offset = A._scaled_dot_product_efficient_attention(q, k, v, bias, True, DROP, False, scale=0.3)
        gradients = A._scaled_dot_product_efficient_attention_backward(
            g * 2.0, q, k, v, bias, y, l, seed, offset, DROP, [True, True, True, of_bias], False, scale=0.3)
        return y * 2.0, *(gradients if of_bias else gradients[:3])
    return step


def joint_of(step: Step, masked: bool = False, taken: str = "kernels") -> tuple[GraphModule, list[str]]:
    """The step's joint graph after the rewritings, and its operators."""
    with FakeTensorMode():
        values = [torch.randn(BATCH, ROWS, HEADS, WIDTH).transpose(1, 2) for _ in range(4)]
        further = [torch.ones(BATCH, HEADS, ROWS, ROWS, dtype=torch.bool)] if masked else []
        joint = make_fx(step)(*values, *further)
    for node, name in zip(joint.graph.find_nodes(op="placeholder"), ("q", "k", "v", "tangents_1", "mask"), strict=False):
        node.target = node.name = name
    prepare(joint, 1, (), H200, Options(attention_gradients=taken))
    joint.recompile()
    return joint, [str(n.target) for n in joint.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize(("step", "mask"), [(flash(), ""), (flash(causal=True), "causal"), (efficient(False), "hidden"),
                                            (efficient(True), "numbers")])
def test_a_written_out_step_has_one_mask(step: Step, mask: str) -> None:
    """Run by torch: result and gradients against f64 with the mask of the seed, laid out as the library's."""
    joint, operators = joint_of(step, mask in ("hidden", "numbers"))
    assert str(ATTENTION_BACKWARD) in operators and not any("_scaled_dot" in n for n in operators)
    random = torch.Generator().manual_seed(1)
    q, k, v, g = (torch.randn(BATCH, ROWS, HEADS, WIDTH, generator=random).transpose(1, 2) for _ in range(4))
    hidden = torch.rand(BATCH, HEADS, ROWS, ROWS, generator=random) < 0.6
    hidden[0, 0, 3] = False
    torch.manual_seed(4)
    factors = RANDOM_BELOW(RANDOM_SEED("cpu"), 1, [BATCH, HEADS, ROWS, ROWS], 1 - DROP).double() / (1 - DROP)
    torch.manual_seed(4)
    y, *gradients = joint(q, k, v, g, *([hidden] if mask in ("hidden", "numbers") else []))
    x, z, w = (t.double().requires_grad_() for t in (q, k, v))
    s = x @ z.mT * 0.3
    if mask == "numbers":
        s = s + hidden * 0.5
    elif mask:
        s = s.masked_fill(~(hidden if mask == "hidden" else torch.ones(ROWS, ROWS, dtype=torch.bool).tril()), float("-inf"))
    p = torch.softmax(s, -1)
    exact = 2.0 * (torch.where(p.isnan(), 0.0, p) * factors @ w)
    for one, two in zip((y, *gradients), (exact, *torch.autograd.grad(exact, (x, z, w), g.double())), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-5)
        assert one.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(("step", "masked", "taken"), [
    (flash(), False, "auto"), (flash(), False, "library"), (flash(drop=0.0), False, "kernels"),
    (efficient(True, of_bias=True), True, "kernels"),
], ids=["auto", "library", "no dropout", "gradient of a bias"])
def test_calls_that_stay(step: Step, masked: bool, taken: str) -> None:
    """Without the option, without dropout, and with a gradient of the bias: no seed is drawn either."""
    _, operators = joint_of(step, masked, taken)
    assert sum("_scaled_dot" in n for n in operators) == 2
    assert not any(str(op) in operators for op in (ATTENTION_BACKWARD, RANDOM_SEED, RANDOM_BELOW))
