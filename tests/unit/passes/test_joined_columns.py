"""Attention with sinks and with rows less their maximum: as eager torch computes it, and in the form that kernels walk."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tilefuse

HEADS, KEYS, WIDTH = 4, 37, 16
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Causal scores; the last rows see all keys."""
    s = (q @ k.transpose(-1, -2)) * 0.25
    rows, keys = s.shape[-2:]
    hidden = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(keys - rows).logical_not()
    return s.masked_fill(hidden, float("-inf"))


def joined(ahead: bool, count: int, shifted: bool) -> Attention:
    """Softmax over scores and `count` sinks, ahead of them or behind them; shifted: less its own maximum before."""
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
        s = scores(q, k)
        beside = sinks[:, :count].reshape(1, HEADS, 1, count).expand(s.shape[0], HEADS, s.shape[2], count).to(s.dtype)
        both = torch.cat([beside, s] if ahead else [s, beside], -1)
        if shifted:
            both = both - both.max(-1, keepdim=True).values
        p = torch.softmax(both, -1)
        return (p[..., count:] if ahead else p[..., :-count]) @ v

    return attend


def shifted_alone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """No sinks."""
    s = scores(q, k) + sinks[:, :1].reshape(1, HEADS, 1, 1).to(q.dtype)
    return torch.softmax(s - s.max(-1, keepdim=True).values, -1) @ v


CASES: dict[str, Attention] = {
    "a sink behind": joined(False, 1, False), "three sinks behind": joined(False, 3, False), "two sinks ahead": joined(True, 2, False),
    "a sink behind, less the maximum": joined(False, 1, True), "a sink ahead, less the maximum": joined(True, 1, True),
    "less the maximum": shifted_alone,
}


class Module(torch.nn.Module):
    """One of the cases."""

    def __init__(self, attend: Attention) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
        """Attention of the operands."""
        return self.attend(q, k, v, sinks)


def operands(dtype: torch.dtype, keys: int = KEYS, rows: int = KEYS) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values, sinks."""
    draw = torch.Generator().manual_seed(3)
    lengths = (rows, keys, keys)
    return (*(torch.randn(2, HEADS, n, WIDTH, generator=draw).to(dtype) for n in lengths), torch.randn(HEADS, 3, generator=draw) * 2)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_those_of_double_precision(name: str, dtype: torch.dtype) -> None:
    """Within twice the error of eager torch, or some roundings of the type."""
    given = operands(dtype)
    module = Module(CASES[name])
    wanted = module(*(x.double() for x in given))
    found = tilefuse.compile(module, given, device="host")(*given)
    error, eager = ((x.double() - wanted).abs().max() for x in (found, module(*given)))
    assert error <= max(2 * eager, 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", CASES)
def test_kernels_walk_the_scores(name: str) -> None:
    """One walk at any length; with every rounding of eager torch nothing is changed."""
    given = operands(torch.bfloat16, 512, 512)
    kernels = tilefuse.compile(Module(CASES[name]), given, target="h200").explain(json=True)["kernels"]
    assert [k["template"] for k in kernels if k["template"] != "pointwise"] == ["pipelined_walk"]


@pytest.mark.parametrize("special", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("name", ["a sink behind", "a sink ahead, less the maximum", "less the maximum"])
def test_infinities_and_nan_are_those_of_torch(name: str, special: float) -> None:
    """In a sink, and in a key."""
    for place in (1, 3):
        given = [x.clone() for x in operands(torch.float32)]
        given[place].view(-1)[5] = special
        module = Module(CASES[name])
        found, wanted = tilefuse.compile(module, given, device="host")(*given), module(*given)
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-4, atol=1e-5)


def test_every_rounding_of_a_difference_can_be_kept() -> None:
    """`eager_rounding` keeps both maxima."""
    given = operands(torch.bfloat16, 512, 512)
    program = tilefuse.compile(Module(shifted_alone), given, target="h200", eager_rounding=True)
    assert sum(n.kind == "reduce.max" for n in program.plan.graph.nodes) == 2
    assert sum(n.kind == "reduce.max" for n in tilefuse.compile(Module(shifted_alone), given, target="h200").plan.graph.nodes) == 1
