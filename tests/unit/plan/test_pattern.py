"""Rules of a plan: each is kept by what the planner makes and found where it is broken."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.plan.graphs import layers
from tests.unit.plan.stand_in import schedule_by_rows
from tilefuse.base.options import Options
from tilefuse.plan.pattern import Pattern, Plan, verify_plan
from tilefuse.plan.planner import plan_graph
from tilefuse.target.device import H200


@pytest.fixture
def plan() -> Plan:
    return plan_graph(layers(2), {}, H200, Options(), scheduler=schedule_by_rows)


def test_a_made_plan_is_legal(plan: Plan) -> None:
    assert verify_plan(plan) == []


def test_steps_out_of_order_are_found(plan: Plan) -> None:
    found = verify_plan(replace(plan, steps=tuple(reversed(plan.steps))))
    assert {f.rule for f in found} == {"written-before-read"}


def test_a_value_written_twice_is_found(plan: Plan) -> None:
    found = verify_plan(replace(plan, steps=(*plan.steps, plan.steps[-1])))
    assert [(f.rule, f.where) for f in found] == [("one-writer", "x2")]


def test_a_missing_result_is_found(plan: Plan) -> None:
    found = verify_plan(replace(plan, steps=plan.steps[:-1]))
    assert [(f.rule, f.where) for f in found] == [("written-before-read", "x2")]


def test_a_pattern_is_a_graph_of_its_own(plan: Plan) -> None:
    graph = Pattern(("x1", "t1", "a1"), ("x1", "a1")).graph(plan.graph)
    assert [i.name for i in graph.inputs] == ["p0", "x0"]
    assert graph.results == ("x1", "a1") and [n.name for n in graph.nodes] == ["x1", "t1", "a1"]
