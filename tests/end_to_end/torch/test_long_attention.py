"""Attention written out in torch, as torch.compile hands it over, at lengths whose scores no block holds: one kernel on an H200."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from tilefuse.base.options import Options
from tilefuse.frontends.torch.decompositions import decompositions
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.manager import PassContext, Pipeline
from tilefuse.plan.pattern import Plan
from tilefuse.plan.planner import plan_graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.walked.record import PipelinedWalk

LENGTH, WIDTH = 4096, 64


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * WIDTH**-0.5, -1) @ v


def scaled_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q * WIDTH**-0.5 @ k.mT).softmax(-1) @ v


def in_f32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * WIDTH**-0.5
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(LENGTH)
    scores = q @ k.mT * WIDTH**-0.5
    return scores.masked_fill(place > place[:, None], float("-inf")).softmax(-1) @ v


def lower_triangle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return torch.where(seen, q @ k.mT * WIDTH**-0.5, float("-inf")).softmax(-1) @ v


def relative(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A bias that falls with the distance, a slope a head."""
    place = torch.arange(LENGTH, dtype=torch.float32)
    slopes = torch.arange(1, q.shape[1] + 1, dtype=torch.float32) / q.shape[1]
    bias = -(place[:, None] - place).abs() * slopes[:, None, None]
    return (q @ k.mT * WIDTH**-0.5 + bias.to(q.dtype)).softmax(-1) @ v


def planned(function: Callable[..., Tensor], dtype: torch.dtype) -> Plan:
    """The plan for an H200 of what torch traces."""
    with FakeTensorMode():
        operands = [torch.empty(2, 8, LENGTH, WIDTH, dtype=dtype) for _ in range(3)]
        traced = make_fx(function, decomposition_table=decompositions())(*operands)
    with _disable_current_modes():
        graph = import_fx(traced, "attention").graph
    return plan_graph(Pipeline.parse(DEFAULT_PIPELINE).run(graph, PassContext()), {}, H200, Options())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("function", [plain, scaled_first, in_f32, causal, lower_triangle, relative], ids=lambda f: f.__name__)
def test_long_attention_is_one_kernel(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """No library call and no scores in memory, whatever stands between the products."""
    plan = planned(function, dtype)
    walks = [k for k in plan.kernels if isinstance(k.program.choice, Online if dtype == torch.float32 else PipelinedWalk)]
    assert not plan.library_calls and len(walks) == 1
    scores = 2 * 8 * LENGTH * LENGTH
    assert all(plan.graph.type_of(v).num_elements < scores for k in plan.kernels for v in k.pattern.written)
    # Tensor copies bring queries from memory: those that a map scales are stored first.
    assert len(plan.kernels) == 1 or function is relative or function is scaled_first and dtype != torch.float32
