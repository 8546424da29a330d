"""Reductions of a product's whole rows in plans: in the product's kernel where its main loop is longer than its end, else behind it."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.templates.staged.pipelined.row_graphs import residual_norm, soft
from tilefuse.base.options import Options
from tilefuse.ir.graph import Graph
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.text.edit import plan_of_outline, setting_of_plan
from tilefuse.plan.text.text import parse_plan, print_plan
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.record import Pipelined


@pytest.mark.parametrize("graph", [lambda: residual_norm(16384, 768, 3072), lambda: soft(8192, 1000, 2048)], ids=["layer norm", "softmax"])
def test_whole_rows_are_reduced_in_scattered_clusters(graph: Callable[[], Graph]) -> None:
    """One kernel, whose notation gives the plan back."""
    plan = plan_graph(graph(), {}, H200, Options())
    (kernel,) = plan.kernels
    choice = kernel.program.choice
    assert not plan.library_calls and isinstance(choice, Pipelined) and choice.scattered and choice.pingpong
    again = plan_of_outline(parse_plan(print_plan(plan)), setting_of_plan(plan, H200, Options()))
    assert [(k.program.notation, k.cost) for k in again.kernels] == [(kernel.program.notation, kernel.cost)]


def test_short_inner_axes_leave_rows_to_kernels_of_their_own() -> None:
    """Twelve steps of the main loop are shorter than the exchange and the maps behind it."""
    plan = plan_graph(residual_norm(8192, 768, 768), {}, H200, Options())
    assert len(plan.kernels) + len(plan.library_calls) == 2
    assert not any(k.program.choice.scattered for k in plan.kernels if isinstance(k.program.choice, Pipelined))
