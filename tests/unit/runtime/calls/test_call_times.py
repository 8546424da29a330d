"""Times of calls in rounds: how many, what a summary says, and what counts as noise."""
from __future__ import annotations

import time

import pytest
import torch

from tilefuse.base.errors import OptionError
from tilefuse.runtime.calls.call_times import ROUNDS, Budget, CallTimes, percentile, ratio_of, time_calls

HOST = torch.device("cpu")


def test_callables_take_turns_and_get_as_many_calls_as_asked_for() -> None:
    order: list[str] = []
    found = time_calls({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, HOST, Budget(0.0, 10, 0.0))
    assert len(found["a"].samples) == len(found["b"].samples) == 10 and len(found["a"].rounds) == ROUNDS
    timed = order[2:]  # behind one call of each to warm up
    assert timed[0] == "a" and timed[2:4] == ["b", "b"] and timed.count("a") == timed.count("b") == 10 + ROUNDS
    once = time_calls({"a": lambda: None}, HOST, Budget(0.0, 1, 0.0))["a"]
    assert len(once.samples) == 1 and once.spread == 0.0


@pytest.mark.alone  # sleeps of a millisecond are compared: other work on the machine stretches them
def test_a_duration_is_kept_and_the_slower_of_two_is_found() -> None:
    started = time.perf_counter()
    found = time_calls({"slow": lambda: time.sleep(0.004), "quick": lambda: time.sleep(0.0005)}, HOST, Budget(0.0, 7, 0.05))
    assert time.perf_counter() - started > 0.1 and len(found["quick"].samples) > len(found["slow"].samples) >= 7
    ratio = ratio_of(found["slow"], found["quick"])
    assert ratio.low <= ratio.ratio <= ratio.high and ratio.ratio > 2 and not ratio.is_within_noise


def test_a_difference_that_rounds_disagree_about_is_noise() -> None:
    assert ratio_of(CallTimes([[1.0], [2.0]]), CallTimes([[2.0], [1.0]])).is_within_noise
    assert ratio_of(CallTimes([[3.0]]), CallTimes([[1.0]])).is_within_noise  # one round tells nothing
    assert not ratio_of(CallTimes([[3.0], [3.1]]), CallTimes([[1.0], [1.0]])).is_within_noise


def test_percentiles_are_samples() -> None:
    ordered = [float(n) for n in range(1, 101)]
    assert [percentile(ordered, p) for p in (0, 50, 90, 99, 100)] == [1.0, 50.0, 90.0, 99.0, 100.0]
    assert percentile([5.0], 99) == 5.0
    summary = CallTimes([[1.0, 2.0, 3.0], [4.0, 5.0, 9.0]]).summary()
    assert (summary["median_us"], summary["min_us"], summary["max_us"], summary["calls"]) == (3.5, 1.0, 9.0, 6)
    assert summary["calls_per_s"] == pytest.approx(250000.0) and summary["spread"] == pytest.approx(3 / 3.5)


@pytest.mark.parametrize(("measured", "says"), [("replay", "the model runs on the host"), ("calls", "call, device, replay")])
def test_what_the_host_does_not_have_is_not_measured(measured: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        time_calls({"a": lambda: None}, HOST, Budget(), measured)
