"""Streams of calls with changing sizes: what is measured is right or told wrong, and the table shows it."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import readme, size_streams, sizes
from benchmarks.record import Record
from benchmarks.size_streams import TINY_SIZES, Stream, measured
from benchmarks.tables import sizes_table
from tilefuse.driver import torch_backend

HOST = torch.device("cpu")


def test_sizes_that_return_run_compiled() -> None:
    """Every size has a program after its second call, and results are as near to f64 as eager's. (Tests know no programs: calls wait.)"""
    torch_backend.reset()
    found = measured("returning/10", "tilefuse", True, HOST, settles=True)
    assert found["settled_in_torch"] == 0 and found["settled_programs"] == found["programs"]
    assert found["right"] and found["graphs"] == 2 and TINY_SIZES <= found["programs"] <= TINY_SIZES + 1
    assert found["calls_in_torch"] <= TINY_SIZES


def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judgement can fail: of numbers, and of tokens."""
    judged: list[torch.nn.Module] = []

    def noting(name: str) -> Callable[[bool, torch.device], Stream]:
        def make(tiny: bool, device: torch.device) -> Stream:
            made = streams[name](tiny, device)
            judged.append(made.model)
            return made
        return make

    streams = dict(size_streams.STREAMS)
    monkeypatch.setattr(size_streams, "STREAMS", {name: noting(name) for name in streams})
    for name, spoilt in (("returning/10", lambda y: y * 1.01), ("generate/40", lambda y: (y[0].roll(1, -1), y[1]))):
        def spoil(model: torch.nn.Module, peer: str, options: object = None, change: object = spoilt) -> object:
            class Spoilt(torch.nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.inner = model

                def forward(self, *arguments: object) -> object:
                    return change(self.inner(*arguments))  # type: ignore[operator]
            return Spoilt() if model in judged else model

        monkeypatch.setattr(size_streams, "compiled", spoil)
        assert not measured(name, "aot_eager", True, HOST)["right"]


class Runs:
    """Stands in for the measuring processes: `seconds` has the times of each measurement, round by round."""

    def __init__(self, seconds: dict[str, list[float]]) -> None:
        self.seconds = seconds
        self.began: list[tuple[str, bool]] = []
        self.caches: list[Path] = []
        self.seen: list[list[str]] = []

    def __call__(self, script: str, environment: dict[str, str], timeout_s: float) -> dict[str, Any]:
        cache = Path(environment["TILEFUSE_CACHE_DIR"])
        measurement = cache.parent.name.rpartition("-")[0]
        self.began.append((measurement, script.rstrip().endswith("True)))")))
        self.caches.append(cache)
        self.seen.append([p.name for p in cache.iterdir()] if cache.exists() else [])
        cache.mkdir(parents=True, exist_ok=True)
        (cache / f"of-{measurement}").touch()
        took = self.seconds[measurement].pop(0)
        found = {"status": "ok", "seconds": took, "third_seconds": took / 10, "right": True}
        return found | ({"settled_seconds": 7.0} if self.began[-1][1] else {})


def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Callable[..., dict[str, Any]], **options: Any) -> tuple[int, dict[str, Any]]:
    """Status of the suite on one stream, and its measurements."""
    monkeypatch.setattr(sizes, "python", runs)
    status = sizes.run(tmp_path, only="returning", tiny=True, peers=["aot_eager"], **options)
    path, = tmp_path.glob("sizes-*.json")
    return status, Record.load(path).cases["returning/10"]["peers"]


def test_peers_run_in_turn_and_the_median_run_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of all measurements; the run of the median gives the other figures, the background is waited for in the first round."""
    runs = Runs({"aot_eager": [3.0, 1.0, 2.0], "tilefuse": [2.0, 5.0, 4.0], "warm": [1.0, 2.0, 3.0], "tilefuse_later": [1.0, 1.5, 1.25]})
    status, found = ran(tmp_path, monkeypatch, runs)
    names = ["aot_eager", "tilefuse", "warm", "tilefuse_later"]
    assert status == 0 and [name for name, _ in runs.began] == names * 3
    assert [n for n, (_, settles) in enumerate(runs.began) if settles] == [1]
    assert {name: (m["seconds"], m["least_seconds"], m["most_seconds"], m["third_seconds"]) for name, m in found.items()} == {
        "aot_eager": (2.0, 1.0, 3.0, 0.2), "tilefuse": (4.0, 2.0, 5.0, 0.4), "warm": (2.0, 1.0, 3.0, 0.2),
        "tilefuse_later": (1.25, 1.0, 1.5, 0.125)}
    assert found["tilefuse"]["settled_seconds"] == 7.0 and found["tilefuse"]["num_runs"] == 3


