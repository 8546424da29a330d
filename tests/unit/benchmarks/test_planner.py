"""The planner's benchmark: predictions beside measurements on the host executor, and the correlation of their ranks."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import planner
from tilefuse.target.device import H200


def test_a_small_run_prints_and_stores_the_correlation(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    from tilefuse.target.catalog import host_device

    monkeypatch.setattr(planner, "present_device", lambda: (host_device(), "host"))
    assert planner.run(tmp_path, only="row_sum|copy", quick=True, tiny=True) == 0
    out = capsys.readouterr().out
    assert "predicted" in out and "measured" in out and "rank correlation" in out
    record = json.loads((tmp_path / "planner-host.json").read_text())
    assert -1 <= record["rank_correlation"] <= 1 and len(record["kernels"]) == 3


def test_cases_are_planned_fused_and_node_by_node() -> None:
    name, graph = next(planner.cases("layer_norm", quick=True, tiny=True))
    made = list(planner.programs_of(graph, H200))
    assert name.startswith("layer_norm-f32") and [len(p.graph.nodes) for p in made] == [len(graph.nodes)] + [1] * len(graph.nodes)


@pytest.mark.parametrize(("pairs", "found"), [
    ([(1, 10), (2, 20), (3, 30)], 1.0), ([(1, 30), (2, 20), (3, 10)], -1.0), ([(1, 5), (2, 5)], 0.0), ([], 0.0),
    ([(1, 1), (2, 3), (3, 2), (4, 4)], 0.8)])
def test_rank_correlation(pairs: list[tuple[float, float]], found: float) -> None:
    assert planner.rank_correlation(pairs) == pytest.approx(found)
