"""Where a command writes: results to standard output, everything else to standard error."""
from __future__ import annotations

import contextlib
import errno
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from tilefuse.base.errors import UserError
from tilefuse.base.printable import one_line, printable
from tilefuse.runtime.stores.cache import write_whole


class SafeConsole(Console):
    """A console that shows control characters of texts instead of obeying them; text is text, without markup, but in cells of tables."""

    def print(self, *objects: Any, **how: Any) -> None:
        """As rich's, with texts as they are."""
        super().print(*(Text(printable(o)) if isinstance(o, str) else o for o in objects), **how)

    def render_str(self, text: str, **how: Any) -> Text:
        """As rich's, for the texts of cells and titles: one line each."""
        return super().render_str(one_line(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """As rich's. The last place that every text passes on its way to the terminal."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class _Results(SafeConsole):
    """A reader that goes away is for the command line to judge; rich's own answer is exit status 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def results() -> Console:
    """The console of results. Not wrapped to 80 columns where the output is a file or a pipe."""
    return _Results(file=sys.stdout, width=None if sys.stdout.isatty() else 160)


def errors() -> Console:
    """The console of progress and messages."""
    return SafeConsole(file=sys.stderr, stderr=True)


def emit_text(text: str) -> None:
    """Print a document as it is, but for control characters, on standard output."""
    print(printable(text), end="")


def emit_json(value: Any) -> None:
    """Print one JSON document, alone, on standard output."""
    print(json.dumps(_finite(value), indent=2, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    """`value` with "nan", "inf" and "-inf" for such numbers, which JSON has not: strict readers refuse the words Python writes."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {key: _finite(v) for key, v in value.items()}
        case list() | tuple():
            return [_finite(v) for v in value]
    return value


def write_file(path: Path, data: bytes) -> None:
    """A file that the user named; it appears whole or not at all. Raises: UserError when it cannot be written."""
    try:
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}")
        write_whole(path, data)
    except OSError as cause:
        raise UserError(f"cannot write {path}: {cause.strerror or cause}") from cause


@contextlib.contextmanager
def working(text: str, quiet: bool = False) -> Iterator[Progress]:
    """A spinner with elapsed time on standard error while the body works; the body may add tasks of its own."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    progress = Progress(*columns, console=errors(), transient=True, disable=quiet or not sys.stderr.isatty())
    with progress:
        progress.add_task(escape(text), total=None)
        yield progress
