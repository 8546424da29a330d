"""The GPU tests by several processes, and a summary: `python -m tests.gpu [--summary FILE] [pytest arguments]`.

Tests spend their time in planning and in NVRTC, on one core each, so several processes share a device (or all of them). Tests marked
`alone` measure what others would disturb: they run by themselves at the end.
"""
from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.processes import Report, run

MOST_WORKERS = 8
SHOWN = 8


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
    # A machine that is taken away leaves the summary of the tests that had finished.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ended = run([("together", "not alone", workers), ("alone", "alone", 1)], devices, until, passed_on, ["tests/gpu"], progress=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    text = summary(ended.reports, ended.missing, time.monotonic() - started, workers, len(devices), passed_on)
    print(*ended.failures, sep="\n", end="", file=sys.stderr)
    print(text, end="")
    if options.summary:
        options.summary.write_text(text, encoding="utf-8")
    return 1 if ended.missing or any(r.outcome == "failed" for r in ended.reports) else 0


def visible_devices() -> list[str]:
    """CUDA's names of the devices that this process sees, without starting CUDA here."""
    import torch

    from benchmarks.devices import visible_gpus

    return visible_gpus(torch.cuda.device_count(), os.environ)


def summary(reports: Sequence[Report], missing: Sequence[str], seconds: float, workers: int, num_devices: int,
            passed_on: Sequence[str]) -> str:
    """Report of which test ran where, counts, failures and skips with their reasons, what tests printed, the slowest."""
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
