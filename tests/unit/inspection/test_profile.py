"""Measured runs: every step that ran is there once, what torch ran beside the programs too, and calls outside are as before."""
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import tilefuse
from tests.unit.inspection.test_subject import Block, Whole
from tilefuse.base.errors import UserError
from tilefuse.driver import torch_backend


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch_backend.reset()
    yield
    torch_backend.reset()


def test_a_step_of_training_has_all_its_parts(tmp_path: Path) -> None:
    model = torch.compile(Block(), backend="tilefuse")
    x = torch.randn(4, 8)
    found = tilefuse.profile(model, x, backward=True, repeats=3)
    data = found.json()
    assert [p["name"] for p in data["parts"]] == ["graph0_forward", "graph0_backward", "graph1_forward", "graph1_backward"]
    for part, program in zip(data["parts"], tilefuse.programs(model), strict=True):
        steps = program.program.spec.steps
        assert len(part["steps"]) == len(steps) and part["runs"] == 1
        assert all(s["us"] > 0 for s in part["steps"]) and part["us"] == pytest.approx(sum(s["us"] for s in part["steps"]), abs=0.1)
    totals = data["totals"]
    assert totals["kernel"] + totals["library"] + totals["copy"] == pytest.approx(sum(p["us"] for p in data["parts"]), abs=0.1)
    # The sum of the results and its gradient are no part of the compiled model.
    assert "aten.sum" in {o["operator"] for o in data["torch"]}
    assert any(s["path"] == "layers.0" for s in data["parts"][0]["steps"])
    json.dumps(data)
    trace = json.loads(found.write(tmp_path / "run.trace.json").read_text(encoding="utf-8"))["traceEvents"]
    shown = [e for e in trace if e["ph"] == "X" and e["tid"] == 2]
    assert len(shown) == sum(len(p["steps"]) for p in data["parts"]) and all(e["dur"] > 0 for e in shown)
    assert json.loads(found.write(tmp_path / "run.json").read_text(encoding="utf-8")) == data
    assert "graph1_backward" in str(found) and "kernels" in found.write(tmp_path / "run.txt").read_text(encoding="utf-8")


def test_calls_afterwards_are_not_measured() -> None:
    model = torch.compile(Whole(), backend="tilefuse")
    x = torch.randn(4, 8)
    wanted = model(x)
    tilefuse.profile(model, x, repeats=1)
    part, = tilefuse.programs(model)
    assert "_call" not in vars(part.program)
    calls = part.program.counts.calls
    torch.testing.assert_close(model(x), wanted)
    assert part.program.counts.calls == calls + 1


def test_a_function_given_as_call_and_a_program_of_compile() -> None:
    program = tilefuse.compile(Whole(), (torch.randn(4, 8),))
    x = torch.randn(4, 8)
    first, second = tilefuse.profile(program, x, repeats=2), tilefuse.profile(program, call=lambda: [program(x), program(x)], repeats=2)
    assert [p["runs"] for p in (*first.data["parts"], *second.data["parts"])] == [1, 2]
    assert first.data["torch"] == []


def test_what_cannot_be_measured_says_why() -> None:
    model = Whole()
    compiled = torch.compile(model, backend="tilefuse")
    x = torch.randn(4, 8)
    compiled(x)
    with pytest.raises(UserError, match="ran no program of Whole"):
        tilefuse.profile(compiled, call=lambda: model(x))
    with pytest.raises(UserError, match="one call at least"):
        tilefuse.profile(compiled, x, repeats=0)
    with pytest.raises(UserError, match="no result of the call has a gradient"):
        tilefuse.profile(torch.compile(nn.ReLU(), backend="tilefuse"), x, backward=True)


def test_times_of_the_device_are_those_of_the_work_inside_a_steps_range() -> None:
    """Two kernels of one step with a gap between them, then a step that runs twice at once; the program runs two times."""
    from types import SimpleNamespace

    from tilefuse.inspection.profile import _device_spans

    def event(name: str, start: float, end: float, annotation: bool = False) -> object:
        return SimpleNamespace(name=name, device_type="DeviceType.CUDA", is_user_annotation=annotation,
                               time_range=SimpleNamespace(start=start, end=end))

    events = [event("tilefuse_step 7 0", 0, 30, True), event("a", 0, 5), event("b", 20, 30), event("tilefuse_step 7 2", 50, 60, True),
              event("c", 50, 58), event("c", 52, 60), event("elsewhere", 70, 90), event("tilefuse_step 7 0", 100, 104, True),
              event("a", 100, 104)]
    assert _device_spans(events) == {7: [{0: (0, 15), 2: (15, 10)}, {0: (0, 4)}]}
