"""How well predictions rank kernels: predicted against measured time of the kernels of plans and of the tuning cases.

Of plans (workloads, stitched cases) every distinct kernel and the products left to the library; tuning cases fused and node by node.

    python -m benchmarks planner [--quick] [--only REGEX] [--budget SECONDS] [--processes N]

Several processes plan and compile side by side and take turns on the device (`turns.py`).

The planner needs the order of candidates more than their times, so the figure is Spearman's rank correlation. Records keep every kernel as
text, so that later prices are compared with the same measurements without a device: `python -m benchmarks.replay`.
"""
from __future__ import annotations

import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import correlation, turns
from benchmarks.environment import describe
from benchmarks.planned_kernels import LONG, Call, planned, sources, time_call
from benchmarks.record import Record
from benchmarks.replay.conditions import measured_parts
from benchmarks.replay.kept import text_of, text_of_call
from benchmarks.timing import L2_ROTATION
from benchmarks.tuning import CASES, shapes_of
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.measure import DiskRecords, KernelMeasurer
from tilefuse.frontends.imported import Imported
from tilefuse.ir.dtype import DTYPES
from tilefuse.ir.graph import Graph
from tilefuse.plan.pattern import Pattern
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.plan.price.measure import MeasuredCost
from tilefuse.runtime.stores.measurements import Journal
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.pattern import schedule_pattern


