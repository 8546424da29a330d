"""Many measurements on a machine that is there for minutes: `python -m benchmarks.jobs --out FOLDER JOB:SECONDS ...`.

    python -m benchmarks.jobs --out out --prepare 150 gpu-tests:200 bare:100 models:120
    python -m benchmarks.jobs --out out --before ../earlier before-after:120
    python -m benchmarks.jobs --out out "tiles=python -m benchmarks.attention.timed time tiles:60"

First every job's kernels are compiled, all jobs side by side, for `--prepare` seconds at most; then each job has the device to itself for
its seconds, in the order given. A job that is not done by then is ended, with what it started, and the next one begins. After each job
the folder is packed into `--archive`, so that a machine that is taken away leaves what was measured. `--list` prints the jobs.

In commands, {out} is the job's folder for results, {caches} its kernel caches, {seconds} its seconds less those in which it writes its
record, {before} the other tree.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.supervise import ROOT

# What a command has after its budget to write its record, and after its end signal. Units: seconds.
WRITING_S = 6.0
ENDING_S = 2.0
POLL_S = 0.1
# Status of a job that was ended at its time, as `timeout` has it.
TIMED_OUT = 124


@dataclass(frozen=True)
class Job:
    """A measurement: commands that fill its caches beside other jobs, and commands that need the device alone."""

    name: str
    run: str
    prepare: str = ""

    def command(self, is_prepared: bool, values: Mapping[str, str]) -> list[str]:
        """The command of a step, its places filled; empty where the job has no such step."""
        text = self.run if is_prepared else self.prepare
        return [part.format_map(values) for part in shlex.split(text)]


_SUITE = "python -m benchmarks {suite} --out {{out}} --caches {{caches}}"
_BEFORE = "python -m benchmarks.before_after {step} --before {{before}} --out {{out}} --caches {{caches}}"


def _of_suite(name: str, arguments: str, clock_s: float = 0.06) -> Job:
    text = _SUITE.format(suite=arguments)
    return Job(name, f"{text} --clock {clock_s} --budget {{seconds}}", f"{text} --prepare")


def _of_both_trees(name: str, suites: str) -> Job:
    time_it = _BEFORE.format(step="time") + f" --suites {suites} --budget {{seconds}}"
    return Job(name, time_it, _BEFORE.format(step="prepare") + f" --suites {suites}")


JOBS = {job.name: job for job in (
    Job("gpu-tests", "python -m tests.gpu --seconds {seconds} --summary {out}/gpu-tests.txt"),
    _of_suite("bare", "products --only '^(product|few-rows|batched|odd)/'"),
    _of_suite("fused", "products --peers inductor --only '(linear|pair|mlp|einsum|sum)'"),
    _of_suite("grouped", "products --only ^grouped/"),
    _of_suite("models", "models --inductor-mode max-autotune-no-cudagraphs --only '(bert|vit|gpt2|llama).*inference/f16'"),
    _of_suite("workloads", "workloads"),
    _of_suite("stitched", "stitched"),
    Job("decode", "python -m benchmarks.attention.decode --record {out}/decode.jsonl --budget {seconds}",
        "python -m benchmarks.attention.decode --prepare"),
    Job("gradients", "python -m benchmarks.attention.gradients --record {out}/gradients.jsonl --budget {seconds}"),
    Job("tasks", "python -m benchmarks.tasks"),
    Job("task-models", "python -m benchmarks.tasks --models"),
    Job("planner", "python -m benchmarks planner --processes 8 --out {out} --budget {seconds}"),
    Job("sanitize", "python -m tests.gpu.sanitize"),
    _of_both_trees("before-after", "workloads,models"),
    _of_both_trees("before-after-patterns", "patterns,stitched,blas,arrays"),
)}


@dataclass
class Place:
    """Where one job works. seconds: of its run."""

    job: Job
    seconds: float
    folder: Path
    before: str
    outcomes: list[str] = field(default_factory=list)

    def values(self) -> dict[str, str]:
        """What the places in commands stand for."""
        return {"out": str(self.folder), "caches": str(self.folder.parent / "caches" / self.job.name), "before": self.before,
                "seconds": f"{max(1.0, self.seconds - WRITING_S):.0f}"}

    def start(self, is_prepared: bool) -> subprocess.Popen[bytes] | None:
        """The process of a step, its output in the job's log; None without such a step."""
        command = self.job.command(is_prepared, self.values())
        if not command:
            return None
        command = [sys.executable if part == "python" else part for part in command]
        paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(p for p in paths if p), "PYTHONUNBUFFERED": "1",
                                          "TILEFUSE_CACHE_DIR": self.values()["caches"]}
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ("run.log" if is_prepared else "prepare.log")).open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> int:
    """Ends a process and all that it started. Returns TIMED_OUT."""
    for sign, wait_s in ((signal.SIGTERM, ENDING_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
    return TIMED_OUT


def status_within(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Exit status; TIMED_OUT for a process that had to be ended."""
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return end(process)


def prepare(places: Sequence[Place], seconds: float) -> None:
    """Compiles for all jobs at once; whoever has not ended after `seconds` is ended."""
    started = time.monotonic()
    running = {place.job.name: (place, process) for place in places if (process := place.start(False)) is not None}
    while running and time.monotonic() - started < seconds:
        for name, (place, process) in list(running.items()):
            if process.poll() is not None:
                place.outcomes.append(f"prepared in {time.monotonic() - started:.0f} s, status {process.returncode}")
                del running[name]
        time.sleep(POLL_S)
    for place, process in running.values():
        place.outcomes.append(f"not prepared after {seconds:.0f} s, status {end(process)}")


def pack(folder: Path, archive: Path) -> None:
    """Writes everything but caches into the archive, which is whole at any time."""
    unfinished = archive.with_suffix(archive.suffix + ".part")
    with tarfile.open(unfinished, "w:gz") as tar:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and path.name != "caches":
                tar.add(path, arcname=path.name)
    unfinished.replace(archive)


def parsed(text: str) -> tuple[Job, float]:
    """A job and its seconds from "NAME:SECONDS" or "NAME=COMMAND:SECONDS". Raises SystemExit for others."""
    what, separator, seconds = text.rpartition(":")
    name, _, command = what.partition("=")
    try:
        time_s = float(seconds)
    except ValueError:
        raise SystemExit(f"{text!r} is no job: write NAME:SECONDS or \"NAME=COMMAND:SECONDS\", such as gpu-tests:200") from None
    if not separator or time_s <= 0.0:
        raise SystemExit(f"{text!r} names no seconds: write NAME:SECONDS, such as gpu-tests:200")
    if command:
        return Job(name, command), time_s
    if name not in JOBS:
        raise SystemExit(f"no job {name!r}; there are {', '.join(JOBS)}, and \"NAME=COMMAND:SECONDS\" for any other command")
    return JOBS[name], time_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the jobs. Exit status: 0, or 1 if any ended with an error or at its time."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("jobs", nargs="*", metavar="JOB:SECONDS")
    options.add_argument("--out", type=Path, help="folder for what the jobs write, one below it for each")
    options.add_argument("--archive", type=Path, help="file for the packed folder; default: --out with .tar.gz")
    options.add_argument("--prepare", type=float, default=150.0, help="seconds for compiling at most")
    options.add_argument("--before", default="", help="the other tree, of jobs that compare two")
    options.add_argument("--list", action="store_true", help="print the jobs and stop")
    asked = options.parse_args(arguments)
    if asked.list:
        for job in JOBS.values():
            print(f"{job.name}\n    prepare  {job.prepare or '-'}\n    run      {job.run}")
        return 0
    if not asked.jobs or asked.out is None:
        options.error("name a folder and at least one job: --out FOLDER gpu-tests:200")
    folder = asked.out.resolve()
    archive = (asked.archive or asked.out.with_suffix(".tar.gz")).resolve()
    places = [Place(job, seconds, folder / job.name, asked.before) for job, seconds in map(parsed, asked.jobs)]
    for place in places:
        if "{before}" in place.job.run and not place.before:
            options.error(f"{place.job.name} compares two trees: name the other with --before")
    folder.mkdir(parents=True, exist_ok=True)
    prepare(places, asked.prepare)
    is_good = True
    for place in places:
        started = time.monotonic()
        process = place.start(True)
        assert process is not None
        status = status_within(process, place.seconds)
        is_good &= status == 0
        place.outcomes.append(f"ran {time.monotonic() - started:.0f} of {place.seconds:.0f} s, status {status}"
                              + (" (ended at its time)" if status == TIMED_OUT else ""))
        print(f"{place.job.name}: {'; '.join(place.outcomes)}", flush=True)
        pack(folder, archive)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
