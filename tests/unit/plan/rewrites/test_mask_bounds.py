"""Masks that read data as bounds of walks: which conditions, when they pay, and plans that hold them."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.templates.staged.walked.variants import Variant
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.driver.pipeline import DEVICE_PIPELINE
from tilefuse.ir.dtype import I32
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.manager import PassContext, Pipeline
from tilefuse.plan.price.predictions import Predictions
from tilefuse.plan.rewrites.attention import ExpandAttention
from tilefuse.plan.rewrites.mask_bounds import bounded_masks
from tilefuse.plan.rewrites.mask_summaries import BLOCK, clauses_of, with_bounds
from tilefuse.target.device import H200
from tilefuse.templates.staged.recomputed.template import walked_back_of
from tilefuse.templates.staged.walked.template import pipelined_walk_of

LATER_PASSES = DEVICE_PIPELINE.replace("expand-attention,bound-masks,", "")
LONG = Variant(("documents",), batch=2, heads=8, rows=2048, keys=2048, inner=64, width=64)


def bounded(graph: Graph) -> Graph:
    """The graph as the pass leaves it for an H200."""
    return Pipeline.parse("bound-masks").run(graph, PassContext(device=H200, prices=Predictions(H200)))


@pytest.mark.parametrize("scores", [("documents",), ("same",), ("other", "causal"), ("hidden",), ("not_later",)])
def test_long_masks_are_bounded(scores: tuple[str, ...]) -> None:
    """Two more kernels for all walks that share a mask; the walk reads their results."""
    graph = replace(LONG, scores=scores).graph()
    made = bounded(graph)
    assert made is not graph
    kernels = generate(graph, constants={}, input_layouts={}, device=H200, options=Options()).plan.kernels
    assert kernels[-1].program.template == "pipelined_walk" and 2 <= len(kernels) <= 4
    limit = pipelined_walk_of(kernels[-1].program).form.limit
    assert limit is not None and limit.is_of_blocks


@pytest.mark.parametrize("variant", [
    replace(LONG, scores=("causal",)), replace(LONG, scores=("window",)), replace(LONG, scores=("lengths",)),
    replace(LONG, scores=("padding",)), replace(LONG, rows=64, keys=128), replace(LONG, batch=1, heads=1, rows=256, keys=256),
])
def test_other_masks_stay(variant: Variant) -> None:
    """Masks on indices alone, numbers of the batch, and walks that take no longer than the summaries."""
    graph = variant.graph()
    assert bounded(graph) is graph



def test_products_that_no_walk_holds_have_no_summaries() -> None:
    """The gradient of a softmax that a mask in memory dropped from, whose elements the next product reads from memory."""
    line = '{precision = "default", transpose_a = false, transpose_b = false}'
    graph = parse_graph(f"""graph @g(%g: f16[64, 1024, 64], %v: f16[64, 64, 1024], %kept: bool[4, 16, 1024, 1024],
        %p: f16[4, 16, 1024, 1024], %q: f16[64, 64, 1024], %k: f16[64, 1024, 64]) -> (f16[64, 64, 1024], f16[64, 1024, 64]) {{
      %b: f16[64, 1024, 1024] = library.matmul (%g, %v) {line}
      %f: f16[4, 16, 1024, 1024] = map [h, i, j, k] {{ f16(%kept[h, i, j, k]) }}
      %d: f16[4, 16, 1024, 1024] = map [h, i, j, k] {{ f16(mul(f32(%b[16*h + i, j, k]), f32(%f[h, i, j, k]))) }}
      %w: f32[4, 16, 1024, 1024] = map [h, i, j, k] {{ f32(%p[h, i, j, k]) }}
      %m: f32[4, 16, 1024, 1024] = map [h, i, j, k] {{ mul(f32(%d[h, i, j, k]), %w[h, i, j, k]) }}
      %s: f32[4, 16, 1024] = reduce.sum [h, i, j] over [k < 1024] {{ %m[h, i, j, k] }}
      %y: f16[4, 16, 1024, 1024] = map [h, i, j, k] {{ f16(sub(%m[h, i, j, k], mul(%w[h, i, j, k], %s[h, i, j]))) }}
      %u: f16[64, 1024, 1024] = map [i, j, k] {{ %y[(i // 16), (i % 16), j, k] }}
      %x: f16[64, 64, 1024] = library.matmul (%q, %u) {line}
      %z: f16[64, 1024, 64] = library.matmul (%u, %k) {line}
      return %x, %z
    }}""")
    assert bounded(graph) is graph


def test_the_choice_has_all_prices() -> None:
    """The line that explanations show: the share that is assumed, and the summaries."""
    [choice], _ = bounded_masks(LONG.graph(), H200, Predictions(H200))
    assert choice.is_taken and choice.bounded_us + choice.summary_us < choice.us
    assert "where 50% of the tiles remain, as is assumed" in choice.text() and "summaries at run time" in choice.text()


def layers(count: int) -> Graph:
    """Layers of attention with one mask of documents."""
    product = '{precision = "default", transpose_a = false, transpose_b'
    text = "\n".join(f"""
      %s{n}: f16[16, 2048, 2048] = library.matmul (%{f'y{n - 1}' if n else 'q'}, %k) {product} = true}}
      %w{n}: f16[16, 2048, 2048] = map [i, r, c] {{ select(%same[r, c], %s{n}[i, r, c], -inf:f16) }}
      %p{n}: f16[16, 2048, 2048] = library.softmax (%w{n}) {{axis = 2}}
      %y{n}: f16[16, 2048, 64] = library.matmul (%p{n}, %v) {product} = false}}""" for n in range(count))
    inputs = "%q: f16[16, 2048, 64], %k: f16[16, 2048, 64], %v: f16[16, 2048, 64], %d: i32[2048]"
    graph = parse_graph(f"""graph @g({inputs}) -> (f16[16, 2048, 64]) {{
      %same: bool[2048, 2048] = map [r, c] {{ eq(%d[r], %d[c]) }}{text}
      return %y{count - 1}
    }}""")
    return Pipeline.parse(DEFAULT_PIPELINE).run(graph, PassContext())


def test_layers_share_their_summaries() -> None:
    """One set for three layers."""
    made = bounded(layers(3))
    assert [n.kind for n in made.nodes].count("reduce.min") == [n.kind for n in bounded(layers(1)).nodes].count("reduce.min")
    kernels = generate(layers(3), constants={}, input_layouts={}, device=H200, options=Options()).plan.kernels
    walks = [pipelined_walk_of(k.program) for k in kernels if k.program.template == "pipelined_walk"]
    assert len(walks) == 3 and all(w.form.limit is not None and w.form.limit.is_of_blocks for w in walks)
    assert all(w.form.limit is not None and w.form.limit.whole != w.form.limit.bounds for w in walks)


@pytest.mark.parametrize("dtype", ["i32", "i64", "u32", "u64", "bool"])
@pytest.mark.parametrize("fn", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("hides", [False, True])
def test_comparisons_keep_their_meaning(fn: str, dtype: str, hides: bool) -> None:
    """Every comparison of every integer type, at the ends of its range too, with bounds and without, at odd lengths."""
    rows, columns = BLOCK + 7, 3 * BLOCK - 5
    graph = parse_graph(f"""graph @g(%a: {dtype}[2, {rows}], %b: {dtype}[{columns}]) -> (bool[2, {rows}, {columns}]) {{
      %m: bool[2, {rows}, {columns}] = map [n, r, c] {{ {fn}(%b[c], %a[n, r]) }}
      return %m
    }}""")
    made, summaries = with_bounds(graph, ["m"], hides)
    assert summaries and made.nodes[-1].body != graph.nodes[-1].body
    random = np.random.default_rng(7)
    kind = np.dtype({"i32": "int32", "i64": "int64", "u32": "uint32", "u64": "uint64", "bool": "bool"}[dtype])
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(kind).min, np.iinfo(kind).max)
    choices = np.array([low, low + 1, 0, 1, high - 1, high][:2 if dtype == "bool" else 6], dtype=kind)
    for spread in (1, 2, 6):
        values = {n: np.sort(random.choice(choices[-spread:], shape), -1) for n, shape in (("a", (2, rows)), ("b", (columns,)))}
        for v in (values, {n: random.permuted(x, axis=-1) for n, x in values.items()}):
            np.testing.assert_array_equal(*(np.asarray(interpret(g, v)[0]) for g in (graph, made)))


def test_runs_that_are_interrupted_are_none() -> None:
    """Blocks 0 and 2 are true of all, block 1 is not: no run, and first and end are those of all three."""
    graph = parse_graph(f"""graph @g(%d: i32[{3 * BLOCK}]) -> (bool[{3 * BLOCK}, {3 * BLOCK}]) {{
      %m: bool[{3 * BLOCK}, {3 * BLOCK}] = map [r, c] {{ eq(%d[r], %d[c]) }}
      return %m
    }}""")
    made, summaries = with_bounds(graph, ["m"], False)
    wide = replace(made, results=summaries)
    found = dict(zip(summaries, interpret(wide, {"d": np.repeat([4, 9, 4], BLOCK).astype(np.int32)}), strict=True))
    assert {n.type.dtype for n in made.nodes[2:-1]} == {I32}
    assert [list(np.asarray(found[f"m_{n}"])) for n in ("first", "end", "begin", "stop")] == [[0, 1, 0], [3, 2, 3], [0, 1, 0], [0, 2, 0]]


def test_conditions_that_are_none() -> None:
    """Floats, which may be NaN, values of the row alone, guards, and conditions on indices."""
    graph = parse_graph("""graph @g(%f: f32[100], %d: i32[100], %m: bool[100, 100]) -> (bool[100, 100]) {
      %a: bool[100, 100] = map [r, c] { eq(%f[r], %f[c]) }
      %b: bool[100, 100] = map [r, c] { logical_and(%a[r, c], lt(%d[r], 3:i32)) }
      %c: bool[100, 100] = map [r, c] { logical_and(%b[r, c], le(index(c), index(r))) }
      %e: bool[100, 100] = map [r, c] { logical_and(%c[r, c], guard(0 <= c < 50 ? eq(%d[r], %d[c + 50]) : false:bool)) }
      %y: bool[100, 100] = map [r, c] { logical_or(%e[r, c], %m[r, c]) }
      return %y
    }""")
    found = {n.name: clauses_of(n, graph) for n in graph.nodes}
    assert [name for name, clauses in found.items() if clauses] == ["y"]
    assert in_double(graph).results == ("y",)


def training(rows: int = 2048, heads: int = 16) -> Graph:
    """Attention within documents with its gradients, by the library's calls with one mask, as torch records them."""
    q, logs = f"f16[1, {heads}, {rows}, 64]", f"f32[1, {heads}, {rows}]"
    first = ", ".join(f'("%", {n})' for n in range(4))
    call = ("library.aten._scaled_dot_product_efficient_attention_backward.default (%g, %q, %k, %v, %y, %l, %m) "
            f'{{args = ({first}, ("%", 6), ("%", 4), ("%", 5), none, none, 0.0, (true, true, true, false), false), kwargs = (), result = ')
    gradients = "\n".join(f"  %d{n}: {q} = {call}{n}}}" for n in range(3))
    return parse_graph(f"""graph @g(%g: {q}, %q: {q}, %k: {q}, %v: {q}, %y: {q}, %l: {logs}, %d: i32[{rows}]) -> ({q}, {q}, {q}) {{
  %same: bool[1, 1, {rows}, {rows}] = map [a, b, r, c] {{ eq(%d[r], %d[c]) }}
  %e: bool[1, {heads}, {rows}, {rows}] = map [a, b, r, c] {{ %same[0, 0, r, c] }}
  %m: f16[1, {heads}, {rows}, {rows}] = map [a, b, r, c] {{ select(%e[a, b, r, c], 0.0:f16, -inf:f16) }}
{gradients}
  return %d0, %d1, %d2
}}""")


