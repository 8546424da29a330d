"""Clocks: CUDA-graph replays over rotating input sets, event timing where capture is impossible, wall time on a host.

Small launches inside a captured graph follow each other within a microsecond, so what is left is the kernels' own time. Several
input sets, together larger than four times the L2 cache, keep one call's data from serving the next.
"""
from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

L2_ROTATION = 4
# How long one peer is timed on one case, unless a run says otherwise. Units: seconds.
CLOCK_S = 0.25
HOST_CACHE_BYTES = 32 << 20
# Rounds of calls between two waits of a queue, and a time of the queue after which fewer do: a wait costs about 20 us. Units: seconds.
QUEUE_ROUNDS = 8
QUEUE_S = 0.02


@dataclass(frozen=True)
class Timing:
    """One measurement. Units: microseconds a call; `method` says how it was taken ("graph", "events", "wall")."""

    median_us: float
    low_us: float
    high_us: float
    method: str
    calls: int


def num_input_sets(bytes_per_set: int, device: torch.device, most: int = 64) -> int:
    """How many input sets make a rotation longer than the cache: at least two. Units: bytes moved by one call."""
    cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else HOST_CACHE_BYTES
    return max(2, min(most, math.ceil(L2_ROTATION * cache_bytes / max(bytes_per_set, 1))))


def summarise(samples_us: Sequence[float], method: str) -> Timing:
    """Median with the tenth and ninetieth percentile of the samples."""
    ordered = sorted(samples_us)
    last = len(ordered) - 1
    return Timing(statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)], method, len(ordered))


def time_calls(calls: Sequence[Callable[[], object]], device: torch.device, *, budget_s: float = CLOCK_S,
               capture: bool = True) -> tuple[Timing, object]:
    """Median time of one call among `calls` (one per input set), and what the first call returned in the last round.

    Requires: every call does the same work on different data, on torch's current stream.
    Raises: whatever the calls raise; a failed capture is retried with events.
    """
    if device.type != "cuda":
        return _time_wall(calls, budget_s)
    if capture:
        try:
            return _time_graph(calls, budget_s)
        except RuntimeError as error:
            if "captur" not in str(error):
                raise
            torch.cuda.synchronize()
    return _time_events(calls, budget_s)


def _time_graph(calls: Sequence[Callable[[], object]], budget_s: float) -> tuple[Timing, object]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    samples = _sample(graph.replay, budget_s)
    timing = summarise([s / len(calls) for s in samples], "graph")
    return timing, kept[0]


def _time_events(calls: Sequence[Callable[[], object]], budget_s: float) -> tuple[Timing, object]:
    def round_of_calls() -> None:
        for call in calls:
            call()

    samples = _sample(round_of_calls, budget_s)
    result = calls[0]()
    torch.cuda.synchronize()
    return summarise([s / len(calls) for s in samples], "events"), result


def _sample(run: Callable[[], object], budget_s: float, least: int = 11, most: int = 200) -> list[float]:
    """Times of single runs between two events, after a warm-up. Units: seconds of budget, microseconds out."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    samples: list[float] = []
    started = time.perf_counter()
    while len(samples) < least or (len(samples) < most and time.perf_counter() - started < budget_s):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3)
    return samples


def _time_wall(calls: Sequence[Callable[[], object]], budget_s: float) -> tuple[Timing, object]:
    result = calls[0]()
    samples: list[float] = []
    started = time.perf_counter()
    while len(samples) < 3 or (len(samples) < 100 and time.perf_counter() - started < budget_s):
        for call in calls:
            before = time.perf_counter()
            call()
            samples.append((time.perf_counter() - before) * 1e6)
    return summarise(samples, "wall"), result


def time_queue(enqueue: Callable[[], object], wait: Callable[[object], object], calls_each: int, budget_s: float = CLOCK_S) -> Timing:
    """Time of one call where only the whole queue can be waited for (JAX): several rounds enqueued, then one wait.

    Requires: `enqueue` starts `calls_each` calls without waiting; `wait` blocks until what `enqueue` returned is there.
    """
    wait(enqueue())
    before = time.perf_counter()
    wait(enqueue())
    rounds = max(1, min(QUEUE_ROUNDS, math.ceil(QUEUE_S / (time.perf_counter() - before))))
    samples: list[float] = []
    started = time.perf_counter()
    while len(samples) < 7 or (len(samples) < 50 and time.perf_counter() - started < budget_s):
        before = time.perf_counter()
        last = [enqueue() for _ in range(rounds)][-1]
        wait(last)
        samples.append((time.perf_counter() - before) * 1e6 / (rounds * calls_each))
    return summarise(samples, "queue")


def wait(device: torch.device) -> None:
    """Returns when the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """The most memory that torch's allocator gave out during a call, beyond what was held before; 0 on the host. Units: bytes."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def copy_bytes_per_s(num_bytes: int, device: torch.device) -> float:
    """Bandwidth of a plain copy that moves `num_bytes` in all. Units: bytes read and written, a second."""
    # Kernels, not copy nodes of a CUDA graph: those ran at two thirds of the bandwidth on an H200.
    count = max(num_bytes // 8, 1 << 14)
    sets = num_input_sets(num_bytes, device, most=8)
    sources = [torch.randn(count, device=device) for _ in range(sets)]
    targets = [torch.empty_like(s) for s in sources]
    calls = [lambda s=s, t=t: t.copy_(s) for s, t in zip(sources, targets)]  # type: ignore[misc]
    timing, _ = time_calls(calls, device) if device.type != "cuda" else _time_events(calls, 0.25)
    return 8 * count / (timing.median_us * 1e-6)
