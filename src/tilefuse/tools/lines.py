"""Lines of a command's output: cut or wrapped to the terminal's width, whole in files and pipes, where `grep` reads them."""
from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.cells import cell_len, chop_cells

from tilefuse.base.printable import one_line
from tilefuse.tools.console import emit_text, results

MORE = "..."
# Narrower terminals are treated as this wide: a column of single letters is unreadable.
LEAST_WIDTH = 40


def output_width() -> int | None:
    """Columns of the terminal that standard output is; None for a file or a pipe."""
    return max(results().width, LEAST_WIDTH) if sys.stdout.isatty() else None


def cut_line(line: str, width: int) -> str:
    """The line, cut to `width` columns; three points mark the cut."""
    if cell_len(line) <= width:
        return line
    return chop_cells(line, width - len(MORE))[0] + MORE


def wrapped(line: str, width: int) -> Iterator[str]:
    """The line in pieces of at most `width` columns, broken at spaces; later pieces are indented by two columns."""
    indent = " " * (len(line) - len(line.lstrip(" ")))
    text, first = line.strip(" "), True
    while text:
        room = width - len(indent)
        piece = text
        if cell_len(text) > room:
            most = chop_cells(text, room)[0]
            end = most.rfind(" ") if text[len(most)] != " " else len(most)
            piece = text[:end if end > 0 else len(most)]
        yield indent + piece.rstrip(" ")
        text = text[len(piece):].lstrip(" ")
        indent = indent + "  " if first else indent
        first = False


def print_lines(lines: Iterator[str], *, wrap: bool, width: int | None) -> None:
    """Print the lines, whole where `width` is None, else wrapped or cut to it. Control characters are shown, never obeyed."""
    for line in lines:
        line = one_line(line)
        if width is None:
            emit_text(f"{line}\n")
            continue
        for piece in wrapped(line, width) if wrap else (cut_line(line, width),):
            emit_text(f"{piece}\n")
