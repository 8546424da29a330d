"""Programs that torch need not take apart are imported as they are, to the same graph."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tilefuse.driver.compile import import_model
from tilefuse.frontends.torch.decompositions import decompositions, decompositions_with_gradients, is_taken_apart
from tilefuse.frontends.torch.fx import import_exported


def exported(function: Callable[[Tensor], object]) -> torch.export.ExportedProgram:
    """The function of one matrix as torch.export gives it."""

    class Function(torch.nn.Module):
        def forward(self, x: Tensor) -> object:
            return function(x)

    return torch.export.export(Function(), (torch.ones(4, 8),))


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    return (x * x - mean).sum(-1), torch.sqrt(x.abs()) / (mean + 2.0)


@pytest.mark.parametrize("function", [moments, lambda x: x.t(), lambda x: x.max(1), lambda x: (x, x.exp()[1:])],
                         ids=["moments", "view", "pair", "input"])
def test_nothing_is_gained_by_taking_them_apart(function: Callable[[Tensor], object]) -> None:
    """The graph, its results and their layouts are equal with and without."""
    program = exported(function)
    if is_taken_apart(program):
        whole = import_exported(program, "g")
        apart = import_exported(program.run_decompositions(decompositions()), "g")
        assert (whole.graph, whole.outputs, whole.layouts, whole.result_layouts) == (
            apart.graph, apart.outputs, apart.layouts, apart.result_layouts)
    assert is_taken_apart(exported(moments))


def test_a_loss_is_taken_apart_for_its_gradient_alone() -> None:
    """Pieces of large losses serve the partition between forward and backward; an exported program is not traced again for them."""
    assert is_taken_apart(exported(lambda x: torch.ops.aten._log_softmax(x, 1, False)))
    assert torch.ops.aten._log_softmax.default in decompositions_with_gradients()


@pytest.mark.parametrize("function", [
    lambda x: F.layer_norm(x, (8,)),
    lambda x: torch.matmul(x, x.t()),
    lambda x: x.clone().add_(1.0),
    lambda x: torch.special.i0e(x),
], ids=["decomposed", "composite", "in place", "without a lowering"])
def test_what_must_be_taken_apart(function: Callable[[Tensor], object]) -> None:
    """Operators of torch's tables, composites, writes, and what only torch may know how to express."""
    assert not is_taken_apart(exported(function))


def test_a_program_that_is_imported_as_it_is_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is not asked to take it apart."""
    def never(*_: object) -> None:
        raise AssertionError("taken apart")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", never)
    assert len(import_model(moments, (torch.ones(4, 8),)).graph.results) == 2
