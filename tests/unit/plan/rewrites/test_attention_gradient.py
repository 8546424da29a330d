"""Calls of gradients of attention: which operators they are, the definition in their place, and the kernels that hold it."""
from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import benchmarks
from benchmarks.attention.cases import attention_of
from benchmarks.attention.gradients import call_of
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import generate
from tilefuse.ir.graph import Graph, Input
from tilefuse.ir.interpret import interpret
from tilefuse.ir.library.attention_gradient_call import attention_gradient_calls
from tilefuse.ir.meaning import random_uniform
from tilefuse.ir.scalar import NUMPY_DTYPES, Call, Read, walk
from tilefuse.ir.text import parse_graph
from tilefuse.passes.facts import CHOICES
from tilefuse.passes.manager import PassContext
from tilefuse.plan.price.library_price import price_call
from tilefuse.plan.price.predictions import Predictions
from tilefuse.plan.rewrites.attention import ExpandAttention
from tilefuse.plan.rewrites.gradient_surroundings import surroundings
from tilefuse.plan.walks import find_walks
from tilefuse.target.device import H200
from tilefuse.templates.pattern import schedule_pattern

RESULTS_OF_RUNS = Path(benchmarks.__path__[0]) / "results"
ROWS, COLUMNS, WIDTH = 40, 56, 16
Values = dict[str, np.ndarray]
NOTHING: Values = {}
# Arguments behind the gradient, query, key and value, which are operands 0 to 3; the result is 4, the logarithms 5, a bias 6.
ARGUMENTS = {
    "flash": "_scaled_dot_product_flash_attention_backward", "cudnn": "_scaled_dot_product_cudnn_attention_backward",
    "efficient": "_scaled_dot_product_efficient_attention_backward", "any": "_scaled_dot_product_flash_attention_for_cpu_backward",
}


def called(library: str, causal: bool = False, group: int = 1, bias: str = "", dtype: str = "f16", dropout: float = 0.0, results: int = 3,
           rows: int = ROWS, columns: int = COLUMNS, width: int = WIDTH, of_values: int = 0) -> Graph:
    """One call, of which `results` gradients are returned. bias: its type. of_values: width of values where keys have another one."""
    (q, k), (y, v) = ((f"{dtype}[2, 4, {rows}, {n}]", f"{dtype}[2, {4 // group}, {columns}, {n}]") for n in (width, of_values or width))
    logarithms = {"cudnn": f"f32[2, 4, {rows}, 1]", "efficient": f"f32[2, 4, {-(-rows // 32) * 32}]"}.get(library, f"f32[2, 4, {rows}]")
    first = ", ".join(f'("%", {n})' for n in range(4))
    result, logs, mask, where = '("%", 4)', '("%", 5)', '("%", 6)' if bias else "none", "true" if causal else "false"
    arguments, named = {
        "flash": (f"{result}, {logs}, none, none, {rows}, {columns}, {dropout}, {where}, none, none", '("scale", 0.25)'),
        "cudnn": (f"{result}, {logs}, none, none, {mask}, none, none, {rows}, {columns}, {dropout}, {where}", '("scale", 0.25)'),
        "efficient": (f"{mask}, {result}, {logs}, none, none, {dropout}, (true, true, true, false), {where}", ""),
        "any": (f"{result}, {logs}, {dropout}, {where}", f'("attn_mask", {mask})' if bias else ""),
    }[library]
    operands = "%g, %q, %k, %v, %y, %l" + (", %b" if bias else "")
    named = f"({named},)" if named else "()"
    call = f"library.aten.{ARGUMENTS[library]}.default ({operands}) {{args = ({first}, {arguments}), kwargs = {named}, result = "
    kinds = (q, k, v, bias)[:results]
    nodes = "\n".join(f"  %d{n}: {kind} = {call}{n}}}" for n, kind in enumerate(kinds))
    inputs = f"%g: {y}, %q: {q}, %k: {k}, %v: {v}, %y: {y}, %l: {logarithms}" + (f", %b: {bias}" if bias else "")
    returned = ", ".join(f"%d{n}" for n in range(results))
    return parse_graph(f"graph @g({inputs}) -> ({', '.join(kinds)}) {{\n{nodes}\n  return {returned}\n}}")


