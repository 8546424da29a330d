"""Scripts over elementary functions: what parses, and errors that show line, caret and remedy."""
from __future__ import annotations

import pytest

from tilefuse.base.errors import ParseError
from tilefuse.scripts.language.syntax import Name, Number, parse_script

BICGK = """\
TILE32x32 A;
subvector32 p, q, r, s;

input A, p, r;

q = sgemv(A, p);
s = sgemtv(A, r);

return q, s;
"""


def test_the_papers_listing_parses() -> None:
    """Listing 1 of the paper: declarations, inputs, calls and results in order, each with its place."""
    script = parse_script(BICGK, "bicgk")
    assert script.declared == {"A": ("matrix", None), **dict.fromkeys("pqrs", ("vector", None))}
    assert [n.text for n in script.inputs] == ["A", "p", "r"]
    assert [(s.function.text, [a.text for a in s.arguments if isinstance(a, Name)]) for s in script.statements] == [
        ("sgemv", ["A", "p"]), ("sgemtv", ["A", "r"])]
    assert [n.text for n in script.results] == ["q", "s"]
    assert (script.statements[1].function.span.line, script.statements[1].function.span.column) == (7, 5)


def test_numbers_comments_orders_and_several_results() -> None:
    """Everything the language has beside the listing."""
    script = parse_script("""
        # a comment
        matrix A column major;  matrix B row major;   // another
        scalar alpha; vector x, y; /* one
        of two lines */
        input alpha, x, y, A, B;
        a, b = srot(x, y, -1.5e-3, +2); return a, b;
    """)
    assert script.declared["A"] == ("matrix", True) and script.declared["B"] == ("matrix", False)
    assert [a.value for a in script.statements[0].arguments if isinstance(a, Number)] == [-0.0015, 2.0]
    assert [r.text for r in script.statements[0].results] == ["a", "b"]


@pytest.mark.parametrize(("change", "line", "column", "message", "hint"), [
    (("(A, p);", "(A, p)"), 6, 16, "expected ';' after the call", None),
    (("(A, r);", "(A, r;"), 7, 16, "expected ')' after the arguments, found ';'", None),
    (("subvector32 p", "subvctor32 p"), 2, 1, "'subvctor32' is no kind of variable", "vector"),
    (("q, s;\n", "q, s, ;\n"), 9, 14, "expected a result, found ';'", None),
    (("p, q, r, s", "p, q, p, s"), 2, 19, "p is declared twice, first in line 2", None),
    (("input A, p, r", "input A, p, A"), 4, 13, "A is an input already", None),
    (("return q, s;", ""), 10, 1, "the script returns nothing", "return"),
    (("return q, s;", "return q, s; t = scopy(q);"), 9, 14, "nothing may follow `return`", "last"),
    (("(A, r)", "(A, @r)"), 7, 15, "unexpected character '@'", None),
    (("return", "/* return"), 9, 1, "the comment is not closed", "*/"),
    (("sgemtv(A, r)", "sgemtv(A, scopy(r))"), 7, 20, "a call cannot be an argument", "t = scopy(...)"),
    (("s = sgemtv", "input = sgemtv"), 7, 7, "expected an input, found '='", None),
    (("subvector32 p, q, r, s", "subvector32 p, q, r, s column major"), 2, 24, "a vector has no order", "matrices"),
    (("TILE32x32 A", "TILE32x32 A colum major"), 1, 12, "expected ';' after the declaration, found 'colum'", "did you mean column?"),
    (("TILE32x32 A", "MATRIX A"), 1, 1, "'MATRIX' is no kind of variable", "did you mean matrix"),
    (("(A, p)", "(2.5.3, p)"), 6, 11, "2.5.3 is no number", "1e-3"),
    (("(A, p)", "(- 2, p)"), 6, 11, "- 2 is no number", "-0.5"),
    (("return q, s;", "return q, s"), 9, 12, "expected ';' after the results, found the end of the script", None),
])
def test_errors_point_at_the_place(change: tuple[str, str], line: int, column: int, message: str, hint: str | None) -> None:
    """One slip each in the listing: the message, its line and column, and what to do."""
    assert change[0] in BICGK
    with pytest.raises(ParseError) as caught:
        parse_script(BICGK.replace(*change, 1), "bicgk")
    where = caught.value.where
    assert message in caught.value.message
    assert (where.line, where.column) == (line, column), str(caught.value)  # type: ignore[union-attr]
    assert str(caught.value).count("^") == 1 or not where.line_text  # type: ignore[union-attr]
    assert hint is None or hint in (caught.value.hint or "")


def test_the_caret_stands_below_its_character_behind_tabs() -> None:
    """However wide tabs are shown: the line below has the same ones."""
    with pytest.raises(ParseError) as caught:
        parse_script("vector x;\n\tinput x;\n\ty = sscal(2,\t@);\n\treturn y;")
    shown = str(caught.value).splitlines()
    assert shown[2:4] == ["  \ty = sscal(2,\t@);", "  \t" + " " * 12 + "\t^"]
