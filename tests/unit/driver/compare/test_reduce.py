"""Making a failing graph smaller, with predicates in place of compiles."""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilefuse.driver.compare.reduce import Array, candidates, defined_values, halving, reduced, sizes_below
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.ir.verify import verify

CHAIN = """graph @g(%x: f32[4, 100], %w: f32[100]) -> (f32[4], f32[4, 100]) {
  %a: f32[4, 100] = map [i, j] { mul(%x[i, j], %w[j]) }
  %b: f32[4, 100] = map [i, j] { exp(%a[i, j]) }
  %c: f32[4, 100] = map [i, j] { tanh(%b[i, j]) }
  %s: f32[4] = reduce.sum [i] over [k < 100] { %c[i, k] }
  %d: f32[4, 100] = map [i, j] { sub(%c[i, j], %s[i]) }
  return %s, %d
}
"""


def given() -> tuple[Graph, dict[str, Array]]:
    draw = np.random.default_rng(1)
    return parse_graph(CHAIN), {"x": draw.random((4, 100), np.float32), "w": draw.random(100, np.float32)}


def test_the_one_node_that_fails_is_left_at_its_smallest_size() -> None:
    """A fault that takes the function tanh over rows of at least three elements."""
    def fails(graph: Graph, inputs: Mapping[str, Array]) -> bool:
        return any("tanh" in print_graph(graph) and n.name == "c" and n.type.shape[1] >= 3 for n in graph.nodes)

    found = reduced(*given(), fails)
    assert [n.name for n in found.graph.nodes] == ["c"] and found.graph.node_by_name["c"].type.shape == (1, 3)
    assert found.finished and {i.name for i in found.graph.inputs} == {"b"} and found.inputs["b"].shape == (1, 3)
    x, w = (given()[1][n] for n in "xw")
    np.testing.assert_allclose(found.inputs["b"], np.exp(x * w)[:1, :3], rtol=1e-6)


def test_two_nodes_that_fail_together_stay_together() -> None:
    def fails(graph: Graph, inputs: Mapping[str, Array]) -> bool:
        return {"b", "s"} <= {n.name for n in graph.nodes}

    found = reduced(*given(), fails)
    assert [n.name for n in found.graph.nodes] == ["b", "c", "s"] and found.graph.results == ("s",)


def test_every_candidate_is_a_legal_graph_with_its_inputs() -> None:
    graph, inputs = given()
    listed = list(candidates(graph, inputs, defined_values))
    assert len(listed) > 15
    for item in listed:
        assert not verify(item.graph) and {i.name: i.type.shape for i in item.graph.inputs} == {n: a.shape for n, a in item.inputs.items()}


def test_time_ends_the_search_with_what_was_found() -> None:
    ticks = iter(range(100))
    found = reduced(*given(), lambda graph, inputs: True, seconds=2.5, clock=lambda: float(next(ticks)))
    assert not found.finished and found.tried == 2 and found.spent_s >= 3.0


def test_halves_come_first() -> None:
    assert halving(7) == [3, 1, 5, 0, 2, 4, 6] and halving(0) == []
    assert sizes_below(3) == [1, 2] and sizes_below(1) == [] and sizes_below(100)[-1] == 99
