"""Units: what a pattern holds beside its own nodes, and what that does to equal steps."""
from __future__ import annotations

import pytest

from tilefuse.base.options import Options
from tilefuse.base.trace import Trace, tracing
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan.generators.units import Units
from tilefuse.plan.pattern import Plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.rewrites.views import find_views
from tilefuse.target.device import H200


def recurrence(steps: int, width: int = 256, rows: int = 32) -> Graph:
    """h <- tanh(x[t] a + h b), the steps written out; each reads its own part of x."""
    state = f"f32[{rows}, {width}]"
    lines = [f"graph @steps(%x: f32[{steps}, {rows}, {width}], %h0: {state}, %a: f32[{width}, {width}], %b: f32[{width}, {width}])"
             f" -> ({state}) {{"]
    for t in range(steps):
        lines += [f"  %x{t}: {state} = map [i, j] {{ %x[{t}, i, j] }}",
                  f"  %p{t}: {state} = library.matmul (%x{t}, %a)",
                  f"  %q{t}: {state} = library.matmul (%h{t}, %b)",
                  f"  %h{t + 1}: {state} = map [i, j] {{ tanh(add(%p{t}[i, j], %q{t}[i, j])) }}"]
    return parse_graph("\n".join([*lines, f"  return %h{steps}", "}"]))


def planned(graph: Graph) -> tuple[Plan, int]:
    """The plan, and how many structures were scheduled for it."""
    told = Trace()
    with tracing(told):
        made = plan_graph(graph, {}, H200, Options())
    arguments = next(e["args"] for e in told.events if e["name"] == "planned")
    assert isinstance(arguments, dict)
    return made, arguments["scheduled"]


def test_steps_that_read_parts_of_one_tensor_are_one_kernel_and_planned_once() -> None:
    """The work of planning and of compiling does not grow with the steps."""
    (short, few), (long, many) = planned(recurrence(4)), planned(recurrence(12))
    assert many <= few
    assert len(long.kernels) == 12 and max(len(long.programs), len(short.programs)) <= 3


def cells(steps: int, width: int = 256, rows: int = 32) -> Graph:
    """Steps of a cell with a memory: two gates from the columns of one product, each gate its half of them."""
    state = f"f32[{rows}, {width}]"
    lines = [f"graph @cells(%h0: {state}, %c0: {state}, %w: f32[{width}, {2 * width}]) -> ({state}, {state}) {{"]
    for t in range(steps):
        lines += [f"  %p{t}: f32[{rows}, {2 * width}] = library.matmul (%h{t}, %w)",
                  f"  %k{t}: {state} = map [i, j] {{ sigmoid(%p{t}[i, j]) }}",
                  f"  %n{t}: {state} = map [i, j] {{ tanh(%p{t}[i, j + {width}]) }}",
                  f"  %c{t + 1}: {state} = map [i, j] {{ add(mul(%k{t}[i, j], %c{t}[i, j]), %n{t}[i, j]) }}",
                  f"  %h{t + 1}: {state} = map [i, j] {{ tanh(%c{t + 1}[i, j]) }}"]
    return parse_graph("\n".join([*lines, f"  return %h{steps}, %c{steps}", "}"]))


def test_a_step_of_a_cell_is_its_product_and_its_gates() -> None:
    """Not the gates of one step with the product of the next, which computes the gates again in every block."""
    plan, _ = planned(cells(4))
    assert [set(k.pattern.nodes) for k in plan.kernels] == [{f"p{t}", f"k{t}", f"n{t}", f"c{t + 1}", f"h{t + 1}"} for t in range(4)]


def pattern_of(text: str, core: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes of the pattern of these nodes."""
    graph = parse_graph(text)
    units = Units(graph, set(), find_views(graph, {}, {}))
    return units.pattern(units.union([units.units[units.unit_of[n]] for n in core])).nodes


@pytest.mark.parametrize(("start", "extents", "inside"), [
    ("%x[1, i, j]", "8, 8", False),
    ("%x[2*i, 0, j]", "2, 8", True),
    ("%x[1, i, j + 1]", "8, 7", True),
    ("%x[1, j, i]", "8, 8", True),
])
def test_a_dense_window_is_an_operand_of_its_own(start: str, extents: str, inside: bool) -> None:
    """A view with gaps, or a turned one, is read through its base tensor."""
    rows, inner = extents.split(", ")
    text = (f"graph @g(%x: f32[4, 8, 8], %w: f32[{inner}, 8]) -> (f32[{rows}, 8]) {{ %v: f32[{extents}] = map [i, j] {{ {start} }} "
            f"%p: f32[{rows}, 8] = library.matmul (%v, %w) %r: f32[{rows}, 8] = map [i, j] {{ tanh(%p[i, j]) }} return %r }}")
    assert ("v" in pattern_of(text, ("p", "r"))) is inside


def test_a_window_that_is_not_aligned_is_read_through_its_base() -> None:
    text = ("graph @g(%x: f32[33], %w: f32[8, 8]) -> (f32[4, 8]) { %v: f32[4, 8] = map [i, j] { %x[8*i + j + 1] } "
            "%p: f32[4, 8] = library.matmul (%v, %w) %r: f32[4, 8] = map [i, j] { tanh(%p[i, j]) } return %r }")
    assert "v" in pattern_of(text, ("p", "r"))


def test_a_window_onto_a_value_of_the_same_pattern_is_computed_there() -> None:
    text = ("graph @g(%x: f32[4, 8, 8], %w: f32[8, 8]) -> (f32[8, 8]) { %t: f32[4, 8, 8] = map [k, i, j] { exp(%x[k, i, j]) } "
            "%v: f32[8, 8] = map [i, j] { %t[1, i, j] } %p: f32[8, 8] = library.matmul (%v, %w) return %p }")
    assert pattern_of(text, ("t", "p")) == ("t", "v", "p")
    assert pattern_of(text, ("p",)) == ("p",)
