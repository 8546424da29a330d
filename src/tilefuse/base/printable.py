"""Text from models and files as a terminal may receive it, and as a line of a comment.

A name may hold any character. A terminal takes some of them for commands: change a colour, move the cursor, set the title.
"""
from __future__ import annotations

import re

# Control characters but newline and tabulator; separators of lines and paragraphs; marks that turn the direction of a text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_LINE_END = re.compile(r"[\n\t]")


def printable(text: str) -> str:
    """`text` with every character that a terminal obeys written as its escape; newlines and tabulators stay.

    Exact: the same object where nothing had to be written otherwise.
    """
    return _CONTROL.sub(_escape, text) if _CONTROL.search(text) else text


def one_line(text: str) -> str:
    """`printable`, with newlines and tabulators as escapes too: a name in a table or in a sentence."""
    return _LINE_END.sub(_escape, printable(text))


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape", "surrogatepass").decode("ascii")
