"""The suite of calls: its cases, what it measures of one, and its table."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import calls
from benchmarks.called_models import MODELS
from benchmarks.peers import NotApplicable
from benchmarks.record import Record


def modes(default: float, overhead: float | None = None, wall: float = 10.0) -> dict[str, Any]:
    found = {"default": {"host_us": default, "wall_us": wall, "device_us": 5.0}}
    recorded = {"host_us": overhead, "wall_us": 10.0, "bare_host_us": 20.0, "bare_wall_us": 10.0}
    return {"status": "ok", "us": default, "modes": found | ({"reduce-overhead": recorded} if overhead else {})}


def test_table_and_verdict() -> None:
    cases = {"a/inference/f16/1": {"peers": {"eager": modes(400), "inductor": modes(200, 50), "tilefuse": modes(50, 25)}},
             "b/training/f32/8": {"peers": {"eager": modes(100), "inductor": modes(100, 50), "tilefuse": modes(200, 50, wall=20.0)}},
             "c/inference/f16/1": {"peers": {"eager": modes(1), "tilefuse": {"status": "skipped", "reason": "no timm"}}}}
    record = Record(Path("calls.json"), {"suite": "calls"}, cases)
    text = calls.markdown(record)
    assert "| a/inference/f16/1 | 0.400 | 0.200 | 0.050 | 0.25 | 0.050 | 0.025 | 0.50 |" in text
    assert "| a/inference/f16/1 | 0.010 | 0.010 | 0.010 | 0.010 | 0.010 | 1.00 | 0.005 |" in text
    assert "c/inference" not in text
    assert "default: 0.71 of torch.compile's host time in geometric mean of 2 calls, above it: b/training/f32/8 2.00" in text
    assert "reduce-overhead: 0.71" in text and "wall time above eager's: b/training/f32/8 2.00;" in text
    assert "1.77 of the bare replay's host time in geometric mean, above 1.1: a/inference/f16/1 1.25, b/training/f32/8 2.50;" in text
    assert "1.00 of the bare replay's wall time in geometric mean, above 1.1: none." in text


def test_cases_are_of_known_models() -> None:
    names = [c["name"] for c in calls.listed()]
    assert len(set(names)) == len(names) and all(n.split("/")[0] in MODELS for n in names)


@pytest.mark.parametrize("name", ["layers-50/training/f32/2"])
def test_eager_is_measured_on_the_host(name: str) -> None:
    found = calls.measure_call(name, "eager", torch.device("cpu"), tiny=True)
    assert found["status"] == "ok" and found["error"] < 1e-5 and found["us"] > 0 and list(found["modes"]) == ["default"]


def test_a_model_of_an_absent_package_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(NotApplicable, match="timm is not installed"):
        calls.measure_call("mobilenetv2/inference/f32/1", "eager", torch.device("cpu"), tiny=True)
