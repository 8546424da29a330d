"""Times of a program's steps: by events on the GPU, by the clock on the host."""
from __future__ import annotations

import contextlib
import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefuse.runtime.calls.arguments import adapt
from tilefuse.runtime.calls.callable_program import CallableProgram
from tilefuse.runtime.calls.frame import Frame
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, Step

# Length of the hold kernel, in cycles per step: Python enqueues all steps behind it, so their times contain no wait for a launch.
# Source: H200, a layer norm of 12 us: measured as 45 us with a third of this hold.
HOLD_CYCLES_PER_STEP = 120_000
MAX_HOLD_CYCLES = 400_000_000

# Longer holds of programs whose steps take longer to enqueue. Units: cycles.
_hold: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
# Largest number of runs per timed run: runs that waited for the host are not timed.
MOST_RUNS = 4

# (start after the first step's, duration) of each step by its number. Units: microseconds.
StepSpans = dict[int, tuple[float, float]]
# Time of a run before its first step and after its last: by the clock on the host; 0 on a GPU, whose events cover only the steps.
Around = tuple[float, float]


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step's time. Units: `us` microseconds (median); `num_bytes` bytes read and written by its plan (0: unknown).

    kind: "kernel", "library" or "copy". `limit_us`: time of its planned bytes at the device's bandwidth (0: unknown).
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


def profile_program(program: CallableProgram, tensors: Sequence[Any], repeats: int = 10) -> list[StepTime]:
    """Median time of each step over `repeats` runs (after two more), in step order. Inputs are not changed.

    Raises: as a call of the program does.
    """
    return [row for _, row in _profile(program, tensors, repeats)[0]]


