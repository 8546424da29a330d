"""Context of an entry point around a compile: the trace of the options, the request in an error's notes, a progress bar."""
from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tilefuse.base import trace
from tilefuse.base.errors import CompilerError
from tilefuse.base.options import Options
from tilefuse.runtime.compilers.binaries import Begun
from tilefuse.runtime.compilers.nvrtc import start_processes
from tilefuse.runtime.stores.cache import cache_of
from tilefuse.target.device import DeviceSpec

# Expressions of a kernel are resolved recursively from results to operands, about five frames per node: Python's default limit of 1000
# allows a chain of 200. Other threads may be compiling, so the limit is raised and never lowered.
RECURSION_LIMIT = 8000

# Number of new objects between two searches of Python's garbage collector during a compile. A compile creates millions of small records
# without cycles; at Python's default of 700, this search takes a seventh of a cold compile of a thousand nodes. Units: objects.
COLLECT_AFTER = 50_000


@contextmanager
def traced(options: Options) -> Iterator[trace.Trace]:
    """A trace for one compile under `options`; inside another compile's trace, that one."""
    if sys.getrecursionlimit() < RECURSION_LIMIT:
        sys.setrecursionlimit(RECURSION_LIMIT)
    outer = trace.enclosing()
    if outer is not None:
        yield outer
        return
    with trace.tracing(trace.Trace(options)) as new_trace:
        yield new_trace


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Inside, Python's garbage collector runs rarely; afterwards at the process's own threshold.

    Objects of the compile that live on join the oldest ones without a search. Else the many of them would start a search of everything
    that the process holds, a tenth of a second where torch is loaded. An application's own `gc.freeze` stays as it is.
    """
    first, *others = gc.get_threshold()
    if not 0 < first < COLLECT_AFTER:  # switched off, set higher by the user, or raised by an enclosing compile
        yield
        return
    gc.set_threshold(COLLECT_AFTER, *others)
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.set_threshold(first, *others)


def start_compilers(device: DeviceSpec, options: Options) -> None:
    """Starts the processes that will compile kernels, if there are any; does not wait."""
    if device.kind == "cuda" and options.compile_processes:
        start_processes(device.arch, options.jobs)


@contextmanager
def compiled_early(device: DeviceSpec, options: Options) -> Iterator[Begun | None]:
    """Compiles of CUDA kernels that begin inside, before all are printed; None where the options require a message before each compile."""
    if device.kind != "cuda" or not options.compile_processes or options.jobs == 1 or options.progress or trace.current().shows("cache"):
        yield None
        return
    start_compilers(device, options)
    begun = Begun(cache_of(options.cache, options.cache_dir), options.jobs)
    try:
        yield begun
    finally:
        begun.end()


@contextmanager
def noted(what: str, device: DeviceSpec, options: Options) -> Iterator[None]:
    """Adds the request once to an error that leaves the body: model, device and options of the compile."""
    try:
        yield
    except CompilerError as error:
        changed = ", ".join(f"{k}={_short(v)}" for k, v in options.changed().items())
        note = f"while compiling {what} for {device.name}" + (f" with {changed}" if changed else "")
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


@contextmanager
def shown_progress(options: Options) -> Iterator[Callable[[int, int], None] | None]:
    """A function that takes the number of compiled kernels and of all: it draws a bar on standard error if the options ask for one.
    Otherwise None."""
    if not options.progress:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("compiling kernels", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _short(value: object) -> str:
    """An option's value in one line: of texts with many lines (a plan, a template) only the number."""
    text = value if isinstance(value, str) else ""
    return f"<{len(text.splitlines())} lines>" if "\n" in text else repr(value)
