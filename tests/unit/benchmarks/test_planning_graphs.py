"""Large graphs for the planner's own time: of the size that is asked for, and planned the same however they are planned."""
from __future__ import annotations

import pytest

from benchmarks.compiler import figures
from benchmarks.planning_graphs import SHAPES
from tests.unit.plan.stand_in import schedule_by_rows
from tilefuse.base.options import Options
from tilefuse.ir.text import parse_graph
from tilefuse.ir.verify import verify
from tilefuse.plan.pattern import verify_plan
from tilefuse.plan.planner import plan_graph
from tilefuse.target.device import H200


@pytest.mark.parametrize("shape", SHAPES)
def test_a_graph_has_the_size_that_is_asked_for(shape: str) -> None:
    graph = parse_graph(SHAPES[shape](200))
    assert 190 <= len(graph.nodes) <= 220 and verify(graph) == []
    plan = plan_graph(graph, {}, H200, Options(), scheduler=schedule_by_rows)
    assert verify_plan(plan) == [] and plan.objective_us <= plan.unfused_us


def test_every_shape_is_measured() -> None:
    assert {f"plan/{shape}" for shape in SHAPES} <= {name for name, _ in figures()}
