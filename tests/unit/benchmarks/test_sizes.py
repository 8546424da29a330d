"""Streams of calls with changing sizes: what is measured is right or told wrong, and the table shows it."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import size_streams
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


def test_the_table_shows_every_stream(tmp_path: Path) -> None:
    peers = {p: {"status": "ok", "seconds": n + 1.0, "third_seconds": 0.5, "right": True}
             for n, p in enumerate(("eager", "aot_eager", "inductor", "tilefuse", "warm", "tilefuse_later"))}
    peers["tilefuse"]["settled_seconds"] = 0.25
    record = Record(tmp_path / "x.json", {}, {"generate/40": {"peers": peers}, "failed": {"peers": {"tilefuse": {"status": "failed"}}}})
    rows = sizes_table(record).splitlines()
    wanted = "| generate/40 | 1 | 2 | 3 | 4 | 5 | 6 | 2.00 | 3.00 | 0.5 | 0.5 | 0.5 | 0.25 | right |"
    assert rows[2] == wanted and rows[3].endswith("| wrong |")
    assert len({row.count("|") for row in rows}) == 1
