"""Measures kernels for the planner and the tuner: generated, compiled, run on drawn inputs, compared, timed.

On a GPU a kernel is timed inside a recorded graph over rotating inputs, on the host by the clock. A kernel that does not compile, does not
run or returns other results than the first kernel of the same pattern becomes a `Rejected` value with the cause, so that a search
continues.
"""
from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import DeviceError, ToolchainError
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.measure.lone_kernel import drawn_inputs, index_extents, lone_call, lone_program, lone_spec
from tilefuse.plan.price.lone_call import LoneCall
from tilefuse.plan.price.measure import Record, Timing, timing_of
from tilefuse.runtime.compilers.binaries import build_kernels
from tilefuse.runtime.spec import KernelCode
from tilefuse.runtime.stores.cache import cache_of
from tilefuse.runtime.stores.measurements import Journal, journal_path
from tilefuse.target.device import DeviceSpec

REPEATS = 11
LAUNCHES = 16
INPUT_SETS = 2
# Sets of inputs of the smallest kernels, where inputs rotate through more than a cache: each launch of a recorded graph has one.
MOST_INPUT_SETS = 256
# A sum of many terms may differ by this part of its size when its terms are added in another order.
# Source: Higham 2002, section 4.2: n eps for f32 with n up to 2^16, and the element type's own rounding for shorter ones.
TOLERANCE_BY_DTYPE = {"f64": 1e-9, "f32": 4e-3, "f16": 1e-2, "bf16": 4e-2}


class KernelMeasurer:
    """Times tile programs on one device. `clock` is a second counter, replaced in tests.

    rotated_bytes: inputs and results of successive launches are others until so many bytes have been moved, at most `MOST_INPUT_SETS` of
    them. With 0 two sets of inputs take turns, which stay in the second-level cache where they are small, as values often do that the
    kernel ahead has just written.
    """

    def __init__(self, device: DeviceSpec, place: str, options: Options, clock: Callable[[], float] = time.perf_counter,
                 rotated_bytes: int = 0) -> None:
        self._device, self._place, self._options, self._clock = device, place, options, clock
        self._rotated_bytes = rotated_bytes
        self._references: dict[tuple[object, ...], list[Any]] = {}

    def prepare(self, programs: Sequence[TileProgram]) -> None:
        """Compiles the programs' kernels in parallel; a compiler's error is reported when the kernel is measured."""
        codes: list[KernelCode] = []
        for program in programs:
            codes += lone_spec(program, self._device, self._options, over_inputs=True).kernels
        build_together(codes, self._options)

    def measure(self, program: TileProgram) -> Timing | Rejected:
        """Time of the kernel, launch included; or the reason why it has none. Units: microseconds."""
        try:
            lone = lone_program(program, self._device, self._place, self._options, over_inputs=True)
        except ToolchainError as error:
            return Rejected(Reason.DOES_NOT_COMPILE, _first_line(error))
        except DeviceError as error:
            return Rejected(Reason.DOES_NOT_RUN, _first_line(error))
        try:
            # A fault on the device reaches torch as a RuntimeError at the next wait.
            extents = index_extents(program.graph)
            sets = [drawn_inputs(lone, seed, extents) for seed in range(INPUT_SETS if lone.device.type == "cuda" else 1)]
            wrong = self._compare(program, lone, sets[0])
            if wrong is not None:
                return wrong
            return self._timed(lone, sets, program.bytes_moved)
        except (DeviceError, RuntimeError) as error:
            return Rejected(Reason.DOES_NOT_RUN, _first_line(error))

    def measure_call(self, call: LoneCall) -> Timing | Rejected:
        """Time of a library call, or the reason why it does not run. Units: microseconds."""
        try:
            lone = lone_call(call, self._device, self._place, self._options)
            sets = [drawn_inputs(lone, seed) for seed in range(INPUT_SETS if lone.device.type == "cuda" else 1)]
            return time_program(lone, sets, LAUNCHES, self._clock)
        except (DeviceError, RuntimeError) as error:
            return Rejected(Reason.DOES_NOT_RUN, _first_line(error))

    def _timed(self, lone: Any, sets: list[list[Any]], bytes_moved: int) -> Timing:
        """The time of a kernel on these inputs, or on as many copies of them as `rotated_bytes` asks for."""
        count = num_input_sets(self._rotated_bytes, bytes_moved)
        if lone.device.type != "cuda" or count <= INPUT_SETS:
            return time_program(lone, sets, LAUNCHES, self._clock)
        sets = sets + [[x.clone() for x in sets[n % INPUT_SETS]] for n in range(count - INPUT_SETS)]
        return time_program(lone, sets, max(LAUNCHES, count), self._clock, kept=count)

    def _compare(self, program: TileProgram, lone: Any, inputs: list[Any]) -> Rejected | None:
        """Results, and inputs that are updated, against those of the first program of the same pattern."""
        copies = [i.clone() for i in inputs]
        updated = [n for n, name in enumerate(lone.spec.inputs) if name in lone.spec.updates]
        results = [*(r.clone() for r in lone(*copies)), *(copies[n] for n in updated)]
        values = (*lone.spec.results, *(lone.spec.inputs[n] for n in updated))
        key = (program.graph.inputs, program.graph.nodes, program.graph.results)
        reference = self._references.setdefault(key, results)
        for value, got, want in zip(values, results, reference, strict=True):
            name = program.graph.type_of(value).dtype.name
            if not same(got, want, TOLERANCE_BY_DTYPE.get(name, 0.0)):
                return Rejected(Reason.WRONG_RESULT, f"%{value} differs from the pattern's first kernel")
        return None


