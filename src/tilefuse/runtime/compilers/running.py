"""Compilers that run as child processes, which an interrupt or an error elsewhere ends together with all that they have started.

Each is a process group of its own: a terminal's interrupt reaches this process alone, which ends the others, also one that is about to
start.
"""
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

# A signal that arrives just before Python's main thread sleeps is handled only when that thread wakes: so long it sleeps at most.
# Units: seconds.
LONGEST_SLEEP_S = 0.25


class RunningCompilers:
    """The compilers that several threads run for one purpose."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._has_ended = False

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """The finished process with its output. Raises: OSError where the command does not start."""
        # A copy of the environment: another thread may change the process's own during the start of the child.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   errors="replace", env=dict(os.environ), process_group=0)
        try:
            with self._lock:
                self._processes.add(process)
                if self._has_ended:
                    _end(process)
            out, errors = _output(process)
        finally:
            if process.poll() is None:
                _end(process)
                process.communicate()
            with self._lock:
                self._processes.discard(process)
        return subprocess.CompletedProcess(list(command), process.returncode, out, errors)

    def end(self) -> None:
        """Ends the compilers, and each that is started from now on."""
        with self._lock:
            self._has_ended = True
            for process in self._processes:
                _end(process)


def _output(process: subprocess.Popen[str]) -> tuple[str, str]:
    """All that a process writes, when it has ended."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=LONGEST_SLEEP_S)


def _end(process: subprocess.Popen[str]) -> None:
    """Asks a process and its children to end; compilers remove their temporary files then."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)


def awaited(future: Future[T]) -> T:
    """The result of a future; an interrupt is noticed while it is not there. Raises: as the function that gives the result."""
    while not future.done():
        wait([future], LONGEST_SLEEP_S)
    return future.result()


_of_thread = threading.local()
_ALONE = RunningCompilers()


def run_compiler(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """`RunningCompilers.run`, among those that the thread works for. Raises: as that."""
    running: RunningCompilers = getattr(_of_thread, "running", _ALONE)
    return running.run(command)


def work_for(running: RunningCompilers) -> None:
    """From here on the thread's compilers are among these."""
    _of_thread.running = running
