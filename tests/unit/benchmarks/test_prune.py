"""Pruned records: a line of history for every run, and the tables as they were."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import history, prune, tables
from benchmarks.record import Record
from benchmarks.report import OURS

EMPTY = "before\n<!-- runs:begin -->\n<!-- runs:end -->\nafter\n"


def run(folder: Path, hour: int, cases: dict[str, dict[str, float]]) -> Record:
    """A record of patterns with the times of peers, measured at an hour. Units: microseconds."""
    header: dict[str, Any] = {"suite": "patterns", "device": "a device", "cuda": "13", "commit": f"commit{hour}",
                              "time": f"2026-01-01T{hour:02}:00:00+00:00", "copy_bytes_per_s": 1e12, "inductor_mode": "default"}
    measured = {name: {p: {"status": "ok", "us": us, "bytes": 10**7} for p, us in peers.items()} for name, peers in cases.items()}
    entries = {name: {"family": "f", "min_of_limit": 0.9, "peers": peers} for name, peers in measured.items()}
    record = Record(folder / f"patterns-{hour:02}.json", header, entries)
    record.write()
    return record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four runs: one that later ones replace, one that gave a peer, one that gave a case, and the newest."""
    run(tmp_path, 1, {"a": {"eager": 80, OURS: 40}})
    run(tmp_path, 2, {"a": {"eager": 60, "inductor": 30, OURS: 20}, "b": {"eager": 60, OURS: 20}})
    run(tmp_path, 3, {"b": {"eager": 40, OURS: 10}})
    run(tmp_path, 4, {"a": {"eager": 60, OURS: 10}})
    (tmp_path / "patterns-01.png").write_bytes(b"")
    (tmp_path / "patterns-03.png").write_bytes(b"")
    (tmp_path / prune.PAGE).write_text(EMPTY, encoding="utf-8")
    return tmp_path


def test_only_runs_without_a_figure_in_the_tables_go(folder: Path) -> None:
    before = tables.patterns_table(history.newest_records(folder)["patterns"])
    assert [p.name for p in prune.prune(folder)] == ["patterns-01.json", "patterns-01.png"]
    assert sorted(p.name for p in folder.iterdir()) == ["history.md", "patterns-02.json", "patterns-03.json", "patterns-03.png",
                                                        "patterns-04.json"]
    assert tables.patterns_table(history.newest_records(folder)["patterns"]) == before


def test_every_run_has_one_line_of_history_for_good(folder: Path) -> None:
    """The newest first; a second pruning adds what came, and changes no line."""
    prune.prune(folder)
    first = (folder / prune.PAGE).read_text(encoding="utf-8")
    rows = [row for row in first.splitlines() if "| patterns-" in row]
    assert [row.split(" | ")[-1] for row in rows] == [f"patterns-{n:02} |" for n in (4, 3, 2, 1)]
    assert rows[2] == "| 2026-01-01 02:00 | patterns | 1 x a device | commit2 | 2 | 0.50 | 3.00 | 1.50 | default | - | patterns-02 |"
    run(folder, 5, {"a": {"eager": 60, OURS: 5}, "b": {OURS: 5}})
    prune.prune(folder)
    second = (folder / prune.PAGE).read_text(encoding="utf-8")
    assert [row for row in second.splitlines() if row not in first.splitlines()] == [
        "| 2026-01-01 05:00 | patterns | 1 x a device | commit5 | 2 | 2.00 | 12.00 | - | - | - | patterns-05 |"]
    assert first.splitlines()[0] == "before" and second.endswith("after\n")


def test_records_of_the_host_stay(folder: Path) -> None:
    record = run(folder, 6, {"a": {OURS: 5}})
    record.header["cuda"] = None
    record.write()
    prune.prune(folder)
    assert record.path.exists() and "patterns-06" not in (folder / prune.PAGE).read_text(encoding="utf-8")


def test_a_page_without_its_marks_is_an_error_before_anything_goes(folder: Path) -> None:
    (folder / prune.PAGE).write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="runs:begin"):
        prune.prune(folder)
    assert (folder / "patterns-01.json").exists()
