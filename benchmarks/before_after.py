"""Two trees beside each other, tilefuse alone: `python -m benchmarks.before_after codes|prepare|time|table --before TREE --out FOLDER`.

    codes     both trees plan every case for `--device` without one, and digest the code; `codes.jsonl` in the folder
    prepare   both trees compile every case, several processes side by side; nothing is timed
    time      every case is timed in both trees, one right after the other, alone on the device; cases that differ are timed again
    table     times and ratios from what `time` wrote, also of a run that was cut off

`after` is the tree of this file. Each tree has its own kernel cache below `--caches`, which `prepare` fills and `time` reads, and runs its
own cases and clocks (`one_side.py`). `time` appends a line a measurement to `times.jsonl` in the folder. `prepare` and `time` leave out
cases that have equal code in both trees by `--codes` (`equal_code.py`); the table counts them.
"""
from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import turns
from benchmarks.devices import THREADS, num_cores
from benchmarks.equal_code import EQUAL, PLANNED_SUITES, Codes, tree_digest
from benchmarks.record import RESULTS
from benchmarks.report import geometric_mean
from benchmarks.suite import earlier_seconds
from benchmarks.supervise import ROOT, Bench

BEFORE, AFTER = "before", "after"
SUITES = ("patterns", "stitched", "workloads", "models", "blas", "arrays")
# A ratio of times beyond this, either way, is measured again and listed.
NOTABLE = 0.03
# Measurements of a case that differs, at most.
MOST_ROUNDS = 3
TIMES, CODES = "times.jsonl", "codes.jsonl"
# Planning ends early nowhere: both trees get the time they need. Units: seconds.
PLAN_SECONDS = 600
# No case is begun with less than this left of the budget. Units: seconds.
LEAST_LEFT_S = 3.0

Name = tuple[str, str]


@dataclass
class Tree:
    """One side of the comparison: its name, its folder and its kernel cache."""

    side: str
    root: Path
    caches: Path

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the tree's compiler."""
        return tree_digest(self.root)

    def bench(self, number: int, out: Path, threads: int, **variables: str) -> Bench:
        """A measuring process of this tree; variables: of its environment."""
        self.caches.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ) | {"TILEFUSE_CACHE_DIR": str(self.caches)} | dict.fromkeys(THREADS, str(threads)) | variables
        others = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p and not Path(p).resolve().is_relative_to(ROOT)]
        environment["PYTHONPATH"] = os.pathsep.join(others)
        command = (sys.executable, str(ROOT / "benchmarks" / "one_side.py"))
        return Bench(out / f"{self.side}-{number}.log", environment, root=self.root, command=command)


@dataclass
class Times:
    """Measurements by case and side, in the order of taking; `reasons` of those that failed. Units: microseconds.

    codes: digests of the code that ran. equal: cases that were not timed, because both trees generate the same code for them.
    """

    us: dict[Name, dict[str, list[float]]] = field(default_factory=dict)
    facts: dict[Name, dict[str, dict[str, Any]]] = field(default_factory=dict)
    reasons: dict[Name, dict[str, str]] = field(default_factory=dict)
    codes: dict[Name, dict[str, str]] = field(default_factory=dict)
    equal: dict[Name, None] = field(default_factory=dict)

    def add(self, name: Name, side: str, answer: Mapping[str, Any]) -> None:
        """One answer of a measuring process."""
        if answer["status"] == EQUAL:
            self.equal[name] = None
        elif answer["status"] == "ok":
            self.codes.setdefault(name, {})[side] = answer.get("code", "")
            self.us.setdefault(name, {}).setdefault(side, []).append(answer["us"])
            self.facts.setdefault(name, {})[side] = {k: v for k, v in answer.items() if k.startswith("num_")}
        else:
            self.reasons.setdefault(name, {})[side] = f"{answer['status']}: {answer.get('reason', '')}".partition("\n")[0][:160]

    def pair(self, name: Name) -> tuple[float, float] | None:
        """Median times of both sides; None where one is missing."""
        sides = self.us.get(name, {})
        return (statistics.median(sides[BEFORE]), statistics.median(sides[AFTER])) if len(sides) == 2 else None

    def ran_equal_code(self, name: Name) -> bool:
        """Whether a case that was timed ran the same code in both trees: what its times differ by is noise."""
        codes = self.codes.get(name, {})
        return bool(codes.get(BEFORE)) and codes.get(BEFORE) == codes.get(AFTER)

    def ratio(self, name: Name) -> float | None:
        """After over before."""
        pair = self.pair(name)
        return pair[1] / pair[0] if pair is not None and pair[0] else None

    @classmethod
    def load(cls, path: Path) -> Times:
        """What a run has written so far."""
        times = cls()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            entry = json.loads(line)
            times.add((entry["suite"], entry["case"]), entry["side"], entry)
        return times


