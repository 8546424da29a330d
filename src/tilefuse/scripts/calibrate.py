"""Benchmarks the routines of a library on a device, one by one, in simulated fusions: measured terms of a script's predictions.

Routines that are the same text for the same threads and elements are timed once, and each gets a row. Each row is written when it is
measured, so that an interrupted calibration resumes.
Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.2.
"""
from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from tilefuse.base.errors import DeviceError, ToolchainError
from tilefuse.base.options import Options
from tilefuse.base.search.limits import SEARCH
from tilefuse.driver.measure.measure import build_together, time_program
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.runtime.stores.cache import cache_of
from tilefuse.runtime.stores.measurements import Journal, journal_path
from tilefuse.scripts.language.elementary import ElementaryFunction
from tilefuse.scripts.plan.facts import ElementFacts
from tilefuse.scripts.plan.routine_times import Environment, RoutineName, RoutineTimes, compute_us, environments, transfer_ratio
from tilefuse.scripts.routine_programs import routine_spec
from tilefuse.scripts.schedule.elements import Decision
from tilefuse.scripts.schedule.grid import Grid, bind_grid
from tilefuse.scripts.schedule.probe import TimedRoutine, probe, probe_graph, routine_classes
from tilefuse.scripts.schedule.routines import FusedRoutines
from tilefuse.target.device import DeviceSpec

KIND = "routines"
# Digits of a row behind the point.
RATIO_DIGITS, US_DIGITS = 4, 5


@dataclass(frozen=True)
class Probe:
    """One class of equal routines in one environment. `num_bytes` of a compute routine is 0; `words` are of the function's largest operand.
    """

    names: tuple[RoutineName, ...]
    environment: Environment
    num_bytes: int
    words: int
    spec: ProgramSpec

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of its routines' rows."""
        e = self.environment
        return tuple("|".join((*name, f"{e.instances}x{e.iterations}{e.direction}+{e.extra_shared_bytes}")) for name in self.names)


def routine_journal(device: DeviceSpec, options: Options) -> Journal:
    """The timed routines of a device, in the cache that the options name."""
    return Journal(routine_journal_path(device, options))


def routine_journal_path(device: DeviceSpec, options: Options) -> Path | None:
    """The file of `routine_journal`; None where the options keep no cache on disk."""
    return journal_path(cache_of(options.cache, options.cache_dir).folder, KIND, f"{device.name}-{device.num_multiprocessors}")


def routine_times(device: DeviceSpec, options: Options) -> RoutineTimes | None:
    """Times of a device's routines; None without any. The file is read again when it has changed."""
    path = routine_journal_path(device, options)
    if path is None or not path.exists():
        return None
    state = path.stat()
    return _read_times(path, state.st_mtime_ns, state.st_size, device)


@functools.lru_cache(maxsize=8)
def _read_times(path: Path, _changed_ns: int, _size: int, device: DeviceSpec) -> RoutineTimes | None:
    transfers: dict[RoutineName, list[tuple[Environment, float]]] = {}
    computes: dict[RoutineName, list[tuple[Environment, float]]] = {}
    for row in Journal(path).rows():
        function, implementation, routine, place = str(row["key"]).split("|")
        shape, _, extra = place.partition("+")
        instances, _, rest = shape.partition("x")
        environment = Environment(int(instances), int(rest[:-1]), int(extra), rest[-1])
        table = transfers if "ratio" in row else computes
        value = float(row["ratio"] if "ratio" in row else row["us_per_million"])
        table.setdefault((function, implementation, routine), []).append((environment, value))
    return RoutineTimes(device.name, device.graph_launch_us, transfers, computes) if transfers or computes else None


def probes(functions: Iterable[ElementaryFunction], device: DeviceSpec, options: Options) -> Iterator[Probe]:
    """One probe for each class of equal routines and each environment that fits the device; loads and stores come first."""
    classes = routine_classes(f for f in functions if len(f.sizes) <= 2)
    for members in sorted(classes, key=lambda m: m[0].routine == "compute"):
        yield from _probes_of(members, device, options)


