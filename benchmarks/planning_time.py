"""Processor time of planning for a device that need not be present: passes and plan, and sources, of the graphs of workloads and models.

    python -m benchmarks.planning_time time FILE [--suites workloads,models] [--only REGEX] [--rounds 3] [--package SRC] [--device h200]
    python -m benchmarks.planning_time compare BEFORE AFTER [LATER ...]

Each plan is made in a process of its own, forked where the graph is known and all modules are loaded, with an empty cache: no memo of
another plan helps it, and reading the model does not count. A figure is the best of some rounds, since other work on the machine only
lengthens it. `--package` is the folder of another version of the package, whose frontend then reads the same models.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.planning_graphs import chain

ROOT = Path(__file__).resolve().parents[1]
SUITES = "workloads,models"
# The emergency limit of planning must end no plan early. Units: seconds.
PLAN_SECONDS = 600


def timed(imported: Any, device: Any) -> dict[str, float]:
    """Processor time of one plan in this process. Units: seconds."""
    from tilefuse.base.options import Options
    from tilefuse.driver import compile as whole

    planned_at = [0.0]
    lower = whole.lower

    def noted(*arguments: Any, **named: Any) -> Any:
        planned_at[0] = time.process_time()
        return lower(*arguments, **named)

    whole.lower = noted  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        options = replace(Options.from_environment(), cache_dir=folder, tuned=False, plan_seconds=PLAN_SECONDS)
        began = time.process_time()
        whole.generate(imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=device, options=options,
                       result_layouts=imported.result_layouts)
        ended = time.process_time()
    whole.lower = lower
    return {"plan_s": planned_at[0] - began, "sources_s": ended - planned_at[0]}


def in_a_fork(function: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The result of a function that ran in a copy of this process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run() -> None:
        try:
            theirs.send(function())
        except Exception as error:  # the parent tells which graph it was
            theirs.send({"failed": f"{type(error).__name__}: {error}"})

    process = context.Process(target=run)
    process.start()
    theirs.close()
    found: dict[str, float] = ours.recv()
    process.join()
    return found


def write_times(out: Path, suites: str, only: str, rounds: int, device_name: str) -> None:
    """Appends a line a graph to the file; cases that it has are left out."""
    from benchmarks.suite_graphs import graph_sources
    from tilefuse.frontends.imported import Imported
    from tilefuse.ir.text import parse_graph
    from tilefuse.target.catalog import device_by_name

    device = device_by_name(device_name)
    timed(Imported(parse_graph(chain(4))), device)  # loads every module
    known = {json.loads(line)["case"] for line in out.read_text(encoding="utf-8").splitlines()} if out.exists() else set()
    with out.open("a", encoding="utf-8") as file:
        for case, graphs_of in graph_sources(suites, only):
            if case in known:
                continue
            for number, imported in enumerate(graphs_of()):
                rows = [in_a_fork(lambda i=imported: timed(i, device)) for _ in range(rounds)]  # type: ignore[misc]
                row = {k: min(r[k] for r in rows) for k in rows[0]}
                file.write(json.dumps({"case": case, "graph": number, **row}) + "\n")
                file.flush()
                print(f"{case} {number}", *(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)


def compare(paths: list[Path]) -> None:
    """Prints plan and sources of every graph that all files have, in seconds, and the ratios of the last to the first."""
    lists = [{(r["case"], r["graph"]): r for line in p.read_text(encoding="utf-8").splitlines() if "plan_s" in (r := json.loads(line))}
             for p in paths]
    shared = [k for k in lists[0] if all(k in other for other in lists)]
    heads = "".join(f"{f'{what} {p.stem}':>18}" for what in ("plan", "sources") for p in paths)
    print(f"{'graph':<34}{heads}{'plan ratios':>16}")
    ratios: list[list[float]] = [[] for _ in lists]
    for key in shared:
        rows = [other[key] for other in lists]
        for ratio, row in zip(ratios, rows, strict=True):
            ratio.append(row["plan_s"] / rows[0]["plan_s"])
        figures = "".join(f"{row[what]:>18.3f}" for what in ("plan_s", "sources_s") for row in rows)
        print(f"{f'{key[0]} {key[1]}':<34}{figures}    " + " ".join(f"{ratio[-1]:5.2f}" for ratio in ratios[1:]))
    print(f"{len(shared)} graphs; median of the ratios of plans to those of {paths[0].stem}: "
          + ", ".join(f"{p.stem} {statistics.median(ratio):.2f}" for p, ratio in zip(paths[1:], ratios[1:], strict=True)))
    for what in ("plan_s", "sources_s"):
        sums = [sum(other[k][what] for k in shared) for other in lists]
        print(f"sum of {what}: " + ", ".join(f"{p.stem} {s:.2f}" for p, s in zip(paths, sums, strict=True)))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning_time", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=("time", "compare"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--suites", default=SUITES)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--package", type=Path)
    parser.add_argument("--device", default="h200")
    chosen = parser.parse_args()
    if chosen.action == "compare":
        compare(chosen.files)
        return 0
    if chosen.package is not None:
        command = [sys.executable, "-m", "benchmarks.planning_time", "time", str(chosen.files[0].resolve()), "--suites", chosen.suites,
                   "--only", chosen.only, "--rounds", str(chosen.rounds), "--device", chosen.device]
        paths = os.pathsep.join([str(chosen.package.resolve()), str(ROOT), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False).returncode
    write_times(chosen.files[0], chosen.suites, chosen.only, chosen.rounds, chosen.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
