"""Folding of views: what is folded, what is not and why, and that results keep their places."""

from __future__ import annotations

import pytest

from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F32, I64
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Guard, walk
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.passes import DEFAULT_PIPELINE, PassContext, Pipeline
from tilefuse.passes.views import MAX_GUARDED_USERS


def folded(graph: Graph) -> Graph:
    return Pipeline.parse("inline-views,remove-dead-nodes").run(graph, PassContext(verify=2))


def names(graph: Graph) -> list[str]:
    return [n.name for n in graph.nodes]


@pytest.mark.parametrize("num_users", [1, MAX_GUARDED_USERS, MAX_GUARDED_USERS + 1])
def test_a_concatenation_is_folded_into_few_users(num_users: int) -> None:
    b = TensorBuilder("few")
    x = b.input("x", F32, (4,))
    both = b.concatenate([x, b.elementwise("exp", x)], 0)
    after = folded(b.finish([b.elementwise("mul", both, 2.0 + n) for n in range(num_users)]))
    assert ("concatenate" in names(after)) == (num_users > MAX_GUARDED_USERS)


def test_a_concatenation_that_is_a_result_or_a_library_operand_is_read_not_computed_again() -> None:
    b = TensorBuilder("kept")
    x = b.input("x", F32, (4, 8))
    both = b.concatenate([x, x], 0)
    after = folded(b.finish([both, b.elementwise("exp", both)]))
    assert not any(isinstance(e, Guard) for e in walk(after.nodes[-1].body))  # type: ignore[arg-type]
    again = b.concatenate([x, x, x], 0)
    after = folded(b.finish([b.matmul(again, again, transpose_b=True), b.elementwise("exp", again)]))
    assert not any(isinstance(e, Guard) for e in walk(after.nodes[-1].body))  # type: ignore[arg-type]


def test_a_concatenation_is_not_evaluated_many_times_by_a_window() -> None:
    b = TensorBuilder("window")
    x = b.input("x", F32, (8, 8))
    both = b.concatenate([x, b.elementwise("exp", x)], 0)
    after = folded(b.finish([b.pool(both, "max", (3, 3), (1, 1))[0]]))
    assert "concatenate" in names(after)


def test_masks_of_positions_are_computed_where_they_are_used() -> None:
    b = TensorBuilder("mask")
    x = b.input("x", F32, (2, 8, 8))
    rows, columns = b.iota((8, 1), 0), b.iota((1, 8), 1)
    after = folded(b.finish([b.where(b.elementwise("ge", rows, columns), x, float("-inf"))]))
    assert names(after) == ["where"]
    assert "ge(index(j), index(k))" in print_graph(after)


def test_random_numbers_are_never_drawn_twice_by_folding() -> None:
    b = TensorBuilder("random")
    x, seed = b.input("x", F32, (8,)), b.input("seed", I64, (1,))
    kept = b.bernoulli((8,), 0.5, seed)
    after = folded(b.finish([b.where(kept, x, 0.0), kept]))
    assert names(after) == ["bernoulli", "where"]


def test_scatter_bodies_and_targets_read_through_views() -> None:
    b = TensorBuilder("scatter")
    x, ids = b.input("x", F32, (3, 5)), b.input("ids", I64, (1, 3))
    after = folded(b.finish([b.index_add(b.full((5, 9), 0.0, F32), 1, b.reshape(ids, (3,)), b.transpose(x, 0, 1))]))
    assert [n.kind for n in after.nodes] == ["map", "scatter.sum"]
    assert "at [index(i), %ids[0, j]] { %x[j, i] }" in print_graph(after)


def test_a_copy_at_the_end_is_the_value_itself() -> None:
    text = """graph @g(%x: f32[4]) -> (f32[4], f32[4]) {
  %a: f32[4] = map [i] { exp(%x[i]) }
  %y: f32[4] = map [i] { %a[i] }
  %z: f32[4] = map [i] { %x[i] }
  return %y, %z
}
"""
    after = folded(parse_graph(text))
    assert after.results == ("a", "z"), "an internal value is returned itself, an input is copied"


def test_results_never_become_one_buffer() -> None:
    text = """graph @g(%x: f32[4]) -> (f32[4], f32[4]) {
  %a: f32[4] = map [i] { exp(%x[i]) }
  %y: f32[4] = map [i] { %a[i] }
  return %a, %y
}
"""
    graph = parse_graph(text)
    assert folded(graph).results == ("a", "y")


