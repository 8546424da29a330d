"""Users' text in generated sources: named by the line of an error, the line of an instantiation, or its symbol in the log."""
from __future__ import annotations

import pytest

from tilefuse.base import user_text
from tilefuse.base.source import Span
from tilefuse.base.user_text import Origin, refused_texts, remember_text, short_place

FIRST, SECOND = "float tf_custom_one(float x) {\n  return oops;\n}", "float tf_custom_two(float x) {\n  return x;\n}"
SOURCE = f"#include <cmath>\n\n{FIRST}\n\n{SECOND}\n\nvoid kernel() {{}}\n"


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_text, "_ORIGINS", {})
    for text, name in ((FIRST, "one"), (SECOND, "two")):
        remember_text(text, Origin(name, lambda line: f"line {line}", f"tf_custom_{name}"))


@pytest.mark.parametrize("log, wanted", [
    ("/tmp/w/unit.cpp:4:10: error: 'oops' was not declared", ("one, line 1",)),
    ("unit.cpp(4): error: identifier oops", ("one, line 1",)),
    ("unit.cpp:8:3: fatal error: no\nunit.cpp:4:1: error: no\nunit.cpp:3:1: error: no", ("one, line 1", "two, line 1")),
    ("unit.cpp(1): error: in a template\n   detected during instantiation of \"f\" at line 8", ("two, line 1",)),
    ("unit.cpp:11:9: error: no match for call to 'tf_custom_two'", ("two, line 0",)),
    ("unit.cpp:11:9: error: no match for call to 'tf_custom_two_narrow'", ()),
    ("/usr/include/cmath:4:10: error: of a header", ()),
    ("unit.cpp:4:10: warning: unused", ()),
    ("unit.cpp:6:1: error: between them", ()),
])
def test_texts_are_named_by_lines_and_symbols(log: str, wanted: tuple[str, ...]) -> None:
    assert refused_texts(SOURCE, log, "unit.cpp") == wanted


def test_another_source_has_none_of_them() -> None:
    assert refused_texts("void other() {}", "unit.cpp:1:1: error: tf_custom_one", "unit.cpp") == ()


def test_the_latest_pieces_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_text, "MAX_PIECES", 2)
    remember_text("int last;", Origin("last", lambda line: "here"))
    assert list(user_text._ORIGINS) == [SECOND, "int last;"]


def test_places() -> None:
    assert short_place(Span("a.py", 3, 1, "text")) == "a.py:3" and short_place(None) == "a place not known"
