"""The planner's benchmark: predictions beside measurements on the host executor, and the correlation of their ranks."""
from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import correlation, history, planner
from benchmarks.record import Record
from benchmarks.tables import planner_table
from tilefuse.base.options import Options
from tilefuse.runtime.cuda_api import has_device
from tilefuse.target.device import H200


def test_a_small_run_prints_and_stores_the_correlation(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    from tilefuse.target.catalog import host_device

    monkeypatch.setattr(planner, "present_device", lambda: (host_device(), "host"))
    assert planner.run(tmp_path, only="row_sum|copy|plan-logistic", quick=True, tiny=True) == 0
    out = capsys.readouterr().out
    assert "predicted" in out and "measured" in out and "rank correlation" in out
    record = Record.load(next(tmp_path.glob("planner-*.json")))
    assert -1 <= record.header["rank_correlation"] <= 1 and record.header["commit"]
    planned = [name for name in record.cases if name.startswith("plan-logistic")]
    assert planned and len(record.cases) == 3 + len(planned)
    assert sum(t["kernels"] for t in record.header["templates"].values()) == len(record.cases)


@pytest.mark.skipif(has_device(), reason="times the host executor")
def test_processes_measure_the_same_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes that take turns, and their rows in the order of the listing."""
    assert planner.run(tmp_path, only="row_sum|copy|plan-logistic", quick=True, tiny=True, processes=2) == 0
    record = Record.load(next(tmp_path.glob("planner-*.json")))
    names = list(record.cases)
    planned = [name for name in names if name.startswith("plan-logistic")]
    assert planned and len(names) == 3 + len(planned) and names[:len(planned)] == planned
    capsys.readouterr()


def test_nothing_is_planned_or_measured_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    """Cases behind the budget used to be compiled all the same."""
    from tilefuse.target.catalog import host_device

    monkeypatch.setattr(planner, "present_device", lambda: (host_device(), "host"))
    monkeypatch.setattr(planner, "programs_of", lambda *_: pytest.fail("scheduled"))
    assert planner.run(tmp_path, only="row_sum|copy", quick=True, tiny=True, budget_s=1e-9) == 0
    assert "0 kernels" in capsys.readouterr().out


def test_products_left_to_the_library_stand_beside_the_kernels_of_a_plan() -> None:
    """The planner's estimate for a call is a prediction like any other."""
    name, graph_of = next(planner.sources("plan-logistic", quick=True, tiny=False))
    kernels, calls = planner.planned(name, graph_of(), H200, Options(stitch=False))
    assert kernels and all(c.predicted_us > 0 for c in calls)
    assert calls[0].label == "plan-logistic call 100x784 by 784x10"


@pytest.mark.parametrize(("pairs", "found"), [
    ([(1, 10), (2, 20), (3, 30)], 1.0), ([(1, 30), (2, 20), (3, 10)], -1.0), ([(1, 5), (2, 5)], 0.0), ([], 0.0),
    ([(1, 1), (2, 3), (3, 2), (4, 4)], 0.8)])
def test_rank_correlation(pairs: list[tuple[float, float]], found: float) -> None:
    assert correlation.rank_correlation(pairs) == pytest.approx(found)


def test_the_table_of_two_runs_is_of_the_cases_of_both(tmp_path: Path) -> None:
    """A short run after a long one used to give its own figures for the kernels of both."""
    for time, measured in (("2026-01-01", {"a": 1.0, "b": 2.0, "c": 3.0}), ("2026-01-02", {"c": 1.5})):
        cases = {name: {"label": name, "template": "rows", "predicted_us": 1.0 + "abc".index(name), "measured_us": us}
                 for name, us in measured.items()}
        header = {"suite": "planner", "cuda": "13", "time": time, "rank_correlation": 0.0,
                  "templates": {"rows": {"kernels": len(cases), "rank_correlation": 0.0, "low": 9.0, "median": 9.0, "high": 9.0}}}
        Record(tmp_path / f"planner-{time}.json", header, cases).write()
    lines = planner_table(history.newest_records(tmp_path)["planner"]).splitlines()
    assert lines[2] == "| rows | 3 | 0.50 | 0.50 | 1.00 | 1.00 |"
    assert lines[-1] == "Over all 3 kernels and calls: 0.500."
