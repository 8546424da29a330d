"""flex_attention as torch.compile hands it over: its functions of scores and masks become the definition, one kernel on an H200."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from tilefuse.base.options import Options
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.manager import PassContext, Pipeline
from tilefuse.plan.planner import plan_graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.template import pipelined_walk_of

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 256, 32
SLOPES = torch.linspace(0.1, 1.0, HEADS)
BIAS = torch.randn(HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1))
DOCUMENTS = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) // 100
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

SCORES: dict[str, Score | None] = {
    "none": None,
    "slopes": lambda s, b, h, r, c: s + (c - r) * SLOPES[h],
    "cap": lambda s, b, h, r, c: 2 * torch.tanh(s / 2),
    "bias": lambda s, b, h, r, c: s + BIAS[h, r, c],
    "masked": lambda s, b, h, r, c: torch.where(r >= c, s, -math.inf),
}
MASKS: dict[str, Mask | None] = {
    "none": None,
    "causal": lambda b, h, r, c: c <= r,
    "window": lambda b, h, r, c: (c <= r) & (r - c < 40),
    "prefix": lambda b, h, r, c: (c <= r) | (c < 70),
    "documents": lambda b, h, r, c: (c <= r) & (DOCUMENTS[b, r] == DOCUMENTS[b, c]),
    "hidden rows": lambda b, h, r, c: c + 30 <= r,
}


def blocks(mask: Mask | None) -> BlockMask | None:
    """The table of blocks of a mask."""
    return None if mask is None else create_block_mask(mask, BATCH, HEADS, LENGTH, LENGTH, device="cpu")


def operands(dtype: torch.dtype, shared: int = 1) -> list[Tensor]:
    """Queries, keys and values."""
    random = torch.Generator().manual_seed(3)
    return [torch.randn(BATCH, n, LENGTH, WIDTH, generator=random).to(dtype) for n in (HEADS, HEADS // shared, HEADS // shared)]


@pytest.mark.parametrize(("score", "mask"), [("slopes", "causal"), ("cap", "window"), ("bias", "none"), ("masked", "prefix"),
                                             ("slopes", "documents"), ("none", "hidden rows")])
def test_results_are_those_of_eager(score: str, mask: str) -> None:
    """In f32, with heads that share keys; the logarithms too."""
    table = blocks(MASKS[mask])

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=SCORES[score], block_mask=table, enable_gqa=True, return_lse=True)

    q, k, v = operands(torch.float32, shared=2)
    with torch.no_grad():
        wanted = attend(q, k, v)
        got = torch.compile(attend, backend="tilefuse", dynamic=False, fullgraph=True)(q, k, v)
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("score", "mask", "bounded"), [
    ("none", "none", False), ("slopes", "causal", True), ("cap", "window", True), ("bias", "none", False), ("none", "prefix", True),
    ("masked", "none", True), ("slopes", "documents", True),
])
def test_one_kernel_holds_it(score: str, mask: str, bounded: bool) -> None:
    """Scores never reach memory; masks that bound the columns of a row leave tiles out."""
    modules: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        modules.append(module)
        return module.forward

    table = blocks(MASKS[mask])
    torch._dynamo.reset()
    with torch.no_grad():
        try:
            torch.compile(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES[score], block_mask=table),
                          backend=aot_autograd(fw_compiler=keep), dynamic=False)(*operands(torch.float16))
        except Exception:
            assert modules
    graph = Pipeline.parse(DEFAULT_PIPELINE).run(import_fx(modules[0], "flex").graph, PassContext())
    plan = plan_graph(graph, {}, H200, Options())
    assert not plan.library_calls
    # The online kernel where it is predicted faster, as for so few rows.
    walks = [k for k in plan.kernels if k.program.template in ("pipelined_walk", "online")]
    assert len(walks) == 1
    if walks[0].program.template == "pipelined_walk":
        assert (pipelined_walk_of(walks[0].program).form.limit is not None) == bounded
    assert all(plan.graph.type_of(v).num_elements < HEADS * BATCH * LENGTH * LENGTH for k in plan.kernels for v in k.pattern.written)
