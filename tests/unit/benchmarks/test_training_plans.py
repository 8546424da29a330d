"""Graphs and plans of training steps without a device: both parts are there, and attention is the call of a GPU."""
from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.launches import Launches
from benchmarks.suite_graphs import captured_graphs
from benchmarks.training_plans import planned_model
from benchmarks.training_steps import print_differences
from tilefuse.base.options import Options
from tilefuse.target.device import H200


def test_a_training_step_has_two_graphs() -> None:
    """Torch would compile the backward part at the first gradient, which nothing asks for."""
    model = nn.Linear(8, 4)
    graphs = captured_graphs(lambda x: model(x).square().sum(), (torch.zeros(2, 8),), is_training=True)
    assert len(graphs) == 2 and any(n.kind == "library.matmul" for n in graphs[1].graph.nodes)


@pytest.mark.parametrize("library", ["flash", "cudnn"])
def test_plans_of_a_step_by_either_option(library: str) -> None:
    """A library's call of each layer's gradients, or none of them; three kernels a layer more at most."""
    sides = {taken: planned_model("bert-base", H200, Options(attention_gradients=taken), library, tiny=True, batch=8)
             for taken in ("library", "kernels")}
    assert [p.kind for p in sides["library"]] == ["forward", "backward"]
    counts = {taken: parts[1].kinds() for taken, parts in sides.items()}
    call = f"call aten._scaled_dot_product_{library}_attention_backward.default"
    layers = counts["library"][call]
    assert layers and not counts["kernels"][call] and all(part.us > 0 for parts in sides.values() for part in parts)
    kernels = {taken: len(parts[1].made.plan.kernels) for taken, parts in sides.items()}
    assert kernels["kernels"] <= kernels["library"] + 3 * layers


def test_kernels_that_differ_between_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """The largest difference first; small ones are left out."""
    one, two = ({x.name: x for x in launches} for launches in (
        (Launches("call", 12.0, 900.0, "attention"), Launches("sum", 24.0, 48.0, "memory")),
        (Launches("walk", 24.0, 540.0, "memory"), Launches("sum", 24.0, 49.0, "memory"))))
    print_differences(one, two, "library", "kernels")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "kernels beside library: -359.0 us of all kernels"
    assert [line.split()[-1] for line in lines[1:]] == ["call", "walk"] and "-900.0" in lines[1] and "+540.0" in lines[2]
