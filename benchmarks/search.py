"""The search over the programs of BLAS scripts: how good the first one is, where the best one stands, how long it all takes.

As tables 3 to 5 of Filipovic et al., "Optimizing CUDA Code by Kernel Fusion: Application on BLAS": implementations of all fusions, rank of
the best program in the order of prediction, the first and the worst against the best, time to the first program, to all of the listed
ones, and of the empirical search. A case is named script/type/size; `--quick` takes the eleven sequences in f32 at the large size.
"""
from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.blas import SEQUENCES, SIDES, SOLVERS, VECTORS, Linear, doubled
from benchmarks.environment import default_device, describe
from benchmarks.record import Record

# Programs that are timed of each script, and implementations of each fusion among them.
MOST, EACH = 24, 6
# Share of the best program's speed that the first must reach, and rank that the best must have at least. Source: the paper's table 3.
FIRST_OF_BEST, BEST_AMONG = 0.95, 10


# Sizes that are searched: the largest, those of tens of MiB, those that a few multiprocessors' caches would hold. Numbers in SIDES.
SIZES = (-1, 3, 1)


@dataclass(frozen=True)
class Searched:
    """A sequence, an element type and a size."""

    sequence: Linear
    dtype: str
    size: int

    @property
    def name(self) -> str:
        """As the cases of the suite `blas` are named."""
        return f"{self.sequence.name}/{self.dtype}/{f'{self.size}x{self.size}' if self.sequence.on_matrices else self.size}"


def cases(quick: bool = False, tiny: bool = False) -> list[Searched]:
    """Scripts to search: the large sizes first."""
    found = []
    for rank in SIZES[:1] if quick or tiny else SIZES:
        for dtype in ("f32",) if quick else ("f32", "f64"):
            for sequence in SEQUENCES if quick else (*SEQUENCES, *SOLVERS):
                found.append(Searched(sequence, dtype, 33 if tiny else SIDES[rank] if sequence.on_matrices else VECTORS[rank]))
    return found


def run(folder: Path, *, only: str = "", quick: bool = False, budget_s: float = 0.0, tiny: bool = False, listed: bool = False,
        dtypes: Collection[str] = ()) -> int:
    """Search every case; print and store a row for each. Exit status: 0, or 1 where a program was wrong."""
    chosen = [c for c in cases(quick, tiny) if re.search(only, c.name) and (not dtypes or c.dtype in dtypes)]
    if listed:
        print("\n".join(c.name for c in chosen))
        return 0
    record = Record.start(folder, "search", describe(default_device()))
    ends = time.monotonic() + budget_s if budget_s else float("inf")
    wrong = 0
    print(f"{'case':<30} {'fusions':>7} {'implem.':>7} {'timed':>5} {'best us':>9} {'rank':>4} {'first/best':>10} {'worst/best':>10} "
          f"{'first s':>8} {'list s':>7} {'search s':>8}")
    for case in chosen:
        if time.monotonic() > ends:
            print("budget spent", file=sys.stderr)
            break
        row = searched(case, ends)
        wrong += sum("wrong-result" in r for r in row["rejected"])
        record.cases[case.name] = row
        record.write()
        print(_line(case.name, row), flush=True)
    rows = [r for r in record.cases.values() if r["best_us"]]
    good = sum(r["first_of_best"] >= FIRST_OF_BEST for r in rows)
    early = sum(r["rank_of_best"] < BEST_AMONG for r in rows)
    print(f"first program at {FIRST_OF_BEST:.0%} of the best or more: {good} of {len(rows)}; best among the first {BEST_AMONG}: {early}")
    print(f"record: {record.path}")
    return 1 if wrong else 0


def searched(case: Searched, ends: float) -> dict[str, Any]:
    """The search of one case. Units: seconds; microseconds."""
    from tilefuse import blas
    from tilefuse.base.candidate import Rejected
    from tilefuse.driver.compile import present_device
    from tilefuse.scripts.plan.implementations import list_candidates
    from tilefuse.scripts.tune import ScriptTuner

    sequence, size = case.sequence, case.size
    script = sequence.script if case.dtype == "f32" else doubled(sequence.script)
    function = blas.compile(script, name=sequence.name.replace("-", "_"))
    device, place = present_device()
    kinds = zip(function.inputs, sequence.arguments, strict=True)
    shapes = {n: (size, size) if kind in "mh" else (size,) for n, kind in kinds if kind != "s"}
    graph = function.graph_for(shapes)
    function.search(graph, device).first()  # what every first search loads
    began = time.perf_counter()
    function.search(graph, device).first()
    first_s = time.perf_counter() - began
    search = function.search(graph, device)
    began = time.perf_counter()
    listed = list(itertools.islice(search.combinations(EACH), MOST))
    list_s = time.perf_counter() - began
    count = sum(len(list_candidates(graph, f, device).ranked) for f in search.fusions.legal)
    began = time.perf_counter()
    trials = list(ScriptTuner(search, place).trials(MOST, max(ends - time.monotonic(), 1.0), EACH))
    search_s = time.perf_counter() - began
    timed = [t for t in trials if isinstance(t.measured, float)]
    us = [t.measured for t in timed]
    best = min(us, default=0.0)
    return {"num_fusions": len(search.fusions.legal), "num_rejected": len(search.fusions.rejected), "num_implementations": count,
            "num_listed": len(listed), "num_timed": len(timed), "best_us": best,
            "rank_of_best": next((t.rank for t in timed if t.measured == best), None),
            "best": next((t.how for t in timed if t.measured == best), None),
            "first_us": us[0] if us else None, "first_of_best": best / us[0] if us else None,
            "worst_of_best": best / max(us) if us else None,
            "first_s": first_s, "list_s": list_s, "search_s": search_s,
            "rejected": [str(t.measured) for t in trials if isinstance(t.measured, Rejected)],
            "programs": [{"rank": t.rank, "how": t.how, "predicted_us": t.predicted_us,
                          "us": t.measured if isinstance(t.measured, float) else None} for t in trials]}


def _line(name: str, row: dict[str, Any]) -> str:
    if not row["best_us"]:
        return f"{name:<30} nothing ran: {json.dumps(row['rejected'][:2])}"
    return (f"{name:<30} {row['num_fusions']:>7} {row['num_implementations']:>7} {row['num_timed']:>5} {row['best_us']:>9.1f} "
            f"{row['rank_of_best']:>4} {row['first_of_best']:>10.3f} {row['worst_of_best']:>10.3f} {row['first_s']:>8.3f} "
            f"{row['list_s']:>7.3f} {row['search_s']:>8.1f}")
