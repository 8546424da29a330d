"""The plan's text: parse(print(plan)) is the plan's outline, and bad text is refused with its place."""
from __future__ import annotations

import pytest

from tests.unit.plan.graphs import layers, softmax
from tests.unit.plan.stand_in import schedule_by_rows
from tilefuse.base.errors import ParseError
from tilefuse.base.options import Options
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import Plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.text.text import outline_of, parse_plan, print_plan
from tilefuse.target.device import H200

VIEWS = """graph @v(%x: f32[4, 8], const %w: f32[4, 4]) -> (f32[8, 4]) {
  %t: f32[8, 4] = map [i, j] { %x[j, i] }
  %p: f32[8, 4] = library.matmul (%t, %w)
  %y: f32[8, 4] = map [i, j] { exp(%p[i, j]) }
  return %y
}"""


def plan_of(graph: Graph, planner: str = "greedy") -> Plan:
    options = Options().with_overrides(planner=planner)
    return plan_graph(graph, {}, H200, options, scheduler=schedule_by_rows, layouts={"p": (1, 8)} if graph.name == "v" else None)


@pytest.mark.parametrize("planner", ["greedy", "ilp"])
@pytest.mark.parametrize("graph", [softmax(), layers(3), parse_graph(VIEWS)], ids=lambda g: g.name)
def test_text_round_trips(graph: Graph, planner: str) -> None:
    plan = plan_of(graph, planner)
    text = print_plan(plan)
    assert parse_plan(text) == outline_of(plan)
    assert print_plan(parse_plan(text)) == text


def test_the_text_says_what_was_decided() -> None:
    text = print_plan(plan_of(softmax()))
    assert text.startswith("plan @softmax for h200 objective 0.5")
    assert "  kernel k0 = {%m, %e, %s, %y} -> {%y} by connect cost" in text
    assert "  edge %m -> %e in k0 register\n" in text


def test_the_text_says_how_the_integer_program_went() -> None:
    text = print_plan(plan_of(softmax(), "ilp"))
    assert "\n  search by both saved 1." in text and " proven rounds " in text and " from connect " in text
    assert "search" not in print_plan(plan_of(softmax()))


def test_comments_and_blank_lines_are_skipped() -> None:
    text = print_plan(plan_of(layers(1)))
    assert parse_plan("// made by hand\n\n" + text.replace("{\n", "{ // here\n", 1)) == parse_plan(text)


@pytest.mark.parametrize(("change", "says"), [
    (("plan @", "plam @"), "a plan begins with"),
    (("  library", "  libary"), "did you mean library"),
    (("register", "regster"), "did you mean register"),
    (("{%t0, %a0}", "{t0, %a0}"), "not a value name"),
    (("in k0", "in k7"), "no kernel k7"),
    (("\n}", ""), "closing brace is missing"),
    (("\n}\n", "\n}\n}\n"), "behind the plan's closing brace"),
    ((" by connect", ""), "not complete"),
    (("us unfused", ".5.1us unfused"), "a plan begins with"),
    ((" cost ", " cost 1.2."), "for example: kernel k0"),
    (("-> {0: %p0}", "-> {}"), "no result of a call"),
    (("-> {0: %p0}", "-> {x: %p0}"), "'x: %p0' is no result of a call"),
    (("-> {0: %p0}", "-> {0:}"), "result 0 of the call has no value"),
    (("\n}", '\n  rejected {%a, %b} memory: "a\\q"\n}'), "no text in quotes"),
])
def test_bad_text_is_refused(change: tuple[str, str], says: str) -> None:
    text = print_plan(plan_of(layers(1)))
    assert change[0] in text
    with pytest.raises(ParseError, match=says):
        parse_plan(text.replace(*change))
