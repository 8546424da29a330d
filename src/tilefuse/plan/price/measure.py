"""Costs by execution: kernels are generated, run and timed; predicted times are stored beside measured ones.

The planner runs nothing itself: it gets a `Measurer`, and `Records` that persist between compiles. Predictions filter; a measurement
decides for the kernels that a plan would use (`timed_check`), because those are few.
"""
from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilefuse.base import trace
from tilefuse.base.candidate import Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.coordinates import over_is_contiguous
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph, Node
from tilefuse.plan.pattern import MEASUREMENT, Cost, Plan, PlannedKernel
from tilefuse.plan.price.category import is_product
from tilefuse.plan.price.cost import CostModel
from tilefuse.plan.price.lone_call import LoneCall

# Share of its parts' time by which a kernel that ties with them counts as faster.
TIE = 1e-3


@dataclass(frozen=True, slots=True)
class Timing:
    """Repeated timings of one kernel. Units: microseconds; `spread_us` is half of them around the median."""

    median_us: float
    spread_us: float
    repeats: int


def timing_of(samples_us: Sequence[float]) -> Timing:
    """Median and interquartile range of some samples. Units: microseconds. Requires: at least one sample."""
    ordered = sorted(samples_us)
    quarter = len(ordered) // 4
    return Timing(statistics.median(ordered), ordered[-1 - quarter] - ordered[quarter], len(ordered))


def is_faster(a: Timing, b: Timing) -> bool:
    """Whether `a` is faster than `b` by more than the spread of either; a smaller difference is a tie."""
    return b.median_us - a.median_us > max(a.spread_us, b.spread_us)


def total(timings: Iterable[Timing]) -> Timing:
    """Kernels one after another. Units: microseconds; spreads of independent timings add in squares."""
    listed = list(timings)
    spread_us = math.sqrt(sum(t.spread_us ** 2 for t in listed))
    return Timing(sum(t.median_us for t in listed), spread_us, min((t.repeats for t in listed), default=0))


class Measurer(Protocol):
    """Generates a kernel, runs it on the device and times it; see `driver.measure.measure`."""

    def prepare(self, programs: Sequence[TileProgram]) -> None:
        """Compiles kernels that will be measured, all at once."""
        ...

    def measure(self, program: TileProgram) -> Timing | Rejected:
        """Time of the kernel inside a running stream, launch included; or the reason why it has none."""
        ...

    def measure_call(self, call: LoneCall) -> Timing | Rejected:
        """Time of a call of the library, as of a kernel."""
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """One kernel or library call on one device. Units: microseconds. `label` names it for people."""

    key: str
    label: str
    predicted_us: float
    timing: Timing
    is_call: bool = False


class Records(Protocol):
    """Measurements by kernel; see `runtime.stores.measurements`."""

    def find(self, key: str) -> Record | None:
        """The record of a kernel."""
        ...

    def keep(self, record: Record) -> None:
        """Stores a record, in place of an earlier one of the same kernel."""
        ...

    def all(self) -> Sequence[Record]:
        """Every record."""
        ...


def key_of(program: TileProgram | LoneCall) -> str:
    """Key of everything that decides a kernel's time: its graph, layouts, template and launch. Of a call: `LoneCall.key`."""
    if isinstance(program, LoneCall):
        return program.key
    key_text = repr((program.graph.inputs, program.graph.nodes, program.graph.results, sorted(program.layouts.items()), program.template,
                     program.parameters, program.launch))
    if any(n.category in ("gather", "scatter") for n in program.graph.nodes):
        # Records without this word are of indices below 100 and of tables that were copied first.
        key_text += "spread"
    return hashlib.sha256(key_text.encode()).hexdigest()[:32]


