"""Constant folding: what is computed when compiling, where its data goes, what stays."""

from __future__ import annotations

import numpy as np
import pytest

from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.passes import PassContext, Pipeline

RUNNING = np.linspace(0.5, 2.0, 200, dtype=np.float32)


def batch_norm() -> Graph:
    """x * (w / sqrt(v + eps)): the factor depends on constants only."""
    b = TensorBuilder("batch_norm")
    x, v, w = b.input("x", F32, (4, 200)), b.input("v", F32, (200,), constant=True), b.input("w", F16, (200,), constant=True)
    scale = b.elementwise("mul", b.elementwise("rsqrt", b.elementwise("add", v, 1e-5)), b.cast(w, F32))
    return b.finish([b.elementwise("mul", x, scale)])


def data() -> dict[str, object]:
    return {"v": RUNNING, "w": np.full(200, 3, np.float16)}


def test_what_depends_on_constants_becomes_one_constant_input() -> None:
    ctx = PassContext(verify=2, constants=data())
    before = batch_norm()
    after = Pipeline.parse("fold-constants,remove-dead-nodes").run(before, ctx)
    assert [n.name for n in after.nodes] == ["mul_1"]
    assert [(i.name, i.constant) for i in after.inputs] == [("x", False), ("mul", True)]
    x = np.ones((4, 200), np.float32)
    (wanted,), (found,) = interpret(before, {"x": x, **data()}), interpret(after, {"x": x, "mul": ctx.constants["mul"]})
    np.testing.assert_array_equal(found, wanted)
    assert Pipeline.parse("fold-constants").run(after, ctx) is after


def test_small_results_are_written_into_the_graph() -> None:
    text = """graph @g(const %n: i64[3], %x: f32[3]) -> (f32[3]) {
  %d: i64[3] = map [i] { mul(%n[i], 2:i64) }
  %y: f32[3] = map [i] { add(%x[i], f32(%d[i])) }
  return %y
}
"""
    after = Pipeline.parse("fold-constants,inline-views,remove-dead-nodes").run(
        parse_graph(text), PassContext(verify=2, constants={"n": np.array([5, 7, 9])})
    )
    assert "%x[i], f32(index(4*i + 10))" in print_graph(after)
    assert [i.name for i in after.inputs] == ["x"]


@pytest.mark.parametrize("constants", [{}, {"v": "not at hand as an array", "w": np.full(200, 3, np.float16)}])
def test_unknown_data_is_not_folded(constants: dict[str, object]) -> None:
    before = batch_norm()
    assert "rsqrt" in [n.name for n in Pipeline.parse("fold-constants").run(before, PassContext(constants=dict(constants))).nodes]


def test_large_results_stay() -> None:
    before = batch_norm()
    assert Pipeline.parse("fold-constants{limit=100}").run(before, PassContext(constants=data())) is before


def test_updated_constants_and_library_calls_stay() -> None:
    text = """graph @g(const %n: f32[3], const %m: f32[3, 3]) -> (f32[3], f32[3, 3]) {
  %y: f32[3] = map [i] { mul(%n[i], 2.0:f32) }
  %p: f32[3, 3] = library.matmul (%m, %m) {precision = "f32", transpose_a = false, transpose_b = false}
  update %n = %y
  return %y, %p
}
"""
    graph = parse_graph(text)
    ctx = PassContext(constants={"n": np.ones(3, np.float32), "m": np.eye(3, dtype=np.float32)})
    assert Pipeline.parse("fold-constants").run(graph, ctx) is graph


def test_views_of_weights_stay_views() -> None:
    text = """graph @g(const %w: f32[16, 16], %x: f32[16, 16]) -> (f32[16, 16]) {
  %t: f32[16, 16] = map [i, j] { %w[j, i] }
  %y: f32[16, 16] = map [i, j] { add(%x[i, j], %t[i, j]) }
  return %y
}
"""
    graph = parse_graph(text)
    assert Pipeline.parse("fold-constants").run(graph, PassContext(constants={"w": np.zeros((16, 16), np.float32)})) is graph
