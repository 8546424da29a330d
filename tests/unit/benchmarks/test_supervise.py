"""The measuring process and whoever asks it: time-outs, crashes and the end of a run are answers."""
from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks.supervise import Bench

SILLY = {"what": "nothing of the kind"}


@pytest.mark.slow
def test_a_process_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    """The time-out costs one answer; the next request finds a fresh process; a killed one is told as crashed."""
    bench = Bench(tmp_path / "log")
    try:
        late = bench.ask(SILLY, 0.001)
        assert late == {"status": "timeout", "reason": "no answer within 0 s; log says where it was"} and bench.process is None
        assert bench.ask(SILLY, 120.0) == {"status": "skipped", "reason": "unknown request 'nothing of the kind'"}
        running = bench.process
        assert running is not None
        threading.Timer(0.0, running.kill).start()
        running.wait()
        crashed = bench.ask(SILLY, 120.0)
        assert crashed["status"] in ("crashed", "skipped") and bench.process is not running
    finally:
        bench.close()


def test_a_closed_bench_starts_nothing(tmp_path: Path) -> None:
    """Whatever another thread still asks."""
    bench = Bench(tmp_path / "log")
    bench.close()
    assert bench.ask(SILLY, 1.0) == {"status": "crashed", "reason": "the run has ended"} and bench.process is None
