"""Training steps of attention as a benchmark: names of cases, and a line for each way that a case runs."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.attention.training import CASES, main, step_of


def test_names_of_cases() -> None:
    """All cases have names that are read back; others are errors."""
    assert [step_of(name).drop for name in CASES].count(0.0) == 1
    with pytest.raises(SystemExit, match="no case"):
        step_of("4x16x1024/0.1")


def test_a_line_for_each_way(tmp_path: Path) -> None:
    """On a CPU, our two ways."""
    torch._dynamo.reset()
    record = tmp_path / "lines"
    assert main(["1x2x16x8/0.25", "--device", "cpu", "--record", str(record)]) == 0
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    assert [line["way"] for line in lines] == ["kernels", "library"] and all(line["us"] > 0 for line in lines)
