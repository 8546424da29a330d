"""Tests by several pytest processes at a time, which share one list (`claims.py`): what they reported, and what did not run."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.claims import LEFT

ROOT = Path(__file__).resolve().parents[1]
# pytest's status of a run: some tests failed, which their reports say; no tests were there.
SOME_FAILED, NO_TESTS = 1, 5
TOLD_EVERY_S = 30.0


@dataclass(frozen=True)
class Report:
    """One finished test. Units: seconds."""

    test: str
    outcome: str
    seconds: float
    reason: str
    printed: str


@dataclass(frozen=True)
class Ended:
    """Every finished test, pytest's texts about those that failed, and what went wrong besides."""

    reports: list[Report]
    failures: list[str]
    missing: list[str]


def run(phases: Sequence[tuple[str, str, int]], devices: Sequence[str], until: float, passed_on: Sequence[str],
        folders: Sequence[str], progress: bool = False) -> Ended:
    """Outcome of all tests. A phase is a name, a mark expression, and how many processes run it.

    devices: CUDA's names of GPUs, one a process in turn; until: time after which no test is begun, in seconds of the epoch (0: never).
    passed_on: arguments for pytest; `folders` are tested where those name nothing. progress: print a line now and then.
    A keyboard interrupt ends the tests: the answer has those that had finished.
    """
    ended, is_stopped = Ended([], [], []), False
    chosen = [] if any(Path(a.partition("::")[0]).exists() for a in passed_on) else list(folders)
    with tempfile.TemporaryDirectory() as folder:
        for name, marks, count in phases:
            shared = Path(folder) / name
            shared.mkdir()
            running = [start(shared, number, marks, until, devices, [*chosen, *passed_on], is_alone=count == 1,
                             environment=_environment(Path(folder) / "precompiled")) for number in range(count)]
            try:
                _wait(running, shared, progress)
            except KeyboardInterrupt:
                is_stopped = True
                ended.missing.append(f"stopped while the tests that run {name} ran")
            finally:
                for process in running:
                    if process.poll() is None:
                        process.terminate()
                        process.wait()
            found, collected = reports_of(shared)
            ended.reports.extend(found)
            for number, process in enumerate(running):
                log = (shared / f"worker-{number}.log").read_text(encoding="utf-8", errors="replace")
                if process.returncode == SOME_FAILED:
                    ended.failures.append(log[max(log.find("= FAILURES ="), 0):])
                elif process.returncode not in (0, NO_TESTS) and not is_stopped:
                    ended.missing.append(f"a process of the tests that run {name} ended with status {process.returncode}:\n"
                                         f"{log[-1000:].strip()}")
            not_run = collected - len({r.test for r in found})
            if not_run > 0:
                ended.missing.append(f"{not_run} of {collected} tests that run {name} did not run")
            if is_stopped:
                break
            left = shared / LEFT
            if chosen and left.exists():
                chosen = left.read_text(encoding="utf-8").splitlines()  # the next phase reads only files whose tests this one left out
    return ended


def _wait(running: Sequence[subprocess.Popen[bytes]], shared: Path, progress: bool) -> None:
    """Until all have ended; `progress` prints a line now and then, and each failure once."""
    began = told = time.monotonic()
    shown: set[str] = set()
    while any(process.poll() is None for process in running):
        time.sleep(0.2)
        if progress and time.monotonic() - told > TOLD_EVERY_S:
            told = time.monotonic()
            found, collected = reports_of(shared)
            failed = [r for r in found if r.outcome == "failed"]
            print(f"{told - began:5.0f} s: {len(found)} of {collected} tests, {len(failed)} failed", flush=True)
            for r in failed:
                if r.test not in shown:
                    shown.add(r.test)
                    print(f"FAILED {r.test}: {r.reason}", flush=True)


def _environment(precompiled: Path) -> dict[str, str]:
    """This process's environment, where `g++` reads standard headers from a precompiled form that lies in a folder of the run.

    Python keeps the bytecode that it compiles, whatever the environment says: each of the many processes that tests start would compile the
    whole package again (1.9 of the 5.8 CPU seconds in which one imports `tilefuse.array`).
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    compiler = os.environ.get("REAL_GXX") or shutil.which("g++")
    if compiler is not None:
        precompiled.mkdir(exist_ok=True)
        environment |= {"REAL_GXX": compiler, "PRECOMPILED": str(precompiled),
                        "PATH": os.pathsep.join((str(ROOT / "tests" / "precompiled"), environment["PATH"]))}
    return environment


def start(shared: Path, number: int, marks: str, until: float, devices: Sequence[str], arguments: Sequence[str], is_alone: bool,
          environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """One pytest process, on one device. arguments: folders, files and options for pytest."""
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")) if p)
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
    # Threads of many processes on few cores only wait for each other, and must not spin while they do: that took more than half of the
    # time of an example that trains (perceptron on digits, two cores with other work: 15 s of processor time, 6 without).
    environment.setdefault("OMP_NUM_THREADS", "2")
    if not is_alone:
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        # The other cores have test processes of their own. One compiler job a program: 164 instead of 233 runs of g++ in tests/unit/nn and
        # tests/end_to_end/arrays/test_gradients.py, 17.1 instead of 19.7 CPU seconds.
        environment.setdefault("TILEFUSE_JOBS", "1")
    command = [sys.executable, "-m", "pytest", "-p", "tests.claims", "-p", "no:cacheprovider", "-q", "-m", marks,
               "--claims", str(shared), "--worker", f"worker-{number}", "--until", str(until)]
    with (shared / f"worker-{number}.log").open("wb") as log:
        return subprocess.Popen([*command, *arguments], cwd=ROOT, env=environment, stdout=log, stderr=log)


def reports_of(shared: Path) -> tuple[list[Report], int]:
    """Every finished test of the processes, and how many tests there were."""
    found: list[Report] = []
    collected = 0
    for path in sorted(shared.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row: dict[str, Any] = json.loads(line)
            if "collected" in row:
                collected = max(collected, row["collected"])
            else:
                found.append(Report(**row))
    return found, collected
