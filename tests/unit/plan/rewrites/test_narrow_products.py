"""Products of converted 16-bit values: they multiply 16 bits and keep f32 sums, as exactly as before."""
from __future__ import annotations

import numpy as np
import pytest

import tilefuse
from tests.unit.passes.device.rewriting import rewritten
from tilefuse.domain.contraction import RESULT_DTYPE
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph
from tilefuse.ir.verify import verify
from tilefuse.passes import DEFAULT_PIPELINE, PassContext, Pipeline
from tilefuse.plan.rewrites.narrow_products import NarrowProducts
from tilefuse.target.catalog import A100
from tilefuse.target.device import H200


def product(rows: int = 1024, left: str = "bf16", right: str = "bf16", turned: bool = False, more: str = "", result: str = "%y",
            type_: str = "f32[{rows}, 512]") -> Graph:
    """f32(x) times f32(w)."""
    w = "[512, 768]" if turned else "[768, 512]"
    return parse_graph(f"""graph @g(%x: {left}[{rows}, 768], %w: {right}{w}) -> ({type_.format(rows=rows)}) {{
      %a: f32[{rows}, 768] = map [i, j] {{ f32(%x[i, j]) }}
      %b: f32{w} = map [i, j] {{ f32(%w[i, j]) }}
      %y: f32[{rows}, 512] = library.matmul (%a, %b) {{transpose_b = {str(turned).lower()}}}
      {more}return {result}
    }}""")


def narrow(graph: Graph) -> Graph:
    """The graph behind the pass, for an H200."""
    return rewritten(NarrowProducts(), graph, H200)


@pytest.mark.parametrize("graph", [product(), product(left="f16", right="f16", turned=True), product(rows=70)],
                         ids=["bf16", "f16, turned", "70 rows"])
def test_operands_are_multiplied_as_they_are(graph: Graph) -> None:
    """No conversion stays, and results are those of the graph: whole numbers, so that the order of sums does not matter."""
    changed = narrow(graph)
    node = changed.node_by_name["y"]
    assert not verify(changed) and node.attribute(RESULT_DTYPE) == "f32"
    assert {changed.type_of(v).dtype.bits for v in node.operands} == {16} and not {"a", "b"} & {n.name for n in changed.nodes}
    draw = np.random.default_rng(3)
    given = {i.name: draw.integers(-4, 5, i.type.shape).astype(NUMPY_DTYPES[i.type.dtype.name]) for i in graph.inputs}
    np.testing.assert_array_equal(*(interpret(g, given)[0] for g in (graph, changed)))


def test_a_kernel_reads_16_bits_alone() -> None:
    """With what follows the product."""
    clamped = "%z: bf16[1024, 512] = map [i, j] { bf16(maximum(%y[i, j], 0.0:f32)) }\n      "
    graph = product(more=clamped, result="%z", type_="bf16[1024, 512]")
    told = tilefuse.compile(graph, target="h200").explain(json=True)
    assert [k["template"] for k in told["kernels"]] == ["pipelined"] and not told["library"]


def test_a_value_may_be_both_operands() -> None:
    """Rows of one matrix times each other."""
    graph = parse_graph("""graph @g(%x: bf16[512, 256]) -> (f32[512, 512]) {
      %a: f32[512, 256] = map [i, j] { f32(%x[i, j]) }
      %y: f32[512, 512] = library.matmul (%a, %a) {transpose_b = true}
      return %y
    }""")
    changed = narrow(graph)
    assert not verify(changed) and changed.node_by_name["y"].attribute(RESULT_DTYPE) == "f32"
    assert [k["template"] for k in tilefuse.compile(graph, target="h200").explain(json=True)["kernels"]] == ["pipelined"]


def test_other_readers_keep_their_conversion() -> None:
    """A value in f32 that is a result too."""
    changed = narrow(product(result="%y, %a", type_="f32[1024, 512], f32[1024, 768]"))
    assert "a" in changed.node_by_name and changed.node_by_name["y"].attribute(RESULT_DTYPE)


