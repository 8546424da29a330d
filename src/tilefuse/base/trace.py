"""Trace: what a compile did, as chrome-trace events, as lines on stderr, and as files of a dump folder.

One `Trace` is current in a context (`tracing`); every stage reports to `current()`. Artifacts are the things that can be shown; the
debug ladder of `Options.debug` and the list in `Options.logs` decide which are.
"""
from __future__ import annotations

import contextlib
import contextvars
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from tilefuse.base.errors import OptionError
from tilefuse.base.logs import NAMES, is_shown, log_of, parse_logs
from tilefuse.base.options import Options
from tilefuse.base.printable import printable

# The rung of the debug ladder from which an artifact is shown.
ARTIFACTS: dict[str, int] = {
    "fallbacks": 1, "device": 1, "kernels": 2, "cache": 2, "time": 2, "plan": 3, "source": 4, "ir": 5, "rules": 6, "rejected": 6,
}


def shown_artifacts(debug: int, logs: str) -> frozenset[str]:
    """Artifacts that the ladder and the comma list `logs` switch on (see `logs.py`).

    Raises: OptionError for an unknown artifact.
    """
    shown = {name for name, rung in ARTIFACTS.items() if debug >= rung}
    for name, level in parse_logs(logs).items():
        named = set(NAMES) if name == "all" else {name}
        shown = shown - named if level >= logging.ERROR else shown | named
    return frozenset(shown)


class Trace:
    """Events of one compile (or of several, one after another). Units: times in microseconds since the trace began."""

    def __init__(self, options: Options | None = None, stream: TextIO | None = None) -> None:
        chosen = options or Options()
        self.options = chosen
        self.shown = shown_artifacts(chosen.debug, chosen.logs)
        self.stream = stream
        self.events: list[dict[str, object]] = []
        self.folder: Path | None = None
        self._began = time.perf_counter()
        self._lock = threading.Lock()
        self._counter = 0

    def now_us(self) -> float:
        """Time since the trace began. Units: microseconds."""
        return (time.perf_counter() - self._began) * 1e6

    def shows(self, artifact: str) -> bool:
        """Whether lines of this artifact are printed; ask before building a costly text."""
        return artifact in self.shown or is_shown(artifact)

    def line(self, artifact: str, text: str) -> None:
        """Tells `text` to the artifact's log; where this compile alone shows it, on standard error."""
        log = log_of(artifact)
        if log.isEnabledFor(logging.INFO) and self.stream is None:
            log.info("%s", text)
        elif artifact in self.shown:
            print(f"[tilefuse {artifact}] {printable(text)}", file=self.stream or sys.stderr)

    def event(self, name: str, category: str = "compile", **arguments: object) -> None:
        """An instant event, e.g. one fallback or one cache miss."""
        self._add({"name": name, "cat": category, "ph": "i", "s": "t", "ts": self.now_us(), "args": arguments})

    @contextlib.contextmanager
    def span(self, name: str, category: str = "compile", **arguments: object) -> Iterator[dict[str, object]]:
        """A complete event around the body; the body may add arguments to the mapping it is given."""
        began = self.now_us()
        try:
            yield arguments
        finally:
            took = self.now_us() - began
            self._add({"name": name, "cat": category, "ph": "X", "ts": began, "dur": took, "args": arguments})
            self.line("time", f"{name} {took / 1e3:.2f} ms")

    def seconds_by_name(self) -> dict[str, float]:
        """Seconds spent in the spans of each name, in order of first occurrence. Nested spans count in both."""
        total: dict[str, float] = {}
        for event in self.events:
            if event["ph"] == "X":
                took = event["dur"]
                assert isinstance(took, float)
                total[str(event["name"])] = total.get(str(event["name"]), 0.0) + took / 1e6
        return total

    def dump(self, file_name: str, text: str) -> Path | None:
        """Writes `text` to a file of this compile's dump folder; None where no dump folder was asked for."""
        if not self.options.dump_dir:
            return None
        if self.folder is None:
            self.begin_dump("compile")
        assert self.folder is not None
        path = self.folder / file_name
        with _writing("dump_dir", self.options.dump_dir):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return path

    def begin_dump(self, name: str) -> Path | None:
        """Starts a new folder `<dump_dir>/<name>_<number>` for the compile that begins; None where none was asked for."""
        if not self.options.dump_dir:
            return None
        root = Path(self.options.dump_dir)
        with _writing("dump_dir", root):
            root.mkdir(parents=True, exist_ok=True)
        while True:
            folder = root / f"{name}_{self._counter}"
            self._counter += 1
            # Another process may dump into the same root: the folder that this call creates is ours alone.
            with _writing("dump_dir", root), contextlib.suppress(FileExistsError):
                folder.mkdir()
                self.folder = folder
                return folder

    def to_json(self) -> str:
        """All events as chrome-trace JSON."""
        return json.dumps({"traceEvents": self.events, "displayTimeUnit": "ms"}, default=str)

    def write(self, path: str | Path) -> None:
        """Writes the chrome trace to `path`, whole or not at all. Raises: OptionError where it cannot be written."""
        target = Path(path)
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        with _writing("trace", target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                partial.write_text(self.to_json())
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)

    def _add(self, event: dict[str, object]) -> None:
        with self._lock:
            self.events.append(event | {"pid": os.getpid(), "tid": threading.get_ident() & 0xFFFF})


@contextlib.contextmanager
def _writing(option: str, place: str | Path) -> Iterator[None]:
    """Turns what the system says of a place that the option names into an error that speaks of the option."""
    try:
        yield
    except OSError as cause:
        raise OptionError(f"{option}={str(place)!r} cannot be written: {cause.strerror or cause}",
                          hint=f"name a writable place, or leave {option} empty") from cause


_CURRENT: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("tilefuse_trace", default=None)
_SILENT = Trace()


def current() -> Trace:
    """The trace of this context; outside any `tracing` one that keeps nothing for anybody."""
    found = _CURRENT.get()
    if found is None:
        _SILENT.events.clear()
        return _SILENT
    return found


def enclosing() -> Trace | None:
    """The trace of this context, None outside any `tracing`."""
    return _CURRENT.get()


@contextlib.contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Makes `trace` current in the body; at the end writes the file that `Options.trace` names and the dump's copy."""
    token = _CURRENT.set(trace)
    try:
        yield trace
    finally:
        _CURRENT.reset(token)
        if trace.options.trace:
            trace.write(trace.options.trace)
        if trace.folder is not None:
            trace.write(trace.folder / "trace.json")
