"""NVRTC in further processes, because NVRTC compiles only one kernel at a time per process.

    a compile begins      processes start, while torch traces or kernels are planned: a tenth of a second
    a kernel is printed   an idle process compiles it, else this one, else it waits for either
    20 s without kernels  they end; with this process they end at once, however it ends

Source: H200's host; seven kernels of a language model take 0.135 s in one process, with any number of threads; printing and compiling nine
takes 98 ms with four processes, 172 ms without. Where no process can be started, this process compiles everything.
"""
from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tilefuse.runtime.compilers.nvrtc_process import receive, send

# Printing a kernel takes about 10 ms and compiling it 20 to 40 ms: further processes would wait for kernels.
MOST_PROCESSES = 4
IDLE_S = 20.0
FILE = Path(__file__).with_name("nvrtc_process.py")

# NVRTC's status, log and machine code for a name, a source and flags.
Compiled = tuple[int, bytes, bytes]
Compile = Callable[[bytes, bytes, Sequence[bytes]], Compiled]


def command_of(version: str, arch: str) -> tuple[str, ...]:
    """The command of a process that compiles with this process's own NVRTC; empty where there is no Python to run it.

    -I, -S: no module of the user's folder, environment or packages. version: as `nvrtc_version`, which has loaded the library.
    """
    from multiprocessing import spawn

    executable = spawn.get_executable()
    if not executable or getattr(sys, "frozen", False):
        return ()
    return (os.fsdecode(executable), "-I", "-S", str(FILE), version, arch, *loaded_libraries())


def loaded_libraries(maps: str = "/proc/self/maps") -> tuple[str, ...]:
    """Paths of NVRTC's libraries that this process has loaded: usually one."""
    with contextlib.suppress(OSError):
        lines = Path(maps).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        paths = (line.split(None, 5)[5] for line in lines if "libnvrtc.so" in line)
        return tuple(dict.fromkeys(path for path in paths if not path.endswith(" (deleted)")))
    return ()


class NvrtcProcess:
    """One process. `used` is the time of its last kernel; is_broken: it ended, or was interrupted within a reply."""

    def __init__(self, command: Sequence[str]) -> None:
        """Starts it. Raises: OSError where it cannot be."""
        # No Ctrl-C, which is meant for this process, and a working folder that cannot be removed meanwhile.
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/",
                                      process_group=0)
        self.used = time.monotonic()
        self.is_broken = False

    def is_ready(self) -> bool:
        """Waits until it can compile; False where it ended instead."""
        assert self.popen.stdout is not None
        with contextlib.suppress(EOFError, OSError, ValueError):
            receive(self.popen.stdout)
            return True
        return False

    def compiled(self, name: bytes, source: bytes, flags: Sequence[bytes]) -> Compiled | None:
        """Its reply for a kernel; None where it ended."""
        assert self.popen.stdin is not None and self.popen.stdout is not None
        with contextlib.suppress(EOFError, OSError, ValueError):  # ValueError: closed by `end`
            send(self.popen.stdin, [name, source, *flags])
            status, log, cubin = receive(self.popen.stdout)
            return int(status), log, cubin
        return None

    def end(self) -> None:
        """Ends it at once, and waits for that."""
        self.popen.kill()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # a request that was never read
                pipe.close()

    def forget(self) -> None:
        """In a forked child: releases the parent's process, which would otherwise live as long as the child."""
        null = os.open(os.devnull, os.O_RDWR)
        for pipe in (self.popen.stdin, self.popen.stdout):
            assert pipe is not None
            # The file descriptor stays reserved: the pipe's object closes it later.
            os.dup2(null, pipe.fileno(), inheritable=False)
        os.close(null)
        self.popen.returncode = 0


