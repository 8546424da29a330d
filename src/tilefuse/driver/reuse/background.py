"""Compiles in a second process, so that no call waits for them: that process fills the cache, and this one then loads the program.

    this process    import -> request --pipe--> other process    plan, sources, machine code -> cache
                    calls run in torch                            reply: done, or why not
                    the next call: program found in the cache

The other process transfers only cache files under digests of all their inputs, so a program is the same whichever process made it. After a
failure there, this process compiles.
"""
from __future__ import annotations

import atexit
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np

from tilefuse.base.logs import OUT_VARIABLE, VARIABLE, log_of
from tilefuse.base.options import Options
from tilefuse.driver.lowering.product_precision import framework_convolutions, framework_products
from tilefuse.driver.reuse.known_programs import is_keepable
from tilefuse.driver.reuse.known_seeds import Found, look_up
from tilefuse.frontends.imported import Imported
from tilefuse.ir.custom import custom_texts
from tilefuse.target.device import DeviceSpec

LENGTH = struct.Struct("<q")
# Torch computes the layouts of these operators' results for the current device, which the other process does not see.
ASKS_THE_DEVICE = "library.convolution"
# -P: modules of the working folder, which may not be on this process's path, must not replace Python's own.
COMMAND = (sys.executable or "python3", "-P", "-m", "tilefuse.driver.reuse.background_process")


@dataclass(frozen=True, slots=True)
class Request:
    """One compile as the other process needs it.

    free_results, static, given_up, overwritable: as for `generate`. found: the program's digest, and its seed. arithmetic: f32 settings of
    torch's products and convolutions.
    """

    imported: Imported
    device: DeviceSpec
    options: Options
    free_results: tuple[int, ...]
    static: tuple[str, ...]
    given_up: tuple[str, ...]
    overwritable: tuple[str, ...]
    found: Found
    arithmetic: tuple[str, str]


@dataclass(eq=False)
class Ticket:
    """A requested compile. reason: why the other process made no program; "" on success and before the reply."""

    request: Request
    reason: str = ""
    done: threading.Event = field(default_factory=threading.Event)

    def end(self, reason: str = "") -> None:
        """Says that the other process is done with it."""
        self.reason = reason
        self.done.set()


def request_of(imported: Imported, device: DeviceSpec, options: Options, free_results: Collection[int] = (),
               static: Collection[str] = (), given_up: Collection[str] = (), overwritable: Collection[str] = ()) -> Request | None:
    """The request for a program; None where another process would make another one, or could not receive it."""
    graph = imported.graph
    if not is_keepable(options) or not options.cache or custom_texts(graph) or any(n.kind.startswith(ASKS_THE_DEVICE) for n in graph.nodes):
        return None
    # Other data (weights on a device) is bound here, when the program is built.
    texts = {name: data for name, data in imported.constants.items() if isinstance(data, np.ndarray)}
    silent = replace(options, progress=False, trace="", logs="", debug=0)
    request = Request(replace(imported, constants=texts), device, silent, tuple(free_results), tuple(static), tuple(given_up),
                      tuple(overwritable), Found(""), (framework_products(), framework_convolutions()))
    return replace(request, found=replace(look_up(graph, facts_of(request)), program=None))


