"""What `explain --json` says under `plan`: how the integer program went, in data and in a sentence."""
from __future__ import annotations

from tests.unit.plan.graphs import layers, softmax
from tilefuse.driver.compile import generate_sources
from tilefuse.runtime.explanation import search_text
from tilefuse.runtime.spec_json import spec_from_json, spec_to_json


def test_the_integer_program_is_told() -> None:
    made = generate_sources(layers(3), device="h200", planner="ilp")
    plan = made.explain(json=True)["plan"]
    assert set(plan) == {"planner", "objective_us", "bound_us", "proven", "rounds", "cuts", "seconds", "greedy_us", "peak_bytes",
                         "candidates", "rejected"}
    assert plan["proven"] and plan["objective_us"] == plan["bound_us"] > 0 and plan["rounds"] > 0 and plan["seconds"] > 0
    assert plan["candidates"]["connect"] > 0
    assert "integer program saves" in made.explain() and " cuts and " in search_text(plan)
    assert "\n  search by " in made.spec.plan_text


def test_greedy_connecting_is_told() -> None:
    made = generate_sources(softmax(), device="h200", planner="greedy")
    plan = made.explain(json=True)["plan"]
    assert plan["planner"] == "greedy" and plan["rounds"] == 0 and plan["seconds"] is None and plan["bound_us"] is None
    assert search_text(plan) == ""


def test_equal_requests_give_equal_programs_whatever_time_they_took() -> None:
    first, second = (generate_sources(layers(3), device="h200", planner="ilp").spec for _ in range(2))
    assert first == second and spec_to_json(first) == spec_to_json(second)
    assert spec_from_json(spec_to_json(first)) == first
