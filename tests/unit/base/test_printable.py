"""Names of models as a terminal gets them: every character that it obeys is shown instead."""
from __future__ import annotations

import io
import sys
import unicodedata

import pytest
from rich.table import Table
from rich.text import Text

from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.base.printable import one_line, printable
from tilefuse.base.trace import Trace
from tilefuse.tools.console import SafeConsole, emit_text

NASTY = "a\x1b[31mb\x9b2J\x07\r\x7f\u202eüµ"
SHOWN = r"a\x1b[31mb\x9b2J\x07\r\x7f\u202eüµ"


def test_what_is_shown() -> None:
    plain = "two\nlines\tand µ"
    assert printable(plain) is plain
    assert printable(NASTY) == SHOWN == one_line(NASTY)
    assert one_line(plain) == r"two\nlines\tand µ" and printable("\ud800") == r"\ud800"
    obeyed = [chr(c) for c in range(0x100) if unicodedata.category(chr(c)) == "Cc" and c not in (9, 10)]
    assert printable("".join(obeyed)).isprintable()


def _written(thing: object) -> str:
    stream = io.StringIO()
    SafeConsole(file=stream, width=200, force_terminal=True, color_system=None).print(thing)
    return stream.getvalue()


def test_every_way_to_a_console() -> None:
    """A text, a rich text, a cell and a title of a table: shown whole, and a text's brackets are no markup."""
    table = Table(title=NASTY)
    table.add_column(NASTY)
    table.add_row(NASTY.replace("[", r"\["))
    for thing in (NASTY, Text(NASTY), table):
        out = _written(thing)
        assert "\x9b" not in out and "\x07" not in out and "\x1b[31m" not in out and r"\x1b[31mb\x9b" in out
    assert _written("[bold]name[/bold]") == "[bold]name[/bold]\n"


def test_streams_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    emit_text(f"graph {NASTY}\n")
    assert capsys.readouterr().out == f"graph {SHOWN}\n"
    stream = io.StringIO()
    Trace(Options(debug=1), stream).line("device", NASTY)
    assert stream.getvalue() == f"[tilefuse device] {SHOWN}\n"
    error = UserError(f"there is no value {NASTY}", hint=NASTY, notes=[NASTY])
    error.add_note(NASTY)
    assert str(error) == f"there is no value {SHOWN}\n  hint: {SHOWN}" and error.__notes__ == [SHOWN, SHOWN]
    assert sys.stdout is not None
