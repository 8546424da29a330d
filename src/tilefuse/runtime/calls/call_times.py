"""Times of whole calls: several callables in interleaved rounds, with an estimate of the measurement's noise.

Three quantities, each with its name:

call     from entering the call until its results are ready: a caller who waits for every result sees this
device   between events around a call whose work stands ready behind other work: the device's share of it, launch gaps excluded
replay   the call recorded as a CUDA graph, replayed: the device's share without any launch by the host
"""
from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tilefuse.base.errors import OptionError
from tilefuse.runtime.calls.replay_times import replay_samples_us

Call = Callable[[], object]
MEASURED: Mapping[str, str] = {
    "call": "one call, from entering it until its results are ready",
    "device": "the device's time of one call, between events, its work enqueued ahead",
    "replay": "one replay of the call as a CUDA graph"}
# Rounds in which the callables alternate: enough for a range of their ratios.
ROUNDS = 7
# Maximum number of calls enqueued behind one hold of the device, and the clock rate that converts its length: above any device's.
HELD_CALLS, HOLD_HZ = 8, 2.5e9


@dataclass(frozen=True, slots=True)
class Budget:
    """Measurement time of each callable: a minimum of calls and of seconds. Units: seconds."""

    warmup_s: float = 0.2
    iterations: int = 10
    duration_s: float = 1.0


@dataclass(slots=True)
class CallTimes:
    """Times of one callable, round by round. host: the part of each call until it returned. Units: microseconds."""

    rounds: list[list[float]] = field(default_factory=list)
    host: list[float] = field(default_factory=list)

    @property
    def samples(self) -> list[float]:
        """Times of all calls."""
        return [us for times in self.rounds for us in times]

    @property
    def medians(self) -> list[float]:
        """Median of each round."""
        return [statistics.median(times) for times in self.rounds]

    @property
    def spread(self) -> float:
        """Range of the rounds' medians as a share of the overall median: the expected difference between two such measurements."""
        medians = self.medians
        return (max(medians) - min(medians)) / statistics.median(self.samples) if medians else 0.0

    def summary(self) -> dict[str, float]:
        """Median, extremes, mean, percentiles, calls and calls a second. Units: microseconds."""
        ordered = sorted(self.samples)
        facts = {"median_us": statistics.median(ordered), "min_us": ordered[0], "max_us": ordered[-1], "mean_us": statistics.fmean(ordered),
                 "p90_us": percentile(ordered, 90), "p95_us": percentile(ordered, 95), "p99_us": percentile(ordered, 99),
                 "calls": len(ordered), "calls_per_s": 1e6 / statistics.fmean(ordered), "spread": self.spread}
        return facts | ({"host_us": statistics.median(self.host)} if self.host else {})


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of one callable over that of another: from all samples, and the least and largest of a round."""

    ratio: float
    low: float
    high: float

    @property
    def is_within_noise(self) -> bool:
        """Whether rounds disagree about which of the two is faster, or there are too few rounds."""
        return self.low <= 1.0 <= self.high or self.low == self.high


def ratio_of(over: CallTimes, under: CallTimes) -> Ratio:
    """Ratio of the time of `over` to the time of `under`."""
    ratios = [a / b for a, b in zip(over.medians, under.medians) if b]
    return Ratio(statistics.median(over.samples) / statistics.median(under.samples), min(ratios), max(ratios))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest sample that is at least as large as this percentage of the samples. Requires: they are sorted."""
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def time_calls(calls: Mapping[str, Call], device: torch.device, budget: Budget, measured: str = "call") -> dict[str, CallTimes]:
    """Times of the callables, which alternate in rounds, so that disturbances of the machine affect all of them.

    Raises: OptionError for an unknown quantity, or one that the host does not have; any error of a call.
    """
    if measured not in MEASURED:
        raise OptionError(f"nothing called {measured!r} is measured", hint=", ".join(MEASURED))
    if measured != "call" and device.type != "cuda":
        raise OptionError(f"{measured} is a time of a GPU, and the model runs on the host", hint="measure call")
    times = {name: CallTimes() for name in calls}
    with torch.no_grad():
        for call in calls.values():
            _warm(call, device, budget.warmup_s)
        names, rounds = list(calls), min(ROUNDS, budget.iterations)
        for turn in range(rounds):
            for name in names[turn % len(names):] + names[:turn % len(names)]:
                least = (budget.iterations * (turn + 1)) // rounds - (budget.iterations * turn) // rounds
                _round(calls[name], device, measured, least, budget.duration_s / rounds, times[name])
    return times


def _warm(call: Call, device: torch.device, seconds: float) -> None:
    """Calls for this long, at least once: compiling, loading and recording at first calls is not measured."""
    until = time.perf_counter() + seconds
    call()
    while time.perf_counter() < until:
        call()
    _wait(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _round(call: Call, device: torch.device, measured: str, least: int, seconds: float, into: CallTimes) -> None:
    """One round: a minimum of calls and time, after one uncounted call, because caches hold another callable's data."""
    began = time.perf_counter()
    call()
    _wait(device)
    if measured != "call":
        count = max(least, math.ceil(seconds / max(time.perf_counter() - began, 1e-7)))
        timed = _held_samples_us(call, device, count) if measured == "device" else replay_samples_us(lambda stream: [call], device, count)
        into.rounds.append(timed)
        return
    samples: list[float] = []
    until = time.perf_counter() + seconds
    while len(samples) < least or time.perf_counter() < until:
        started = time.perf_counter()
        call()
        returned = time.perf_counter()
        _wait(device)
        samples.append((time.perf_counter() - started) * 1e6)
        if device.type == "cuda":
            into.host.append((returned - started) * 1e6)
    into.rounds.append(samples)


def _held_samples_us(call: Call, device: torch.device, count: int) -> list[float]:
    """Device time of single calls, enqueued while the device is held, so that it never waits for the host."""
    samples: list[float] = []
    with torch.cuda.device(device):
        started = time.perf_counter()
        call()
        host_s = time.perf_counter() - started
        while len(samples) < count:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(HELD_CALLS + 1)]
            torch.cuda.synchronize()
            torch.cuda._sleep(int(2 * HELD_CALLS * host_s * HOLD_HZ))
            events[0].record()
            for event in events[1:]:
                call()
                event.record()
            torch.cuda.synchronize()
            samples += [a.elapsed_time(b) * 1e3 for a, b in zip(events, events[1:])]  # the first event is the end of the hold
    return samples[:count]
