"""How long each step of a program takes: events on the GPU, the clock on the host."""
from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tilefuse.runtime.arguments import adapt
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, Step

if TYPE_CHECKING:
    from tilefuse.runtime.frame import Frame
    from tilefuse.runtime.program import Program

# Long enough for Python to enqueue the steps behind it, so that their times contain no waiting for the next launch.
# Source: H200, a layer norm that takes 12 us was shown with 45 us while the hold was a third of this.
HOLD_CYCLES_PER_STEP = 120_000
MAX_HOLD_CYCLES = 400_000_000


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step's time. Units: `us` microseconds (median), `num_bytes` bytes it reads and writes by its plan (0: not known).

    kind: "kernel", "library" or "copy". `limit_us`: what its bytes need at the device's bandwidth, by the plan (0: not known).
    """

    name: str
    kind: str
    us: float
    num_bytes: int
    limit_us: float

    @property
    def gb_per_s(self) -> float:
        """Bandwidth reached. Units: 1e9 bytes per second."""
        return self.num_bytes / self.us / 1e3 if self.us else 0.0

    def __str__(self) -> str:
        text = f"{self.kind:7s} {self.us:10.2f} us"
        if self.num_bytes:
            text += f"  {self.num_bytes / 2**20:9.2f} MiB  {self.gb_per_s:8.1f} GB/s"
        if self.limit_us:
            text += f"  limit {self.limit_us:8.2f} us"
        return f"{text}  {self.name}"


def profile_program(program: Program, tensors: Sequence[Any], repeats: int = 10) -> list[StepTime]:
    """Median time of each step over `repeats` runs (after two more), in step order. Inputs are not changed.

    Raises: as a call of the program does.
    """
    given = _given(program, tensors)
    gpu = program.device.type == "cuda"
    samples: list[list[float]] = [[] for _ in program.spec.steps]
    with torch.no_grad():
        frame = program.new_frame(torch.cuda.current_stream(program.device).cuda_stream if gpu else 0)
        for run in range(repeats + 2):
            times = _run_on_gpu(program, frame, given) if gpu else _run_on_host(program, frame, given)
            if run >= 2:
                for step, us in times.items():
                    samples[step].append(us)
    return [_row(program, step, statistics.median(us) if us else 0.0) for step, us in zip(program.spec.steps, samples)]


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run of a program: (start, duration) of every step, and the median time of whole calls. Units: microseconds.

    On a GPU the steps are enqueued before the first begins, so they follow each other closely; what a call takes beyond them is spent
    between launches, and on the host.
    """

    steps: tuple[tuple[float, float], ...]
    call_us: float


def measured_run(program: Program, tensors: Sequence[Any], repeats: int = 10) -> MeasuredRun:
    """Starts and median durations of the steps over `repeats` runs (after two more), and the median time of as many whole calls.

    Inputs are not changed. Raises: as a call of the program does.
    """
    rows = profile_program(program, tensors, repeats)
    given = _given(program, tensors)
    gpu = program.device.type == "cuda"
    samples: list[float] = []
    with torch.no_grad():
        for _ in range(repeats + 2):
            if gpu:
                torch.cuda.synchronize(program.device)
            started = time.perf_counter()
            program(*given)
            if gpu:
                torch.cuda.synchronize(program.device)
            samples.append((time.perf_counter() - started) * 1e6)
    call_us = statistics.median(samples[2:])
    steps: list[tuple[float, float]] = []
    at = 0.0
    # The time of a call beyond its steps is spread between them, for nothing tells where it went.
    gap = max(call_us - sum(row.us for row in rows), 0.0) / max(len(rows), 1)
    for row in rows:
        steps.append((at, row.us))
        at += row.us + gap
    return MeasuredRun(tuple(steps), call_us)


def _given(program: Program, tensors: Sequence[Any]) -> list[Any]:
    """The inputs as the program takes them, copies where it would change them."""
    given = []
    for tensor, want in zip(tensors, program.arguments, strict=True):
        fitting = adapt(tensor, want, program.device)
        given.append(fitting.clone() if want.updated else fitting)
    return given


def _row(program: Program, step: Step, us: float) -> StepTime:
    match step:
        case KernelStep():
            kernel = program.spec.kernels[step.kernel]
            return StepTime(kernel.name, "kernel", us, kernel.bytes_read + kernel.bytes_written, kernel.limit_us)
        case LibraryStep():
            return StepTime(step.operator, "library", us, 0, 0.0)
        case CopyStep():
            return StepTime(f"{step.target} = {step.source}", "copy", us, 0, 0.0)


def _run_on_host(program: Program, frame: Frame, given: Sequence[torch.Tensor]) -> dict[int, float]:
    times: dict[int, float] = {}

    def between(step: int, run: Any) -> int | None:
        started = time.perf_counter()
        code: int | None = run()
        times[step] = times.get(step, 0.0) + (time.perf_counter() - started) * 1e6
        return code

    program.run_frame(frame, tuple(given), between)
    return times


def _run_on_gpu(program: Program, frame: Frame, given: Sequence[torch.Tensor]) -> dict[int, float]:
    pairs: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []

    def between(step: int, run: Any) -> int | None:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        code: int | None = run()
        last.record()
        pairs.append((step, first, last))
        return code

    with torch.cuda.device(program.device):
        torch.cuda.synchronize()
        torch.cuda._sleep(min(HOLD_CYCLES_PER_STEP * max(len(program.spec.steps), 1), MAX_HOLD_CYCLES))
        program.run_frame(frame, tuple(given), between)
        torch.cuda.synchronize()
    times: dict[int, float] = {}
    for step, first, last in pairs:
        times[step] = times.get(step, 0.0) + first.elapsed_time(last) * 1e3
    return times
