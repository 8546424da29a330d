"""How well predictions rank kernels: predicted against measured time of the tuning cases, fused and node by node.

    python -m benchmarks planner [--quick] [--only REGEX] [--budget SECONDS]

The planner needs the order of candidates more than their times, so the figure is Spearman's rank correlation.
"""
from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.tuning import CASES, shapes_of
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure import DiskRecords, KernelMeasurer
from tilefuse.ir.dtype import DTYPES
from tilefuse.ir.graph import Graph
from tilefuse.plan.cost import AnalyticCost
from tilefuse.plan.measure import MeasuredCost
from tilefuse.plan.pattern import Pattern
from tilefuse.runtime.measurements import Journal
from tilefuse.schedule.pattern import schedule_pattern
from tilefuse.schedule.tile import TileProgram
from tilefuse.target.device import DeviceSpec


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


def run(out: Path, *, only: str = "", quick: bool = False, budget_s: float = 0.0, tiny: bool = False, is_listed: bool = False) -> int:
    """Measures, prints the table and the correlation, and writes both, or only lists the cases. Exit status: 1 if a kernel did not run."""
    if is_listed:
        print("\n".join(label for label, _ in cases(only, quick, tiny)))
        return 0
    device, place = present_device()
    options = Options.from_environment()
    records = DiskRecords(Journal(None))
    model, measurer = MeasuredCost(AnalyticCost(device), records), KernelMeasurer(device, place, options)
    started, bad = time.monotonic(), 0
    for label, graph in cases(only, quick, tiny):
        made = list(programs_of(graph, device))
        measurer.prepare(made)
        for program in made:
            if budget_s and time.monotonic() - started > budget_s:
                break
            if model.knows(program):
                continue
            timing = model.timing(program, measurer)
            kind = f"{label} {'fused' if len(program.graph.nodes) > 1 else program.graph.nodes[0].name}"
            if isinstance(timing, Rejected):
                bad += 1
                print(f"{kind:44s} {timing}", flush=True)
                continue
            predicted = AnalyticCost(device).cost(program)
            print(f"{kind:44s} predicted {predicted.us:10.2f} us ({predicted.source})  measured {timing.median_us:10.2f} us "
                  f"+- {timing.spread_us:.2f}", flush=True)
    rows = records.all()
    pairs = [(r.predicted_us, r.timing.median_us) for r in rows]
    correlation = rank_correlation(pairs)
    print(f"{device.name}: {len(pairs)} kernels, rank correlation {correlation:.4f}")
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"planner-{device.name}.json"
    kernels = [{"label": r.label, "predicted_us": r.predicted_us, "measured_us": r.timing.median_us, "spread_us": r.timing.spread_us}
               for r in rows]
    path.write_text(json.dumps({"device": device.name, "rank_correlation": correlation, "kernels": kernels}, indent=1) + "\n")
    print(f"record: {path}", file=sys.stderr)
    return 1 if bad else 0


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's rank correlation of predicted and measured times; ties share their mean rank. 0 for fewer than two distinct pairs."""
    a, b = (_ranks([p[side] for p in pairs]) for side in (0, 1))
    mean = (len(pairs) - 1) / 2
    across = sum((x - mean) * (y - mean) for x, y in zip(a, b))
    squares = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return across / squares ** 0.5 if squares > 0 else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start:end + 1]:
            ranks[place] = (start + end) / 2
        start = end + 1
    return ranks
