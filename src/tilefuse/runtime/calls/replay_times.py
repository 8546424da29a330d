"""Times of calls on a GPU within a running stream: recorded into a CUDA graph and replayed between events.

Calibration, timed plans and tuning use this clock, so that their figures are comparable.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

# The first replays upload the graph and raise the clock rate.
SKIPPED = 2


def replay_samples_us(calls_on: Callable[[int], Sequence[Callable[[], object]]], device: torch.device | int, repeats: int) -> list[float]:
    """Mean interval of the calls in each of `repeats` replays. `calls_on(stream)` returns the calls for a stream, in order.

    Every call runs once before it is recorded, so that nothing is loaded or allocated during the recording.
    Units: microseconds per call.
    Raises: any error of a call; RuntimeError from torch where a kernel faults or a call cannot be recorded.
    """
    with torch.cuda.device(device):
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            calls = calls_on(stream.cuda_stream)
            for call in calls:
                call()
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                for call in calls:
                    call()
            return [_replay_us(graph, stream) / len(calls) for _ in range(SKIPPED + repeats)][SKIPPED:]


def _replay_us(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record(stream)
    graph.replay()
    end.record(stream)
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3
