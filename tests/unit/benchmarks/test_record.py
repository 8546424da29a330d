"""Records of one run's parts become one record, and parts that do not belong together are refused."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.record import Record, joined


def part(folder: Path, name: str, cases: list[str], copy: float, **header: Any) -> Record:
    """A small record of one GPU."""
    record = Record(folder / f"patterns-{name}.json", {
        "suite": "patterns", "commit": "c0ffee", "device": "GPU", "time": name, "copy_bytes_per_s": copy, "flops_per_s": {"f32": copy},
        "devices": {"0": {"copy_bytes_per_s": copy}}, **header}, {})
    for case in cases:
        record.add(case, {"name": case, "device": "0"}, "tilefuse", {"status": "ok", "us": 1.0})
    return record


def test_parts_are_joined(tmp_path: Path) -> None:
    """Cases of all parts, each case's GPU with its own figures, and medians of rates."""
    found = joined([part(tmp_path, "2", ["b", "a"], 4.0), part(tmp_path, "1", ["c"], 2.0), part(tmp_path, "3", [], 1.0)], tmp_path / "out")
    assert list(found.cases) == ["b", "a", "c"]
    assert found.path == tmp_path / "out" / "patterns-1.json"
    assert (found.header["time"], found.header["num_parts"]) == ("1", 3)
    assert found.header["copy_bytes_per_s"] == 2.0
    assert found.header["flops_per_s"] == {"f32": 2.0}
    assert {c: found.header["devices"][found.cases[c]["device"]]["copy_bytes_per_s"] for c in found.cases} == {"b": 4.0, "a": 4.0, "c": 2.0}


@pytest.mark.parametrize(("other", "cases", "told"), [
    ({"commit": "decade"}, ["b"], "commit is decade and c0ffee"), ({"device": "GPU 2"}, ["b"], "device is GPU 2"), ({}, ["a"], "holds a,"),
])
def test_parts_of_other_runs_are_refused(tmp_path: Path, other: dict[str, Any], cases: list[str], told: str) -> None:
    """Another commit or machine, and a case that was measured twice."""
    with pytest.raises(ValueError, match=told):
        joined([part(tmp_path, "1", ["a"], 4.0), part(tmp_path, "2", cases, 4.0, **other)], tmp_path)


def test_join_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cases lie in the suite's order; what cannot be joined leaves no file."""
    for folder in ("1", "2"):
        (tmp_path / folder).mkdir()
    part(tmp_path / "1", "1", ["softmax/f32/8192x4096"], 4.0)
    part(tmp_path / "2", "2", ["gelu-bias/f16/16384x4096"], 4.0)
    out = tmp_path / "out"
    assert main(["join", str(tmp_path), "--out", str(out)]) == 0
    assert "2 parts, 2 cases" in capsys.readouterr().out
    (found,) = out.glob("*.json")
    names = list(Record.load(found).cases)
    assert names.index("gelu-bias/f16/16384x4096") < names.index("softmax/f32/8192x4096")
    found.unlink()
    part(tmp_path / "2", "3", ["gelu-bias/f16/16384x4096"], 4.0)
    assert main(["join", str(tmp_path), "--out", str(out)]) == 1
    assert "another part holds too" in capsys.readouterr().err
    assert not list(out.iterdir())
