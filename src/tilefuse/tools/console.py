"""Where a command writes: results to standard output, everything else to standard error."""
from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


def results() -> Console:
    """The console of results. Not wrapped to 80 columns where the output is a file or a pipe."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160)


def errors() -> Console:
    """The console of progress and messages."""
    return Console(file=sys.stderr, stderr=True)


def emit_json(value: Any) -> None:
    """Print one JSON document, alone, on standard output."""
    print(json.dumps(value, indent=2, default=str))


@contextlib.contextmanager
def working(text: str, quiet: bool = False) -> Iterator[Progress]:
    """A spinner with elapsed time on standard error while the body works; the body may add tasks of its own."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    progress = Progress(*columns, console=errors(), transient=True, disable=quiet or not sys.stderr.isatty())
    with progress:
        progress.add_task(text, total=None)
        yield progress
