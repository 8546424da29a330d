"""Steps that let go of large operands come before those that make large results, where that lowers the peak of memory."""
from __future__ import annotations

import pytest

from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import LibraryCall, Plan, verify_plan
from tilefuse.plan.select.release_order import in_release_order

ROWS = 1 << 13


def gradients(kept_rows: int = ROWS) -> Graph:
    """The gradients of a layer's operand and weights, and of the layer before it."""
    return parse_graph(f"""graph @g(%gy: f32[{ROWS}, 8], %w: f32[64, 8], %x: f32[{kept_rows}, 64], %v: f32[8, 64])
        -> (f32[8, 64], f32[{ROWS}, 8]) {{
      %gx: f32[{ROWS}, 64] = library.matmul (%gy, %w) {{transpose_b = true}}
      %gw: f32[8, 64] = library.matmul (%gy, %x) {{transpose_a = true}}
      %before: f32[{ROWS}, 8] = library.matmul (%gx, %v) {{transpose_b = true}}
      return %gw, %before
    }}""")


def plan_of(graph: Graph) -> Plan:
    steps = tuple(LibraryCall("matmul", n.operands, ((0, n.name),)) for n in graph.nodes)
    return Plan(graph, "h200", steps, (), {}, 0.0, 0.0, 0, 0)


def order(plan: Plan) -> list[str]:
    return [step.results[0][1] for step in plan.steps if isinstance(step, LibraryCall)]


def test_the_gradient_of_weights_comes_first_where_that_frees_what_was_kept() -> None:
    plan = plan_of(gradients())
    found = in_release_order(plan, ("x", "gy"))
    assert order(found) == ["gw", "gx", "before"] and not verify_plan(found)


@pytest.mark.parametrize("given_up", [(), ("gy",)])
def test_what_the_caller_holds_anyway_moves_nothing(given_up: tuple[str, ...]) -> None:
    plan = plan_of(gradients())
    assert in_release_order(plan, given_up) is plan


def test_small_values_move_nothing() -> None:
    graph = parse_graph("""graph @g(%gy: f32[64, 8], %w: f32[64, 8], %x: f32[64, 64]) -> (f32[64, 64], f32[8, 64]) {
      %gx: f32[64, 64] = library.matmul (%gy, %w) {transpose_b = true}
      %gw: f32[8, 64] = library.matmul (%gy, %x) {transpose_a = true}
      return %gx, %gw
    }""")
    plan = plan_of(graph)
    assert in_release_order(plan, ("x", "gy")) is plan


def test_a_step_waits_for_what_it_reads() -> None:
    """The step that frees most reads what the first one makes."""
    graph = parse_graph(f"""graph @g(%gy: f32[{ROWS}, 64], %w: f32[64, 64], %x: f32[{ROWS}, 64]) -> (f32[64, 64], f32[64, 64]) {{
      %gx: f32[{ROWS}, 64] = library.matmul (%gy, %w) {{}}
      %gw: f32[64, 64] = library.matmul (%gx, %x) {{transpose_a = true}}
      %gv: f32[64, 64] = library.matmul (%gy, %gy) {{transpose_a = true}}
      return %gw, %gv
    }}""")
    plan = plan_of(graph)
    found = in_release_order(plan, ("x", "gy"))
    assert order(found).index("gx") < order(found).index("gw") and not verify_plan(found)
