"""Column sums of elements computed from a product: found by structure, added in the product's kernel where that is faster."""
from __future__ import annotations

import numpy as np
import pytest

from tilefuse.base.options import Options
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.manager import PassContext, Pipeline
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.predictions import Predictions
from tilefuse.plan.rewrites.column_sums import SumProductColumns, maps_of_sum, with_partial_sums
from tilefuse.target.catalog import A100
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.staged.pipelined.record import Pipelined


def bias_gradient(batch: int, length: int, columns: int, inner: int, dtype: str = "bf16", over: str = "i < {rows}") -> Graph:
    """A gradient through tanh behind a product, in sequences, and the gradient of the bias ahead of it."""
    rows, shape = batch * length, f"{batch}, {length}, {columns}"
    at = f"(i // {length}), (i % {length})"
    return parse_graph(f"""graph @bias_gradient(%x: {dtype}[{rows}, {inner}], %w: {dtype}[{inner}, {columns}], %h: {dtype}[{shape}])
    -> ({dtype}[{shape}], f32[{columns}]) {{
  %p: {dtype}[{rows}, {columns}] = library.matmul (%x, %w)
  %t: f32[{shape}] = map [b, l, j] {{ tanh(f32(%h[b, l, j])) }}
  %y: {dtype}[{shape}] = map [b, l, j] {{ {dtype}(mul(f32(%p[{length}*b + l, j]), sub(1:f32, mul(%t[b, l, j], %t[b, l, j])))) }}
  %s: f32[{columns}] = reduce.sum [j] over [{over.format(rows=rows)}] {{ f32(%y[{at}, j]) }}
  return %y, %s
}}""")


def rewritten(graph: Graph, device: DeviceSpec = H200) -> Graph:
    graph = Pipeline.parse(DEFAULT_PIPELINE).run(graph, PassContext())
    return SumProductColumns().rewrite(graph, device, PassContext(prices=Predictions(device)))


def test_a_bias_gradient_shares_the_kernel_of_its_product() -> None:
    """The plan holds the partial sums in the pipelined kernel; a small kernel adds them."""
    graph = rewritten(bias_gradient(64, 128, 3072, 768))
    plan = plan_graph(graph, {}, H200, Options())
    first = next(k for k in plan.kernels if "p" in k.pattern.nodes)
    assert isinstance(first.program.choice, Pipelined) and {"y", "s_groups"} <= set(first.pattern.nodes)
    assert not plan.library_calls and sum(k.cost.us for k in plan.kernels) < first.cost.us + 10


@pytest.mark.parametrize(("batch", "length"), [(2, 24), (3, 16), (1, 64)])
def test_partial_sums_add_up(batch: int, length: int) -> None:
    """Both graphs by the interpreter, whether or not groups fit the sequences."""
    graph = bias_gradient(batch, length, 5, 7, "f32")
    node = graph.node_by_name["s"]
    behind = maps_of_sum(graph, node)
    assert behind is not None and behind[0].name == "p" and set(behind[1]) == {"t", "y"}
    other, partial = with_partial_sums(graph, node)
    assert other.type_of(partial).shape == (batch * length // 16, 5)
    random = np.random.default_rng(1)
    values = {v.name: random.standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs}
    for a, b in zip(interpret(graph, values), interpret(other, values), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_other_sums_stay() -> None:
    """Rows that are no whole groups; other devices; sums that no product is behind."""
    odd = bias_gradient(5, 7, 64, 64)
    assert maps_of_sum(odd, odd.node_by_name["s"]) is None
    graph = Pipeline.parse(DEFAULT_PIPELINE).run(bias_gradient(64, 128, 3072, 768), PassContext())
    assert rewritten(graph, A100) is graph
    plain = parse_graph("""graph @plain(%x: f32[512, 64]) -> (f32[64]) {
  %s: f32[64] = reduce.sum [j] over [i < 512] { %x[i, j] }
  return %s
}""")
    assert rewritten(plain) is plain