def _profile(program: CallableProgram, tensors: Sequence[Any], repeats: int) -> tuple[list[tuple[float, StepTime]], Around]:
    """(start after the first step's, times) of each step, and the time around the steps of a run; medians. Units: microseconds."""
    inputs = _given(program, tensors)
    gpu = program.device.type == "cuda"
    samples: list[list[tuple[float, float]]] = [[] for _ in program.spec.steps]
    around: list[Around] = []
    with torch.no_grad():
        frame = program.new_frame(torch.cuda.current_stream(program.device).cuda_stream if gpu else 0)
        num_timed = 0
        for run in range(MOST_RUNS * (repeats + 2)):
            _, times, outside = _timed_run(program, frame, inputs)
            if run >= 2 and (times or not program.spec.steps):
                num_timed += 1
                around.append(outside)
                for step, span in times.items():
                    samples[step].append(span)
            if num_timed >= repeats:
                break

    def median(values: list[float]) -> float:
        return statistics.median(values) if values else 0.0

    rows = [(median([start for start, _ in spans]), _row(program, step, median([us for _, us in spans])))
            for step, spans in zip(program.spec.steps, samples)]
    return rows, (median([before for before, _ in around]), median([behind for _, behind in around]))


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run of a program: (start after the first step's, duration) of every step, the time before the first and behind the last step
    of that run, and the time of a whole call without clocks between its steps; medians. Units: microseconds.

    On a GPU the steps are enqueued before the first begins, so no step waits for the host; the rest of a call's time is spent on the host,
    before and between launches.
    """

    steps: tuple[tuple[float, float], ...]
    call_us: float
    before_us: float = 0.0
    behind_us: float = 0.0


def measured_run(program: CallableProgram, tensors: Sequence[Any], repeats: int = 10) -> MeasuredRun:
    """Starts and durations of the steps over `repeats` runs (after two more), and the time of as many whole calls.

    Inputs are not changed. Raises: as a call of the program does.
    """
    rows, (before_us, behind_us) = _profile(program, tensors, repeats)
    inputs = _given(program, tensors)
    gpu = program.device.type == "cuda"
    samples: list[float] = []
    with torch.no_grad():
        for _ in range(repeats + 2):
            if gpu:
                torch.cuda.synchronize(program.device)
            started = time.perf_counter()
            program(*inputs)
            if gpu:
                torch.cuda.synchronize(program.device)
            samples.append((time.perf_counter() - started) * 1e6)
    return MeasuredRun(tuple((start, row.us) for start, row in rows), statistics.median(samples[2:]), before_us, behind_us)


def _given(program: CallableProgram, tensors: Sequence[Any]) -> list[Any]:
    """The inputs in the form that the program takes; copies of those that it would change."""
    inputs = []
    for tensor, want in zip(tensors, program.arguments, strict=True):
        fitting = adapt(tensor, want, program.device)
        inputs.append(fitting.clone() if want.updated else fitting)
    return inputs


def _row(program: CallableProgram, step: Step, us: float) -> StepTime:
    match step:
        case KernelStep():
            kernel = program.spec.kernels[step.kernel]
            return StepTime(kernel.name, "kernel", us, kernel.bytes_read + kernel.bytes_written, kernel.limit_us)
        case LibraryStep():
            return StepTime(step.operator, "library", us, 0, 0.0)
        case CopyStep():
            return StepTime(f"{step.target} = {step.source}", "copy", us, 0, 0.0)


@contextlib.contextmanager
def measured_calls(programs: Iterable[CallableProgram], told: Callable[[CallableProgram, StepSpans], None]) -> Iterator[None]:
    """Inside, every call of one of these programs is timed step by step; `told` gets the program and its steps' times, which are missing
    where the device had to wait for the host.

    Such a call waits for the device before and after. Calls from several threads are reported in the order in which they end.
    """
    distinct = list({id(p): p for p in programs}.values())

    def measuring(program: CallableProgram) -> Callable[[Sequence[Any], int, bool], list[torch.Tensor]]:
        def call(tensors: Sequence[Any], stream: int, consume: bool) -> list[torch.Tensor]:
            with torch.no_grad():
                results, times, _ = _timed_run(program, program.new_frame(stream), tensors, consume)
            told(program, times)
            return results

        return call

    with contextlib.ExitStack() as stack:
        for program in distinct:
            stack.enter_context(own_attribute(program, "_call", measuring(program)))
        yield


@contextlib.contextmanager
def own_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an instance has an attribute of its own, which hides its class's: calls outside cost nothing."""
    own = vars(owner)
    missing = object()
    before = own.get(name, missing)
    own[name] = value
    try:
        yield
    finally:
        if before is missing:
            own.pop(name, None)
        else:
            own[name] = before


@contextlib.contextmanager
def marked_steps(programs: Iterable[CallableProgram], mark: Callable[[CallableProgram, int], contextlib.AbstractContextManager[Any]]
                 ) -> Iterator[None]:
    """Inside, every step of calls of these programs runs in `mark(program, number of the step)`, a profiler's range."""
    def marking(program: CallableProgram) -> Callable[[Sequence[Any], int, bool], list[torch.Tensor]]:
        def around(step: int, run: Any) -> int | None:
            with mark(program, step):
                code: int | None = run()
            return code

        def call(tensors: Sequence[Any], stream: int, consume: bool) -> list[torch.Tensor]:
            with torch.no_grad():
                return program.run_frame(program.new_frame(stream), tensors, around, consume)

        return call

    with contextlib.ExitStack() as stack:
        for program in {id(p): p for p in programs}.values():
            stack.enter_context(own_attribute(program, "_call", marking(program)))
        yield


def _timed_run(program: CallableProgram, frame: Frame, tensors: Sequence[Any], consume: bool = False
               ) -> tuple[list[torch.Tensor], StepSpans, Around]:
    """A run's results, (start, duration) of each step from the first one's start on, and the time around them. Units: microseconds."""
    return (_run_on_gpu if program.device.type == "cuda" else _run_on_host)(program, frame, tensors, consume)


def _run_on_host(program: CallableProgram, frame: Frame, tensors: Sequence[Any], consume: bool
                 ) -> tuple[list[torch.Tensor], StepSpans, Around]:
    """As `_timed_run`, by the clock."""
    times: StepSpans = {}
    first: list[float] = []
    last = begun = time.perf_counter()

    def between(step: int, run: Any) -> int | None:
        nonlocal last
        started = time.perf_counter()
        code: int | None = run()
        last = ended = time.perf_counter()
        first.append(started)
        start, us = times.get(step, ((started - first[0]) * 1e6, 0.0))
        times[step] = (start, us + (ended - started) * 1e6)
        return code

    results = program.run_frame(frame, tensors, between, consume)
    return results, times, ((first[0] - begun) * 1e6 if first else 0.0, (time.perf_counter() - last) * 1e6)


def _run_on_gpu(program: CallableProgram, frame: Frame, tensors: Sequence[Any], consume: bool
                ) -> tuple[list[torch.Tensor], StepSpans, Around]:
    """As `_timed_run`, by events. No times where the device had to wait for a launch: the next run holds it longer."""
    pairs: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []
    # Created before the device is held: each takes the host microseconds.
    ready = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in frame.operations]

    def between(step: int, run: Any) -> int | None:
        first, last = ready[len(pairs)]
        first.record()
        code: int | None = run()
        last.record()
        pairs.append((step, first, last))
        return code

    with torch.cuda.device(program.device):
        torch.cuda.synchronize()
        hold = min(_hold.get(program, HOLD_CYCLES_PER_STEP * max(len(program.spec.steps), 1)), MAX_HOLD_CYCLES)
        torch.cuda._sleep(hold)
        results = program.run_frame(frame, tensors, between, consume)
        was_late = bool(pairs) and pairs[0][1].query()
        torch.cuda.synchronize()
    if was_late and hold < MAX_HOLD_CYCLES:
        _hold[program] = 2 * hold
        return results, {}, (0.0, 0.0)
    times: StepSpans = {}
    for step, first, last in pairs:
        start, us = times.get(step, (pairs[0][1].elapsed_time(first) * 1e3, 0.0))
        times[step] = (start, us + first.elapsed_time(last) * 1e3)
    return results, times, (0.0, 0.0)
