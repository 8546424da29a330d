"""The entry `plan` of `explain --json`: how the integer program went, in data and in a sentence."""
from __future__ import annotations

from tests.unit.plan.graphs import layers, softmax
from tilefuse.driver.compile import generate_sources
from tilefuse.runtime.explanation import search_text
from tilefuse.runtime.spec_json import spec_from_json, spec_to_json


def test_the_integer_program_is_told() -> None:
    made = generate_sources(layers(3), device="h200", planner="ilp")
    plan = made.explain(json=True)["plan"]
    assert set(plan) == {"planner", "objective_us", "bound_us", "proven", "rounds", "cuts", "seconds", "greedy_us", "peak_bytes",
                         "candidates", "rejected", "start"}
    assert plan["proven"] and plan["objective_us"] == plan["bound_us"] > 0 and plan["rounds"] > 0 and plan["seconds"] > 0
    assert plan["candidates"]["connect"] > 0
    assert "integer program" in made.explain() and " cuts and " in search_text(plan)
    assert "\n  search by " in made.spec.plan_text


def test_greedy_connecting_is_told() -> None:
    made = generate_sources(softmax(), device="h200", planner="greedy")
    plan = made.explain(json=True)["plan"]
    assert plan["planner"] == "greedy" and plan["rounds"] == 0 and plan["seconds"] is None and plan["bound_us"] is None
    assert search_text(plan) == ""


def told(planner: str, **more: object) -> str:
    """The sentence about a search."""
    search = {"planner": planner, "objective_us": 4.0, "bound_us": 5.0, "proven": True, "rounds": 2, "cuts": 1, "seconds": 0.25,
              "greedy_us": 9.0, "candidates": {"connect": 3, "packing": 1}}
    return search_text(search | more)


def test_whose_plan_it_is_is_told() -> None:
    """A plan that both found is not told as one that beat the other."""
    effort = "in 2 rounds with 1 cuts and 0.25 s; candidates: 3 by connect, 1 by packing"
    assert told("ilp") == f"plan of the integer program: saves 4.0 us, which is the optimum, {effort}; greedy connecting's takes 9.0 us"
    assert told("both") == ("plan of greedy connecting, and of the integer program: no choice of candidates saves more than 4.0 us "
                            f"(which is the optimum), {effort}")
    assert "no choice of candidates that was found saves more than 4.0 us (at most 5.0 us)" in told("both", proven=False)
    assert told("greedy").startswith("plan of greedy connecting: with packed kernels it is cheaper than the integer program's")
    assert told("greedy", rounds=0).startswith("plan of greedy connecting; nothing to choose")


def test_a_solver_without_time_is_told() -> None:
    """It used to say that there was nothing to choose."""
    made = generate_sources(layers(3), device="h200", plan_seconds=0)
    plan = made.explain(json=True)["plan"]
    assert not plan["proven"] and plan["rounds"] == 0 and plan["bound_us"] > plan["objective_us"]
    assert "(plan_seconds) was over before the integer program chose; no choice saves more than" in made.explain()


def test_a_plan_that_both_find_says_so() -> None:
    """Softmax is one kernel whoever plans; the generators of the kernels are told."""
    made = generate_sources(softmax(), device="h200", planner="ilp")
    assert made.explain(json=True)["plan"]["planner"] == "both"
    assert "plan of greedy connecting, and of the integer program" in made.explain() and "  kernels: 1 by connect" in made.explain()


def test_equal_requests_give_equal_programs_whatever_time_they_took() -> None:
    first, second = (generate_sources(layers(3), device="h200", planner="ilp").spec for _ in range(2))
    assert first == second and spec_to_json(first) == spec_to_json(second)
    assert spec_from_json(spec_to_json(first)) == first
