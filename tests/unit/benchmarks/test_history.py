"""Several records of a suite as one: each case of the newest run that tried it, with the bandwidth of that run."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import history, results_page
from benchmarks.record import Record
from benchmarks.report import OURS, limit_us, rows


def ok(us: float) -> dict[str, Any]:
    """A measured peer of a case that moves 10 MB."""
    return {"status": "ok", "us": us, "bytes": 10**7}


def run(folder: Path, hour: int, cases: dict[str, dict[str, Any]], *, device: str = "a device", copy: float = 1e12,
        torch: str = "2") -> None:
    """A record of the suite `patterns` in a folder, taken at an hour."""
    header = {"suite": "patterns", "device": device, "cuda": "13", "commit": f"c{hour}", "time": f"2026-01-01T{hour:02}:00:00+00:00",
              "copy_bytes_per_s": copy, "versions": {"torch": torch}}
    folder.mkdir(exist_ok=True)
    Record(folder / f"patterns-{hour:02}.json", header, {n: {"family": "f", "peers": peers} for n, peers in cases.items()}).write()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A full run; then one case again without peers, in a folder below; then another that was skipped, and one that no suite has now."""
    run(tmp_path, 1, {name: {"eager": ok(40), "inductor": ok(20), OURS: ok(20)} for name in ("a", "b", "gone")})
    run(tmp_path / "parts", 2, {"a": {OURS: ok(10)}}, copy=2e12)
    run(tmp_path, 3, {"b": {OURS: {"status": "skipped"}}})
    return tmp_path


def test_each_case_is_of_the_newest_run_that_tried_it(runs: Path) -> None:
    """Its time, and the limit by that run's own bandwidth."""
    record = history.newest_records(runs, {"patterns": ["b", "a"]})["patterns"]
    assert list(record.cases) == ["b", "a"]
    assert [(r[OURS], r["vs inductor"]) for r in rows(record, ["eager", "inductor"])] == [(20, 1.0), (10, 2.0)]
    assert [limit_us(record, entry) for entry in record.cases.values()] == pytest.approx([10.0, 5.0])
    assert [(r["file"], r["num_cases"]) for r in record.header["runs"]] == [("parts/patterns-02.json", 1), ("patterns-01.json", 1)]


def test_the_page_says_whose_times_are_of_an_earlier_run(runs: Path) -> None:
    """Commits with their cases, links that lead to the files, and peers by name."""
    told = results_page.provenance(history.newest_records(runs)["patterns"])
    assert "1 case of commit c2, 2026-01-01 ([patterns-02.json](../benchmarks/results/parts/patterns-02.json))" in told
    assert "2 cases of commit c1" in told
    assert "of an earlier run than tilefuse's, on a device of the same kind: eager in 1 case, torch.compile in 1 case" in told


def test_the_page_says_in_which_mode_torch_compile_ran_where_runs_differ(tmp_path: Path) -> None:
    run(tmp_path, 1, {"a": {"inductor": ok(20), OURS: ok(20)}})
    run(tmp_path, 2, {"b": {"inductor": ok(20), OURS: ok(20)}})
    assert "mode" not in results_page.provenance(history.newest_records(tmp_path)["patterns"])
    for path, mode in zip(sorted(tmp_path.iterdir()), ("default", "max-autotune"), strict=True):
        record = Record.load(path)
        record.header["inductor_mode"] = mode
        record.write()
    told = results_page.provenance(history.newest_records(tmp_path)["patterns"])
    assert told.index("commit c2") < told.index("torch.compile's mode max-autotune") < told.index("torch.compile's mode default")


@pytest.mark.parametrize("other", [{"device": "another"}, {"torch": "1"}])
def test_peers_of_another_setting_are_not_taken(tmp_path: Path, other: dict[str, str]) -> None:
    """A device or a torch of another kind says nothing about this one."""
    run(tmp_path, 1, {"a": {"eager": ok(40), OURS: ok(20)}}, **other)
    run(tmp_path, 2, {"a": {OURS: ok(10)}})
    assert list(history.newest_records(tmp_path)["patterns"].cases["a"]["peers"]) == [OURS]


def test_a_failure_is_newer_than_an_older_success(tmp_path: Path) -> None:
    """A failure now is told, not hidden behind an earlier result."""
    run(tmp_path, 1, {"a": {OURS: ok(20)}, "b": {OURS: ok(20)}})
    run(tmp_path, 2, {"a": {OURS: {"status": "wrong"}}})
    record = history.newest_records(tmp_path)["patterns"]
    assert rows(record, [])[0][OURS] is None
    assert results_page.provenance(record).endswith("no result of tilefuse: a")
