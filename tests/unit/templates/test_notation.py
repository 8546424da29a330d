"""The template notation: every form of the paper parses, what parses prints back, and mistakes point at their place."""
from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilefuse.base.errors import ParseError
from tilefuse.domain.tile import Level
from tilefuse.templates.notation import LEVEL_BY_LETTER, Schedule, Setting, Step, Template, Worker, parse_template, print_template

# The forms of FusionStitching 5.1, 5.2 and its figures, then ours.
FORMS = (
    "reduce_1 [GRID,WARP,WARP,CTA]S;",
    "reduce_1 [GRID_128-WARP_2,WARP,WARP,CTA]S;",
    "reduce_2 [GRID,CTA,CTA,THREAD];",
    "dot_1 [GRID,CTA,CTA]S; add [GRID,CTA,CTA]S; divide [GRID,CTA,CTA]; log_1 [GRID,CTA]; cta_num=1024; cta_size=256;",
    "mul_1 [GRID,WARP];",
    "m [GRID-CTA_4,WARP_16]W; s [CLUSTER_8-CTA_256]C; y [GRID-CTA_4,WARP_16]; vector=8; on_chip=true; unrolled=false;",
    "s [GRID,CTA_256]SG;",
    "pack { 96 x { p [GRID-CTA_256]; vector=4; } 1 x { s [GRID_64-CTA_256]S; } };",
)


@pytest.mark.parametrize("text", FORMS)
def test_forms_parse_and_print_back(text: str) -> None:
    assert print_template(parse_template(text)) == text


def test_the_parts_of_a_schedule() -> None:
    made = parse_template("  # the reduction of figure 5\n%reduce_1[GRID_128-WARP_2 , WARP,\n CTA] S ; // kept on chip\n x=3;")
    (schedule,) = made.schedules
    assert schedule.name == "reduce_1" and schedule.keep == (Level.SHARED,)
    assert schedule.attrs == ((Step(Worker.GRID, 128), Step(Worker.WARP, 2)), (Step(Worker.WARP),), (Step(Worker.CTA),))
    assert made.settings == (Setting("x", 3),)
    assert schedule.span is not None and (schedule.span.line, schedule.span.column) == (2, 1)


names = st.from_regex(r"[a-z][a-z0-9_.]{0,8}", fullmatch=True).filter(lambda n: n != "pack")
steps = st.builds(Step, st.sampled_from(Worker), st.none() | st.integers(1, 4096))
schedules = st.builds(Schedule, names, st.lists(st.lists(steps, min_size=1, max_size=3).map(tuple), min_size=1, max_size=4).map(tuple),
                      st.lists(st.sampled_from(list(LEVEL_BY_LETTER.values())), unique=True, max_size=3).map(tuple))
settings_ = st.builds(Setting, names, st.integers(0, 1 << 20) | st.booleans())
flat = st.builds(Template, st.lists(schedules, min_size=1, max_size=4).map(tuple), st.lists(settings_, max_size=4).map(tuple))
packed = st.builds(lambda parts: Template(parts=tuple(parts)), st.lists(st.tuples(st.integers(1, 99), flat), min_size=1, max_size=3))


@given(flat | packed)
def test_printing_and_parsing_are_inverse(template: Template) -> None:
    text = print_template(template)
    assert parse_template(text) == template
    assert print_template(parse_template(text)) == text


@pytest.mark.parametrize(("text", "message", "column"), [
    ("", "at least one schedule", 1),
    ("vector=4;", "at least one schedule", 10),
    ("y [GRID,CTB];", "'CTB' spreads no loop", 9),
    ("y [GRID_0];", "whole number of workers", 4),
    ("y [GRID_x];", "whole number of workers", 4),
    ("y [];", "spreads no loop", 4),
    ("y [GRID]", "wants ';'", 9),
    ("y [GRID;", "wants ']'", 8),
    ("y [GRID]Q;", "no list of destinations", 9),
    ("y [GRID]SS;", "no list of destinations", 9),
    ("y GRID;", "stands '['", 3),
    ("y [GRID]; vector=fast;", "whole number, true or false", 18),
    ("y [GRID]; 7;", "begins with a name", 11),
    ("y [GRID] ! ;", "unexpected character '!'", 10),
    ("pack { 3 y [GRID]; }", "wants 'x'", 10),
    ("pack { { y [GRID];", "begins with a name", 19),
    ("y [GRID-];", "spreads no loop", 9),
])
def test_a_mistake_is_shown_at_its_place(text: str, message: str, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse_template(text, "t.txt")
    assert message in str(caught.value)
    assert str(caught.value.where).startswith(f"t.txt:1:{column}")
    assert str(caught.value.where).endswith("^") or not text


def test_the_nearest_word_is_offered() -> None:
    with pytest.raises(ParseError, match="did you mean CLUSTER"):
        parse_template("y [CLUSTR_4];")


def test_the_documentation_writes_templates_that_parse() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "planning.md").read_text(encoding="utf-8")
    rows, stitched, walked = [b for b in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "GRID" in b]
    assert len(parse_template(rows).schedules) == 3 and len(parse_template(stitched).schedules) == 7
    assert len(parse_template(walked).schedules) == 5
