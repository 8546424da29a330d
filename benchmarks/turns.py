"""Turns on a device that several measuring processes share: one holds the device while the others compile.

The processes name one lock file in `BENCHMARK_TURNS`. A measuring process holds it while it answers a request, and lets go of it while a
compiler works: what is timed, torch.compile's search among its kernels included, then has the device to itself, and most of a compile's
seconds pass beside another case's measurement. Without the variable a process has the device to itself throughout.
"""
from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

VARIABLE = "BENCHMARK_TURNS"
# How often a process that waits asks again. Units: seconds.
POLL_S = 0.002
# After so long it says whom it waits for; measurements of one case take a few seconds. Units: seconds.
TOLD_AFTER_S = 60.0
# Functions that time kernels for torch.compile: searches among one kernel's configurations and a product's templates, and single timings.
# A search of templates that asked for a turn a template chose slower ones (1.65 ms instead of 1.42 for a translation step): what other
# compilers run on the device between its timings disturbs it, so it keeps the device although it also compiles on the way.
TIMERS = (("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "benchmark_all_configs"),
          ("torch._inductor.select_algorithm", "AlgorithmSelectorCache", "benchmark_choices"),
          ("torch._inductor.runtime.benchmarking", "TritonBenchmarker", "benchmark_gpu"),
          ("torch._inductor.runtime.benchmarking", "InductorBenchmarker", "benchmark_gpu"))


_waited_s = 0.0


def is_shared() -> bool:
    """Whether others measure on this process's device."""
    return VARIABLE in os.environ


def waited_s() -> float:
    """How long this process has waited for its turns. Units: seconds."""
    return _waited_s


def clock() -> float:
    """A clock that stands still while this process waits for its turn. Units: seconds."""
    return time.perf_counter() - _waited_s


class _Turns:
    """The lock of a device, and the place of the next to have it: who waits there goes before those who have just had the device."""

    def __init__(self, path: str) -> None:
        self.device = FileLock(path, thread_local=False)
        self.next = FileLock(f"{path}.next", thread_local=False)

    def acquire(self) -> None:
        global _waited_s
        began = time.perf_counter()
        if self.device.is_locked:
            self.device.acquire()
        else:
            _wait_for(self.next)
            try:
                _wait_for(self.device)
            finally:
                self.next.release()
        _waited_s += time.perf_counter() - began


def _wait_for(lock: FileLock) -> None:
    """Takes the lock, and says from time to time who has it. Raises: RuntimeError where that is a process that waits for this one."""
    waited_s = 0.0
    while True:
        holders = _holders(Path(lock.lock_file))
        above = holders & _ancestors()
        if above:
            raise RuntimeError(f"{lock.lock_file} is held by process {min(above)}, which started this one and so waits for it: "
                               f"name another file in {VARIABLE}, or start the benchmarks without that lock")
        try:
            lock.acquire(timeout=TOLD_AFTER_S, poll_interval=POLL_S)
            return
        except Timeout:
            waited_s += TOLD_AFTER_S
            named = ", ".join(map(str, sorted(holders))) or "unknown"
            print(f"waiting for {waited_s:.0f} s for the turn on {lock.lock_file}, held by process {named}", file=sys.stderr, flush=True)


def _holders(path: Path) -> set[int]:
    """The processes that hold a lock on the file, as far as the system tells."""
    try:
        inode, lines = path.stat().st_ino, Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return set()
    # 3: FLOCK  ADVISORY  WRITE 26873 fe:00:16236546 0 EOF; "->" instead of FLOCK is one that waits.
    found = (line.split() for line in lines)
    return {int(words[4]) for words in found if words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode)}


def _ancestors() -> set[int]:
    """The processes that started this one, directly or not."""
    found: set[int] = set()
    at = os.getppid()
    while at > 1 and at not in found:
        found.add(at)
        try:
            # "pid (name) state parent ...", where the name may have spaces and brackets.
            at = int(Path(f"/proc/{at}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            break
    return found


@functools.cache
def _turns() -> _Turns | None:
    path = os.environ.get(VARIABLE)
    return _Turns(path) if path else None


@contextmanager
def held() -> Iterator[None]:
    """Has the device to itself within; may be nested."""
    turns = _turns()
    if turns is None:
        yield
        return
    turns.acquire()
    try:
        yield
    finally:
        turns.device.release()


@contextmanager
def let_go() -> Iterator[None]:
    """Others may measure within, unless something within holds the device again; then it is as before."""
    turns = _turns()
    depth = turns.device.lock_counter if turns is not None else 0
    if turns is None or not depth:
        yield
        return
    _teach_inductor()
    turns.device.release(force=True)
    try:
        yield
    finally:
        for _ in range(depth):
            turns.acquire()


@functools.cache
def _teach_inductor() -> None:
    """Have torch.compile hold the device while it times kernels. Raises: AttributeError where torch's classes have other names."""
    import importlib

    for module, name, timer in TIMERS:
        owner: Any = getattr(importlib.import_module(module), name)
        found = vars(owner).get(timer)
        if found is None:  # inherited, or another release of torch: single timings hold the device anyway
            continue
        if isinstance(found, classmethod | staticmethod):
            setattr(owner, timer, type(found)(_holding(found.__func__)))
        else:
            setattr(owner, timer, _holding(found))


def _holding(timer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(timer)
    def timed(*arguments: Any, **named: Any) -> Any:
        with held():
            return timer(*arguments, **named)

    return timed
