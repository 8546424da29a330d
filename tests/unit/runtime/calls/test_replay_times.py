"""The clock of calibration and measuring, with a stand-in for the device: what is run, recorded and counted."""
from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tilefuse.runtime.calls import replay_times
from tilefuse.runtime.calls.replay_times import SKIPPED, replay_samples_us


class Device:
    """Replays take 3 ms, the first ones ten times as long."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.clock_ms = 0.0
        self.replays = 0
        self.Stream = lambda: SimpleNamespace(cuda_stream=77, wait_stream=lambda other: None, synchronize=lambda: self.done.append("wait"))
        self.CUDAGraph = lambda: SimpleNamespace(replay=self.replay)
        self.current_stream = lambda: None
        self.device = self.stream = lambda which: nullcontext()

    def replay(self) -> None:
        self.replays += 1
        self.clock_ms += 3.0 if self.replays > SKIPPED else 30.0

    def graph(self, graph: object, stream: object) -> nullcontext[None]:
        self.done.append("record")
        return nullcontext()

    def Event(self, enable_timing: bool) -> SimpleNamespace:
        event = SimpleNamespace(at=0.0, synchronize=lambda: None)
        event.record = lambda stream: setattr(event, "at", self.clock_ms)
        event.elapsed_time = lambda end: end.at - event.at
        return event


def test_calls_run_once_and_are_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls know their stream; a sample is a replay's time over the number of calls, without the first replays."""
    device = Device()
    monkeypatch.setattr(replay_times, "torch", SimpleNamespace(cuda=device))
    samples = replay_samples_us(lambda stream: [lambda name=name: device.done.append(f"{name}{stream}") for name in "ab"], 0, 4)
    assert samples == [1500.0] * 4 and device.replays == SKIPPED + 4
    assert device.done == ["a77", "b77", "wait", "record", "a77", "b77"]


def test_a_call_that_fails_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller says what it means."""
    monkeypatch.setattr(replay_times, "torch", SimpleNamespace(cuda=Device()))

    def fail() -> None:
        raise RuntimeError("misaligned address")

    with pytest.raises(RuntimeError, match="misaligned"):
        replay_samples_us(lambda stream: [fail], 0, 1)
