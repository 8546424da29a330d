"""The GPU tests by several processes, and a summary: `python -m tests.gpu [--summary FILE] [pytest arguments]`.

Tests spend their time in planning and in NVRTC, on one core each, so several processes share a device (or all of them). Tests marked
`alone` measure what others would disturb: they run by themselves at the end.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MOST_WORKERS = 8
SHOWN = 8


@dataclass(frozen=True)
class Report:
    """One finished test. Units: seconds."""

    test: str
    outcome: str
    seconds: float
    reason: str
    printed: str


def parser() -> argparse.ArgumentParser:
    """The options; what it does not know goes to pytest."""
    found = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    found.add_argument("--workers", type=int, default=0, help=f"processes at a time (0: half the cores, at most {MOST_WORKERS} a device)")
    found.add_argument("--seconds", type=float, default=0.0, help="time after which no further test is begun (0: none)")
    found.add_argument("--summary", type=Path, help="file that the summary is written to as well")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all tests. Exit status: 0 if none failed and all ran."""
    options, passed_on = parser().parse_known_args(arguments)
    started = time.monotonic()
    until = time.time() + options.seconds if options.seconds else 0.0
    devices = visible_devices()
    workers = options.workers or max(1, min((os.cpu_count() or 2) // 2, MOST_WORKERS * max(1, len(devices))))
    reports: list[Report] = []
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, marks, count in (("together", "not alone", workers), ("alone", "alone", 1)):
            shared = Path(folder) / name
            shared.mkdir()
            running = [start(shared, number, marks, until, devices, passed_on) for number in range(count)]
            codes = [process.wait() for process in running]
            found, collected = reports_of(shared)
            reports += found
            for number, code in enumerate(codes):
                # 5: nothing to do; 1: a test failed, which its report says.
                if code not in (0, 1, 5):
                    log = (shared / f"worker-{number}.log").read_text(encoding="utf-8", errors="replace")
                    missing.append(f"a process of the tests that run {name} ended with status {code}:\n{log[-1000:].strip()}")
            not_run = collected - len({r.test for r in found})
            if not_run > 0:
                missing.append(f"{not_run} of {collected} tests that run {name} did not run")
    text = summary(reports, missing, time.monotonic() - started, workers, len(devices), passed_on)
    print(text, end="")
    if options.summary:
        options.summary.write_text(text, encoding="utf-8")
    return 1 if missing or any(r.outcome == "failed" for r in reports) else 0


def visible_devices() -> list[str]:
    """CUDA's names of the devices that this process sees, without starting CUDA here."""
    import torch

    from benchmarks.devices import visible_gpus

    return visible_gpus(torch.cuda.device_count(), os.environ)


def start(shared: Path, number: int, marks: str, until: float, devices: Sequence[str], passed_on: Sequence[str]) -> subprocess.Popen[bytes]:
    """One pytest process, on one device."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")) if p)
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
    # Threads of many processes on few cores only wait for each other.
    environment.setdefault("OMP_NUM_THREADS", "2")
    command = [sys.executable, "-m", "pytest", "-p", "tests.gpu.claims", "-p", "no:cacheprovider", "-q", "-m", marks,
               "--claims", str(shared), "--worker", f"worker-{number}", "--until", str(until)]
    folders = [] if any(Path(a.partition("::")[0]).exists() for a in passed_on) else ["tests/gpu"]
    with (shared / f"worker-{number}.log").open("wb") as log:
        return subprocess.Popen([*command, *folders, *passed_on], cwd=ROOT, env=environment, stdout=log, stderr=log)


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


def summary(reports: Sequence[Report], missing: Sequence[str], seconds: float, workers: int, num_devices: int,
            passed_on: Sequence[str]) -> str:
    """What ran where, counts, failures and skips with their reasons, what tests printed, the slowest."""
    from benchmarks.environment import commit_of

    counts = Counter(r.outcome for r in reports)
    lines = [f"GPU tests on {machine(num_devices)}, commit {commit_of()}",
             f"python -m tests.gpu {' '.join(passed_on)}".rstrip() + f": {workers} processes, {seconds:.0f} s",
             ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped")),
             *missing]
    lines += [f"FAILED {r.test}: {r.reason}" for r in reports if r.outcome == "failed"]
    skipped = Counter((r.test.partition("::")[0], r.reason) for r in reports if r.outcome == "skipped")
    lines += [f"SKIPPED [{count}] {file}: {reason}" for (file, reason), count in sorted(skipped.items())]
    lines += [text for r in reports if (text := r.printed.strip("\n"))]
    lines += [f"{r.seconds:7.2f} s  {r.test}" for r in sorted(reports, key=lambda r: -r.seconds)[:SHOWN]]
    return "\n".join(lines) + "\n"


def machine(num_devices: int) -> str:
    """Device and versions in words."""
    import platform

    import torch

    name = torch.cuda.get_device_name(0) if num_devices else "no GPU"
    return f"{num_devices or ''} {name}".strip() + f" (torch {torch.__version__}, Python {platform.python_version()})"


if __name__ == "__main__":
    sys.exit(main())