def expanded(graph: Graph, gradients: str = "kernels", eager_rounding: bool = False) -> tuple[Graph, tuple[str, ...]]:
    """The graph after the pass, and what explanations say of it."""
    ctx = PassContext(device=H200, prices=Predictions(H200), eager_rounding=eager_rounding)
    return ExpandAttention(gradients).run(graph, ctx), ctx.attributes[CHOICES]


def values_and_gradients(graph: Graph, causal: bool, scale: float, drop: float = 0.0, given: Values = NOTHING
                         ) -> tuple[Values, list[np.ndarray]]:
    """Inputs of a call, and the gradients by the derivative of the softmax, of heads that are repeated. given: some of the inputs.

    drop: probability of dropped powers, by the key seed + 3. Where rows have factors, logarithms are too large by 2.
    """
    random = np.random.default_rng(5)
    values = {v.name: random.standard_normal(v.type.shape) * 0.7 for v in graph.inputs} | given
    q, g = values["q"], values["g"]
    group = q.shape[1] // values["k"].shape[1]
    k, v = (np.repeat(values[n], group, 1) for n in "kv")
    s = np.einsum("bhrk,bhck->bhrc", q, k) * scale
    if "b" in values:
        if graph.type_of("b").dtype.name == "bool":
            values["b"] = values["b"] > -0.5
            values["b"][..., 3, :] = False
            s = np.where(values["b"], s, -np.inf)
        else:
            s = s + values["b"]
    if causal:
        s = np.where(np.arange(s.shape[3]) <= np.arange(s.shape[2])[:, None], s, -np.inf)
    with np.errstate(divide="ignore"):
        logarithms = np.log(np.exp(s).sum(3))
    p = np.exp(s - np.where(np.isinf(logarithms), 0.0, logarithms)[..., None])
    factors = np.ones(())
    if drop:
        values["seed"] = np.array([2**60 + 1], np.int64)
        drawn = random_uniform(values["seed"] + 3, np.arange(p.size).reshape(p.shape))
        factors = (drawn < np.float32(1 - drop)) / (1 - drop)
    if "factors" in values:
        logarithms = logarithms + 2.0
        values["factors"] = np.full(values["factors"].shape, np.exp(2.0))
    values["y"] = (p * factors) @ v
    shape = values["l"].shape
    values["l"] = logarithms[..., None] if len(shape) == 4 else np.pad(logarithms, ((0, 0), (0, 0), (0, shape[2] - s.shape[2])))
    of_p = np.einsum("bhrk,bhck->bhrc", g, v) * factors
    ds = p * (of_p - (p * of_p).sum(3, keepdims=True)) * scale

    def of_heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    turned = (0, 1, 3, 2)
    return values, [ds @ k, of_heads(ds.transpose(turned) @ q), of_heads((p * factors).transpose(turned) @ g), ds / scale]


@pytest.mark.parametrize(("library", "causal", "group", "bias"), [
    ("flash", False, 1, ""), ("flash", True, 1, ""), ("flash", True, 2, ""), ("flash", False, 4, ""), ("cudnn", True, 1, ""),
    ("cudnn", False, 2, "f16[1, 1, 40, 56]"), ("efficient", False, 1, "f16[2, 4, 40, 56]"), ("efficient", True, 1, ""),
    ("efficient", True, 1, "f16[2, 4, 40, 56]"), ("any", False, 1, "bool[2, 1, 40, 56]"), ("any", True, 1, ""),
])
def test_the_definition_means_the_call(library: str, causal: bool, group: int, bias: str) -> None:
    """Equal to the derivative in f64 up to rounding: every operator, heads that share keys, masks with rows that they hide whole, and the
    gradient of a bias."""
    graph = called(library, causal, group, bias, results=4 if library == "efficient" and bias else 3)
    made, _ = expanded(graph)
    assert made is not graph and made.results == graph.results and not any(n.kind.startswith("library.aten") for n in made.nodes)
    values, gradients = values_and_gradients(graph, causal, 0.25)
    for one, two in zip(interpret(in_double(made), values), gradients, strict=False):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("dtype", "width", "of_values", "templates"), [
    ("bf16", 192, 128, ["walked_back", "walked_back"]), ("f16", 64, 128, ["walked_back", "walked_back"]),
    ("f32", 32, 48, ["online", "online"])])
