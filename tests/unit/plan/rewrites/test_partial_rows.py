"""Reductions of a product's rows by groups of columns: values, uses that forbid them, and the choice by price."""
from __future__ import annotations

import numpy as np
import pytest

from tests.unit.passes.device.rewriting import rewritten
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.ir.verify import verify
from tilefuse.plan.pattern import PlannedKernel
from tilefuse.plan.rewrites.partial_rows import ReducedRows, ReduceProductRows, reduced_rows, with_partial_rows
from tilefuse.target.device import H200


def losses(rows: int, columns: int, inner: int, dtype: str = "bf16", place: str = "i64", results: str = "%l", more: str = "",
           types: str = "") -> Graph:
    """The cross-entropy of each row of a linear layer, with the classes at `c`."""
    operands = f"%x: {dtype}[{rows}, {inner}], %w: {dtype}[{inner}, {columns}]"
    return parse_graph(f"""graph @g({operands}, %c: {place}[{rows}]) -> (f32[{rows}]{types}) {{
      %p: {dtype}[{rows}, {columns}] = library.matmul (%x, %w)
      %y: f32[{rows}, {columns}] = map [i, j] {{ f32(%p[i, j]) }}
      %m: f32[{rows}] = reduce.max [i] over [j < {columns}] {{ %y[i, j] }}
      %e: f32[{rows}, {columns}] = map [i, j] {{ exp(sub(%y[i, j], %m[i])) }}
      %s: f32[{rows}] = reduce.sum [i] over [j < {columns}] {{ %e[i, j] }}
      %l: f32[{rows}] = gather [i] {{ sub(add(log(%s[i]), %m[i]), f32(lookup(%p, index(i), %c[i]))) }}
      {more}
      return {results}
    }}""")


def rows_of(graph: Graph) -> ReducedRows | None:
    """How the rows of the graph's product are used."""
    return reduced_rows(graph, next(n for n in graph.nodes if n.kind == "library.matmul"))


@pytest.mark.parametrize("width", [64, 100, 128, 512])
def test_partial_results_have_the_values(width: int) -> None:
    """Groups that end beyond the columns, that are masked as a whole, rows of nothing but -inf, NaN, infinity, classes beyond both ends."""
    graph = losses(12, 300, 4, place="i32" if width == 128 else "i64")
    rows = rows_of(graph)
    assert rows is not None
    new, parts = with_partial_rows(graph, rows, width)
    assert not verify(new) and len(parts) == 3
    random = np.random.default_rng(3)
    x, w = random.integers(-3, 4, (12, 4)).astype(np.float64), random.integers(-3, 4, (4, 300)).astype(np.float64)
    x[:, 3], w[3], w[3, :200] = 0.0, 0.0, -np.inf
    x[1, 3], x[2, 3], x[3, 0], x[4, 0], x[5] = 1.0, 2.0, np.nan, np.inf, 0.0
    with np.errstate(all="ignore"):
        inputs = {"x": x, "w": w, "c": np.array([0, 299, 250, 1, 2, 3, 64, 127, 128, -1, 300, 4], np.int32 if width == 128 else np.int64)}
        (wanted,), (got,) = (interpret(in_double(g), inputs) for g in (graph, new))
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


SUM_DOWN = "%d: f32[300] = reduce.sum [j] over [i < 12] { %y[i, j] }"
LATER = "%d: f32[12, 300] = map [i, j] { div(%e[i, j], %s[i]) }"
MOMENT = "%d: f32[12] = reduce.m2 [i] over [j < 300] { %y[i, j] }"


@pytest.mark.parametrize(("more", "results", "types"), [
    (SUM_DOWN, "%l, %d", ", f32[300]"), (LATER, "%l, %d", ", f32[12, 300]"), (MOMENT, "%l, %d", ", f32[12]"),
    ("", "%l, %y", ", f32[12, 300]"),
], ids=["columns", "elements later", "squares", "converted elements as a result"])
def test_other_uses_keep_the_elements(more: str, results: str, types: str) -> None:
    """The product's elements are stored where anything else needs them."""
    assert rows_of(losses(12, 300, 4, results=results, more=more, types=types)) is None


def test_scores_that_are_a_result_are_stored_beside_partial_results() -> None:
    """A training step's forward part: the gradient reads the scores later. Single elements are read from them."""
    graph = losses(12, 300, 4, results="%l, %s, %m, %p", types=", f32[12], f32[12], bf16[12, 300]")
    rows = rows_of(graph)
    assert rows is not None and rows.is_stored
    new, parts = with_partial_rows(graph, rows, 128)
    assert not verify(new) and parts == ("m_parts", "s_parts")
    assert not {"y", "e"} & set(new.node_by_name), "elements that nothing reads are not computed"
    assert new.node_by_name["l"] == graph.node_by_name["l"]
    random = np.random.default_rng(4)
    inputs = {"x": random.standard_normal((12, 4)), "w": random.standard_normal((4, 300)), "c": random.integers(0, 300, 12)}
    for wanted, got in zip(*(interpret(in_double(g), inputs) for g in (graph, new))):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize("columns", [32000, 50257])
def test_one_kernel_stores_scores_and_partial_results(columns: int) -> None:
    """Rows of an odd number of columns are padded, and are read through the window of the padded product."""
    graph = losses(8192, columns, 768, results="%l, %s, %m, %p", types=f", f32[8192], f32[8192], bf16[8192, {columns}]")
    plan = generate(graph, constants={}, device=H200, options=Options(), free_results=(3,)).plan
    product = next(k for k in plan.kernels if k.program.template == "pipelined")
    assert set(product.pattern.written) == {"p" if columns % 8 == 0 else "p_padded", "m_parts", "s_parts"}
    assert all(isinstance(step, PlannedKernel) for step in plan.steps)
    assert sum(k.cost.us for k in plan.kernels if k is not product) < 0.2 * product.cost.us, "nothing else reads the scores"


def test_the_price_decides() -> None:
    """A cross-entropy over many classes is partial results; rows of one tile stay as they are."""
    wide = rewritten(ReduceProductRows(), losses(8192, 32000, 2048), H200)
    assert [n.name for n in wide.nodes if n.name.endswith("_parts")] == ["m_parts", "s_parts", "l_parts"]
    narrow = losses(8192, 100, 2048)
    assert rewritten(ReduceProductRows(), narrow, H200) is narrow


def test_plans_keep_scores_out_of_memory() -> None:
    """No kernel of the plan stores a value with the product's elements."""
    graph = losses(8192, 32000, 2048)
    plan = generate(graph, constants={}, device=H200, options=Options()).plan
    first = plan.kernels[0]
    assert first.program.template == "pipelined" and set(first.pattern.written) == {"m_parts", "s_parts", "l_parts"}
    assert all(isinstance(step, PlannedKernel) for step in plan.steps)