def _probes_of(members: tuple[TimedRoutine, ...], device: DeviceSpec, options: Options) -> Iterator[Probe]:
    """The probes of one class, whose kernels call its first routine."""
    function, number, routine = members[0].function, members[0].implementation, members[0].routine
    limits, on_device = SEARCH.scripts, device.kind == "cuda"
    vector, matrix = (limits.probe_words, limits.probe_matrix) if on_device else (limits.host_probe_words, limits.host_probe_matrix)
    sizes = (vector,) if len(function.sizes) == 1 else matrix
    graph = probe_graph(function, sizes)
    grid = bind_grid(graph, (0,))
    if not isinstance(grid, Grid):
        return
    grid = replace(grid, triangle="")  # the probe computes all tiles
    threads = prod(function.implementations[number].geometry.threads)
    for e in environments(grid.nested, threads, moves=routine != "compute"):
        facts = ElementFacts(graph, (0,), (number,), grid, e.instances, device)
        moved = facts.facts(Decision((0,), (number,), e.instances, e.iterations, e.direction)).moved
        num_bytes = next((m.num_bytes for m in moved if m.routine == routine and not m.resident), 0)
        if not num_bytes and routine != "compute":
            continue  # caches serve a vector that every block of a product reads again
        fused = probe(function, number, routine, e.instances, e.iterations, e.direction, e.extra_shared_bytes, sizes, device)
        if isinstance(fused, FusedRoutines):
            yield Probe(tuple(m.name for m in members), e, num_bytes, prod(sizes), routine_spec(fused, device, options))


def calibrate_routines(functions: Iterable[ElementaryFunction], device: DeviceSpec, place: str, options: Options, *,
                       most: int | None = None, seconds: float = math.inf, report: Callable[[str, int], None] | None = None) -> int:
    """Times every probe without a row, at most `most`, and begins none after `seconds`; the number of probes timed.

    report: called after each probe with its name and the count so far.
    Cost: about a thousand probes for the library in one element type; compiling them side by side takes most of the time.
    """
    calibration = _Calibration(device, place, options, report)
    deadline = time.monotonic() + seconds
    chunk: list[Probe] = []
    for p in itertools.islice((p for p in probes(functions, device, options) if calibration.lacks(p)), most):
        chunk.append(p)
        if len(chunk) == SEARCH.scripts.probes_built_together:
            calibration.time_probes(chunk)
            chunk.clear()
        if time.monotonic() > deadline:
            break
    calibration.time_probes(chunk)
    return calibration.num_timed


class _Calibration:
    """One run of `calibrate_routines`: its rows on disk, and the number of probes timed."""

    def __init__(self, device: DeviceSpec, place: str, options: Options, report: Callable[[str, int], None] | None) -> None:
        self.place, self.options, self.report = place, options, report
        self.device = device
        self.start_us = device.graph_launch_us if place != "host" else 0.0
        self.journal = routine_journal(device, options)
        self.inputs = _Inputs()
        self.num_timed = 0

    def lacks(self, probe: Probe) -> bool:
        """Whether a routine of the probe has no row yet."""
        return any(self.journal.find(key) is None for key in probe.keys)

    def time_probes(self, chunk: Sequence[Probe]) -> None:
        """Compiles some probes side by side, times them, and writes their rows."""
        build_together((k for p in chunk for k in p.spec.kernels), self.options)
        for p in chunk:
            us = _time_us(p.spec, self.place, self.options, self.inputs)
            if us is None:
                continue
            row = self._row(p, us)
            for key, name in zip(p.keys, p.names, strict=True):
                self.journal.keep(key, {"label": name[0], **row})
            self.num_timed += 1
            if self.report is not None:
                self.report(" ".join(p.names[0]), self.num_timed)

    def _row(self, probe: Probe, us: float) -> dict[str, float]:
        """The row of a probe that took `us`. Units: microseconds."""
        if probe.num_bytes:
            return {"ratio": round(transfer_ratio(probe.num_bytes, us, self.start_us, self.device), RATIO_DIGITS)}
        return {"us_per_million": round(compute_us(probe.words, us, self.start_us), US_DIGITS)}


@dataclass
class _Inputs:
    """Inputs of probes, one for each shape: their values make no difference to a probe's time."""

    tensors: dict[object, Any] = field(default_factory=dict)

    def of(self, program: Program) -> list[Any]:
        """The inputs of a program, in its order."""
        import torch

        tensors = []
        value_by_name = {v.name: v for v in program.spec.values}
        for number, name in enumerate(program.spec.inputs):
            value = value_by_name[name]
            key = (number, value.dtype, value.shape)
            if key not in self.tensors:
                self.tensors[key] = torch.ones(value.shape, dtype=TORCH_DTYPES[value.dtype], device=program.device)
            tensors.append(self.tensors[key])
        return tensors


def _time_us(spec: ProgramSpec, place: str, options: Options, inputs: _Inputs) -> float | None:
    """Median time of a probe; None if it does not compile or run. Units: microseconds."""
    try:
        program = Program(spec, {}, place, options)
        return time_program(program, [inputs.of(program)], SEARCH.scripts.probe_launches).median_us
    except (ToolchainError, DeviceError, RuntimeError):
        return None