def test_values_of_another_width(dtype: str, width: int, of_values: int, templates: list[str]) -> None:
    """The definition means the call, and kernels hold it: gradients of keys and of values in one, each of its width."""
    graph = called("cudnn", True, dtype=dtype, width=width, of_values=of_values)
    made, _ = expanded(graph)
    assert made is not graph
    values, gradients = values_and_gradients(graph, True, 0.25)
    for one, two in zip(interpret(in_double(made), values), gradients, strict=False):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)
    wide, _ = expanded(called("cudnn", True, dtype=dtype, width=width, of_values=of_values, rows=2048, columns=2048))
    programs = [schedule_pattern(wide, walk, {}, H200) for walk in find_walks(wide, H200)]
    assert [p.template for p in programs if isinstance(p, TileProgram)] == templates


def dropped(causal: bool = False, group: int = 1, bias: str = "", factors: bool = False, drop: float = 0.25, rows: int = ROWS,
            columns: int = COLUMNS, width: int = WIDTH, fill: float = 0.0) -> Graph:
    """A call of tilefuse's own operator, with the seed of a dropout. fill: a number at places that a mask does not show; 0: none."""
    q, k, sums = f"f16[2, 4, {rows}, {width}]", f"f16[2, {4 // group}, {columns}, {width}]", f"f32[2, 4, {rows}, 1]"
    kinds = {"g": q, "q": q, "k": k, "v": k, "y": q, "l": sums, "seed": "i64[1]"} | ({"b": bias} if bias else {})
    kinds |= ({"factors": sums} if factors else {}) | ({"visible": f"bool[2, 1, {rows}, {columns}]"} if fill else {})
    at = {name: f'("%", {n})' for n, name in enumerate(kinds)}
    arguments = ", ".join(at.get(n, "none") for n in ("g", "q", "k", "v", "y", "l", "b", "factors", "seed"))
    call = (f"library.tilefuse.attention_backward.default ({', '.join(f'%{n}' for n in kinds)}) {{args = ({arguments}, 3, {drop}, "
            f"{'true' if causal else 'false'}, 0.25, none, {at.get('visible', 'none')}, {fill}), kwargs = (), result = ")
    nodes = "\n".join(f"  %d{n}: {kind} = {call}{n}}}" for n, kind in enumerate((q, k, k)))
    inputs = ", ".join(f"%{n}: {t}" for n, t in kinds.items())
    return parse_graph(f"graph @g({inputs}) -> ({q}, {k}, {k}) {{\n{nodes}\n  return %d0, %d1, %d2\n}}")


@pytest.mark.parametrize(("causal", "group", "bias", "factors"), [
    (False, 1, "", False), (True, 1, "", False), (True, 2, "", False), (False, 4, "f16[1, 1, 40, 56]", False),
    (False, 1, "bool[2, 1, 40, 56]", True)])
