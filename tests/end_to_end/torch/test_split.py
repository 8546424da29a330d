"""Graphs in which torch must run some nodes: what lies between them is compiled all the same, and nothing changes."""
from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from tests.end_to_end.torch.strict import strict
from tilefuse.driver.torch.settings import settings_of
from tilefuse.driver.torch_backend import compile_part, compiled_parts

pytestmark = pytest.mark.usefixtures("fresh")


def close(made: object, wanted: object) -> None:
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)


def test_effects_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """A solver checks for errors in an order that torch keeps; the expressions before and after it are compiled, and train."""

    def solve(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.solve(a @ a.T + 3 * torch.eye(4), b.exp()).softmax(0)

    a, b = torch.randn(4, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    weights = torch.randn(4, 2)
    with caplog.at_level(logging.WARNING, logger="tilefuse"):
        made = torch.compile(solve, backend=strict)(a, b)
    wanted = solve(a, b)
    close(made, wanted)
    close(torch.autograd.grad((made * weights).sum(), (a, b)), torch.autograd.grad((wanted * weights).sum(), (a, b)))
    # Older releases of torch leave the check out of the graph.
    assert "in parts, since torch runs aten._linalg_check_errors.default" in caplog.text or torch.__version__ < (2, 13)
    assert len(compiled_parts("forward")) == 1 and len(compiled_parts("backward")) == 1


def test_inputs_are_written_last() -> None:
    """An input that is changed in place is read as it was by every part."""

    def step(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(a.sum())
        y = torch.linalg.solve(a, x)
        x.mul_(2)
        return y + x, x

    x, a = torch.randn(3, 3), torch.randn(3, 3) + 3 * torch.eye(3)
    mine, theirs = x.clone(), x.clone()
    made, wanted = torch.compile(step, backend=strict)(mine, a), step(theirs, a)
    close(made, wanted)
    close(mine, theirs)
    assert made[1] is mine


def test_branches_and_unknown_types() -> None:
    """A conditional and a type that tilefuse lacks run in torch; the rest is compiled."""

    def branch(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos() + 1, (x * 2,)).softmax(0)

    def narrow(x: Tensor) -> Tensor:
        return (x * 2).to(torch.float8_e4m3fnuz).float().sin() + 1

    run = torch.compile(branch, backend=strict)
    for x in (torch.ones(5), -torch.ones(5)):
        close(run(x), branch(x))
    x = torch.randn(33)
    close(torch.compile(narrow, backend=strict)(x), narrow(x))
    assert len(compiled_parts()) == 4


def test_dropout_in_a_checkpoint() -> None:
    """Recomputation of a checkpoint draws the same numbers: the gradient is that of the outputs' own mask."""
    layer = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Dropout(0.5))
    x = torch.randn(16, 8, requires_grad=True)
    made = torch.compile(lambda t: checkpoint(layer, t, use_reentrant=False), backend=strict)(x * 1.0)
    made.sum().backward()
    kept = (made != 0).to(torch.float32)
    close(x.grad, 2 * kept @ layer[0].weight)
    assert 0.2 < float(kept.mean()) < 0.8
    assert compiled_parts("forward") and compiled_parts("backward")


def test_a_size_that_depends_on_data() -> None:
    """With torch asked to keep such sizes in the graph, what has them runs in torch."""

    def count(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nonzero(x > 0).float().sum(0) * 2, (x * 3).sum()

    x = torch.randn(5, 4)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        close(torch.compile(count, backend=strict)(x), count(x))
    assert compiled_parts()


def test_a_size_that_torch_guessed() -> None:
    """Torch 2.11 traces `_unique` as if it found one element: torch runs it, and what reads it."""

    def gradient(g: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        return g.index_select(1, torch.ops.aten._unique(index)[0]).sum(), g * 2

    g, index = torch.randn(5, 5), torch.tensor([1, 3, 1, 3, 2])
    traced = make_fx(gradient)(g, index)
    Guesses(traced).run(g, torch.zeros_like(index))
    run = compile_part(traced, "inference", "guessed", settings_of(None, {"strict": True}))
    close(list(run([g, index])), list(gradient(g, index)))
    assert len(compiled_parts()) == 1


class Guesses(fx.Interpreter):
    """Notes what every node gives for these inputs as what torch traced."""

    def run_node(self, n: fx.Node) -> object:
        n.meta["val"] = super().run_node(n)
        return n.meta["val"]
