"""Products with rows that are no multiples of 16 bytes: padded where that gains, as the interpreter computes them."""
from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import tilefuse
from tests.unit.passes.device.rewriting import rewritten
from tilefuse.base.options import Options
from tilefuse.driver.compile import prepare
from tilefuse.driver.pipeline import context_of
from tilefuse.driver.torch_backend import backend
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.text import parse_graph
from tilefuse.ir.verify import verify
from tilefuse.passes.device.padded_products import PadProducts, paddings, with_padded
from tilefuse.passes.device.padding import PADDED
from tilefuse.passes.facts import CHOICES
from tilefuse.passes.manager import PassContext, Pipeline
from tilefuse.plan.pattern import Pattern
from tilefuse.plan.price.predictions import Predictions, parts_between
from tilefuse.target.catalog import A100, host_device
from tilefuse.target.device import H200


def product(rows: int, inner: int, columns: int, dtype: str = "f16", turned: tuple[bool, bool] = (False, True), inside: bool = True,
            precision: str = "default") -> Graph:
    """relu(left) times right, either of them turned; `inside`: a kernel reads the result, else it is the graph's."""
    a = (inner, rows) if turned[0] else (rows, inner)
    b = (columns, inner) if turned[1] else (inner, columns)
    told = f'precision = "{precision}", transpose_a = {str(turned[0]).lower()}, transpose_b = {str(turned[1]).lower()}'
    shape = f"{dtype}[{rows}, {columns}]"
    return parse_graph(f"""graph @g(%x: {dtype}[{a[0]}, {a[1]}], %b: {dtype}[{b[0]}, {b[1]}]) -> ({shape}) {{
      %a: {dtype}[{a[0]}, {a[1]}] = map [i, j] {{ {dtype}(maximum(f32(%x[i, j]), 0.0:f32)) }}
      %w: {shape} = library.matmul (%a, %b) {{{told}}}
      %y: {shape} = map [i, j] {{ {dtype}(mul(f32(%w[i, j]), 2.0:f32)) }}
      return {"%y" if inside else "%w"}
    }}""") if inside else parse_graph(f"""graph @g(%a: {dtype}[{a[0]}, {a[1]}], %b: {dtype}[{b[0]}, {b[1]}]) -> ({shape}) {{
      %w: {shape} = library.matmul (%a, %b) {{{told}}}
      return %w
    }}""")


def shapes(graph: Graph) -> list[tuple[int, ...]]:
    """Shapes of a product: its operands and its result."""
    node = next(n for n in graph.nodes if n.kind == "library.matmul")
    return [graph.type_of(v).shape for v in (*node.operands, node.name)]


def padded_shapes(graph: Graph) -> list[tuple[int, ...]]:
    """Shapes of the product after the pass."""
    return shapes(rewritten(PadProducts(), graph, H200))


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1024, 1001, 1003), (2000, 196, 260), (1001, 512, 1002), (999, 1500, 512)])
def test_a_padded_product_is_the_product(rows: int, inner: int, columns: int, turned: tuple[bool, bool]) -> None:
    """Whole numbers, so that the order of additions does not matter."""
    graph = product(rows, inner, columns, turned=turned)
    padded = rewritten(PadProducts(), graph, H200)
    assert not verify(padded)
    draw = np.random.default_rng(5)
    given = {i.name: draw.integers(-1, 2, i.type.shape).astype(np.float16) for i in graph.inputs}
    np.testing.assert_array_equal(np.asarray(*interpret(padded, given)), np.asarray(*interpret(graph, given)))
    if padded is not graph:
        assert padded.results == graph.results and rewritten(PadProducts(), padded, H200) is padded


def test_what_memory_runs_along_is_padded_and_nothing_else() -> None:
    assert padded_shapes(product(1001, 1003, 4096)) == [(1001, 1008), (4096, 1008), (1001, 4096)]
    assert padded_shapes(product(1001, 4096, 1003, turned=(False, False))) == [(1001, 4096), (4096, 1008), (1001, 1008)]
    # Column by column, rows are what memory runs along.
    assert padded_shapes(product(1001, 4099, 1024, turned=(True, False))) == [(4099, 1008), (4099, 1024), (1008, 1024)]