def test_gradients_are_bounded_from_both_sides() -> None:
    """The rows' kernel walks columns, the columns' kernel walks rows: each has bounds of its own of one mask, and no element changes."""
    context = PassContext(device=H200, prices=Predictions(H200))
    written_out = ExpandAttention("kernels").run(training(), context)
    assert written_out is not training()
    choices, made = bounded_masks(written_out, H200, Predictions(H200))
    assert [c.is_taken for c in choices] == [True, True]
    kernels = generate(made, constants={}, input_layouts={}, device=H200, options=Options(device_passes=LATER_PASSES)).plan.kernels
    walks = [walked_back_of(k.program) for k in kernels if k.program.template == "walked_back"]
    assert len(walks) == 2 and all(w.form.limit is not None and w.form.limit.is_of_blocks for w in walks)
    small = ExpandAttention("kernels").run(training(150, 2), context)
    again, random = small, np.random.default_rng(3)
    for n, turned in ((n, t) for n in [n.name for n in small.nodes if clauses_of(n, small)] for t in (False, True)):
        again, _ = with_bounds(again, [n], False, turned)
    values = {v.name: random.standard_normal(v.type.shape) for v in small.inputs}
    values["d"] = np.sort(random.integers(0, 5, 150)).astype(np.int32)
    for one, two in zip(interpret(in_double(small), values), interpret(in_double(again), values), strict=True):
        np.testing.assert_array_equal(one, two)
