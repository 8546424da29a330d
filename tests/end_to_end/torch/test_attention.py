"""Attention as it arrives on a GPU: torch's flash, efficient and cuDNN operators, forward and backward, imported without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import _disable_current_modes

import tilefuse
from tilefuse.frontends.imported import Imported
from tilefuse.frontends.torch.decompositions import decompositions
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.ir.verify import check
from tilefuse.runtime.calls.library import OFF_THE_CPU, call_library
from tilefuse.runtime.spec import LibraryStep

A = torch.ops.aten


def flash(q: Any, k: Any, v: Any, grad: Any) -> Any:
    r = A._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
    return r[0], A._scaled_dot_product_flash_attention_backward(grad, q, k, v, *r[:6], 0.0, True, r[6], r[7])


def efficient(q: Any, k: Any, v: Any, grad: Any) -> Any:
    r = A._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, False)
    return r[0], A._scaled_dot_product_efficient_attention_backward(grad, q, k, v, None, *r, 0.0, [True, True, True, False], False)


def cudnn(q: Any, k: Any, v: Any, grad: Any) -> Any:
    return (A._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)[0],)


def imported(fn: Callable[..., Any]) -> Imported:
    with FakeTensorMode():
        operands = [torch.empty(2, 4, 64, 64, dtype=torch.float16, device="cuda") for _ in range(4)]
        gm = make_fx(fn, decomposition_table=decompositions())(*operands)
    with _disable_current_modes():
        return import_fx(gm, "attention")


@pytest.mark.parametrize("fn", [flash, efficient, cudnn])
def test_attention_is_a_library_call_by_design(fn: Callable[..., Any]) -> None:
    made = imported(fn)
    check(made.graph, "import")
    assert made.fallbacks == ()
    assert all(n.category == "library" for n in made.graph.nodes)


def test_numbers_among_results_reach_the_backward_call() -> None:
    backward = next(n for n in imported(flash).graph.nodes if n.detail.endswith("_backward.default"))
    args = backward.attribute("args")
    assert isinstance(args, tuple) and args[8:10] == (64, 64)


def test_attention_recorded_on_the_cpu_runs_elsewhere() -> None:
    """A model that lies on the CPU is compiled for a GPU: its attention is an operator that no GPU has."""
    q, k, v = (torch.randn(2, 3, 7, 8) for _ in range(3))
    program = tilefuse.compile(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True) + 1, (q, k, v), target="h200")
    (call,) = (s for s in program.spec.steps if isinstance(s, LibraryStep))
    attributes = dict(call.attributes)
    away = call_library(call.operator, [t.to("meta") for t in (q, k, v)], attributes)
    assert away[1] is None, "the CPU's operator, which gives logarithms too"
    here = call_library(call.operator, [q, k, v], attributes)[0]
    stand_in = OFF_THE_CPU[call.operator](q, k, v, 0.0, True)[0]
    assert here is not None and stand_in is not None and away[0] is not None and away[0].shape == here.shape
    torch.testing.assert_close(stand_in, here)