@pytest.mark.parametrize("graph", [
    product(right="f32"), product(right="f16"),
    parse_graph("""graph @g(%x: bf16[64, 64], %w: bf16[64, 64]) -> (f32[64, 64]) {
      %a: f32[64, 64] = map [i, j] { exp(f32(%x[i, j])) }
      %b: f32[64, 64] = map [i, j] { f32(%w[i, j]) }
      %y: f32[64, 64] = library.matmul (%a, %b) {}
      return %y
    }"""),
    parse_graph("""graph @g(%x: bf16[64, 64], %w: bf16[64, 64]) -> (f32[64, 64]) {
      %a: f32[64, 64] = map [i, j] { f32(%x[i, j]) }
      %b: f32[64, 64] = map [i, j] { f32(%w[i, j]) }
      %y: f32[64, 64] = library.matmul (%a, %b) {precision = "f32"}
      return %y
    }"""),
], ids=["an operand of f32", "two types", "a function of an operand", "precision f32"])
def test_other_products_stay(graph: Graph) -> None:
    """They are the same graph."""
    assert narrow(graph) is graph


def upcast(scaled: bool) -> Graph:
    """Attention whose scores are computed in f32, and whose powers are rounded to 16 bits again."""
    q = "mul(f32(%q[i, j]), 0.3:f32)" if scaled else "f32(%q[i, j])"
    return parse_graph(f"""graph @g(%q: bf16[512, 64], %k: bf16[512, 64], %v: bf16[512, 64]) -> (bf16[512, 64]) {{
      %a: f32[512, 64] = map [i, j] {{ {q} }}
      %b: f32[512, 64] = map [i, j] {{ f32(%k[i, j]) }}
      %s: f32[512, 512] = library.matmul (%a, %b) {{transpose_b = true}}
      %p: f32[512, 512] = library.softmax (%s) {{axis = 1}}
      %n: bf16[512, 512] = map [i, j] {{ bf16(%p[i, j]) }}
      %y: bf16[512, 64] = library.matmul (%n, %v) {{}}
      return %y
    }}""")


@pytest.mark.parametrize("scaled", [False, True])
def test_scores_in_f32_begin_a_walk(scaled: bool) -> None:
    """A factor of the queries is one of the scores."""
    told = tilefuse.compile(upcast(scaled), target="h200").explain(json=True)
    assert [k["template"] for k in told["kernels"]] == ["pipelined_walk"] and not told["library"]
    changed = narrow(Pipeline.parse(DEFAULT_PIPELINE).run(upcast(scaled), PassContext()))
    draw = np.random.default_rng(4)
    given = {n: (draw.standard_normal((512, 64))).astype(NUMPY_DTYPES["bf16"]) for n in "qkv"}
    found, wanted = (interpret(g, given)[0].astype(np.float64) for g in (changed, upcast(scaled)))
    assert changed.node_by_name["s_sums" if scaled else "s"].attribute(RESULT_DTYPE) and np.abs(found - wanted).max() < 2.0**-6


def test_attention_in_f32_stays_a_walk() -> None:
    """Its second product has powers of f32."""
    graph = parse_graph("""graph @g(%q: bf16[512, 64], %k: bf16[512, 64], %v: bf16[512, 64]) -> (f32[512, 64]) {
      %a: f32[512, 64] = map [i, j] { f32(%q[i, j]) }
      %b: f32[512, 64] = map [i, j] { f32(%k[i, j]) }
      %c: f32[512, 64] = map [i, j] { f32(%v[i, j]) }
      %s: f32[512, 512] = library.matmul (%a, %b) {transpose_b = true}
      %e: f32[512, 512] = map [i, j] { exp(%s[i, j]) }
      %y: f32[512, 64] = library.matmul (%e, %c) {}
      return %y
    }""")
    assert narrow(graph) is graph


def test_devices_without_warpgroup_instructions_keep_the_call() -> None:
    """Their kernels have no f32 results of 16-bit operands."""
    graph = product()
    assert rewritten(NarrowProducts(), graph, A100) is graph
