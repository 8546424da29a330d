"""Convolutions over transformed tiles: what they compute, how exactly, which ones, and when."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.unit.passes.device.rewriting import rewritten
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.driver.lowering.static_weights import kept_values
from tilefuse.driver.pipeline import context_of
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32, F64, DType
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.interpret import interpret
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.ir.verify import check
from tilefuse.passes.device.minimal_filtering import Matrix, MinimalFiltering, minimal_filtering
from tilefuse.passes.device.transformed_convolutions import TransformConvolutions, allowed_algorithms
from tilefuse.passes.device.transformed_tiles import TransformBuilder, Windows, magnitudes, roundings, windows_of
from tilefuse.passes.facts import CallerLayouts
from tilefuse.passes.manager import Pipeline
from tilefuse.plan.pattern import Plan
from tilefuse.plan.price.predictions import Predictions
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200
from tilefuse.templates.pattern import schedule_pattern

Padding = tuple[tuple[int, int], tuple[int, int]]
ONE = ((1, 1), (1, 1))


def convolution(dtype: DType = F64, image: tuple[int, int] = (7, 9), padding: Padding = ONE, *, bias: bool = True, batch: int = 2,
                channels: int = 3, features: int = 5, window: tuple[int, int] = (3, 3), stride: int = 1, dilation: int = 1,
                groups: int = 1, exact: bool = False) -> Graph:
    """A convolution. exact: without tf32."""
    b = TensorBuilder("convolution")
    x, w = b.input("x", dtype, (batch, channels, *image)), b.input("w", dtype, (features, channels // groups, *window))
    added = b.input("b", dtype, (features,)) if bias else None
    graph = b.finish([b.convolution(x, w, added, (stride, stride), padding, (dilation, dilation), groups)])
    return with_f32(graph) if exact else graph


def with_f32(graph: Graph) -> Graph:
    """The graph with convolutions that may not use tf32."""
    def exact(node: Node) -> Node:
        attributes = tuple(sorted((dict(node.attributes) | {"precision": "f32"}).items()))
        return replace(node, attributes=attributes) if node.kind == "library.convolution" else node

    return replace(graph, nodes=tuple(map(exact, graph.nodes)))


def transformed(graph: Graph, filtering: MinimalFiltering, channels_inner: bool) -> Graph:
    """The graph's only node over transformed tiles, whatever that costs."""
    node, = graph.nodes
    windows = windows_of(node, graph)
    assert isinstance(windows, Windows), windows
    parts = TransformBuilder(graph).of(node, windows, filtering, "default", channels_inner)
    made = replace(graph, nodes=(*parts.filters, *parts.tiles, parts.product, *parts.outputs))
    check(made, "transformed")
    return made


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs, rounded to their types."""
    generator = np.random.default_rng(7)
    dtypes = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
    return {i.name: generator.standard_normal(i.type.shape).astype(dtypes[i.type.dtype.name]) for i in graph.inputs}


CASES: dict[str, tuple[tuple[int, int], Padding, int, int, int]] = {
    # image, padding, batch, channels, features
    "whole tiles": ((8, 8), ONE, 2, 4, 4), "no whole tiles, odd channels": ((7, 9), ONE, 2, 3, 5), "batch 1": ((5, 6), ONE, 1, 2, 3),
    "no padding": ((6, 7), ((0, 0), (0, 0)), 2, 3, 2), "one result": ((3, 3), ((0, 0), (0, 0)), 2, 3, 2),
    "padding 2": ((4, 5), ((2, 2), (2, 2)), 1, 3, 2), "asymmetric": ((5, 6), ((2, 0), (0, 1)), 2, 2, 3),
    "narrow": ((9, 1), ONE, 2, 2, 3), "one channel": ((6, 6), ONE, 1, 1, 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("results", [2, 4])
@pytest.mark.parametrize("channels_inner", [False, True])
def test_transforms_give_what_the_convolution_gives(name: str, results: int, channels_inner: bool) -> None:
    """In f64, with a bias."""
    image, padding, batch, channels, features = CASES[name]
    graph = convolution(F64, image, padding, batch=batch, channels=channels, features=features)
    made, inputs = transformed(graph, minimal_filtering(results, 3), channels_inner), drawn(graph)
    assert not any(n.kind == "library.convolution" for n in made.nodes)
    ours, theirs = interpret(made, inputs)[0], interpret(graph, inputs)[0]
    assert np.allclose(ours, theirs, rtol=0, atol=1e-13 * channels * 100)


# -- exactness --------------------------------------------------------------------------------------------------------------------


def error_bound(filtering: MinimalFiltering, x: np.ndarray, w: np.ndarray, unit: float) -> np.ndarray:
    """The bound that the pass states, at each result: for images with padding 1 of whole tiles."""
    def absolute(matrix: Matrix) -> np.ndarray:
        return np.array(magnitudes(matrix))

    m, n = filtering.results, filtering.positions
    padded = np.pad(np.abs(x.astype(np.float64)), ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, columns = x.shape[2] // m, x.shape[3] // m
    tiles = np.stack([[padded[:, :, m * r:m * r + n, m * s:m * s + n] for s in range(columns)] for r in range(rows)])
    inputs, filters, outputs = map(absolute, (filtering.inputs, filtering.filters, filtering.outputs))
    data = np.einsum("pi,rsncij,qj->rsncpq", inputs, tiles, inputs)
    weights = np.einsum("pi,kcij,qj->kcpq", filters, np.abs(w.astype(np.float64)), filters)
    result = np.einsum("ap,rsncpq,kcpq,bq->nkrasb", outputs, data, weights, outputs, optimize=True)
    return (x.shape[1] + roundings(filtering)) * unit * result.reshape(x.shape[0], w.shape[0], x.shape[2], x.shape[3])


@pytest.mark.parametrize(("results", "dtype", "unit"), [(2, F32, 2.0**-24), (4, F32, 2.0**-24), (2, F16, 2.0**-11)])
def test_errors_lie_within_the_stated_bound(results: int, dtype: DType, unit: float) -> None:
    """Against f64. The worst error uses a part of the bound, so that a bound of no worth would fail as well."""
    graph = convolution(dtype, (16, 16), bias=False, channels=32, features=8)
    filtering, inputs = minimal_filtering(results, 3), drawn(graph)
    exact = {k: v.astype(np.float64) for k, v in inputs.items()}
    wide = interpret(convolution(F64, (16, 16), bias=False, channels=32, features=8), exact)[0]
    ours = np.asarray(interpret(transformed(graph, filtering, True), inputs)[0]).astype(np.float64)
    bound = error_bound(filtering, inputs["x"], inputs["w"], unit)
    error = np.abs(ours - wide)
    assert (error <= bound).all()
    assert error.max() >= bound.max() / 5000


def precise(dtype: DType, precision: str = "default") -> Node:
    """A convolution that states its precision."""
    node, = convolution(dtype).nodes
    return replace(node, attributes=(*node.attributes, ("precision", precision)))


@pytest.mark.parametrize(("dtype", "precision", "products", "algorithms"), [
    (F32, "f32", "default", [(4, "default"), (2, "default")]), (F32, "f32", "f32", [(4, "f32"), (2, "f32")]),
    (F32, "default", "default", [(4, "default"), (2, "default"), (2, "tf32")]), (F32, "default", "tf32", [(2, "tf32")]),
    (F16, "default", "default", [(2, "default")]), (BF16, "default", "tf32", [(2, "default")]),
])
def test_short_products_are_for_small_tiles_alone(dtype: DType, precision: str, products: str, algorithms: list[tuple[int, str]]) -> None:
    assert allowed_algorithms(precise(dtype, precision), products, False) == algorithms


@pytest.mark.parametrize(("node", "products", "eager", "why"), [
    (precise(F64), "default", False, "transforms of f64 are less exact than its sums"),
    (precise(F32, "f32"), "tf32", False, "products of f32 may be tf32, and this convolution may not"),
    (precise(F32), "default", True, "every value is rounded as in eager execution"),
])
def test_exactness_that_forbids_transforms(node: Node, products: str, eager: bool, why: str) -> None:
    refused = allowed_algorithms(node, products, eager)
    assert isinstance(refused, Rejected) and refused.detail == why


# -- which ones -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("graph", "why"), [
    (convolution(window=(5, 5)), "has windows of 5 x 5"), (convolution(window=(1, 3)), "has windows of 1 x 3"),
    (convolution(stride=2), "has stride 2 x 2"), (convolution(dilation=2), "has dilation 2 x 2"),
    (convolution(channels=4, features=4, groups=2), "has 2 groups"),
])
def test_other_windows_stay_calls(graph: Graph, why: str) -> None:
    windows = windows_of(graph.nodes[0], graph)
    assert isinstance(windows, Rejected) and windows.detail == f"%convolution {why}"
    asked = TransformConvolutions("always")
    assert rewritten(asked, graph, H200) is graph


def test_off_changes_nothing() -> None:
    graph = convolution(F32, (56, 56), batch=64, channels=64, features=64, exact=True)
    assert rewritten(TransformConvolutions("off"), graph, H200) is graph


@pytest.mark.parametrize(("dtype", "exact", "channels", "is_taken"), [
    (F32, True, 64, True), (F32, True, 3, False), (F32, False, 64, False), (F16, False, 64, False)])
def test_the_default_is_for_f32_without_tf32(dtype: DType, exact: bool, channels: int, is_taken: bool) -> None:
    """One H200, whole networks in f32, us with calls and with tiles: ResNet-50 15468, 13579; VGG-16 37187, 16771."""
    graph = convolution(dtype, (56, 56), batch=64, channels=channels, features=64, exact=exact)
    default = TransformConvolutions(Options().winograd)
    assert (rewritten(default, graph, H200) is not graph) == is_taken
    assert rewritten(default, graph, host_device()) is graph


@pytest.mark.parametrize(("channels", "is_taken"), [(64, True), (3, False)])
def test_auto_takes_what_is_predicted_faster(channels: int, is_taken: bool) -> None:
    """With few channels the transforms cost more than the products save."""
    graph = convolution(F32, (56, 56), batch=64, channels=channels, features=64, exact=True)
    assert (rewritten(TransformConvolutions("auto"), graph, H200) is not graph) == is_taken
    assert rewritten(TransformConvolutions("always"), graph, H200) is not graph


@dataclass(frozen=True)
class CallsOf(Predictions):
    """Predictions of a library whose convolutions take so long. Units: microseconds."""

    us: float = 0.0

    def convolution_us(self, nodes: Sequence[Node], graph: Graph) -> float:
        return self.us


def test_groups_of_one_kernel_are_a_price_beside_the_steps() -> None:
    """A call faster than four kernels and slower than the filters and one kernel in groups is replaced where plans may have that kernel."""
    graph = convolution(F32, (56, 56), batch=64, channels=64, features=64, exact=True)
    graph = replace(graph, inputs=tuple(replace(i, constant=i.name == "w") for i in graph.inputs))
    layouts = {"x": channels_last_strides((64, 64, 56, 56))}

    kernels = CallsOf(H200)  # knows the kernels that were priced before

    def taken(groups: str, call_us: float) -> tuple[bool, str]:
        context = context_of(H200, Options(), constants={"w": np.zeros((64, 64, 3, 3), np.float32)})
        context.caller = CallerLayouts.of(graph, layouts, {graph.results[0]: layouts["x"]})
        context.prices = replace(kernels, us=call_us)
        made = Pipeline((TransformConvolutions("auto", groups=groups, channels_last="always"),)).run(graph, context)
        return made is not graph, str(context.attributes)

    _, text = taken("priced", 1.0)
    four_us = sum(map(float, text.split("results: ")[1].split(";")[0].split(" + ")))
    grouped_us = float(text.split("in groups of one kernel: ")[1].split(")")[0])
    assert grouped_us < 0.95 * four_us
    assert taken("off", 1.05 * four_us)[0] and not taken("off", (four_us + grouped_us) / 2)[0]
    assert taken("priced", (four_us + grouped_us) / 2)[0] and not taken("priced", 0.95 * grouped_us)[0]


def test_convolutions_of_one_image_share_its_tiles() -> None:
    b = TensorBuilder("siblings")
    x, v, w = b.input("x", F32, (2, 4, 8, 8)), b.input("v", F32, (5, 4, 3, 3)), b.input("w", F32, (6, 4, 3, 3))
    graph = b.finish([b.convolution(x, weight, None, (1, 1), ONE, (1, 1), 1) for weight in (v, w)])
    made = rewritten(TransformConvolutions("always"), graph, H200)
    products = [n for n in made.nodes if n.kind == "library.matmul"]
    assert len(products) == 2 and products[0].operands[1] == products[1].operands[1]
    assert sum(n.name.startswith("x_tile") for n in made.nodes) == 2


def test_filters_of_constants_are_computed_once() -> None:
    """The weight is no operand any more; its filters are a constant, in f64 rounded once."""
    graph = convolution(F32, (8, 8), exact=True)
    graph = replace(graph, inputs=tuple(replace(i, constant=i.name == "w") for i in graph.inputs))
    inputs = drawn(graph)
    context = context_of(H200, Options(verify=2), constants={"w": inputs["w"]})
    made = Pipeline((TransformConvolutions("always"),)).run(graph, context)
    assert [i.name for i in made.inputs] == ["x", "b", "w_filters"]
    folded = context.constants["w_filters"]
    assert isinstance(folded, np.ndarray)
    filters = np.array([[float(c) for c in row] for row in minimal_filtering(folded.shape[0] - 2).filters])
    expected = np.einsum("pi,kcij,qj->pqkc", filters, inputs["w"].astype(np.float64), filters).astype(np.float32)
    assert np.abs(folded - expected).max() <= 2.0**-24
    ours = interpret(made, {"x": inputs["x"], "b": inputs["b"], "w_filters": folded})[0]
    assert np.allclose(ours, interpret(graph, inputs)[0], rtol=0, atol=5e-5)


# -- plans ------------------------------------------------------------------------------------------------------------------------


def residual_block(image: tuple[int, int] = (56, 56), channels: int = 64, batch: int = 64) -> Graph:
    """relu(convolution(x, w) + b + r)."""
    b = TensorBuilder("block")
    x, w = b.input("x", F32, (batch, channels, *image)), b.input("w", F32, (channels, channels, 3, 3))
    bias, r = b.input("b", F32, (channels,)), b.input("r", F32, (batch, channels, *image))
    y = b.convolution(x, w, bias, (1, 1), ONE, (1, 1), 1)
    return with_f32(b.finish([b.elementwise("maximum", b.elementwise("add", y, r), 0.0)]))


def plan_of(graph: Graph, layouts: dict[str, tuple[int, ...]] | None = None, **options: object) -> Plan:
    """layouts: strides of inputs and results."""
    chosen = Options().with_overrides(plan_cache=False, float32_products="split", **options)
    return generate(graph, constants={}, device=H200, options=chosen, input_layouts=layouts, result_layouts=layouts).plan


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_residual_block_is_three_kernels_and_a_product(channels_last: bool) -> None:
    """Bias, residual and activation are part of the output transform; channels last, a kernel of ours multiplies too."""
    graph = residual_block()
    layouts = {v: channels_last_strides((64, 64, 56, 56)) for v in ("x", "r", *graph.results)} if channels_last else {}
    plan = plan_of(graph, layouts, winograd="always")
    transforms = [k.program for k in plan.kernels if k.program.template == "register tile"]
    assert [len(t.graph.nodes) for t in transforms][:2] == [2, 2] and transforms[-1].graph.results == graph.results
    assert {"b", "r"} <= {i.name for i in transforms[-1].graph.inputs}
    assert len(plan.steps) == 4
    assert any(n.startswith("%convolution: planned as F(4x4, 3x3) (asked for); predicted") for n in plan.notes)


def test_transforms_and_products_are_kernels_apart() -> None:
    """Tiles of a product would compute a transform's formulas again and again; searches among them took ten times as long as the plan."""
    made = transformed(convolution(F32, (16, 16), batch=4, channels=32, features=32), minimal_filtering(4, 3), False)
    product = next(n for n in made.nodes if n.kind == "library.matmul")
    apart = schedule_pattern(made, (product.name, made.nodes[-2].name, made.nodes[-1].name), {}, H200)
    assert isinstance(apart, Rejected) and apart.detail == (
        "%convolution_rows chooses from 4 formulas by position; beside a product, at most 3 are computed")


def test_a_call_may_be_asked_for() -> None:
    plan = plan_of(residual_block(), winograd="off")
    assert any(n.kind == "library.convolution" for n in plan.graph.nodes) and not any("F(4x4" in n for n in plan.notes)
    assert any("F(4x4" in n for n in plan_of(residual_block()).notes)


def test_hosts_may_be_asked() -> None:
    """The pass rewrites for hosts too, where tests run its kernels."""
    graph = convolution(F32, (8, 8), exact=True)
    assert rewritten(TransformConvolutions("always"), graph, host_device()) is not graph


def test_filters_of_parameters_may_be_kept() -> None:
    """With `keep_weights`, the filters alone are computed when a weight changes, and stay from one call to the next."""
    made = rewritten(TransformConvolutions("always"), convolution(F32, (8, 8), exact=True), H200)
    assert kept_values(made, {"w", "b"}, {}, {}) == ("w_filters",)
