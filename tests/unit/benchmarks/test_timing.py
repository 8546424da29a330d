"""Queues of calls that can only be waited for as a whole: how many rounds stand between two waits, and how often each input set is used."""
from __future__ import annotations

import pytest
import torch

from benchmarks import timing
from benchmarks.case import Case
from benchmarks.peers import GRAPH_CALLS, LONG_CALL_FLOPS, num_rounds


class Device:
    """A device that works on its queue while time is only asked for: each round takes `round_s`, each wait ends when all are done."""

    def __init__(self, round_s: float) -> None:
        self.round_s = round_s
        self.now_s = self.free_s = 0.0
        self.rounds_each: list[int] = []
        self.queued = 0

    def clock(self) -> float:
        return self.now_s

    def enqueue(self) -> None:
        self.free_s = max(self.free_s, self.now_s) + self.round_s
        self.queued += 1

    def wait(self, _: object) -> None:
        self.now_s = self.free_s
        self.rounds_each.append(self.queued)
        self.queued = 0


@pytest.mark.parametrize(("round_s", "rounds"), [(1e-4, timing.QUEUE_ROUNDS), (timing.QUEUE_S / 3.5, 4), (1.0, 1)])
def test_long_rounds_are_waited_for_sooner(round_s: float, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a call is the same; a queue of long calls does not hold up the run."""
    device = Device(round_s)
    monkeypatch.setattr(timing.time, "perf_counter", device.clock)
    measured = timing.time_queue(device.enqueue, device.wait, calls_each=2)
    assert measured.median_us == pytest.approx(round_s * 1e6 / 2)
    assert device.rounds_each[:2] == [1, 1] and set(device.rounds_each[2:]) == {rounds} and measured.calls >= 7


def test_long_calls_are_queued_once_for_each_input_set() -> None:
    """What a replay costs besides is little beside them."""
    def case(flops: float) -> Case:
        return Case("c", "c", "f32", torch.tanh, lambda device, generator: [], flops=int(flops))

    assert [num_rounds(case(0), n) for n in (1, 2, 3, 64)] == [GRAPH_CALLS, GRAPH_CALLS // 2, GRAPH_CALLS // 3, 1]
    assert num_rounds(case(LONG_CALL_FLOPS), 2) == 1