def test_every_run_begins_with_the_same_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty ones of its own; a warm run with what the first process kept, and not with what a warm run left."""
    runs = Runs({name: [1.0] * 3 for name in ("aot_eager", "tilefuse", "warm", "tilefuse_later")})
    ran(tmp_path, monkeypatch, runs)
    assert len(set(runs.caches)) == 12
    assert runs.seen == [[], [], ["of-tilefuse"], []] * 3


def test_a_failure_or_a_wrong_result_in_any_round_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (change, key) in enumerate((({"status": "failed", "reason": "x"}, "reason"), ({"right": False, "error": 2.0}, "error"))):
        begun = 0

        def second_is_bad(*arguments: Any, change: dict[str, Any] = change) -> dict[str, Any]:
            nonlocal begun
            begun += 1
            return {"status": "ok", "seconds": 1.0 / begun, "right": True} | (change if begun == 6 else {})

        status, found = ran(tmp_path / str(number), monkeypatch, second_is_bad)
        assert begun == 12 and status == 1
        assert found["tilefuse"][key] == change[key] and key not in found["warm"]


def test_a_spent_budget_keeps_the_rounds_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that the end of the budget cuts short says nothing of its peer."""
    begun = 0

    def late(script: str, environment: dict[str, str], timeout_s: float) -> dict[str, Any]:
        nonlocal begun
        begun += 1
        assert timeout_s < sizes.TIMEOUT_S
        return {"status": "timeout"} if begun == 6 else {"status": "ok", "seconds": float(begun), "right": True}

    status, found = ran(tmp_path, monkeypatch, late, budget_s=100.0)
    assert status == 0 and begun == 6
    assert found["aot_eager"]["num_runs"] == 2 and found["aot_eager"]["seconds"] == 1.0
    assert found["tilefuse"]["num_runs"] == 1 and found["tilefuse"]["status"] == "ok"


def test_warm_brings_the_measurement_that_fills_its_cache() -> None:
    assert sizes.measurements(["eager", "warm"]) == ["eager", "tilefuse", "warm"]
    assert sizes.measurements(["tilefuse_later"]) == ["tilefuse_later"]
    assert sizes.measurements(None) == ["eager", "aot_eager", "inductor", "tilefuse", "warm", "tilefuse_later"]


def test_the_table_shows_ranges_of_several_runs(tmp_path: Path) -> None:
    """Ratios, here and in the README's line, are those of the medians."""
    peers = {"aot_eager": {"seconds": 2.0, "least_seconds": 1.5, "most_seconds": 2.5, "num_runs": 3},
             "tilefuse": {"status": "ok", "seconds": 1.0, "least_seconds": 1.0, "most_seconds": 1.0, "num_runs": 1, "right": True}}
    record = Record(tmp_path / "x.json", {}, {"generate/40": {"peers": peers}})
    row = sizes_table(record).splitlines()[2]
    assert row.startswith("| generate/40 | - | 2 (1.5 to 2.5) | - | 1 | - | - | 0.50 |")
    assert readme.totals(record) == [(None, 2.0, None)]


def test_the_table_shows_every_stream(tmp_path: Path) -> None:
    peers = {p: {"status": "ok", "seconds": n + 1.0, "third_seconds": 0.5, "right": True}
             for n, p in enumerate(("eager", "aot_eager", "inductor", "tilefuse", "warm", "tilefuse_later"))}
    peers["tilefuse"]["settled_seconds"] = 0.25
    record = Record(tmp_path / "x.json", {}, {"generate/40": {"peers": peers}, "failed": {"peers": {"tilefuse": {"status": "failed"}}}})
    rows = sizes_table(record).splitlines()
    wanted = "| generate/40 | 1 | 2 | 3 | 4 | 5 | 6 | 2.00 | 3.00 | 0.5 | 0.5 | 0.5 | 0.25 | right |"
    assert rows[2] == wanted and rows[3].endswith("| wrong |")
    assert len({row.count("|") for row in rows}) == 1
