"""C text of users inside generated sources: where each piece was written, so that a compiler's refusal can name that place.

Sources carry no such places: they would make equal kernels differ. Pieces are found again by their text, and errors by their line.
"""
from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilefuse.base.source import Span

# Pieces that are remembered; the oldest go. A script's tuning makes a few hundred.
MAX_PIECES = 1024
# A line of an error of g++ or clang++ (unit.cpp:12:5: error), or of NVRTC (name.cu(12): error).
_ERROR_LINE = re.compile(r"^(?P<file>[^\n]*?)(?::(\d+):\d+|\((\d+)\)): *(?:fatal |catastrophic )?(?:error|required from)", re.MULTILINE)
# A line that instantiates the template which the error is in, as NVRTC names it.
_INSTANTIATED = re.compile(r"detected during[^\n]*\bat line (\d+)")
_ORIGINS: dict[str, Origin] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Origin:
    """A piece of users' text. what: in the user's words ("operator squash"); symbol: its name in generated code, "" for none.

    where: the place, given the number of a line in the piece; it is asked only after an error.
    """

    what: str
    where: Callable[[int], str]
    symbol: str = ""


def remember_text(text: str, origin: Origin) -> None:
    """Notes where a piece of generated sources comes from. Requires: sources carry the piece as it is."""
    if text.strip():
        with _lock:
            _ORIGINS.pop(text, None)
            _ORIGINS[text] = origin
            while len(_ORIGINS) > MAX_PIECES:
                del _ORIGINS[next(iter(_ORIGINS))]


def refused_texts(source: str, log: str, unit: str) -> tuple[str, ...]:
    """Users' texts in `source` that a compiler's log complains of, each with its place. unit: what the log calls the source's file.

    A text is named where an error's line stands in it, or where the log has its symbol.
    """
    lines = [int(m[2] or m[3]) for m in _ERROR_LINE.finditer(log) if m["file"].endswith(unit)]
    lines += [int(m[1]) for m in _INSTANTIATED.finditer(log)]
    return tuple(dict.fromkeys(_refused(source, log, lines)))


def short_place(span: Span | None) -> str:
    """`file:line` of a span."""
    return f"{span.source}:{span.line}" if span is not None and span.line else str(span) if span is not None else "a place not known"


def _refused(source: str, log: str, lines: list[int]) -> Iterator[str]:
    with _lock:
        pieces = list(_ORIGINS.items())
    for text, origin in pieces:
        at = source.find(text)
        if at < 0:
            continue
        first = source.count("\n", 0, at) + 1
        inside = [line for line in lines if first <= line <= first + text.count("\n")]
        if inside:
            yield f"{origin.what}, {origin.where(inside[0] - first)}"
        elif origin.symbol and re.search(rf"(?<!\w){origin.symbol}(?!\w)", log):
            yield f"{origin.what}, {origin.where(0)}"