@pytest.mark.parametrize("graph", [
    product(1024, 1000, 1008),                                # whole already
    product(1024, 1001, 1003, "f32", precision="f32"),        # not on the matrix unit
    product(8, 9, 10),                                        # too small to gain what a copy costs
    product(64, 768, 50257, inside=False),                    # the weights would be copied for few rows
], ids=["whole", "f32", "small", "few-rows"])
def test_others_are_left_alone(graph: Graph) -> None:
    assert rewritten(PadProducts(), graph, H200) is graph
    assert rewritten(PadProducts(), graph, host_device()) is graph


def test_tf32_is_padded_to_fours() -> None:
    assert shapes(rewritten(PadProducts(), product(2048, 1001, 1002, "f32", precision="tf32"), H200))[2] == (2048, 1004)


def test_a_result_of_the_graph_pays_for_its_copy() -> None:
    assert rewritten(PadProducts(), product(4096, 768, 50257, inside=False), H200) is not product(4096, 768, 50257, inside=False)
    assert shapes(rewritten(PadProducts(), product(4096, 768, 50257, inside=False), H200))[2] == (4096, 50264)


def test_a_transposed_weight_is_copied_as_it_lies() -> None:
    graph = parse_graph("""graph @g(%x: f16[4096, 1001], %w: f16[4096, 1001]) -> (f16[4096, 4096]) {
      %t: f16[1001, 4096] = map [i, j] { %w[j, i] }
      %y: f16[4096, 4096] = library.matmul (%x, %t) {transpose_a = false, transpose_b = false}
      return %y
    }""")
    padded = rewritten(PadProducts(), graph, H200)
    assert shapes(padded) == [(4096, 1008), (4096, 1008), (4096, 4096)]
    assert padded.node_by_name["y"].attribute("transpose_b") is True


def test_the_two_products_of_an_attention_stay_in_one_kernel() -> None:
    graph = parse_graph("""graph @g(%q: f16[512, 64], %k: f16[1003, 64], %v: f16[1003, 64]) -> (f16[512, 64]) {
      %s: f16[512, 1003] = library.matmul (%q, %k) {transpose_a = false, transpose_b = true}
      %m: f32[512] = reduce.max [i] over [j < 1003] { f32(%s[i, j]) }
      %e: f32[512, 1003] = map [i, j] { exp(sub(f32(%s[i, j]), %m[i])) }
      %n: f32[512] = reduce.sum [i] over [j < 1003] { %e[i, j] }
      %p: f16[512, 1003] = map [i, j] { f16(div(%e[i, j], %n[i])) }
      %y: f16[512, 64] = library.matmul (%p, %v) {transpose_a = false, transpose_b = false}
      return %y
    }""")
    assert rewritten(PadProducts(), graph, H200) is graph


def test_unfused_graphs_are_not_padded() -> None:
    graph = product(2048, 1001, 1003)
    assert shapes(prepare(graph, constants={}, device=H200, options=Options(fuse=False)).graph)[2] == (2048, 1003)
    assert shapes(prepare(graph, constants={}, device=H200, options=Options()).graph)[2] in ((2048, 1008), (2048, 1024))