class Comparison:
    """Asks measuring processes of both trees. Units: seconds."""

    def __init__(self, trees: Sequence[Tree], options: argparse.Namespace) -> None:
        self.trees = trees
        self.options = options
        self.out: Path = options.out
        self.began = time.monotonic()
        self.guard = threading.Lock()
        self.times = Times.load(self.out / TIMES)
        self.codes = Codes.load(options.codes or self.out / CODES)
        self.num_done = 0

    def left_s(self) -> float:
        """What is left of the budget."""
        return self.options.budget - (time.monotonic() - self.began) if self.options.budget else float("inf")

    def cases(self) -> list[Name]:
        """Cases that both trees have, the slowest first: the processes then end together."""
        suites = self.options.suites.split(",")
        names: list[dict[str, list[str]]] = []
        for tree in self.trees:
            bench = tree.bench(0, self.out, 1)
            listed = bench.ask({"list": suites, "tiny": self.options.tiny}, 120.0)
            bench.close()
            if listed["status"] != "ok":
                raise RuntimeError(f"{tree.side} tells no cases: {listed}")
            names.append(listed["names"])
        seconds = {(suite, case): s for suite in suites for case, s in earlier_seconds(suite, RESULTS).items()}
        both = [(suite, case) for suite in suites for case in names[1][suite] if case in set(names[0][suite])]
        alone = [(suite, case) for suite in suites for case in names[1][suite] if case not in set(names[0][suite])]
        if alone:
            print(f"{len(alone)} cases are of one tree only: {', '.join('/'.join(a) for a in alone[:5])} ...", file=sys.stderr)
        chosen = [name for name in both if self.options.only in name[1]]
        return sorted(chosen, key=lambda name: -seconds.get(name, _usual_s(name[0])))

    def find_codes(self, cases: Sequence[Name]) -> None:
        """Digests of every case's code in both trees: of sources, then of machine code where sources differ."""
        digests = {tree.side: tree.digest for tree in self.trees}
        asked = [c for c in cases if c[0] in PLANNED_SUITES]
        for machine_code in (False, True):
            self._find_codes(asked, digests, machine_code)
            asked = [c for c in asked if self.codes.may_be_equal(c, digests)]
        print(self.codes.table(cases, digests))

    def that_differ(self, cases: Sequence[Name]) -> list[Name]:
        """Cases but those with equal code in both trees."""
        digests = {tree.side: tree.digest for tree in self.trees}
        return [c for c in cases if not self.codes.is_equal(c, digests)]

    def _find_codes(self, cases: Sequence[Name], digests: Mapping[str, str], machine_code: bool) -> None:
        """Asks both trees side by side for the digests that are missing."""
        waiting = {tree.side: [c for c in cases if not self.codes.has(c, tree.side, tree.digest, machine_code)] for tree in self.trees}
        count, threads = sum(map(len, waiting.values())), max(1, num_cores() // (2 * self.options.processes))
        queue_by_side = {side: iter(names) for side, names in waiting.items()}
        def ask(tree: Tree, number: int) -> None:
            bench = tree.bench(number, self.out, threads, TILEFUSE_PLAN_SECONDS=str(PLAN_SECONDS))
            try:
                while self.left_s() > LEAST_LEFT_S:
                    with self.guard:
                        name = next(queue_by_side[tree.side], None)
                    if name is None:
                        return
                    more = {"shared": self.codes.shared_sources(name, digests)} if machine_code else {}
                    answer = self._ask(bench, name, 0.0, {"target": self.options.device, **more})
                    with self.guard:
                        self.codes.keep(name, tree.side, digests[tree.side], machine_code, answer)
                    self._tell(tree.side, name, answer, count)
            finally:
                bench.close()

        self.num_done = 0
        with ThreadPoolExecutor(2 * self.options.processes) as pool:
            for done in [pool.submit(ask, tree, n) for n in range(self.options.processes) for tree in self.trees]:
                done.result()

    def prepare(self, cases: Sequence[Name]) -> None:
        """Compiles every case in both trees."""
        work = [(tree, name) for name in self.that_differ(cases) for tree in self.trees]
        threads = max(1, num_cores() // self.options.processes)
        queue = iter(work)

        def compile_cases(number: int) -> None:
            benches = {tree.side: tree.bench(number, self.out, threads) for tree in self.trees}
            try:
                while self.left_s() > LEAST_LEFT_S:
                    with self.guard:
                        taken = next(queue, None)
                    if taken is None:
                        return
                    tree, name = taken
                    answer = self._ask(benches[tree.side], name, 0.0)
                    self._tell(tree.side, name, answer, len(work))
            finally:
                for bench in benches.values():
                    bench.close()

        self._side_by_side(compile_cases)

    def time(self, cases: Sequence[Name]) -> None:
        """Times every case, then those that differ once more, until the budget is spent."""
        threads = max(1, num_cores() // (2 * self.options.processes))
        shared = {turns.VARIABLE: os.environ.get(turns.VARIABLE) or str(self.out.resolve() / "device.turns")}
        benches = [[tree.bench(number, self.out, threads, **shared) for tree in self.trees] for number in range(self.options.processes)]
        differ = self.that_differ(cases)
        for name in cases:
            if name not in differ and name not in self.times.equal:
                self._keep("both", name, {"status": EQUAL})
        cases = differ
        try:
            self._time_round(benches, [c for c in cases if self.times.pair(c) is None])
            for _ in range(MOST_ROUNDS - 1):
                again = (c for c in cases if (ratio := self.times.ratio(c)) is not None and abs(ratio - 1) > NOTABLE
                         and not self.times.ran_equal_code(c))
                self._time_round(benches, list(again))
        finally:
            for bench in (b for pair in benches for b in pair):
                bench.close()

    def _time_round(self, benches: Sequence[Sequence[Bench]], cases: Sequence[Name]) -> None:
        queue = iter(cases)

        def time_cases(number: int) -> None:
            while self.left_s() > LEAST_LEFT_S:
                with self.guard:
                    name = next(queue, None)
                if name is None:
                    return
                with ThreadPoolExecutor(2) as both:
                    asked = [both.submit(self._ask, bench, name, self.options.each) for bench in benches[number]]
                    answers = [answer.result() for answer in asked]
                for tree, answer in zip(self.trees, answers, strict=True):
                    self._keep(tree.side, name, answer)
                    self._tell(tree.side, name, answer, 2 * len(cases))

        self.num_done = 0
        self._side_by_side(time_cases)

    def _side_by_side(self, work: Any) -> None:
        with ThreadPoolExecutor(self.options.processes) as pool:
            for done in [pool.submit(work, n) for n in range(self.options.processes)]:
                done.result()

    def _ask(self, bench: Bench, name: Name, budget_s: float, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        suite, case = name
        request = {"suite": suite, "case": case, "budget_s": budget_s, "tiny": self.options.tiny, **(more or {})}
        return bench.ask(request, max(1.0, min(self.options.timeout, self.left_s())))

    def _keep(self, side: str, name: Name, answer: Mapping[str, Any]) -> None:
        line = {"suite": name[0], "case": name[1], "side": side, **{k: v for k, v in answer.items() if k != "trace"}}
        with self.guard:
            self.times.add(name, side, answer)
            with (self.out / TIMES).open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")

    def _tell(self, side: str, name: Name, answer: Mapping[str, Any], count: int) -> None:
        with self.guard:
            self.num_done += 1
            figure = f"{answer['us']:.1f} us" if "us" in answer else str(answer.get("reason", ""))[:160]
            progress = f"{time.monotonic() - self.began:6.1f} s [{self.num_done}/{count}]"
            print(f"{progress} {side} {'/'.join(name)}: {answer['status']} {figure}", file=sys.stderr, flush=True)


def _usual_s(suite: str) -> float:
    return {"workloads": 20.0, "models": 5.0, "arrays": 5.0}.get(suite, 1.0)


def table(times: Times, is_whole: bool = True) -> str:
    """A line a suite, then the cases that differ, then (where asked) all."""
    names = [name for name in times.us if times.pair(name) is not None]
    ratios = {name: ratio for name in names if (ratio := times.ratio(name)) is not None}
    heads = f"{'suite':<12}{'timed':>6}{'geomean':>10}{'equal code':>12}{'geomean of all':>16}"
    lines = [f"{heads}{'over 1.03':>11}{'under 0.97':>12}{'failed':>8}"]
    suites = list(dict.fromkeys(name[0] for name in (*times.us, *times.reasons, *times.equal)))
    for suite in suites:
        of_suite = [r for name, r in ratios.items() if name[0] == suite]
        failed = sum(name[0] == suite for name in times.reasons)
        num_equal = sum(name[0] == suite for name in times.equal)
        means = [geometric_mean(values) or 0.0 for values in (of_suite, [*of_suite, *[1.0] * num_equal])]
        lines.append(f"{suite:<12}{len(of_suite):>6}{means[0]:>10.4f}{num_equal:>12}{means[1]:>16.4f}"
                     f"{sum(r > 1 + NOTABLE for r in of_suite):>11}{sum(r < 1 - NOTABLE for r in of_suite):>12}{failed:>8}")
    noise = geometric_mean([r for name, r in ratios.items() if times.ran_equal_code(name)])
    if times.equal:
        lines.append("equal code: both trees generate the same code, which was not timed; among all they count as 1")
    if noise is not None:
        lines.append(f"{sum(map(times.ran_equal_code, ratios))} timed cases ran the same code in both trees: geomean {noise:.4f}")
    lines += ["", "cases that differ by more than 3 %, the slower ones first"]
    lines += [_line(times, n) for n in sorted(ratios, key=lambda n: -ratios[n]) if abs(ratios[n] - 1) > NOTABLE]
    lines += ["", "not timed", *(f"  {'/'.join(n)}: {side} {text}" for n, told in times.reasons.items() for side, text in told.items())]
    for suite in suites if is_whole else ():
        lines += ["", suite, *(_line(times, n) for n in sorted(ratios) if n[0] == suite)]
    return "\n".join(lines)


def _line(times: Times, name: Name) -> str:
    pair = times.pair(name)
    assert pair is not None
    sides = times.facts.get(name, {})
    keys = ("num_kernels", "num_library_calls")
    counts = [[sides.get(side, {}).get(k) for k in keys] for side in (BEFORE, AFTER)]
    differ = "" if counts[0] == counts[1] else "  kernels and calls {}+{} -> {}+{}".format(*counts[0], *counts[1])
    same = "  equal code" if times.ran_equal_code(name) else ""
    return f"  {'/'.join(name):<66}{pair[0]:>10.2f}{pair[1]:>10.2f}{pair[1] / pair[0]:>8.3f}{differ}{same}"


def parser() -> argparse.ArgumentParser:
    """The options of all steps."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.before_after", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("step", choices=("codes", "prepare", "time", "table"))
    options.add_argument("--before", type=Path, help="the other tree: a folder with src and benchmarks (git archive COMMIT src benchmarks)")
    options.add_argument("--out", type=Path, required=True, help="folder for times, logs and the table")
    options.add_argument("--caches", type=Path, help="folder for the trees' kernel caches; default: below --out")
    options.add_argument("--codes", type=Path, help="digests that the step `codes` wrote; default: below --out. None of another state of a "
                         "tree is used")
    options.add_argument("--device", default="h200", help="the catalog's name of the device that `codes` plans for")
    options.add_argument("--suites", default=",".join(SUITES), help="comma list")
    options.add_argument("--only", default="", help="part of a case's name")
    options.add_argument("--processes", type=int, default=8, help="threads of work: each has a process of either tree")
    options.add_argument("--budget", type=float, default=0.0, help="seconds after which no further case is begun (0: none)")
    options.add_argument("--timeout", type=float, default=120.0, help="seconds that one case may take")
    options.add_argument("--each", type=float, default=0.1, help="seconds of replays a measurement")
    options.add_argument("--tiny", action="store_true", help="small versions of the cases, to try the script")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 where a case of either tree failed."""
    options = parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.step != "table":
        if options.before is None:
            parser().error(f"{options.step} needs --before")
        caches = options.caches or options.out / "caches"
        trees = (Tree(BEFORE, options.before.resolve(), caches.resolve() / BEFORE), Tree(AFTER, ROOT, caches.resolve() / AFTER))
        comparison = Comparison(trees, options)
        cases = comparison.cases()
        {"codes": comparison.find_codes, "prepare": comparison.prepare, "time": comparison.time}[options.step](cases)
        print(f"{options.step}: {time.monotonic() - comparison.began:.0f} s", file=sys.stderr)
    if options.step in ("codes", "prepare"):
        return 0
    times = Times.load(options.out / TIMES)
    (options.out / "table.txt").write_text(table(times) + "\n", encoding="utf-8")
    print(table(times, is_whole=False))
    return 1 if times.reasons else 0


if __name__ == "__main__":
    sys.exit(main())