def cases(only: str, quick: bool, tiny: bool) -> Iterator[tuple[str, Graph]]:
    """(name, graph) of the chosen cases; tiny ones run on a host in seconds."""
    for name, (build, _) in CASES.items():
        for dtype in ("f32",) if quick else ("f32", "f16"):
            for rows, columns in shapes_of(name)[:2] if quick else shapes_of(name):
                m, n = (max(rows // 512, 4), max(columns // 16, 8)) if tiny else (rows, columns)
                label = f"{name}-{dtype}-{m}x{n}"
                if re.search(only, label):
                    yield label, build(m, n, DTYPES[dtype])


def programs_of(graph: Graph, device: DeviceSpec) -> Iterator[TileProgram]:
    """The fused kernel of a graph, then one a node."""
    for nodes in (tuple(n.name for n in graph.nodes), *((n.name,) for n in graph.nodes)):
        written = tuple(r for r in graph.results if r in nodes) if len(nodes) > 1 else nodes
        made = schedule_pattern(Pattern(nodes, written).graph(graph), nodes, {}, device)
        if isinstance(made, TileProgram):
            yield made


def cold_measurer(device: DeviceSpec, place: str, options: Options) -> KernelMeasurer:
    """Times kernels whose operands come from memory, as predictions assume: four times the second-level cache passes between two launches
    on the same operands. With two sets of inputs the small tensors of most kernels stay in the cache, and such times say nothing of bytes.
    """
    return KernelMeasurer(device, place, options, rotated_bytes=L2_ROTATION * device.l2_bytes)


def predicted_us(program: TileProgram, device: DeviceSpec) -> float:
    """Price of a kernel under the conditions of its measurement. Units: microseconds.

    Source: `AnalyticCost`, whose prices for plans count all boundary values as reads of global memory, and a launch before each kernel.
    """
    return measured_parts(program, device)[0]


@dataclass(frozen=True)
class Row:
    """One kernel or call, predicted and measured. `template` is "call" for the library's; kernel: its text (`replay/kept.py`).

    Units: microseconds.
    """

    label: str
    template: str
    predicted_us: float
    measured_us: float
    spread_us: float
    kernel: dict[str, Any]

    def text(self) -> str:
        """The row as printed."""
        return (f"{self.label:60s} {self.template:10s} predicted {self.predicted_us:9.2f} us  measured {self.measured_us:9.2f} us "
                f"+- {self.spread_us:.2f}")


class Bench:
    """One run over kernels, until its time is over. `bad` counts kernels that did not compile or run."""

    def __init__(self, device: DeviceSpec, place: str, budget_s: float) -> None:
        self.device, self.options = device, Options.from_environment()
        self.torch_device = torch.device("cpu" if place == "host" else place)
        self.records, self.measurer = DiskRecords(Journal(None)), cold_measurer(device, place, self.options)
        self.model = MeasuredCost(AnalyticCost(device), self.records)
        self.rows: list[Row] = []
        self.bad = 0
        self.until = time.monotonic() + (budget_s or float("inf"))

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.until

    def plan(self, name: str, graph_of: Callable[[], Imported]) -> None:
        """Plans a graph, and measures its kernels and calls."""
        if not self.is_over:
            kernels, calls = planned(name, graph_of(), self.device, self.options)
            self.kernels(kernels)
            self.calls(calls)

    def case(self, label: str, graph: Graph) -> None:
        """Measures a tuning case, fused and node by node."""
        if not self.is_over:
            self.kernels([(f"{label} {'fused' if len(p.graph.nodes) > 1 else p.graph.nodes[0].name}", p)
                          for p in programs_of(graph, self.device)])

    def kernels(self, labelled: Sequence[tuple[str, TileProgram]]) -> None:
        """Measures kernels that were not measured before."""
        if not self.is_over:
            self.measurer.prepare([p for _, p in labelled])
        for label, program in labelled:
            if self.is_over:
                break
            if self.model.knows(program):
                continue
            with turns.held():
                timing = self.model.timing(program, self.measurer)
            if isinstance(timing, Rejected):
                self.bad += 1
                print(f"{label:60s} {timing}", flush=True)
                continue
            self._keep(Row(label, program.template, predicted_us(program, self.device), timing.median_us, timing.spread_us,
                           text_of(program)))

    def calls(self, calls: Sequence[Call]) -> None:
        """Measures products of the library; without a device there is nothing to compare them with."""
        for call in calls if self.torch_device.type == "cuda" else ():
            if self.is_over:
                break
            with turns.held():
                timing = time_call(call, self.torch_device)
            self._keep(Row(call.label, "call", call.predicted_us, timing.median_us, timing.high_us - timing.low_us,
                           text_of_call(call)))

    def _keep(self, row: Row) -> None:
        self.rows.append(row)
        print(row.text(), flush=True)


def run(out: Path, *, only: str = "", quick: bool = False, budget_s: float = 0.0, tiny: bool = False, is_listed: bool = False,
        processes: int = 1) -> int:
    """Measures, prints the table and the correlations, and writes both, or only lists the cases. Exit status: 1 if a kernel did not run.

    quick: short plans, and few shapes of the tuning cases.
    """
    if is_listed:
        print("\n".join([label for label, _ in sources(only, quick, tiny)] + [label for label, _ in cases(only, quick, tiny)]))
        return 0
    bench = Bench(*present_device(), budget_s)
    if processes > 1:
        bench.rows, bench.bad = _by_processes(processes, only, quick, tiny, budget_s)
    else:
        for name, graph_of in sources(only, quick, tiny):
            bench.plan(name, graph_of)
        for label, graph in cases(only, quick, tiny):
            bench.case(label, graph)
    record = Record.start(out, "planner", describe(bench.torch_device))
    record.cases = {r.label: asdict(r) for r in bench.rows}
    record.header |= {"rank_correlation": correlation.of_rows(record.cases.values()),
                      "templates": correlation.by_template(record.cases.values())}
    record.write()
    print(summary(bench.device.name, record.header, len(bench.rows)))
    print(f"record: {record.path}", file=sys.stderr)
    return 1 if bench.bad else 0


def _by_processes(processes: int, only: str, quick: bool, tiny: bool, budget_s: float) -> tuple[list[Row], int]:
    """Rows of all plans and cases whose process answered in time, in the order of the listing; kernels that did not run."""
    plans, tuned = ([name for name, _ in listed(only, quick, tiny)] for listed in (sources, cases))
    ended: dict[str, tuple[list[Row], int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        lock = os.environ.get(turns.VARIABLE) or os.path.join(folder, "device.turns")
        pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, (budget_s, lock))
        slow_first = sorted(plans, key=lambda name: not any(long in name for long in LONG))
        asked = {pool.submit(_measured, name, name in plans, quick, tiny): name for name in (*slow_first, *tuned)}
        try:
            for future in as_completed(asked, budget_s + 2 if budget_s else None):
                ended[asked[future]] = future.result()
        except TimeoutError:
            print(f"{len(asked) - len(ended)} of {len(asked)} not measured within {budget_s:g} s", file=sys.stderr)
        for process in list(pool._processes.values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
    return [row for name in (*plans, *tuned) if name in ended for row in ended[name][0]], sum(bad for _, bad in ended.values())


def _begin(budget_s: float, lock: str) -> None:
    """In a measuring process: its bench. lock: the file of the turns on the device."""
    global _bench
    os.environ[turns.VARIABLE] = lock
    _bench = Bench(*present_device(), budget_s)


def _measured(name: str, is_plan: bool, quick: bool, tiny: bool) -> tuple[list[Row], int]:
    """In a measuring process: rows of one plan or case, and kernels that did not run."""
    assert _bench is not None
    num_rows, num_bad = len(_bench.rows), _bench.bad
    exactly = f"^{re.escape(name)}$"
    if is_plan:
        for _, graph_of in sources(exactly, quick, tiny):
            _bench.plan(name, graph_of)
    else:
        for label, graph in cases(exactly, quick, tiny):
            _bench.case(label, graph)
    return _bench.rows[num_rows:], _bench.bad - num_bad


_bench: Bench | None = None


def summary(device: str, header: Mapping[str, Any], count: int) -> str:
    """The correlations as printed."""
    lines = [f"{device}: {count} kernels, rank correlation {header['rank_correlation']:.4f}; measured over predicted (quartiles):"]
    lines += [f"  {template:10s} {t['kernels']:4.0f} kernels, rank correlation {t['rank_correlation']:.4f}, "
              f"{t['low']:.2f} {t['median']:.2f} {t['high']:.2f}" for template, t in header["templates"].items()]
    return "\n".join(lines)
