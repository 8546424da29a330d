"""Recording a model in one run gives the graph that torch.export gives, leaves the model as it was, and says where it cannot."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilefuse
from tilefuse.base.errors import UnsupportedError
from tilefuse.driver.compile import import_model
from tilefuse.driver.torch import model as torch_model
from tilefuse.driver.torch.arguments import Arguments
from tilefuse.frontends.imported import Imported
from tilefuse.frontends.torch.fx import import_traced
from tilefuse.frontends.torch.trace import NOT_THIS_WAY, trace
from tilefuse.ir.text import print_graph

HELD = torch.arange(40.0)


def recorded(model: Callable[..., Any], *inputs: Any) -> Imported:
    """The graph of one run."""
    return import_traced(trace(model, inputs), "g")


def exported(model: Callable[..., Any], *inputs: Any) -> Imported:
    """The graph by way of torch.export."""
    return torch_model._exported(torch_model._export(model, inputs), "g", Arguments(model, inputs)).imported


class Holder(nn.Module):
    """Parameters, a buffer, an attribute that is a tensor."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(40))
        self.register_buffer("seen", torch.zeros(40))
        self.scale = torch.full((40,), 2.0)
        self.kept: Any = None
        self.found = forward

    def forward(self, x: Tensor, times: int = 2) -> Any:
        return self.found(self, x, times)


def every_kind(self: Holder, x: Tensor, times: int) -> dict[str, Any]:
    y = (x * self.weight).clamp_(0, 1).add_(self.seen) * times
    return {"y": y, "z": [self.scale * y, x], "n": 3}


EQUAL: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
    "convolutions": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)).eval(),
                     [torch.randn(2, 3, 8, 8)]),
    "encoder": (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(), [torch.randn(2, 5, 16)]),
    "recurrent": (nn.LSTM(4, 8).eval(), [torch.randn(3, 2, 4)]),
    "every kind": (Holder(every_kind), [torch.randn(40), 5]),
    "composite": (lambda x, y: torch.einsum("bij,bjk->bik", x, y).softmax(-1) @ x.mT, [torch.randn(2, 3, 4), torch.randn(2, 4, 4)]),
    "constants": (lambda x: x * HELD + torch.tensor([1.0, 2.0]).sum(), [torch.randn(40)]),
    "structure": (lambda d: {"a": d["x"] + d["y"][0], "b": (d["x"], None)}, [{"x": torch.randn(3), "y": [torch.randn(3)]}]),
}


@pytest.mark.parametrize("name", EQUAL)
def test_the_graph_is_that_of_export(name: str) -> None:
    """Nodes, names, constants, layouts and outputs."""
    model, inputs = EQUAL[name]
    one, other = recorded(model, *inputs), exported(model, *inputs)
    assert print_graph(one.graph) == print_graph(other.graph)
    for field in ("fallbacks", "layouts", "result_layouts", "arguments", "outputs"):
        assert getattr(one, field) == getattr(other, field), field
    assert list(one.constants) == list(other.constants)


def replaces_a_buffer(self: Holder, x: Tensor, times: int) -> Tensor:
    self.seen = self.seen + x
    return self.seen * 2


def keeps_a_result(self: Holder, x: Tensor, times: int) -> Tensor:
    self.kept = [x * 2]
    return x * times


def part_of_it_written(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y[0].fill_(0)
    return y, x


OTHERWISE: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "input written": (lambda x: x.add_(1), torch.randn(4)),
    "view of an input written": (lambda x: x[1:].add_(1), torch.randn(4)),
    "part written": (part_of_it_written, torch.randn(4, 4)),
    "buffer written": (Holder(lambda self, x, n: self.seen.add_(x)), torch.randn(40)),
    "buffer replaced": (Holder(replaces_a_buffer), torch.randn(40)),
    "result kept": (Holder(keeps_a_result), torch.randn(40)),
    "weight of a closure written": (lambda x: HELD.mul_(2) + x, torch.randn(40)),
    "control flow": (lambda x: x if x.sum() > 0 else -x, torch.randn(4)),
    "extent by data": (lambda x: x.nonzero(), torch.randn(4)),
    "higher order": (lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)), torch.randn(4)),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_left_to_export(name: str) -> None:
    """Nothing of the attempt stays in the model, and no number changes."""
    model, x = OTHERWISE[name]
    held, kept = HELD.clone(), x.clone()
    with pytest.raises(NOT_THIS_WAY):
        trace(model, (x,))
    assert torch.equal(HELD, held) and torch.equal(x, kept)
    if isinstance(model, Holder):
        assert type(model.weight) is nn.Parameter and torch.equal(model.seen, torch.zeros(40)) and model.kept is None


def test_errors_are_those_of_export() -> None:
    """Writes are refused in our words, control flow with torch's reason."""
    with pytest.raises(UnsupportedError, match="changes its buffers or inputs"):
        import_model(lambda x: x.add_(1), (torch.randn(4),))
    with pytest.raises(UnsupportedError, match="torch.export cannot trace .*data-dependent"):
        import_model(lambda x: x if x.sum() > 0 else -x, (torch.randn(4),))


def test_a_tensor_given_twice_is_two_arguments() -> None:
    """Later calls may give two."""
    x, y = torch.randn(6), torch.randn(6)
    program = tilefuse.compile(lambda a, b: a + 2 * b, (x, x))
    torch.testing.assert_close(program(x, y), x + 2 * y)
    by_export = tilefuse.compile(exported(lambda a, b: a + 2 * b, x, x))
    torch.testing.assert_close(by_export(x, y)[0], x + 2 * y)


def test_the_attempt_sees_the_lines_of_the_program() -> None:
    """An operator that cannot be expressed is told with its place."""
    node = next(n for n in trace(lambda x: F.gelu(x), (torch.randn(4),)).graph.nodes if n.op == "call_function")
    assert __file__ in node.meta["stack_trace"] and "F.gelu" in node.meta["stack_trace"]


def test_conversions_with_positional_arguments_are_no_calls_of_torch() -> None:
    """A norm's backward in half precision, taken apart by torch, converts with more arguments than the type."""
    g, x = torch.randn(2, 6, 8).half()
    mean, rstd = torch.zeros(6, 1), torch.ones(6, 1)
    w, b = torch.ones(2, 8).half()

    def backward(*given: Tensor) -> Any:
        return torch.ops.aten.native_layer_norm_backward(given[0], given[1], [8], *given[2:], [True, True, True])

    assert all(n.category != "library" for n in recorded(backward, g, x, mean, rstd, w, b).graph.nodes)