class MeasuredCost:
    """A cost model that uses measured times of kernels and calls where there are any.

    Units: microseconds. Source: `records`, else the wrapped model's, and for calls the prediction that each carries.
    Predictions are scaled by the median of measured over predicted, for kernels and calls separately, so that untimed steps compare fairly
    with timed ones. `only_measured`: untimed kernels of several nodes are not used at all.
    """

    def __init__(self, model: CostModel, records: Records) -> None:
        self._model = model
        self._records = records
        self._refused: set[str] = set()
        self._failed: dict[str, Rejected] = {}
        self._tied_us: dict[str, float] = {}
        self._bias = self._call_bias = 1.0
        self.only_measured = False
        self.learn()

    def learn(self) -> None:
        """Computes the bias of predictions from the records. Called between plans, so that one plan is made under one model."""
        records = [r for r in self._records.all() if r.predicted_us > 0]
        self._bias = _median_ratio([r for r in records if not r.is_call])
        self._call_bias = _median_ratio([r for r in records if r.is_call])

    def refuse(self, program: TileProgram) -> None:
        """Excludes this kernel from all further plans: it does not compile or does not run."""
        self._refused.add(key_of(program))

    def tie(self, program: TileProgram, apart_us: float) -> None:
        """The kernel is as fast as its parts, whose time is `apart_us`, within the precision of measurement: one kernel is then chosen."""
        self._tied_us[key_of(program)] = apart_us * (1 - TIE)

    def total_us(self, plan: Plan, call_us: Callable[[Node], float]) -> float:
        """Time of all kernels of a plan with known times, and of its calls. Units: microseconds. Source: `cost`, `call_us`."""
        calls = (call_us(plan.graph.node_by_name[v]) for c in plan.library_calls for _, v in c.results)
        return sum(self.cost(k.program).us for k in plan.kernels) + sum(calls)

    def call_us(self, call: LoneCall) -> float:
        """The measured time of a call, else the predicted one, scaled. Units: microseconds. Source: `records`, else the call's own."""
        measured_us = self.measured_call_us(call)
        return call.predicted_us * self._call_bias if measured_us is None else measured_us

    def measured_call_us(self, call: LoneCall) -> float | None:
        """The measured time of a call; None where it was not timed. Units: microseconds. Source: `records`."""
        record = self._records.find(key_of(call))
        return None if record is None else record.timing.median_us

    def cost(self, program: TileProgram) -> Cost:
        """The measured time, else the predicted one. Units: microseconds."""
        key = key_of(program)
        record = self._records.find(key)
        if key in self._refused or self.only_measured and record is None and replaces_others(program.graph):
            return Cost(math.inf, MEASUREMENT)
        if record is not None:
            return Cost(min(record.timing.median_us, self._tied_us.get(key, math.inf)), MEASUREMENT)
        predicted = self._model.cost(program)
        return Cost(predicted.us * self._bias, predicted.source)

    def limit_us(self, program: TileProgram) -> float:
        """As the wrapped model. Units: microseconds. Source: the wrapped model's."""
        return self._model.limit_us(program)

    def knows(self, program: TileProgram | LoneCall) -> bool:
        """Whether the kernel or call was measured, or cannot be."""
        key = key_of(program)
        return key in self._refused or key in self._failed or self._records.find(key) is not None

    def timing(self, program: TileProgram | LoneCall, measurer: Measurer) -> Timing | Rejected:
        """The kernel's or the call's time, measured now unless it was before; the record stores it beside the prediction.

        A call that cannot be timed is not tried again.
        """
        key = key_of(program)
        record = self._records.find(key)
        if record is not None:
            return record.timing
        if isinstance(program, LoneCall):
            timing = self._failed.get(key) or measurer.measure_call(program)
            if isinstance(timing, Timing):
                self._records.keep(Record(key, f"call {program.node.detail}", program.predicted_us, timing, is_call=True))
            else:
                self._failed[key] = timing
            return timing
        timing = measurer.measure(program)
        if isinstance(timing, Timing):
            self._records.keep(Record(key, program.name, self._model.cost(program).us, timing))
        return timing


def _median_ratio(records: Sequence[Record]) -> float:
    """Median of measured over predicted; 1 for too few records. Requires: every record has a prediction."""
    if len(records) < SEARCH.selection.least_records:
        return 1.0
    return statistics.median(r.timing.median_us / r.predicted_us for r in records)


def replaces_others(graph: Graph) -> bool:
    """Whether a kernel of these nodes replaces other kernels, or a library call."""
    return len(graph.nodes) > 1 or any(n.category == "library" for n in graph.nodes)


def is_complex(graph: Graph) -> bool:
    """Whether a prediction is uncertain: row and column reductions together, or a product with another reduction.

    Source: FusionStitching 4.3, the patterns for which it evaluates by execution.
    """
    products = [n for n in graph.nodes if is_product(n)]
    reductions = [n for n in graph.nodes if n.category == "reduce" and n not in products]
    return len({over_is_contiguous(n) for n in reductions}) > 1 or bool(products) and len(products) + len(reductions) > 1


@dataclass(frozen=True, slots=True)
class Slower:
    """A kernel of a plan that is slower than its unfused parts, of which there are `num_parts`. Units: microseconds."""

    kernel: str
    nodes: tuple[str, ...]
    fused: Timing
    apart: Timing
    num_parts: int

    def __str__(self) -> str:
        parts = f"{self.num_parts} kernels" if len(self.nodes) > 1 else "a call"
        return f"{self.kernel}: one kernel {self.fused.median_us:.2f} us, {parts} {self.apart.median_us:.2f} us"


Parts = Callable[[PlannedKernel], Sequence[TileProgram | LoneCall | Rejected]]


def timed_check(plan: Plan, model: MeasuredCost, measurer: Measurer, parts: Parts, enough: Callable[[], bool]) -> tuple[Slower, ...]:
    """The kernels that are slower than one kernel per node, by measurement; all measurements are in the model's records.

    parts: the programs of a kernel's nodes alone, and the library's calls for its products.
    enough: whether the time for measuring is over; complex patterns come first.
    Cost: a compile and some runs for each distinct kernel and each of its nodes.
    """
    slower: list[Slower] = []
    distinct = {id(k.program): k for k in reversed(plan.kernels) if replaces_others(k.program.graph)}
    ordered = sorted(distinct.values(), key=lambda k: (not is_complex(k.program.graph), -k.cost.us, k.name))
    parts_of = {k.name: parts(k) for k in ordered}
    measurer.prepare([p for k in ordered for p in (k.program, *parts_of[k.name]) if isinstance(p, TileProgram) and not model.knows(p)])
    for kernel in ordered:
        if enough():
            trace.current().event("time for measuring is over", "plan", kernel=kernel.name)
            break
        fused = model.timing(kernel.program, measurer)
        alone = [p if isinstance(p, Rejected) else model.timing(p, measurer) for p in parts_of[kernel.name]]
        timed = [t for t in alone if isinstance(t, Timing)]
        if len(timed) < len(alone):
            continue
        apart = total(timed)
        if isinstance(fused, Rejected):
            # Its parts have just run, and it does not.
            trace.current().line("rejected", f"{kernel.name}: {fused}")
            model.refuse(kernel.program)
            slower.append(Slower(kernel.name, kernel.pattern.nodes, Timing(math.inf, 0.0, 0), apart, len(alone)))
        elif is_faster(apart, fused):
            slower.append(Slower(kernel.name, kernel.pattern.nodes, fused, apart, len(alone)))
        elif fused.median_us >= apart.median_us:
            model.tie(kernel.program, apart.median_us)
    return tuple(slower)
