"""Values whose parts are written where they lie in them: which maps are such, and their meaning."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.library.side_by_side import Window, side_by_side, windows_of
from tilefuse.ir.text import parse_graph

PLACE = "[(i // 6), ((j // 8) % 3), (i % 6), (j % 8)]"


def joined(body: str, part: str = "f32[2, 3, 6, 8]", columns: int = 72) -> Graph:
    """Heads of three values, in rows."""
    return parse_graph(f"""graph @g(%q: {part}, %k: {part}, %v: {part}) -> (f32[12, {columns}]) {{
      %y: f32[12, {columns}] = map [i, j] {{ {body} }}
      return %y
    }}""")


HEADS = f"guard(0 <= (j // 24) < 2 ? guard(0 <= (j // 24) < 1 ? %q{PLACE} : %k{PLACE}) : %v{PLACE})"


def test_heads_of_a_packed_projection() -> None:
    """Offsets and strides of each part; the same value as the map."""
    graph = joined(HEADS)
    made = side_by_side(graph.nodes[0], graph)
    assert made is not None and windows_of(made) == tuple(Window(n, 24 * at, (6 * 72, 8, 72, 1)) for at, n in enumerate("qkv"))
    values = {n: np.random.default_rng(at).standard_normal((2, 3, 6, 8)).astype(np.float32) for at, n in enumerate("qkv")}
    one, two = (interpret(g, values)[0] for g in (graph, replace(graph, nodes=(made,))))
    assert np.array_equal(one, two)


def test_rows_under_each_other() -> None:
    """Parts along the other axis, one of them with a dimension of one element."""
    graph = parse_graph("""graph @g(%a: f32[2, 5], %b: f32[3, 1, 5]) -> (f32[5, 5]) {
      %y: f32[5, 5] = map [i, j] { guard(0 <= i < 2 ? %a[i, j] : %b[i + -2, 0, j]) }
      return %y
    }""")
    made = side_by_side(graph.nodes[0], graph)
    assert made is not None and windows_of(made) == (Window("a", 0, (5, 1)), Window("b", 10, (5, 1, 1)))


@pytest.mark.parametrize("graph", [
    joined(f"guard(0 <= j < 48 ? guard(0 <= j < 24 ? mul(%q{PLACE}, 2.0:f32) : %k{PLACE}) : %v{PLACE})"),
    joined(f"guard(0 <= j < 48 ? guard(0 <= j < 24 ? %q{PLACE} : %q{PLACE}) : %v{PLACE})"),
    joined(f"guard(0 <= j < 48 ? guard(0 <= j < 32 ? %q{PLACE} : %k{PLACE}) : %v{PLACE})"),
    joined(f"guard(0 <= j < 48 ? %q{PLACE} : 0.0:f32)"),
    joined(f"guard(0 <= i + j < 20 ? %q{PLACE} : guard(0 <= j < 48 ? %k{PLACE} : %v{PLACE}))"),
    joined("%q[(i // 6), (j // 24), (i % 6), (j % 8)]"),
    joined(f"guard(0 <= j < 48 ? guard(0 <= j < 24 ? %q[(i // 6), ((j // 8) % 3), (i % 6), -1*(j % 8) + 7] : %k{PLACE}) : %v{PLACE})"),
], ids=["computed", "twice", "wrong extents", "zeros", "bound on two axes", "no parts", "backwards"])
def test_other_maps(graph: Graph) -> None:
    """Parts that are computed, read twice, in part, or in another order; and guards whose side no axis decides alone."""
    assert side_by_side(graph.nodes[0], graph) is None
