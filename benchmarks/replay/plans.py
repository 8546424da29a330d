"""Plans of the suites for a device that need not be present, as lines of text, and what differs between two such lists.

    python -m benchmarks.replay.plans list FILE [--suites workloads,...] [--only REGEX] [--device h200] [--set NAME=VALUE]
    python -m benchmarks.replay.plans compare BEFORE AFTER

A line holds one plan: its steps with nodes and notation, and its predicted time. Models are planned from the graphs that torch's own
partition gives, so a training step may save other values than on a device.
"""
from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.replay import fit
from benchmarks.suite_graphs import SUITES, graph_sources
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.frontends.imported import Imported
from tilefuse.plan.pattern import Plan, PlannedKernel
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import DeviceSpec

# The emergency limit of planning: one that a loaded machine would reach makes plans of two runs differ. Units: seconds.
PLAN_SECONDS = 600


def lines_of(plan: Plan) -> list[str]:
    """Every step of a plan: a kernel with its nodes and its tiles, or a call."""
    return [f"{step.program.template} {','.join(step.pattern.nodes)}: {tiles_of(step.program.notation)}" if isinstance(step, PlannedKernel)
            else f"call {step.operator} {','.join(v for _, v in step.results)}" for step in plan.steps]


def tiles_of(notation: str) -> str:
    """A notation without the names of values: kernels that share a body have those of its first user."""
    return re.sub(r"[A-Za-z_][\w.]* (?=\[)", "", notation)


def planned(imported: Imported, device: DeviceSpec) -> dict[str, Any]:
    """The plan of a graph: steps, their predicted times and the sum. Units: microseconds."""
    options = replace(Options.from_environment(), plan_cache=False, tuned=False, plan_seconds=PLAN_SECONDS)
    plan = generate(imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=device, options=options,
                    result_layouts=imported.result_layouts).plan
    return {"steps": lines_of(plan), "us": [round(step.cost.us, 3) if isinstance(step, PlannedKernel) else None for step in plan.steps]}


def write_list(out: Path, suites: str, only: str, device: DeviceSpec) -> None:
    """Appends a line a plan to the file; graphs that it has are not planned again."""
    known = {json.loads(line)["name"] for line in out.read_text(encoding="utf-8").splitlines()} if out.exists() else set()
    with out.open("a", encoding="utf-8") as file:
        for name, graphs_of in graph_sources(suites, only):
            if name in known:
                continue
            try:
                plans = [planned(g, device) for g in graphs_of()]
            except Exception as error:  # one graph that cannot be captured here must not end the list
                plans = [{"steps": [f"failed: {type(error).__name__}: {error}".partition("\n")[0]], "us": []}]
            file.write(json.dumps({"name": name, "plans": plans}) + "\n")
            file.flush()
            print(name, *(len(p["steps"]) for p in plans), file=sys.stderr, flush=True)


def compare(before: Path, after: Path) -> int:
    """Prints the steps that only one of two lists has, graph by graph. Returned: number of graphs whose plans differ."""
    lists = [{(row := json.loads(line))["name"]: row["plans"] for line in path.read_text(encoding="utf-8").splitlines()}
             for path in (before, after)]
    shared = [name for name in lists[0] if name in lists[1]]
    changed = 0
    for name in shared:
        for number, (old, new) in enumerate(zip(lists[0][name], lists[1][name], strict=True)):
            gone, come = _difference(old, new), _difference(new, old)
            if not gone and not come:
                continue
            changed += 1
            print(f"== {name} graph {number}: {len(old['steps'])} steps, now {len(new['steps'])}")
            print("\n".join([*(f"  - {line}" for line in gone), *(f"  + {line}" for line in come)]))
    print(f"{changed} plans of {len(shared)} cases differ; {len(set(lists[0]) ^ set(lists[1]))} cases are in one list only")
    return changed


def _difference(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    left = list(b["steps"])
    only: list[str] = []
    for step, us in zip(a["steps"], a["us"] or [None] * len(a["steps"]), strict=True):
        if step in left:
            left.remove(step)
        else:
            only.append(f"{'' if us is None else f'{us:.2f} us '}{step}")
    return only


def main() -> int:
    """The command line. Exit status of `compare`: 1 where plans differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay.plans", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=("list", "compare"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--set", default="", dest="figures")
    chosen = parser.parse_args()
    if chosen.action == "compare":
        return 1 if compare(*chosen.files) else 0
    device = fit.with_figures(device_by_name(chosen.device), fit.figures_of_text(chosen.figures))
    write_list(chosen.files[0], chosen.suites, chosen.only, device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