class NvrtcProcesses:
    """The compiling processes, each with a thread that starts it, and ends it after `idle_s` without a kernel."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._running: list[NvrtcProcess] = []
        self._idle: list[NvrtcProcess] = []
        self._num_threads = 0
        self._is_here_busy = False
        self._is_refused = False
        self._is_closed = False

    def start(self, count: int, command: Callable[[], Sequence[str]]) -> None:
        """Requests up to `count` processes without waiting for them. After one failed to start, no more are started."""
        with self._changed:
            for process in self._running:
                process.used = time.monotonic()
            while self._num_threads < count and not self._is_refused and not self._is_closed:
                self._num_threads += 1
                threading.Thread(target=self._attend, args=(command,), name="tilefuse-nvrtc", daemon=True).start()

    def compiled(self, name: bytes, source: bytes, flags: Sequence[bytes], here: Compile) -> Compiled:
        """A kernel compiled by an idle process, or by `here` where there is none; only one call of `here` runs at a time."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._idle or not self._is_here_busy)
                process = self._idle.pop() if self._idle else None
                self._is_here_busy = self._is_here_busy or process is None
            compiled: Compiled | None = None
            try:
                compiled = here(name, source, flags) if process is None else process.compiled(name, source, flags)
            finally:
                self._give_back(process, compiled is not None)
            if compiled is not None:
                return compiled

    def numbers(self) -> list[int]:
        """Process ids of the running processes."""
        with self._changed:
            return [process.popen.pid for process in self._running]

    def wait_ready(self, count: int, timeout_s: float) -> bool:
        """Waits until this many processes are idle; False after the time. Units: seconds"""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._idle) >= count, timeout_s)

    def close(self) -> None:
        """Ends the processes, and starts no more."""
        with self._changed:
            self._is_closed = True
            running = list(self._running)
            self._idle.clear()
            self._changed.notify_all()
        for process in running:
            process.end()

    def forget(self) -> None:
        """In a forked child: releases the parent's processes. The threads that hold the lock do not exist there."""
        for process in self._running:
            process.forget()

    def _give_back(self, process: NvrtcProcess | None, is_whole: bool) -> None:
        with self._changed:
            if process is None:
                self._is_here_busy = False
            elif is_whole:
                process.used = time.monotonic()
                self._idle.append(process)
            else:
                process.is_broken = True
            self._changed.notify_all()

    def _attend(self, command: Callable[[], Sequence[str]]) -> None:
        """The thread of one process, from its start to its end."""
        process = self._opened(command)
        if process is not None:
            is_ready = process.is_ready()
            with self._changed:
                if is_ready:
                    process.used = time.monotonic()
                    self._idle.append(process)
                    self._changed.notify_all()
                    while (left_s := self._left_s(process)) > 0:
                        self._changed.wait(left_s)
                    if process in self._idle:
                        self._idle.remove(process)
                self._is_refused = self._is_refused or not is_ready
                self._running.remove(process)
            process.end()
        with self._changed:
            self._is_refused = self._is_refused or process is None
            self._num_threads -= 1

    def _left_s(self, process: NvrtcProcess) -> float:
        """Time until a process ends if nothing changes. Units: seconds. Requires: the lock."""
        if self._is_closed or process.is_broken:
            return 0.0
        return process.used + self._idle_s - time.monotonic() if process in self._idle else threading.TIMEOUT_MAX

    def _opened(self, command: Callable[[], Sequence[str]]) -> NvrtcProcess | None:
        words = command()
        if not words:
            return None
        with self._changed:
            if self._is_closed:
                return None
            try:
                self._running.append(NvrtcProcess(words))
            except OSError:
                return None
            return self._running[-1]


def num_processes(jobs: int) -> int:
    """Number of processes worth starting beside this one, which uses a processor itself. jobs: the option's, 0 for no limit."""
    processors = len(os.sched_getaffinity(0))
    return min(MOST_PROCESSES, processors - 1, (jobs or MOST_PROCESSES + 1) - 1)


_PROCESSES = [NvrtcProcesses()]


def nvrtc_processes() -> NvrtcProcesses:
    """The processes of this process."""
    return _PROCESSES[0]


def _close() -> None:
    _PROCESSES[0].close()


def _forget() -> None:
    # A forked child has none of its parent's threads, so it starts processes of its own. References to the old pipes stay.
    _PROCESSES[0].forget()
    _PROCESSES.insert(0, NvrtcProcesses())


atexit.register(_close)
os.register_at_fork(after_in_child=_forget)