def num_input_sets(rotated_bytes: int, bytes_moved: int) -> int:
    """Sets of inputs with which `rotated_bytes` bytes are moved before one set comes again."""
    return min(MOST_INPUT_SETS, max(INPUT_SETS, -(-rotated_bytes // max(bytes_moved, 1))))


def time_program(program: Any, sets: Sequence[Sequence[Any]], launches: int, clock: Callable[[], float] = time.perf_counter,
                 kept: int = 0) -> Timing:
    """Time of a call on inputs that rotate: inside a recorded graph on a GPU, by the clock on the host.

    kept: number of calls whose results live at a time, so that their memory rotates too. Otherwise each call overwrites the results of the
    previous one: 16 MiB of results stay in the L2 cache of an H200, and kernels that bypass it for their results seem a tenth slower.
    Raises: DeviceError, or RuntimeError for a fault, which reaches torch at the next wait.
    """
    if program.device.type != "cuda":
        return timing_of(_host_samples_us(program, sets[0], clock))
    from tilefuse.runtime.calls.replay_times import replay_samples_us

    results: deque[Any] = deque(maxlen=kept)

    def call(inputs: Sequence[Any]) -> None:
        results.append(program(*inputs))

    calls = [partial(call, sets[launch % len(sets)]) for launch in range(launches)]
    return timing_of(replay_samples_us(lambda stream: calls, program.device, REPEATS))


def _host_samples_us(program: Any, inputs: Sequence[Any], clock: Callable[[], float]) -> list[float]:
    samples: list[float] = []
    for run in range(2 * REPEATS):
        started = clock()
        program(*inputs)
        if run:
            samples.append((clock() - started) * 1e6)
    # Other work on the machine only lengthens calls: the slower half measures that work and not the kernel.
    return sorted(samples)[:REPEATS]


def build_together(codes: Iterable[KernelCode], options: Options) -> None:
    """Compiles kernels in parallel, equal ones once; a compiler's error is reported when the kernel is loaded."""
    distinct = {c.source: c for c in codes}
    with contextlib.suppress(ToolchainError):
        build_kernels(list(distinct.values()), cache_of(options.cache, options.cache_dir), jobs=options.jobs, cxx=options.cxx)


def same(got: Any, want: Any, tolerance: float) -> bool:
    """Whether two tensors agree: exactly for integers and infinities, within `tolerance` of the whole tensor's size for floats."""
    import torch

    if not got.dtype.is_floating_point:
        return bool(torch.equal(got, want))
    a, b = got.double(), want.double()
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return False
    finite = a.isfinite() & b.isfinite()
    a, b = a[finite], b[finite]
    return bool((a - b).norm() <= tolerance * b.norm() + 1e-30)


class DiskRecords:
    """`plan.price.measure.Records` in a journal of the cache folder."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @classmethod
    def of(cls, device: DeviceSpec, options: Options) -> DiskRecords:
        """The records of a device in the cache that the options name."""
        folder = cache_of(options.cache, options.cache_dir).folder
        return cls(Journal(journal_path(folder, "measured", f"{device.name}-{device.num_multiprocessors}")))

    def find(self, key: str) -> Record | None:
        """The record of a kernel; rows of an unknown form count as none."""
        row = self._journal.find(key)
        if row is None or not {"label", "predicted_us", "us", "spread_us", "repeats"} <= set(row):
            return None
        timing = Timing(float(row["us"]), float(row["spread_us"]), int(row["repeats"]))
        return Record(key, str(row["label"]), float(row["predicted_us"]), timing, bool(row.get("is_call", False)))

    def keep(self, record: Record) -> None:
        """Remembers a record on disk."""
        self._journal.keep(record.key, {"label": record.label, "predicted_us": record.predicted_us, "us": record.timing.median_us,
                                        "spread_us": record.timing.spread_us, "repeats": record.timing.repeats,
                                        **({"is_call": True} if record.is_call else {})})

    def all(self) -> tuple[Record, ...]:
        """Every record, oldest first."""
        records = (self.find(str(row["key"])) for row in self._journal.rows())
        return tuple(r for r in records if r is not None)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
