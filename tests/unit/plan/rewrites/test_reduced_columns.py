"""Sums of columns behind a product whose rows are reduced: found by structure, values with partial sums."""
from __future__ import annotations

import numpy as np
import pytest

from tests.unit.templates.stitched_cases import in_double
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.plan.reduced_products import find_reduced_products, reduced_product
from tilefuse.plan.rewrites.column_sums import with_partial_sums
from tilefuse.target.device import H200

PROGRAM = """
  %p: bf16[{rows}, {columns}] = library.matmul (%x, %w)
  %d: f32[{shape}] = map [b, l, j] {{ f32(%p[{length}*b + l, j]) }}
  %n: f32[{shape}] = map [b, l, j] {{ mul(sub(f32(%h[b, l, j]), %mean[b, l]), %rate[b, l]) }}
  %q: f32[{shape}] = map [b, l, j] {{ mul(%d[b, l, j], f32(%scale[j])) }}
  %a: f32[{batch}, {length}] = reduce.sum [b, l] over [j < {columns}] {{ %q[b, l, j] }}
  %c: f32[{batch}, {length}] = reduce.sum [b, l] over [j < {columns}] {{ mul(%q[b, l, j], %n[b, l, j]) }}
  %g: f32[{shape}] = map [b, l, j] {{ sub(sub(%q[b, l, j], mul(%a[b, l], {share}:f32)), mul(%n[b, l, j], mul(%c[b, l], {share}:f32))) }}
  %r: bf16[{shape}] = map [b, l, j] {{ bf16(add(f32(%past[b, l, j]), mul(%rate[b, l], %g[b, l, j]))) }}
  %scales: f32[{columns}] = reduce.sum [j] over [b < {batch}, l < {length}] {{ mul(%d[b, l, j], %n[b, l, j]) }}
  %shifts: f32[{columns}] = reduce.sum [j] over [b < {batch}, l < {length}] {{ %d[b, l, j] }}
  %biases: f32[{columns}] = reduce.sum [j] over [b < {batch}, l < {length}] {{ f32(%r[b, l, j]) }}
  %t: bf16[{columns}, {rows}] = map [j, i] {{ %r[(i // {length}), (i % {length}), j] }}
  %z: bf16[{columns}, {columns}] = library.matmul (%t, %v)
  {more}
"""


def norm_gradient(batch: int, length: int, columns: int, inner: int, more: str = "", last: str = "", types: str = "") -> Graph:
    """The gradient of a layer norm, with those of its scale and shift and of a bias, before the product for the gradient of weights."""
    rows, shape = batch * length, f"{batch}, {length}, {columns}"
    body = PROGRAM.format(rows=rows, columns=columns, shape=shape, batch=batch, length=length, share=1.0 / columns, more=more)
    head = (f"%x: bf16[{rows}, {inner}], %w: bf16[{inner}, {columns}], %h: bf16[{shape}], %scale: bf16[{columns}], "
            f"%mean: f32[{batch}, {length}], %rate: f32[{batch}, {length}], %past: bf16[{shape}], %v: bf16[{rows}, {columns}]")
    sums = ", ".join([f"f32[{columns}]"] * 3)
    return parse_graph(f"graph @norm_gradient({head}) -> (bf16[{shape}], {sums}, bf16[{columns}, {columns}]{types}) {{ {body} "
                       f"return %r, %scales, %shifts, %biases, %z{last} }}")


def test_the_product_its_rows_and_its_columns_are_found() -> None:
    """With as many rows as columns too, where shapes alone do not tell rows from columns."""
    for graph in (norm_gradient(2, 24, 40, 8), norm_gradient(2, 24, 48, 8)):
        found = reduced_product(graph, graph.node_by_name["p"])
        assert found is not None and found.sums == ("scales", "shifts", "biases")
        assert found.inside == ("d", "n", "q", "a", "c", "g", "r")
        assert find_reduced_products(graph, H200) == (), "sums of all rows are none of one kernel"


@pytest.mark.parametrize(("batch", "length"), [(2, 24), (1, 7)])
def test_graphs_without_such_rows(batch: int, length: int) -> None:
    """Rows that are no whole groups; no rows reduced."""
    graph = norm_gradient(batch, length, 40, 8)
    if batch * length % 16:
        assert reduced_product(graph, graph.node_by_name["p"]) is None
    assert reduced_product(graph, graph.node_by_name["z"]) is None


def test_what_depends_on_the_next_product_is_outside() -> None:
    """A sum of the result and of elements of a later product is no part of the kernel."""
    more = "%u: f32[40, 40] = map [i, j] { add(f32(%z[i, j]), %shifts[j]) } %e: f32[40] = reduce.sum [j] over [i < 40] { %u[i, j] }"
    graph = norm_gradient(2, 20, 40, 8, more, ", %e", ", f32[40]")
    assert reduced_product(graph, graph.node_by_name["p"]) is None, "40 rows are no whole groups"
    graph = norm_gradient(2, 24, 40, 8, more, ", %e", ", f32[40]")
    found = reduced_product(graph, graph.node_by_name["p"])
    assert found is not None and "e" not in found.sums and "u" not in found.inside


def test_values_are_the_same() -> None:
    """Both graphs by the interpreter, in f64."""
    graph = other = norm_gradient(2, 24, 40, 8)
    for name in ("scales", "shifts", "biases"):
        other, _ = with_partial_sums(other, other.node_by_name[name])
    whole = ("p", "d", "n", "q", "a", "c", "g", "r", "scales_groups", "shifts_groups", "biases_groups")
    assert find_reduced_products(other, H200) == (whole,)
    random = np.random.default_rng(2)
    values = {v.name: random.standard_normal(v.type.shape) for v in graph.inputs}
    for a, b in zip(*(interpret(in_double(g), values) for g in (graph, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