class BackgroundProcess:
    """The other process, and a thread of this one that sends it requests one after another.

    It ends with this process in every case, because its input is then closed. If it ended by itself, the next request starts it again.
    """

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        self._command = command
        self._tickets: list[weakref.ref[Ticket]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._is_closed = False
        self._is_busy = False
        self._is_starting = False

    def has_room(self) -> bool:
        """Whether a request would be the current one or the next. Making a request costs its sender time, so no more may wait, and none
        while the process starts: sizes that return until then may never return again."""
        with self._changed:
            return not self._is_starting and self._is_busy + len(self._waiting()) < 2

    def start(self) -> None:
        """Starts the process if it is not running; it can serve after some seconds. Asking starts it too."""
        with self._changed:
            self._begin()

    def ask(self, request: Request) -> Ticket:
        """Requests a compile and returns at once. A request whose ticket was dropped is not started."""
        ticket = Ticket(request)
        with self._changed:
            self._tickets.append(weakref.ref(ticket))
            self._begin()
            self._changed.notify_all()
        return ticket

    def settle(self, timeout_s: float | None = None) -> bool:
        """Waits until the process has started and all requests are done; False after the time limit. Units: seconds"""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed or not (self._is_starting or self._is_busy or self._waiting()), timeout_s)

    def close(self) -> None:
        """Ends the process; open requests are dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _begin(self) -> None:
        """Starts the thread if it is not running. Requires: the lock."""
        if self._thread is None and not self._is_closed:
            self._is_starting = True
            self._thread = threading.Thread(target=self._attend, name="tilefuse-background", daemon=True)
            self._thread.start()

    def _waiting(self) -> list[Ticket]:
        """Open tickets that are still referenced, oldest first. Requires: the lock."""
        alive = [t for t in (ref() for ref in self._tickets) if t is not None]
        self._tickets = [weakref.ref(t) for t in alive]
        return alive

    def _attend(self) -> None:
        """The thread: sends requests and records the replies."""
        # If the process does not start, the first request gets the reason.
        self._open()
        while True:
            with self._changed:
                self._is_busy = self._is_starting = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_closed or bool(self._waiting()))
                if self._is_closed:
                    return
                ticket = next(iter(self._waiting()), None)
                if ticket is None:  # its holder let go of it meanwhile
                    continue
                self._tickets.pop(0)
                self._is_busy = True
            reason = self._open() or self._replied(ticket.request)
            name = ticket.request.imported.graph.name
            if not self._is_closed:
                status = "not made there" if reason else "ready, and loaded at the next call of its sizes"
                log_of("background").info("%s is %s", name, status)
            if reason and not self._is_closed:
                log_of("background").debug("%s: %s", name, reason)
            ticket.end(reason)
            del ticket

    def _open(self) -> str:
        """Starts the process if it is not running, and waits until it can serve; the reason if it cannot, or ""."""
        if self._process is not None and self._process.poll() is None:
            return ""
        # The other process uses the same packages, no GPU (its memory belongs to this process), and ignores Ctrl-C, which is meant for this
        # one.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path), "CUDA_VISIBLE_DEVICES": ""}
        # Lines that a compile logs there are logged here.
        environment = {name: value for name, value in environment.items() if name not in (VARIABLE, OUT_VARIABLE)}
        try:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                                             env=environment, process_group=0)
        except OSError as error:
            return f"the background process does not start: {error}"
        assert self._process.stdout is not None
        try:
            receive(self._process.stdout)
        except (OSError, EOFError):
            return self._ended(self._process)
        return ""

    def _replied(self, request: Request) -> str:
        """The process's reply to a request: "" on success, else the reason."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            send(process.stdin, request)
            return str(receive(process.stdout))
        except (OSError, EOFError):
            return self._ended(process)

    def _ended(self, process: subprocess.Popen[bytes]) -> str:
        process.kill()
        return f"the background process ended (status {process.wait()}{self._last_error()})"

    def _last_error(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f", {last}" if last else ""


def send(pipe: IO[bytes], message: Any) -> None:
    """Writes a message with its length before it. Raises: OSError where the reader has ended."""
    data = pickle.dumps(message)
    pipe.write(LENGTH.pack(len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next message. Raises: EOFError at the end of the pipe. Requires: the writer is a process of this package."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    data = pipe.read(LENGTH.unpack(head)[0])
    return pickle.loads(data)


_PROCESS: list[BackgroundProcess] = []


def background() -> BackgroundProcess:
    """The background process of this process."""
    if not _PROCESS:
        _PROCESS.append(BackgroundProcess())
    return _PROCESS[0]


def _close() -> None:
    for process in _PROCESS:
        process.close()


atexit.register(_close)
# A forked child has none of its parent's threads, so it starts a process of its own.
os.register_at_fork(after_in_child=_PROCESS.clear)


def facts_of(request: Request) -> Mapping[str, Any]:
    """The arguments of `generate` and `program_digest` that a request names."""
    imported = request.imported
    return {"constants": imported.constants, "input_layouts": imported.layouts, "device": request.device, "options": request.options,
            "fallbacks": imported.fallbacks, "result_layouts": imported.result_layouts, "free_results": request.free_results,
            "static": request.static, "given_up": request.given_up, "overwritable": request.overwritable}
