"""All tests by as many processes as there are cores, and a closing line that counts them: `python -m tests [pytest arguments]`.

Most of the time goes to compilers, which use one core each. Folders are taken in order of cost. A failure is shown as pytest shows it.
"""
from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.processes import ROOT, run

FOLDERS = ("house", "unit", "text", "golden", "laws", "compile_only", "mutation", "end_to_end", "browser", "gpu")
MOST_WORKERS = 8
SHOWN = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests. Exit status: 0 if none failed and all ran."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("--workers", type=int, default=0, help=f"processes at a time (0: one a core, at most {MOST_WORKERS})")
    options, passed_on = parser.parse_known_args(arguments)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = options.workers or min(cores, MOST_WORKERS)
    started = time.monotonic()
    folders = [f"tests/{name}" for name in FOLDERS if Path(ROOT, "tests", name).exists()]
    ended = run([("together", "not alone", workers), ("alone", "alone", 1)], (), 0.0, passed_on, folders, progress=True)
    reports = ended.reports
    print(*ended.failures, sep="\n")
    for report in sorted(reports, key=lambda r: -r.seconds)[:SHOWN]:
        print(f"{report.seconds:7.2f} s  {report.test}")
    skipped = Counter((r.test.partition("::")[0], r.reason) for r in reports if r.outcome == "skipped")
    for (file, reason), count in sorted(skipped.items()):
        print(f"SKIPPED [{count}] {file}: {reason}")
    for report in reports:
        if report.outcome == "failed":
            print(f"FAILED {report.test}: {report.reason.partition(chr(10))[0]}")
    print(*ended.missing, sep="\n", end="\n" if ended.missing else "")
    counts = Counter(r.outcome for r in reports)
    seconds = time.monotonic() - started
    print(f"by {workers} processes")
    print(closing_line(counts, seconds))
    return 1 if ended.missing or counts["failed"] else 0


def closing_line(counts: Mapping[str, int], seconds: float) -> str:
    """The last line, in pytest's form: what reads test runs knows it."""
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("failed", "passed", "skipped") if counts.get(outcome))
    minutes, rest = divmod(round(seconds), 60)
    return f" {told or 'no tests ran'} in {seconds:.2f}s ({minutes // 60}:{minutes % 60:02d}:{rest:02d}) ".center(80, "=")


if __name__ == "__main__":
    sys.exit(main())
