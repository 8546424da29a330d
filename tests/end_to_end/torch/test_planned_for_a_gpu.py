"""Plans and kernels of an H200, passes and all, run by the checking host executor: results and gradients against f64."""
from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tilefuse
from tilefuse.base.errors import OptionError
from tilefuse.driver.torch_backend import backend

OPTIONS = {"plan_for": "h200", "check": True, "strict": True, "attention_gradients": "kernels"}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
# Of results of several roundings to the type, relative to the largest one.
BOUNDS = {BF16: 2.0**-5, F16: 2.0**-8, F32: 2.0**-17}


class Attention(nn.Module):
    """Heads of a packed projection, padding hidden by the lowest number of the type."""

    def __init__(self, width: int, heads: int, called: bool) -> None:
        super().__init__()
        self.heads, self.called = heads, called
        self.packed, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.packed(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = torch.zeros_like(kept, dtype=x.dtype).masked_fill(~kept, torch.finfo(x.dtype).min)[:, None, None]
        if self.called:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            y = torch.softmax(q @ k.mT * (width // self.heads)**-0.5 + mask, -1, dtype=torch.float32).to(x.dtype) @ v
        return self.norm(x + self.out(y.transpose(1, 2).reshape(x.shape)))


class Steps(nn.Module):
    """A recurrent layer, written out."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.cell, self.count, self.last = nn.LSTMCell(width, width), count, nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros_like(x[0])
        for n in range(self.count):
            h, c = self.cell(x[n], (h, c))
        return self.last(h)


class Images(nn.Module):
    """A convolution with statistics over places behind it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.windows, self.norm = nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.GroupNorm(2, 2 * channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.windows(x))).mean((2, 3))


class Rows(nn.Module):
    """Reductions of odd rows and columns, a running sum, places of maxima, a loss."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        places = x.argmax(-1, keepdim=True)
        y = torch.softmax(x * 2, -1) + x.mean(0) + torch.take_along_dim(x, places, -1)
        return F.cross_entropy(y.cumsum(-1), labels) * y.var(0).sum()


@dataclass(frozen=True)
class Case:
    """A model, its inputs, their type, and whether its gradients are computed too."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    dtype: torch.dtype
    trains: bool = True


def padded(length: int, hidden: slice) -> torch.Tensor:
    """Places that are kept, of which the second sequence hides some."""
    kept = torch.ones(2, length, dtype=torch.bool)
    kept[1, hidden] = False
    return kept


CASES = {
    "attention, padding first": Case(lambda: Attention(64, 4, False), lambda: (torch.randn(2, 80, 64), padded(80, slice(0, 30))), BF16),
    "attention, padding last": Case(lambda: Attention(64, 2, False), lambda: (torch.randn(2, 90, 64), padded(90, slice(70, 90))), F16,
                                    False),
    "called attention": Case(lambda: Attention(128, 2, True), lambda: (torch.randn(2, 64, 128), padded(64, slice(0, 9))), BF16, False),
    "feed-forward, one row": Case(lambda: nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 520), nn.GELU(), nn.Linear(520, 256)),
                                  lambda: (torch.randn(1, 256),), BF16, False),
    "feed-forward": Case(lambda: nn.Sequential(nn.LayerNorm(72), nn.Linear(72, 136), nn.GELU(), nn.Linear(136, 72)),
                         lambda: (torch.randn(130, 72),), F16),
    "recurrent": Case(lambda: Steps(64, 2), lambda: (torch.randn(2, 20, 64),), F32, False),
    "images": Case(lambda: Images(8), lambda: (torch.randn(2, 8, 17, 19),), F32),
    "rows": Case(Rows, lambda: (torch.randn(37, 131), torch.randint(0, 131, (37,))), F32),
}


def outcomes(model: Any, parameters: list[nn.Parameter], inputs: tuple[torch.Tensor, ...], trains: bool) -> list[torch.Tensor]:
    """Result, and with `trains` the gradients of parameters and of the first input."""
    if not trains:
        with torch.no_grad():
            return [model(*inputs)]
    first = inputs[0].detach().requires_grad_()
    y = model(first, *inputs[1:])
    tangent = torch.sin(torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape).to(y.dtype)
    return [y, *torch.autograd.grad(y, [*parameters, first], tangent)]


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_f64(name: str) -> None:
    """No access out of bounds, no race, no unwritten read; the plan is an H200's."""
    case = CASES[name]
    torch.manual_seed(3)
    torch._dynamo.reset()
    model = case.model().to(case.dtype)
    inputs = tuple(x.to(case.dtype) if x.is_floating_point() else x for x in case.inputs())
    exact = copy.deepcopy(model).double()
    wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    compiled = torch.compile(model, backend=backend, dynamic=False, options=OPTIONS)
    got = outcomes(compiled, [*model.parameters()], inputs, case.trains)
    for found, wanted in zip(got, outcomes(exact, [*exact.parameters()], wide, case.trains), strict=True):
        assert (found.double() - wanted).abs().max() <= BOUNDS[case.dtype] * max(wanted.abs().max().item(), 1.0)
    assert "H200" in str(tilefuse.explain(compiled, json=True))


def test_wrong_combinations_say_so() -> None:
    """Another name of a device, times of kernels that do not run there, and a GPU beside a plan for one."""
    from tilefuse.driver.compile import present_device

    with pytest.raises(OptionError, match="measure"):
        tilefuse.compile(lambda x: x + 1, (torch.ones(3),), device="host", plan_for="h200", measure=True)
    with pytest.raises(OptionError, match="h300"):
        tilefuse.compile(lambda x: x + 1, (torch.ones(3),), device="host", plan_for="h300")
    with pytest.raises(OptionError, match="plan_for"):
        present_device("cuda", "h200")
