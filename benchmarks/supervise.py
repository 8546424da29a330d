"""Runs measurements in a child process with time-outs: one that hangs or crashes costs its own case and nothing else."""
from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

# Time in which a process that is ended writes where it was. Units: seconds.
WRITING_S = 0.5
ROOT = Path(__file__).resolve().parents[1]


class Bench:
    """The measuring process; started when first asked, and again after it dies. One thread asks; any may close.

    root: the tree whose `src` and `benchmarks` the process imports. command: the program and its arguments, by default this Python's
    `benchmarks.measure`. Units: time-outs in seconds.
    """

    def __init__(self, log_path: Path, environment: Mapping[str, str] | None = None, *, root: Path = ROOT,
                 command: Sequence[str] = (sys.executable, "-m", "benchmarks.measure")) -> None:
        self.log_path = log_path
        self.root = root
        self.command = tuple(command)
        self.environment = dict(os.environ if environment is None else environment)
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str | None] = queue.Queue()
        self.guard = threading.Lock()
        self.is_closed = False

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer to one request; a time-out, a crash or a closed bench is an answer too, of status "timeout" or "crashed"."""
        process = self._running()
        if process is None:
            return {"status": "crashed", "reason": "the run has ended"}
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = self.answers.get(timeout=timeout_s)
        except queue.Empty:
            self._tell_where(process)
            self.stop()
            return {"status": "timeout", "reason": f"no answer within {timeout_s:.0f} s; {self.log_path.name} says where it was"}
        except BrokenPipeError:
            line = None
        if line is None:
            code = process.wait()
            self.stop()
            return {"status": "crashed", "reason": f"the measuring process ended with status {code}; see {self.log_path.name}"}
        record: dict[str, Any] = json.loads(line)
        if record.get("poisoned"):
            self.stop()
        return record

    def _tell_where(self, process: subprocess.Popen[str]) -> None:
        """Has the process write its threads' calls into the log."""
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGUSR1)
            time.sleep(WRITING_S)

    def stop(self) -> None:
        """End the process, if one runs."""
        with self.guard:
            process, self.process = self.process, None
        if process is None:
            return
        # Compilers start processes of their own, which would go on compiling beside the next measurement.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End the process and start none again."""
        with self.guard:
            self.is_closed = True
        self.stop()

    def _running(self) -> subprocess.Popen[str] | None:
        with self.guard:
            if self.is_closed:
                return None
            if self.process is None or self.process.poll() is not None:
                self.process = self._start()
            return self.process

    def _start(self) -> subprocess.Popen[str]:
        environment = dict(self.environment)
        paths = [str(self.root / "src"), str(self.root), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        with self.log_path.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                self.command, cwd=self.root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True)
        self.answers = queue.Queue()
        assert process.stdout is not None
        threading.Thread(target=_read, args=(process.stdout, self.answers), daemon=True).start()
        return process


def _read(stream: IO[str], answers: queue.Queue[str | None]) -> None:
    for line in stream:
        # Libraries may print to the process's output below Python: only answers are objects.
        if line.startswith("{"):
            answers.put(line)
    answers.put(None)