def test_dropout_is_drawn_again_from_its_seed(causal: bool, group: int, bias: str, factors: bool) -> None:
    """Equal to the derivative in f64 with the mask that the seed gives, whatever the option says: no library has such a call."""
    graph = dropped(causal, group, bias, factors)
    written_out, texts = expanded(graph, gradients="auto")
    assert not any(n.kind.startswith("library.tilefuse") for n in written_out.nodes)
    assert "planned by their definition" in texts[0] and texts[0].endswith("nothing predicts the call")
    values, gradients = values_and_gradients(graph, causal, 0.25, drop=0.25)
    for one, two in zip(interpret(in_double(written_out), values), gradients, strict=False):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("group", [1, 2])
def test_a_number_at_hidden_places(group: int) -> None:
    """A row that is hidden whole has powers of 1 / columns, and no gradient of its scores."""
    graph = dropped(group=group, factors=True, fill=-1e4)
    written_out, _ = expanded(graph)
    values, _ = values_and_gradients(graph, False, 0.25, drop=0.25)
    values["visible"] = np.random.default_rng(2).random((2, 1, ROWS, COLUMNS)) < 0.6
    values["visible"][0, :, 4] = False
    q, g = values["q"], values["g"]
    k, v = (np.repeat(values[n], group, 1) for n in "kv")
    s = np.where(values["visible"], np.einsum("bhrk,bhck->bhrc", q, k) * 0.25, -1e4)
    top = s.max(3, keepdims=True)
    logarithms = top + np.log(np.exp(s - top).sum(3, keepdims=True))
    p = np.exp(s - logarithms)
    kept = (random_uniform(values["seed"] + 3, np.arange(p.size).reshape(p.shape)) < np.float32(0.75)) / 0.75
    of_p = np.einsum("bhrk,bhck->bhrc", g, v) * kept
    y = (p * kept) @ v
    ds = np.where(values["visible"], p * (of_p - (g * y).sum(3, keepdims=True)), 0.0) * 0.25
    turned = (0, 1, 3, 2)
    of_keys = [x.reshape(2, 4 // group, group, *x.shape[2:]).sum(2) for x in (ds.transpose(turned) @ q, (p * kept).transpose(turned) @ g)]
    inputs = values | {"l": logarithms, "factors": np.ones(logarithms.shape), "y": y}
    for one, two in zip(interpret(in_double(written_out), inputs), (ds @ k, *of_keys), strict=False):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("lowest", "is_exact"), [(np.finfo(np.float32).min, True), (-1e4, True), (-1e9, False), (-np.inf, True)])
def test_rows_that_numbers_hide_whole(lowest: float, is_exact: bool) -> None:
    """In f32, as kernels compute it. A row of the lowest number has powers of 1 / columns: its logarithm is that number, its factor tells
    the sum. Numbers that leave a few bits of the scores have no exact softmax either: gradients stay finite."""
    graph = dropped(bias="f32[2, 4, 40, 56]", factors=True)
    written_out, _ = expanded(graph)
    values, _ = values_and_gradients(graph, False, 0.25, drop=0.25)
    with np.errstate(all="ignore"):
        bias = np.zeros(values["b"].shape, np.float32)
        bias[..., 3, :], bias[0, :, 5, 7:] = lowest, lowest
        q, k, v, g = (values[n] for n in "qkvg")
        s = (np.einsum("bhrk,bhck->bhrc", q, k) * 0.25).astype(np.float32) + bias
        top = s.max(3, keepdims=True)
        powers = np.exp(s - np.where(np.isinf(top), 0, top))
        sums = np.log(powers.sum(3, keepdims=True))
        logarithms = (np.where(np.isinf(top), 0, top) + sums).astype(np.float32)
        factors = np.where(np.isinf(logarithms), 0.0, np.exp((logarithms - top) - sums)).astype(np.float32)
        p = np.where(np.isinf(top), 0.0, powers / powers.sum(3, keepdims=True)).astype(np.float64)
        drawn = random_uniform(values["seed"] + 3, np.arange(p.size).reshape(p.shape))
        kept = (drawn < np.float32(0.75)) / 0.75
        y = (p * kept) @ v
        of_p = np.einsum("bhrk,bhck->bhrc", g, v) * kept
        ds = p * (of_p - (g * y).sum(3, keepdims=True)) * 0.25
        turned = (0, 1, 3, 2)
        exact = [ds @ k, ds.transpose(turned) @ q, (p * kept).transpose(turned) @ g]
        inputs = values | {"b": bias, "l": logarithms, "factors": factors, "y": y}
        narrow = {i.name: inputs[i.name].astype(NUMPY_DTYPES[i.type.dtype.name]) for i in graph.inputs}
        for one, two in zip(interpret(written_out, narrow), exact, strict=False):
            assert np.isfinite(one.astype(np.float64)).all()
            if is_exact:
                assert np.abs(one.astype(np.float64) - two).max() <= 2.0**-8 * np.abs(two).max()


def test_a_dropout_leaves_two_walks_beside_the_row_sums() -> None:
    """Kernels of warpgroups hold both walks: neither powers nor masks are in memory."""
    graph = dropped(True, drop=0.1, rows=1024, columns=1024, width=64)
    plan = generate(graph, constants={}, input_layouts={}, device=H200, options=Options()).plan
    assert [k.program.template for k in plan.kernels].count("walked_back") == 2 and len(plan.kernels) == 3 and not plan.library_calls
    assert max(plan.graph.type_of(v).num_elements for k in plan.kernels for v in k.pattern.written) == 2 * 4 * 1024 * 64


@pytest.mark.parametrize("graph", [called("flash", dropout=0.5), called("efficient", bias="f16[1, 4, 40, 56]", results=4)],
                         ids=["dropout", "gradient of a bias of other elements than the scores"])
def test_calls_that_stay(graph: Graph) -> None:
    """Dropout is the library's; no call gives the gradient of a bias that batches share."""
    made, texts = expanded(graph)
    assert made is graph and not texts


def test_other_types_are_walked_on_smaller_instructions() -> None:
    """f32 by the template `online`, on any device with a grid of blocks."""
    graph, texts = expanded(called("flash", dtype="f32", rows=2048, columns=2048))
    assert "2 kernels that walk" in texts[0]
    programs = [schedule_pattern(graph, walk, {}, H200) for walk in find_walks(graph, H200)]
    assert [p.template for p in programs if isinstance(p, TileProgram)] == ["online", "online"]


def test_calls_stay_unless_asked_for() -> None:
    """Times of the kernels are not measured: explanations have the predicted ones. Rounded values between products are no definition."""
    graph = called("flash", rows=4096, columns=4096, width=64)
    made, texts = expanded(graph, gradients="library")
    assert made is graph and "attention by the library; predicted" in texts[0]
    assert "2 kernels that walk, " in texts[0] and texts[0].endswith(" us as a call")
    made, texts = expanded(graph, eager_rounding=True)
    assert made is graph and "rounded" in texts[0]
    assert expanded(graph)[1][0].startswith("%d0: gradients of attention planned by their definition")


@pytest.mark.parametrize(("library", "rows", "is_taken"), [("flash", 128, True), ("flash", 4096, True), ("cudnn", 128, True),
                                                           ("cudnn", 16384, False)])
def test_the_faster_one_by_predicted_times(library: str, rows: int, is_taken: bool) -> None:
    """`auto`: the kernels, or the call that stands in the graph."""
    graph = called(library, rows=rows, columns=rows, width=64)
    made, texts = expanded(graph, gradients="auto")
    kernels_us, call_us = map(float, re.findall(r"around them ([0-9.]+) us and ([0-9.]+) us", texts[0])[0])
    assert (made is not graph) == (kernels_us < call_us) == is_taken


HEADS, LENGTH, DEPTH, BATCH = 4, 128, 64, 32
WIDTH_OF_ALL, TOKENS = HEADS * DEPTH, BATCH * LENGTH


def layer(returned: bool = False) -> Graph:
    """The gradient of a layer's packed projection: the product that gives the incoming gradient, the call, gradients side by side, which a
    product reads or which are `returned`, and the sums for the projection's bias."""
    heads = f"bf16[{BATCH}, {HEADS}, {LENGTH}, {DEPTH}]"
    place = f"[(i // {LENGTH}), ((j // {DEPTH}) % {HEADS}), (i % {LENGTH}), (j % {DEPTH})]"
    call = ('library.aten._scaled_dot_product_cudnn_attention_backward.default (%g, %q, %k, %v, %y, %l) '
            '{args = (("%", 0), ("%", 1), ("%", 2), ("%", 3), ("%", 4), ("%", 5), '
            f'none, none, none, none, none, {LENGTH}, {LENGTH}, 0.0, false), kwargs = (), result = ')
    calls = "\n".join(f"  %{name}: {heads} = {call}{n}}}" for n, name in enumerate(("dq", "dk", "dv")))
    packed = f"guard(0 <= j < {2 * WIDTH_OF_ALL} ? guard(0 <= j < {WIDTH_OF_ALL} ? %dq{place} : %dk{place}) : %dv{place})"
    inputs = f"%x: bf16[{TOKENS}, {WIDTH_OF_ALL}], %w: bf16[{WIDTH_OF_ALL}, {WIDTH_OF_ALL}], " + ", ".join(f"%{n}: {heads}" for n in "qkvy")
    side = f"bf16[{TOKENS}, {3 * WIDTH_OF_ALL}]"
    inputs += f", %back: bf16[{3 * WIDTH_OF_ALL}, {WIDTH_OF_ALL}]"
    product = (f'  %behind: bf16[{TOKENS}, {WIDTH_OF_ALL}] = library.matmul (%side, %back) '
               '{precision = "default", transpose_a = false, transpose_b = false}')
    first = side if returned else f"bf16[{TOKENS}, {WIDTH_OF_ALL}]"
    return parse_graph(f"""graph @layer({inputs}, %l: f32[{BATCH}, {HEADS}, {LENGTH}]) -> ({first}, bf16[{3 * WIDTH_OF_ALL}]) {{
  %d: bf16[{TOKENS}, {WIDTH_OF_ALL}] = library.matmul (%x, %w) {{precision = "default", transpose_a = false, transpose_b = false}}
  %g: {heads} = map [i, j, k, l] {{ %d[{LENGTH}*i + k, {DEPTH}*j + l] }}
{calls}
  %side: {side} = map [i, j] {{ {packed} }}
  %sum: f32[{3 * WIDTH_OF_ALL}] = reduce.sum [j] over [i < {TOKENS}] {{ f32(%side[i, j]) }}
  %bias: bf16[{3 * WIDTH_OF_ALL}] = map [i] {{ bf16(%sum[i]) }}
{"" if returned else product}
  return {"%side" if returned else "%behind"}, %bias
}}""")


# Queries, keys and values in one row; the forward pass leaves heads side by side.
IN_ROWS = {name: (LENGTH * row, DEPTH, row, 1) for name, row in (*((n, 3 * WIDTH_OF_ALL) for n in "qkv"), ("y", WIDTH_OF_ALL))}


@pytest.mark.parametrize("returned", [False, True])
def test_a_layer_has_three_kernels_instead_of_the_call(returned: bool) -> None:
    """The product with the row sums, and two walks, which read and write heads where they lie: nothing is copied, converted or added."""
    graph = layer(returned)
    plans = {taken: generate(graph, constants={}, input_layouts=IN_ROWS, device=H200, options=Options(attention_gradients=taken)).plan
             for taken in ("library", "kernels", "auto")}
    kernels = {taken: sorted(k.program.template for k in plan.kernels) for taken, plan in plans.items()}
    assert len(kernels["kernels"]) <= len(kernels["library"]) + 3
    assert [t for t in kernels["kernels"] if t in ("columns", "walked_back")] == ["columns", "walked_back", "walked_back"]
    assert not any("attention" in c.operator for c in plans["kernels"].library_calls)
    # What a product reads is written where it lies: the kernel of the sums only reads it, and the walks' results are its parts.
    written = {v for k in plans["kernels"].kernels for v in k.pattern.written}
    assert ("side" in written) == returned
    parts = [] if returned else [("dq", 0), ("dk", WIDTH_OF_ALL), ("dv", 2 * WIDTH_OF_ALL)]
    assert [(w.value, w.offset) for w in plans["kernels"].windows if w.base == "side" and w.value in written] == parts
    # By `auto`, the plans of these nodes are compared, and what it takes is one of them.
    around = next(note for note in plans["auto"].notes if "around them" in note)
    us = dict(zip(("kernels", "library"), map(float, re.findall(r"around them ([0-9.]+) us and ([0-9.]+) us", around)[0]), strict=True))
    for taken, plan in plans.items():
        calls = sum(price_call(c, plan.graph, H200, layouts=plan.layouts).us for c in plan.library_calls)
        if taken in us:
            assert us[taken] == pytest.approx(sum(k.cost.us for k in plan.kernels) + calls, rel=0.02, abs=0.1)
    assert kernels["auto"] == kernels[min(us, key=us.__getitem__)]


def test_surroundings_end_at_the_librarys_calls() -> None:
    """Products before the gradient and behind it are inside; their operands are not."""
    graph = layer()
    call, = attention_gradient_calls(graph)
    assert [n.name for n in surroundings(graph, call).nodes] == [n.name for n in graph.nodes]
    assert surroundings(graph, call).results == ("bias", "behind")
    alone = called("flash", rows=128, columns=128, width=64)
    assert [n.name for n in surroundings(alone, attention_gradient_calls(alone)[0]).nodes] == ["d0", "d1", "d2"]


@pytest.mark.parametrize(("causal", "bias", "selects"), [(False, "", False), (True, "", False), (False, "bool[2, 1, 40, 56]", True)])
def test_logarithms_are_read_as_they_are(causal: bool, bias: str, selects: bool) -> None:
    """No row is hidden whole without a mask: no kernel of its own looks for rows without a logarithm."""
    made, _ = expanded(called("any", causal, bias=bias))
    bodies = [list(walk(n.body)) for n in made.nodes if n.kind == "map" and n.body is not None]
    of_logarithms = [body for body in bodies if any(isinstance(e, Read) and e.value == "l" for e in body)]
    assert any(isinstance(e, Call) and e.fn == "select" for body in of_logarithms for e in body) == selects


def test_nothing_is_taken_instead_of_a_call_without_a_price() -> None:
    """f32 has no price; by `kernels` it is taken all the same."""
    graph = called("flash", dtype="f32", rows=2048, columns=2048)
    made, texts = expanded(graph, gradients="auto")
    assert made is graph and texts[0].endswith("nothing predicts the call") and expanded(graph)[0] is not graph


def test_prices_of_calls_are_near_their_times() -> None:
    """Every timed call of flash and cuDNN, plain and causal; a plan counts the same price for its call."""
    rows = [json.loads(line) for line in (RESULTS_OF_RUNS / "gradients-h200-20261129.jsonl").read_text(encoding="utf-8").splitlines()]
    timed = [r for r in rows if r["who"] != "ours"]
    assert len(timed) == 24
    for r in timed:
        call, types = call_of(attention_of(r["case"]), r["who"])
        graph = Graph("g", tuple(Input(n, t) for n, t in (types | {f"d{n}": types[n] for n in "qkv"}).items()), (), ())
        us = Predictions(H200).attention_gradient_us(call, graph)
        assert us is not None and 0.9 < us / r["us"] < 1.1, r
    graph = called("flash", rows=4096, columns=4096, width=64)
    plan = generate(graph, constants={}, input_layouts={}, device=H200, options=Options(attention_gradients="library")).plan
    call, = attention_gradient_calls(graph)
    price = price_call(plan.library_calls[0], graph, H200)
    assert not price.is_bound and price.us == Predictions(H200).attention_gradient_us(call, graph)


@pytest.mark.parametrize(("width", "causal", "group"), [(64, True, 1), (128, False, 1), (128, False, 4)])
def test_plans_have_two_walks_beside_the_row_sums(width: int, causal: bool, group: int) -> None:
    """By the option: row sums, queries' kernel, keys' kernel, and no call."""
    graph = called("flash", causal, group, rows=4096, columns=4096, width=width)
    options = Options(attention_gradients="kernels")
    plan = generate(graph, constants={}, input_layouts={}, device=H200, options=options).plan
    assert [k.program.template for k in plan.kernels].count("walked_back") == 2 and len(plan.kernels) == 3 and not plan.library_calls
    plan = generate(graph, constants={}, input_layouts={}, device=H200, options=Options(attention_gradients="library")).plan
    assert len(plan.library_calls) == 1 and not plan.kernels


def test_gradients_that_nothing_reads_are_left_out() -> None:
    """The queries' gradient alone is one kernel beside the row sums."""
    graph = called("flash", results=1, rows=2048, columns=2048, width=64)
    call, = attention_gradient_calls(graph)
    assert call.gradients == ("d0", "", "", "")
    made, texts = expanded(graph)
    assert [n.kind for n in made.nodes].count("library.matmul") == 3 and "1 kernel that walks" in texts[0]


def test_packed_heads_that_share_keys_are_moved_first() -> None:
    """Rows of a group's heads that do not follow each other in memory have no tensor map: the row sums' kernel moves them."""
    graph = called("flash", True, 4, rows=4096, columns=4096, width=128)
    strides = {"qgy": (4096 * 4 * 128, 128, 4 * 128, 1), "kv": (4096 * 128, 128, 128, 1)}
    layouts = {name: kind for names, kind in strides.items() for name in names}
    options = Options(attention_gradients="kernels")
    plan = generate(graph, constants={}, input_layouts=layouts, device=H200, options=options).plan
    assert [k.program.template for k in plan.kernels] == ["rows", "walked_back", "walked_back"] and not plan.library_calls


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (48, 80)])
def test_masks_are_computed_where_they_are_read(rows: int, columns: int) -> None:
    """The sum of a bias of heads and a mask of columns, by maps of each walk, turned in the keys' kernel: no sum is read from memory."""
    plain = called("efficient", bias=f"f16[2, 4, {rows}, {columns}]", rows=rows, columns=columns, results=4)
    mask = parse_graph(f"""graph @m(%heads: f16[4, {rows}, {columns}], %padding: f16[2, {columns}]) -> (f16[2, 4, {rows}, {columns}]) {{
      %b: f16[2, 4, {rows}, {columns}] = map [i, j, k, l] {{ f16(add(f32(%heads[j, k, l]), f32(%padding[i, l]))) }}
      return %b
    }}""")
    graph = replace(plain, inputs=(*(i for i in plain.inputs if i.name != "b"), *mask.inputs), nodes=(*mask.nodes, *plain.nodes))
    made, _ = expanded(graph)
    assert not any(n.kind.startswith("library.aten") for n in made.nodes) and "b" not in made.node_by_name
    random = np.random.default_rng(7)
    of_heads, padding = random.standard_normal((4, rows, columns)), random.standard_normal((2, columns))
    values, gradients = values_and_gradients(plain, False, 0.25, given={"b": of_heads + padding[:, None, None]})
    values |= {"heads": of_heads, "padding": padding}
    for one, two in zip(interpret(in_double(made), {v.name: values[v.name] for v in made.inputs}), gradients, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)
    walks = find_walks(made, H200)
    inside = {n for w in walks for n in w}
    assert all(v in inside for n in made.nodes if n.name in inside for v in n.reads()
               if v in made.node_by_name and made.type_of(v).num_elements == 8 * rows * columns)
