"""The class of a kernel: what counts as a product, a reduction, or neither."""
from __future__ import annotations

import pytest

from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.ir.text import parse_graph
from tilefuse.plan.price.category import category_of
from tilefuse.target.device import H200


@pytest.mark.parametrize(("wanted", "node"), [
    ("product", "%y: f32[4, 5] = reduce.sum [i, j] over [k < 3] { mul(%a[i, k], %b[k, j]) }"),
    ("product", "%y: f32[4, 5] = reduce.sum [i, j] over [k < 3] { mul(tanh(%a[i, k]), add(%b[k, j], %v[k])) }"),
    ("product", '%y: f32[4, 5] = library.matmul (%a, %b) {transpose_a = false, transpose_b = false}'),
    ("reduction", "%y: f32[4] = reduce.sum [i] over [k < 3] { mul(%a[i, k], %v[k]) }"),
    ("reduction", "%y: f32[4] = reduce.sum [i] over [k < 3] { mul(%a[i, k], %a[i, k]) }"),
    ("reduction", "%y: f32[4] = reduce.max [i] over [k < 3] { %a[i, k] }"),
    ("reduction", "%y: f32[4, 3] = scan.sum [i, k] along k { %a[i, k] }"),
    ("elementwise", "%y: f32[4, 5] = map [i, j] { mul(%a[i, 0], %b[0, j]) }"),
])
def test_class_of_a_node(wanted: str, node: str) -> None:
    """A product needs two factors with result axes of their own; matrix times vector is a reduction."""
    type_ = node.partition(":")[2].partition("=")[0].strip()
    graph = parse_graph(f"graph @g(%a: f32[4, 3], %b: f32[3, 5], %v: f32[3]) -> ({type_}) {{\n  {node}\n  return %y\n}}\n")
    assert category_of(graph.nodes) == wanted


def test_a_product_decides_over_a_reduction() -> None:
    """A kernel with both counts as a product."""
    graph = parse_graph("""graph @g(%a: f32[4, 3], %b: f32[3, 5]) -> (f32[4]) {
  %p: f32[4, 5] = reduce.sum [i, j] over [k < 3] { mul(%a[i, k], %b[k, j]) }
  %y: f32[4] = reduce.max [i] over [j < 5] { %p[i, j] }
  return %y
}
""")
    assert category_of(graph.nodes) == "product"
    assert category_of(graph.nodes[1:]) == "reduction"


def test_shared_memory_told_is_what_the_launch_asks_for() -> None:
    """A column sum meets in shared memory; the explanation says how much."""
    graph = parse_graph("""graph @g(%x: f32[4096, 64]) -> (f32[64]) {
  %y: f32[64] = reduce.sum [j] over [i < 4096] { %x[i, j] }
  return %y
}
""")
    made = generate(graph, constants={}, device=H200, options=Options())
    told = [k["launch"]["shared_bytes"] for k in made.explain(json=True)["kernels"]]
    assert max(told) > 0
    assert sorted(set(told)) == sorted({k.launch.shared_bytes for k in made.spec.kernels})
