"""Explanations of scripts: whole, in the script's words, with the predictions that the search chose by."""
from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import tilefuse
from tilefuse import blas
from tilefuse.runtime.explanation import explanation_data, explanation_text
from tilefuse.runtime.summary import steps_of, summary_lines
from tilefuse.scripts.explain import explained
from tilefuse.scripts.programs import Choice
from tilefuse.scripts.script import compile_script
from tilefuse.target.catalog import device_by_name

SCRIPT = """matrix A; vector p, r, x; input A, p, r, x;
q = sgemv(A, p);
s = sgemtv(A, r);
t = saxpy(2, q, x);
z = saxpy(3, t, s);
return q, s, z;"""
SIZES = {"A": (4096, 4096), "p": (4096,), "r": (4096,), "x": (4096,)}


def values_of(data: Mapping[str, Any]) -> set[str]:
    return {v["name"] for v in (*data["graph"]["inputs"], *data["graph"]["nodes"])}


@pytest.fixture(scope="module")
def choices() -> dict[str, Choice]:
    """One program of routines alone, and one that mixes them with kernels of templates."""
    script = compile_script(SCRIPT, name="steps")
    search = script.search(script.graph_for(SIZES), device_by_name("h200"))
    found: dict[str, Choice] = {}
    for combination in itertools.islice(search.combinations(4), 400):
        kinds = {p.kind for p in combination.parts}
        name = "mixed" if len(kinds) == 2 else kinds.pop()
        if combination.parts[0].decision and name not in found:
            found[name] = explained(search, search.build(combination))
    return found


@pytest.mark.parametrize("name", ["routines", "mixed"])
def test_the_explanation_holds_together(choices: Mapping[str, Choice], name: str) -> None:
    choice = choices[name]
    data = explanation_data(choice.spec)
    known = values_of(data)
    steps = steps_of(data)
    assert len(steps) == len(choice.spec.steps) and all(s.us > 0 for s in steps)
    for record in data["kernels"]:
        assert {*record["nodes"], *record["reads"], *record["writes"]} <= known
    for node in data["graph"]["nodes"]:
        assert set(node["reads"]) <= known and node["place"].startswith("steps:")
    assert {"q", "s", "t", "z"} <= known
    assert [s.us for s in steps] == [k["predicted_us"] for k in data["kernels"]]
    assert sum(s.us for s in steps) == pytest.approx(data["totals"]["us"], abs=1e-2)
    assert sum(us for s in steps for _, us in s.causes) == pytest.approx(data["totals"]["us"], abs=1e-2)
    routines_us = sum(k["predicted_us"] for k in data["kernels"] if k["template"] == "routines")
    assert choice.combination is not None
    assert routines_us == pytest.approx(sum(p.predicted_us for p in choice.combination.parts if p.kind == "routines"), abs=1e-2)
    assert data["totals"]["unfused_us"] > data["totals"]["us"] and data["unfused_kernels"] == 4
    assert data["device"] == "h200" and explanation_text(data).startswith("steps on h200: ")


def test_the_summary_speaks_of_the_calls(choices: Mapping[str, Choice]) -> None:
    text = "\n".join(summary_lines(explanation_data(choices["mixed"].spec)))
    for piece in ("sgemv + sgemtv (k", "at steps:2-3)", "saxpy", "at full bandwidth", "time by cause", "calls of different nesting depth"):
        assert piece in text, text
    cleared = [s.title for s in steps_of(explanation_data(choices["routines"].spec)) if s.title.startswith("clear")]
    assert all(set(title.removeprefix("clear ").split(", ")) <= {"q", "s"} for title in cleared)


def test_a_fusion_that_takes_longer_is_told_with_both_times() -> None:
    script = compile_script("vector x, y; input x, y; u = saxpy(2, x, y); v = saxpy(3, x, y); return u, v;", kind="routines")
    search = script.search(script.graph_for({"x": (1 << 20,), "y": (1 << 20,)}), device_by_name("h200"))
    apart = next(c for c in search.combinations(1) if len(c.parts) == 2)
    (row,) = explanation_data(explained(search, search.build(apart)).spec)["rejected"]
    assert (row["first"], row["second"], row["reason"]) == ("u", "v", "worse-than-incumbent") and row["detail"].endswith("us apart")


def test_a_script_of_routines_is_explained_where_it_was_compiled() -> None:
    script = blas.compile(SCRIPT, name="steps", kind="routines")
    for n in (64, 128):
        script(np.ones((n, n), np.float32), *(np.ones(n, np.float32),) * 3)
    data = tilefuse.explain(script, json=True)
    assert len(data["parts"]) == 2 and data["unfused_us"] > data["objective_us"] > 0
    text = tilefuse.explain(script)
    assert "costliest places" in text and "at steps:2-3)" in text and text.count("== steps for") == 2
    assert all(str(made.program.explain()).startswith("steps on host: ") for made in script.programs)
    measured = tilefuse.profile(script, np.ones((64, 64), np.float32), *(np.ones(64, np.float32),) * 3, repeats=1)
    assert all(s["bytes"] and s["place"].startswith("steps:") for p in measured.data["parts"] for s in p["steps"])