def test_empty_tensors_are_left_alone() -> None:
    b = TensorBuilder("empty")
    x = b.input("x", F32, (0, 4))
    y = b.elementwise("exp", b.permute(b.reshape(x, (4, 0)), (1, 0)))
    total = b.reduce(b.concatenate([x, x], 0), "sum", 0)
    after = Pipeline.parse(DEFAULT_PIPELINE).run(b.finish([y, total]), PassContext(verify=2))
    assert after.type_of(after.results[0]).shape == (0, 4)


def test_an_operand_that_reshapes_a_result_is_the_result() -> None:
    text = """graph @g(%x: bf16[3, 5, 7, 8], %w: bf16[60, 8]) -> (bf16[3, 5, 4, 7, 8], bf16[420, 60], bf16[420, 8]) {
  %e: bf16[3, 5, 4, 7, 8] = map [i, j, k, l, m] { %x[i, j, l, m] }
  %r: bf16[420, 8] = map [i, j] { %e[(i // 140), ((i // 28) % 5), ((i // 7) % 4), (i % 7), j] }
  %t: bf16[8, 60] = map [i, j] { %w[j, i] }
  %p: bf16[420, 60] = library.matmul (%r, %t) {precision = "default", transpose_a = false, transpose_b = false}
  %q: bf16[420, 8] = map [i, j] { bf16(neg(f32(%e[(i // 140), ((i // 28) % 5), ((i // 7) % 4), (i % 7), j]))) }
  return %e, %p, %q
}
"""
    after = folded(parse_graph(text)).node_by_name
    assert after["r"].reads() == ("e",), "one copy in memory, which the product reads"
    assert after["q"].reads() == ("x",), "kernels read through the view"
    sliced = folded(parse_graph(text.replace("%e[(i // 140), ((i // 28) % 5), ((i // 7) % 4)", "%e[(i // 140), ((i // 28) % 5), 3", 1)))
    assert sliced.node_by_name["r"].reads() == ("x",), "a part of the result, in another order"


def test_tables_of_angles_are_values_and_angles_are_not() -> None:
    text = """graph @g(%x: f32[4, 8, 8]) -> (f32[4, 8, 8], f32[4, 8, 8]) {
  %a: f32[8, 8] = map [i, j] { mul(f32(index(i)), exp2(f32(index(j)))) }
  %c: f32[8, 8] = map [i, j] { cos(%a[i, j]) }
  %y: f32[4, 8, 8] = map [i, j, k] { mul(%x[i, j, k], %c[j, k]) }
  %z: f32[4, 8, 8] = map [i, j, k] { mul(%x[i, j, k], %a[j, k]) }
  return %y, %z
}
"""
    after = folded(parse_graph(text)).node_by_name
    assert list(after) == ["c", "y", "z"]
    assert after["y"].reads() == ("x", "c"), "one cosine for each place, not for each element"
    assert after["z"].reads() == ("x",)


def test_an_operand_that_reshapes_a_turned_result_is_the_result_also_through_a_shape_between() -> None:
    """Attention's result turned and kept for the gradient, and the product behind it: one copy in memory, not two."""
    text = """graph @g(%o: f32[4, 16, 8, 32], %w: f32[512, 64]) -> (f32[4, 8, 16, 32], f32[32, 64]) {
      %t: f32[4, 8, 16, 32] = map [i, j, k, l] { %o[i, k, j, l] }
      %v: f32[4, 8, 512] = map [i, j, k] { %t[i, j, (k // 32), (k % 32)] }
      %p: f32[32, 512] = map [i, j] { %v[(i // 8), (i % 8), j] }
      %m: f32[32, 64] = library.matmul (%p, %w)
      return %t, %m
    }"""
    after = Pipeline.parse(DEFAULT_PIPELINE).run(parse_graph(text), PassContext(verify=2))
    assert [(n.name, n.reads()) for n in after.nodes[:2]] == [("t", ("o",)), ("p", ("t",))]
    without = Pipeline.parse(DEFAULT_PIPELINE).run(parse_graph(text.replace("return %t, %m", "return %m").replace(
        "-> (f32[4, 8, 16, 32], f32[32, 64])", "-> (f32[32, 64])")), PassContext(verify=2))
    assert [(n.name, n.reads()) for n in without.nodes[:1]] == [("p", ("o",))], "no result: the operand is read through"