def test_a_padded_model_computes_what_eager_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same graph on the host executor, where nothing gains, padded all the same."""
    seen: list[Graph] = []

    def padded(item: PadProducts, graph: Graph, ctx: PassContext) -> Graph:
        seen.append(with_padded(graph, paddings(graph, H200, Predictions(H200), {}), {}))
        return seen[-1]

    monkeypatch.setattr(PadProducts, "run", padded)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(203, 509), torch.nn.GELU(), torch.nn.LayerNorm(509), torch.nn.Linear(509, 301)).bfloat16()
    x = torch.randn(2050, 203, dtype=torch.bfloat16)
    torch._dynamo.reset()
    with torch.no_grad():
        ours, eager = torch.compile(model, backend=backend)(x), model(x)
    assert any(n.name.endswith("_padded") for g in seen for n in g.nodes)
    torch.testing.assert_close(ours, eager, rtol=2e-2, atol=2e-2)


def test_what_is_looked_up_of_a_window_needs_no_copy_of_it() -> None:
    """The loss of a language model: the label's score is looked up, also where a label is out of range."""
    graph = parse_graph("""graph @g(%x: f16[4096, 768], %w: f16[768, 1003], %t: i64[4096]) -> (f32[4096], f32[4096]) {
      %y: f16[4096, 1003] = library.matmul (%x, %w) {transpose_a = false, transpose_b = false}
      %m: f32[4096] = reduce.max [i] over [j < 1003] { f32(%y[i, j]) }
      %l: f32[4096] = gather [i] { sub(f32(lookup(%y, index(i), %t[i])), %m[i]) }
      return %m, %l
    }""")
    padded = rewritten(PadProducts(), graph, H200)
    assert padded is not graph and not verify(padded) and "y" not in padded.node_by_name
    draw = np.random.default_rng(6)
    given = {"x": draw.integers(-2, 3, (4096, 768)).astype(np.float16), "w": draw.integers(-2, 3, (768, 1003)).astype(np.float16),
             "t": draw.integers(-3, 1010, 4096)}
    for ours, theirs in zip(interpret(padded, given), interpret(graph, given), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_gradient_that_two_products_read_is_padded_once() -> None:
    """As the last layer of a language model has it: through a reshape, and turned for the gradient of the weights."""
    graph = parse_graph("""graph @g(%g: f16[4, 512, 1001], %x: f16[2048, 768], %w: f16[1001, 768]) -> (f16[1001, 768], f16[2048, 768]) {
      %t: f16[1001, 2048] = map [i, j] { %g[(j // 512), (j % 512), i] }
      %dw: f16[1001, 768] = library.matmul (%t, %x) {}
      %flat: f16[2048, 1001] = map [i, j] { %g[(i // 512), (i % 512), j] }
      %dx: f16[2048, 768] = library.matmul (%flat, %w) {}
      return %dw, %dx
    }""")
    padded = rewritten(PadProducts(), graph, H200)
    assert not verify(padded) and [n.name for n in padded.nodes if n.type.shape in ((2048, 1008), (2048, 1024))] == ["t_padded"]
    draw = np.random.default_rng(5)
    given = {i.name: draw.integers(-1, 2, i.type.shape).astype(np.float16) for i in graph.inputs}
    for found, wanted in zip(interpret(padded, given), interpret(graph, given), strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def last_layer(extra: str = "", results: str = "%dw, %dx", types: str = "f16[25001, 768], f16[2048, 768]") -> Graph:
    """A gradient that a kernel computes, for the weights and for what is behind them."""
    return parse_graph(f"""graph @g(%s: f32[2048, 25001], %x: f16[2048, 768], %w: f16[25001, 768]) -> ({types}) {{
      %g: f16[2048, 25001] = map [i, j] {{ f16(mul(exp(%s[i, j]), 2.0:f32)) }}
      %t: f16[25001, 2048] = map [i, j] {{ %g[j, i] }}
      %dw: f16[25001, 768] = library.matmul (%t, %x) {{}}
      %dx: f16[2048, 768] = library.matmul (%g, %w) {{}}
      {extra}return {results}
    }}""")


def test_products_of_one_computed_matrix_are_decided_together() -> None:
    """One of them alone would need a copy of the matrix beside the one that the other reads; for both, its kernel stores it padded."""
    graph = last_layer()
    choices = paddings(graph, H200, Predictions(H200), {})
    assert [(c.product, c.is_taken, c.together) for c in choices] == [("dw", True, ("dx",)), ("dx", True, ("dw",))]
    assert [c.copied for c in choices] == [(), ("w",)] and "together with %dx" in choices[0].text()
    program = tilefuse.compile(graph, target="h200")
    kernels = program.explain(json=True)["kernels"]
    assert sum("t_padded" in k["nodes"] for k in kernels) == 1
    assert {"g", "t_padded"} <= set(next(k["nodes"] for k in kernels if "t_padded" in k["nodes"]))


@pytest.mark.parametrize("graph", [
    last_layer("%r: f32[2048] = reduce.sum [i] over [j < 25001] { f32(%g[i, j]) }\n      ", "%dw, %dx, %r",
               "f16[25001, 768], f16[2048, 768], f32[2048]"),
    last_layer(results="%dw, %dx, %g", types="f16[25001, 768], f16[2048, 768], f16[2048, 25001]"),
], ids=["another reader", "a result"])
def test_a_matrix_with_other_readers_counts_its_copy_once(graph: Graph) -> None:
    """It is stored as it is for them, and copied for the products."""
    taken = [c for c in paddings(graph, H200, Predictions(H200), {}) if c.is_taken]
    assert sum("g" in c.copied or "t" in c.copied for c in taken) <= 1
    padded = rewritten(PadProducts(), graph, H200)
    assert not verify(padded)


MISPLACED = {
    "a window at an odd place": """graph @g(%x: f16[512, 1001], %w: f16[1024, 1000]) -> (f16[512, 1024]) {
      %s: f16[512, 1000] = map [i, j] { %x[i, j + 1] }
      %y: f16[512, 1024] = library.matmul (%s, %w) {transpose_b = true}
      return %y
    }""",
    "a batch with one right operand": """graph @g(%x: f16[2, 512, 1001], %w: f16[1024, 1001]) -> (f16[2, 512, 1024]) {
      %e: f16[2, 1024, 1001] = map [l, i, j] { %w[i, j] }
      %y: f16[2, 512, 1024] = library.matmul (%x, %e) {transpose_b = true}
      return %y
    }""",
    "heads of odd width": """graph @g(%x: f16[512, 4, 1001], %w: f16[4, 1024, 1001]) -> (f16[4, 512, 1024]) {
      %s: f16[4, 512, 1001] = map [h, i, j] { %x[i, h, j] }
      %y: f16[4, 512, 1024] = library.matmul (%s, %w) {transpose_b = true}
      return %y
    }""",
}


@pytest.mark.parametrize("name", MISPLACED)
def test_operands_at_odd_places_are_copied(name: str) -> None:
    """Whole numbers, so that the order of additions does not matter; a copy repeats nothing, and no view stays behind without a reader."""
    graph = parse_graph(MISPLACED[name])
    padded = rewritten(PadProducts(), graph, H200)
    assert not verify(padded) and padded.node_by_name["y"].attribute(PADDED)
    assert [n.name for n in padded.nodes if n.name.endswith("_padded")]
    assert all(padded.users_by_name[n.name] or n.name in padded.results for n in padded.nodes)
    assert sum(n.type.num_elements for n in padded.nodes if n.kind == "map") < 1.1 * sum(i.type.num_elements for i in graph.inputs)
    draw = np.random.default_rng(5)
    given = {i.name: draw.integers(-1, 2, i.type.shape).astype(np.float16) for i in graph.inputs}
    np.testing.assert_array_equal(np.asarray(*interpret(padded, given)), np.asarray(*interpret(graph, given)))
    assert rewritten(PadProducts(), padded, H200) is padded


KEPT = {
    "columns as they are": ("""graph @g(%x: bf16[2048, 4099], %w: bf16[4099, 2048]) -> (bf16[2048, 2048]) {
      %y: bf16[2048, 2048] = library.matmul (%x, %w) {}
      return %y
    }""", []),
    "odd columns": ("""graph @g(%x: bf16[8191, 517], %w: bf16[517, 1021]) -> (bf16[8191, 1021]) {
      %y: bf16[8191, 1021] = library.matmul (%x, %w) {}
      return %y
    }""", ["w_padded"]),
    "inner axes beside each other": ("""graph @g(%x: bf16[2048, 4099], %w: bf16[2048, 4099]) -> (bf16[2048, 2048]) {
      %y: bf16[2048, 2048] = library.matmul (%x, %w) {transpose_b = true}
      return %y
    }""", ["x_padded", "w_padded"]),
}


@pytest.mark.parametrize("name", KEPT)
def test_rows_that_kernels_read_as_they_lie_are_not_copied(name: str) -> None:
    """A left operand along the inner axis, beside a right one across it; plans then take a kernel, not a call."""
    text, copies = KEPT[name]
    graph = parse_graph(text)
    padded = rewritten(PadProducts(), graph, H200)
    assert not verify(padded) and [n.name for n in padded.nodes if n.kind == "map" and n.name.endswith("_padded")] == copies
    calls = tilefuse.compile(graph, target="h200").explain(json=True)["library"]
    assert bool(calls) == (name == "inner axes beside each other")


def test_rows_that_lie_far_apart_at_odd_places_are_copied() -> None:
    """A caller's operand of whole rows with an odd stride; with a whole stride it is left as it lies."""
    graph = product(2048, 1000, 1024, inside=False)
    for stride, is_copied in ((1001, True), (1008, False)):
        choices = paddings(graph, H200, Predictions(H200), {"a": (stride, 1)})
        assert [c.copied for c in choices if c.is_taken] == ([("a",)] if is_copied else [])


def test_choices_are_explained_with_both_prices() -> None:
    """A line for each product that could be padded."""
    lines = [c.text() for c in paddings(product(2048, 1001, 1024, inside=False), H200, Predictions(H200), {})]
    assert len(lines) == 1 and lines[0].startswith("%w is padded to 2048 x 1008 by 1024: predicted ") and "copies of %a, %b" in lines[0]


def test_constants_are_padded_once() -> None:
    """Weights whose data is at hand: the padded ones take their place, and the choice counts no copy of them."""
    graph = product(512, 1001, 1024, inside=False)
    graph = replace(graph, inputs=tuple(replace(i, constant=i.name == "b") for i in graph.inputs))
    draw = np.random.default_rng(5)
    data = {i.name: draw.integers(-1, 2, i.type.shape).astype(np.float16) for i in graph.inputs}
    context = context_of(H200, Options(verify=2), constants={"b": data["b"]})
    padded = Pipeline((PadProducts(),)).run(graph, context)
    assert [(i.name, i.type.shape) for i in padded.inputs if i.constant] == [("b_padded", (1024, 1008))]
    assert "copies of %a, " in context.attributes[CHOICES][0] and "%b" not in context.attributes[CHOICES][0]
    ours = interpret(padded, {"a": data["a"], "b_padded": context.constants["b_padded"]})
    np.testing.assert_array_equal(np.asarray(*ours), np.asarray(*interpret(graph, data)))


TURNED = {
    "f32, columns contiguous": ("""graph @g(%a: f32[2048, 1024], %b: f32[1024, 2048]) -> (f32[2048, 2048]) {
      %y: f32[2048, 2048] = library.matmul (%a, %b) {}
      return %y
    }""", ("b",)),
    "f32, both turned": ("""graph @g(%a: f32[1024, 2048], %b: f32[1024, 2048]) -> (f32[2048, 2048]) {
      %y: f32[2048, 2048] = library.matmul (%a, %b) {transpose_a = true}
      return %y
    }""", ("a", "b")),
    "8-bit integers of odd rows": ("""graph @g(%a: i8[1023, 1001], %b: i8[1024, 1001]) -> (i32[1023, 1024]) {
      %y: i32[1023, 1024] = library.matmul (%a, %b) {transpose_b = true, dtype = "i32"}
      return %y
    }""", ("a", "b")),
}


@pytest.mark.parametrize("name", TURNED)
def test_operands_are_copied_with_the_inner_axis_in_order(name: str) -> None:
    """Kernels multiply parts of f32 and bytes only so; the copies cost less than the library's product on threads."""
    text, copied = TURNED[name]
    graph = parse_graph(text)
    padded = rewritten(PadProducts(), graph, H200)
    (node,) = [n for n in padded.nodes if n.kind == "library.matmul"]
    assert [n.name for n in padded.nodes if n.kind == "map" and n.name != "y"] == [f"{v}_padded" for v in copied]
    assert not node.attribute("transpose_a") and node.attribute("transpose_b")
    draw = np.random.default_rng(5)
    given = {i.name: draw.integers(-1, 2, i.type.shape).astype(np.int8 if i.type.dtype.is_integer else np.float32) for i in graph.inputs}
    np.testing.assert_array_equal(np.asarray(*interpret(padded, given)), np.asarray(*interpret(graph, given)))
    assert rewritten(PadProducts(), graph, A100) is graph


def recurrence(steps: int) -> Graph:
    """Steps of gates and a product with one weight in f32, as the gradient of a recurrence has them: `h = tanh(h) w + x`."""
    lines = "\n".join(f"""%g{n}: f32[128, 512] = map [i, j] {{ tanh(add(%p{n - 1}[i, (j % 156)], %x[i, j])) }}
      %p{n}: f32[128, 156] = library.matmul (%g{n}, %w) {{transpose_b = false}}""" for n in range(1, steps + 1))
    return parse_graph(f"""graph @g(%p0: f32[128, 156], %x: f32[128, 512], %w: f32[512, 156]) -> (f32[128, 156]) {{
      {lines}
      return %p{steps}
    }}""")


class PlannedBy(Predictions):
    """Prices of a plan whose kernels hold every product, in as much time as a test says, of which some is left without the products."""

    kernels_us: ClassVar[float] = 0.0

    def cut_us(self, graph: Graph, reads_of_product: Mapping[str, Collection[str]], layouts: Layouts, options: Options
               ) -> tuple[set[str], float, float]:
        return set(reads_of_product), self.kernels_us, 5.0

    def may_be_held(self, graph: Graph, products: Collection[str]) -> set[str]:
        return set(products)


@pytest.mark.parametrize("is_padded", [True, False])
def test_the_cheaper_plan_decides_where_a_kernel_may_hold_the_product(is_padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone both products gain by padding; only the plan sees kernels that hold them with their neighbours."""
    graph = recurrence(2)
    padded_us = sum(c.padded_us for c in paddings(graph, H200, PlannedBy(H200), {})) + 5.0
    monkeypatch.setattr(PlannedBy, "kernels_us", padded_us + (0.1 if is_padded else -0.1))
    context = PassContext(device=H200, prices=PlannedBy(H200))
    assert (PadProducts().run(graph, context) is not graph) == is_padded
    lines = context.attributes[CHOICES]
    told = f"with their kernels {padded_us:.1f} us and {PlannedBy.kernels_us:.1f} us"
    assert len(lines) == 2 and all(told in line for line in lines)


def test_plans_are_made_only_where_a_kernel_may_hold_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of large operands are decided alone; those whose operands lie on chip by a plan of the graph."""
    planned: list[Graph] = []

    def cut_us(prices: Predictions, graph: Graph, *_: object) -> tuple[set[str], float, float]:
        planned.append(graph)
        return set(), 1.0, 2.0

    monkeypatch.setattr(Predictions, "cut_us", cut_us)
    large, small = product(4096, 1001, 4096), product(8192, 197, 510)
    for graph, num_plans in ((large, 0), (small, 1)):
        planned.clear()
        PadProducts().run(graph, PassContext(device=H200, prices=Predictions(H200)))
        assert len(planned) == num_plans


def test_a_kernel_is_cut_at_its_products() -> None:
    """What is left of a kernel runs before, between and behind the calls: each part writes what another part, a call or a user reads."""
    graph = parse_graph("""graph @g(%x: f32[64, 32], %v: f32[32, 32], %w: f32[32, 32]) -> (f32[64, 32], f32[64, 32]) {
      %a: f32[64, 32] = map [i, j] { exp(%x[i, j]) }
      %b: f32[64, 32] = map [i, j] { neg(%a[i, j]) }
      %p: f32[64, 32] = library.matmul (%b, %v)
      %c: f32[64, 32] = map [i, j] { tanh(%p[i, j]) }
      %d: f32[64, 32] = map [i, j] { mul(%c[i, j], %a[i, j]) }
      %q: f32[64, 32] = library.matmul (%d, %w)
      %e: f32[64, 32] = map [i, j] { add(%q[i, j], %x[i, j]) }
      return %e, %c
    }""")
    whole = Pattern(tuple(n.name for n in graph.nodes), ("e", "c"))
    assert parts_between(graph, whole, {"p": ["b"], "q": ["d"]}) == [
        Pattern(("a", "b"), ("a", "b")), Pattern(("c", "d"), ("c", "d")), Pattern(("e",), ("e",))]
    assert parts_between(graph, whole, {"q": ["d"]}) == [Pattern(("a", "b", "p", "c", "d"), ("c", "d")), Pattern(("e",), ("e",))]
    held, kernels_us, left_us = Predictions(H200).cut_us(graph, {"p": ["b"], "q": ["d"]}, {}, Options())
    assert held == {"p", "q"} and 0 < kernels_us < left_us


def test_a_plan_counts_its_kernels_and_its_calls() -> None:
    """Without fusion each node is a kernel or a call."""
    graph = product(4096, 1024, 4096)
    prices, options = Predictions(H200), Options(fuse=False)
    alone = [prices.kernel_us(graph, (n,), False, 0) for n in ("a", "y")]
    assert prices.plan_us(graph, {}, options) == pytest.approx(sum(alone) + prices.product_us(graph.node_by_name["w"], graph))
    assert prices.plan_us(graph, {}, Options()) < prices.plan_us(graph, {}, options)
