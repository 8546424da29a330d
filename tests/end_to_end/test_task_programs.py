"""Whole models at the grid level on the host executor: right results, repeated calls, explanations and timelines."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tilefuse
from benchmarks.tasks import chain_kernel, chain_program
from tests.unit.templates.host_build import compiler
from tests.unit.templates.tasks.task_models import decode_step, normed_chain, recurrence
from tilefuse.base.errors import UserError
from tilefuse.inspection.task_times import task_times, write_timeline
from tilefuse.runtime.program import Program
from tilefuse.target.catalog import host_device

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
MODELS = {"decode": lambda: decode_step(2), "recurrence": lambda: recurrence(32), "chain": normed_chain}


def compiled(name: str, **options: Any) -> tuple[Any, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """A model at the grid level, its inputs, its results in f64."""
    model, inputs = MODELS[name]()
    with torch.no_grad():
        out = model.double()(*(x.double() for x in inputs))
        program = tilefuse.compile(model.float(), inputs, device="host", grid_level="always", **options)
    return program, inputs, out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Two calls of each: the second finds the counters at zero."""
    program, inputs, expected = compiled(name)
    assert any(k["template"] == "tasks" for k in program.explain(json=True)["kernels"])
    text = program.explain()
    assert " critical path " in text and "stage 1: body " in text and "awaits 0" in text
    for _ in range(2):
        results = program(*inputs)
        for a, b in zip(results if isinstance(results, (list, tuple)) else (results,), expected, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("waits", [True, False])
def test_chains(waits: bool) -> None:
    """The kernels that `benchmarks.tasks` times."""
    program = chain_program(chain_kernel(9, 5, 2, waits), host_device(), "host")
    x = torch.arange(5, dtype=torch.float32)
    assert torch.equal(program(x)[0], x + 9 if waits else (x + 1).repeat(9))


def test_timeline(tmp_path: Path) -> None:
    """Every task is an event, in the order in which the host runs them; without the option there are none."""
    program, inputs, _ = compiled("chain", task_times=True)
    program(*inputs)
    owner = getattr(program, "program", program)
    assert isinstance(owner, Program)
    times = task_times(owner)
    starts = [t.start_ns for t in times]
    assert starts == sorted(starts) and all(t.start_ns <= t.end_ns for t in times)
    events = json.loads(write_timeline(program, tmp_path / "tasks.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == len(times) == sum(n for k in owner.kernels for _, n in k.tasks)
    plain = chain_program(chain_kernel(2, 2, 1), host_device(), "host")
    with pytest.raises(UserError, match="records no tasks"):
        task_times(plain)


def test_measured_planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of tasks is timed like any other; its results agree with those of its parts, and the program with torch."""
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path))
    model, inputs = normed_chain(2)
    with torch.no_grad():
        expected = model.double()(*(x.double() for x in inputs))
        program = tilefuse.compile(model.float(), inputs, device="host", measure=True, grid_level="always")
        kernels = program.explain(json=True)["kernels"]
        assert [k["template"] for k in kernels] == ["tasks"] and kernels[0]["bound_by"] == "measurement"
        torch.testing.assert_close(program(*inputs).double(), expected, rtol=1e-4, atol=1e-5)
