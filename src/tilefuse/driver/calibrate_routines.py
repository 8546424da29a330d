"""Benchmarks the routines of a library on a device, one by one, in simulated fusions: what predictions of scripts stand on.

Rows are kept as they are measured, so that a calibration that was interrupted goes on where it stood.
Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.2.
"""
from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod

from tilefuse.base.errors import DeviceError, ToolchainError
from tilefuse.base.options import Options
from tilefuse.driver.lone_kernel import drawn_inputs
from tilefuse.driver.measure import build_together, time_program
from tilefuse.driver.routine_programs import routine_spec
from tilefuse.ir.elementary import ElementaryFunction
from tilefuse.plan.routine_facts import ElementFacts
from tilefuse.plan.routine_prediction import Environment, RoutineName, RoutineTimes, compute_us, environments, transfer_ratio
from tilefuse.runtime.cache import cache_of
from tilefuse.runtime.measurements import Journal, journal_path
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.schedule.routine_elements import Decision
from tilefuse.schedule.routine_grid import Grid, bind_grid
from tilefuse.schedule.routine_probe import probe, probe_graph
from tilefuse.schedule.routines import FusedRoutines
from tilefuse.target.device import DeviceSpec

KIND = "routines"
# Words of a vector and extents of a matrix of the probes: more than the caches of any known device hold. On the host a tenth.
VECTOR_WORDS, MATRIX = 1 << 25, (8192, 4096)
HOST_VECTOR_WORDS, HOST_MATRIX = 1 << 18, (512, 512)
# Calls in one recorded graph, and probes compiled side by side.
LAUNCHES, BUILT_TOGETHER = 4, 32


@dataclass(frozen=True)
class Probe:
    """One routine in one environment. Units: bytes it moves (0: a compute routine); words of the function's largest operand."""

    name: RoutineName
    environment: Environment
    num_bytes: int
    words: int
    spec: ProgramSpec

    @property
    def key(self) -> str:
        """What its row is kept under."""
        e = self.environment
        return "|".join((*self.name, f"{e.instances}x{e.iterations}{e.direction}+{e.extra_shared_bytes}"))


def routine_journal(device: DeviceSpec, options: Options) -> Journal:
    """The benchmarked routines of a device, in the cache that the options name."""
    return Journal(journal_path(cache_of(options.cache, options.cache_dir).folder, KIND, f"{device.name}-{device.num_multiprocessors}"))


def routine_times(device: DeviceSpec, options: Options) -> RoutineTimes | None:
    """What was benchmarked on a device; None where nothing was."""
    transfers: dict[RoutineName, list[tuple[Environment, float]]] = {}
    computes: dict[RoutineName, list[tuple[Environment, float]]] = {}
    for row in routine_journal(device, options).rows():
        function, implementation, routine, where = str(row["key"]).split("|")
        shape, _, extra = where.partition("+")
        instances, _, rest = shape.partition("x")
        environment = Environment(int(instances), int(rest[:-1]), int(extra), rest[-1])
        table = transfers if "ratio" in row else computes
        value = float(row["ratio"] if "ratio" in row else row["us_per_million"])
        table.setdefault((function, implementation, routine), []).append((environment, value))
    return RoutineTimes(device.name, device.graph_launch_us, transfers, computes) if transfers or computes else None


def probes(functions: Iterable[ElementaryFunction], device: DeviceSpec, options: Options) -> Iterator[Probe]:
    """Every routine of the functions in every environment that fits the device."""
    vector, matrix = (VECTOR_WORDS, MATRIX) if device.kind == "cuda" else (HOST_VECTOR_WORDS, HOST_MATRIX)
    for function in functions:
        if not function.sizes or len(function.sizes) > 2:
            continue
        sizes = (vector,) if len(function.sizes) == 1 else matrix
        graph = probe_graph(function, sizes)
        grid = bind_grid(graph, (0,))
        if not isinstance(grid, Grid):
            continue
        for number, implementation in enumerate(function.implementations):
            for environment in environments(grid.nested, prod(implementation.geometry.threads)):
                facts = ElementFacts(graph, (0,), (number,), grid, environment.instances)
                moved = facts.facts(Decision((0,), (number,), environment.instances, environment.iterations, environment.direction)).moved
                bytes_of = {m.routine: m.num_bytes for m in moved if not m.resident}
                for routine in (*bytes_of, "compute"):
                    fused = probe(function, number, routine, environment.instances, environment.iterations, environment.direction,
                                  environment.extra_shared_bytes, sizes, device)
                    if isinstance(fused, FusedRoutines):
                        yield Probe((function.name, implementation.name, routine), environment, bytes_of.get(routine, 0), prod(sizes),
                                    routine_spec(fused, device, options))


def calibrate_routines(functions: Iterable[ElementaryFunction], device: DeviceSpec, place: str, options: Options, *, again: bool = False,
                       most: int | None = None, seconds: float = math.inf, tell: Callable[[str, int], None] | None = None) -> int:
    """Benchmark what has no row yet (all with `again`); the number of rows measured. `tell` hears of each with the count so far.

    At most `most` rows, and none is begun after `seconds`.
    Cost: about 0.1 s a row on a GPU, most of it compiling side by side.
    """
    journal = routine_journal(device, options)
    measured = 0
    chunk: list[Probe] = []

    def flush() -> None:
        nonlocal measured
        build_together((k for p in chunk for k in p.spec.kernels), options)
        for p in chunk:
            us = _time_us(p.spec, place, options)
            if us is None:
                continue
            start_us = device.graph_launch_us if place != "host" else 0.0
            row = {"ratio": round(transfer_ratio(p.num_bytes, us, start_us, device), 4)} if p.num_bytes else \
                {"us_per_million": round(compute_us(p.words, us, start_us), 5)}
            journal.keep(p.key, {"label": p.name[0], **row})
            measured += 1
            if tell is not None:
                tell(" ".join(p.name), measured)
        chunk.clear()

    ends = time.monotonic() + seconds
    unknown = (p for p in probes(functions, device, options) if again or journal.find(p.key) is None)
    for p in itertools.islice(unknown, most):
        chunk.append(p)
        if len(chunk) == BUILT_TOGETHER:
            flush()
        if time.monotonic() > ends:
            break
    flush()
    return measured


def _time_us(spec: ProgramSpec, place: str, options: Options) -> float | None:
    """Median time of a probe; None where it does not compile or run. Units: microseconds."""
    try:
        program = Program(spec, {}, place, options)
        return time_program(program, [drawn_inputs(program, 0)], LAUNCHES).median_us
    except (ToolchainError, DeviceError, RuntimeError):
        return None
