"""Laws of every registered pass, over a corpus of graphs and one that it changes: verified results, the same object when nothing changed,
a second run that changes nothing, the interpreter's agreement, options that round-trip through text, and a whole contract.

Passes run for an H200, with the prices of a compile. The passes that make kernels have laws of their own at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given

from tests.laws.changed_graphs import CHANGED
from tests.laws.random_graphs import graphs, random_graph, random_inputs
from tilefuse.base.options import Options
from tilefuse.driver.kernel_passes import flattened, kernel_of
from tilefuse.driver.pipeline import OF_KERNELS, context_of, device_pipeline, normal_pipeline
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32, I64
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.ir.verify import verify
from tilefuse.passes import DEFAULT_PIPELINE, PASSES, Pass, PassContext, Pipeline, Property
from tilefuse.passes.facts import CallerLayouts
from tilefuse.passes.manager import CHECKERS, DevicePass
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200, DeviceSpec

SEEDS = tuple(range(8))
TEXTS = sorted((Path(__file__).parents[1] / "text" / "parser").glob("*.txt"))


def norms() -> Graph:
    """All composites, on narrow and wide operands."""
    b = TensorBuilder("norms")
    x, w, h = b.input("x", F16, (4, 6, 8)), b.input("w", F16, (8,)), b.input("h", F32, (2, 6, 3, 5))
    y, _, rstd = b.layer_norm(x, (2,), w)
    z, _ = b.rms_norm(x, (1, 2))
    n, m, _ = b.group_norm(h, 3)
    return b.finish(
        [
            b.softmax(y, 1),
            b.log_softmax(x, -1),
            b.logsumexp(h, (2, 3)),
            b.mean(x),
            rstd,
            z,
            n,
            m,
            b.variance(h, (0, 2, 3), 0, True),
            b.standard_deviation(h, -1),
        ]
    )


def layouts() -> Graph:
    """Views of views, padding and concatenation, windows, equal and dead nodes."""
    b = TensorBuilder("layouts")
    x = b.input("x", F32, (4, 6))
    t = b.permute(b.reshape(b.pad(x, ((1, 1), (0, 2))), (6, 2, 4)), (2, 0, 1))
    twice = b.concatenate([t, b.flip(t, 0), b.roll(t, (1,), (1,))], 2)
    b.elementwise("exp", x)
    same = [b.elementwise("mul", b.transpose(x, 0, 1), 2.0) for _ in range(2)]
    top, places = b.pool(b.reshape(x, (1, 1, 4, 6)), "max", (3, 3), (2, 2), ((1, 1), (1, 1)), with_indices=True)
    copy = b.expression(lambda v: v, twice, dtype=F32)
    assert places is not None
    return b.finish([copy, *same, top, places, b.reduce(b.triu(x), "sum", 0), b.scan(x, "sum", 1, True, True)])


def gathers() -> Graph:
    """Lookups through views, scatters, positions."""
    b = TensorBuilder("gathers")
    x, ids = b.input("x", BF16, (5, 4)), b.input("ids", I64, (3,))
    picked = b.take(b.transpose(x, 0, 1), ids, 1, wrap=True)
    total = b.scatter(b.full((5, 4), 0, BF16), b.broadcast_to(b.expand_dims(ids, 1), (3, 4)), b.permute(picked, (1, 0)), 0, "sum")
    return b.finish([b.elementwise("add", total, 0.0), b.one_hot(ids, 5), b.index_put(x, [ids], b.full((4,), 1.0, BF16))])


def products() -> Graph:
    """Small matrix products in every transposition."""
    b = TensorBuilder("products")
    a, c = b.input("a", F32, (2, 3, 4)), b.input("c", F32, (4, 5))
    first = b.matmul(a, c)
    return b.finish([first, b.matmul(first, c, transpose_b=True), b.matmul(a, b.matmul(a, c), transpose_a=True)])


CORPUS: dict[str, Callable[[], Graph]] = {
    "norms": norms, "layouts": layouts, "gathers": gathers, "products": products,
    **{f"random-{s}": (lambda s=s: random_graph(Random(s), num_nodes=8)) for s in SEEDS},
}  # fmt: skip
# Passes whose results are graphs that the interpreter defines.
NAMES = sorted(name for name, kind in PASSES.items() if OF_KERNELS.isdisjoint((*kind.provides, *kind.depends)))
BY_NAME = pytest.mark.parametrize("name", NAMES)
BY_GRAPH = pytest.mark.parametrize("graph_name", list(CORPUS))
CASES = [*((name, graph) for name in NAMES for graph in CORPUS), *((name, "changed") for name in CHANGED)]
BY_CASE = pytest.mark.parametrize(("name", "graph_name"), CASES, ids=["-".join(case) for case in CASES])


def case_of(name: str, graph_name: str) -> tuple[Pass, Graph, CallerLayouts]:
    """A pass, a graph for it, and the strides of its caller."""
    if graph_name != "changed":
        return PASSES[name](), CORPUS[graph_name](), CallerLayouts()
    case = CHANGED[name]
    return case.item, case.graph, case.caller


def ready(item: Pass, graph: Graph, caller: CallerLayouts) -> PassContext:
    """A context for an H200, with what the pass depends on."""
    context = context_of(H200, Options(verify=2), caller=caller)
    if "layouts" in item.depends:
        Pipeline.parse("plan-layouts").run(graph, context)
    return context


def agree(before: Graph, after: Graph, seed: int, exact: bool) -> None:
    """The interpreter's results before and after; with a bound of the narrowest type where the pass is not exact."""
    inputs = random_inputs(before, seed)
    given_inputs = {i.name: inputs[i.name] for i in after.inputs}
    first, second = interpret(before, inputs), interpret(after, given_inputs)
    for type_name, a, c in zip((before.type_of(r) for r in before.results), first, second, strict=True):
        wide_a, wide_c = np.asarray(a).astype(np.float64), np.asarray(c).astype(np.float64)
        if exact:
            np.testing.assert_array_equal(wide_a, wide_c)
            np.testing.assert_array_equal(np.signbit(wide_a[~np.isnan(wide_a)]), np.signbit(wide_c[~np.isnan(wide_c)]))
        else:
            # Some dozens of operations, each rounded to the result's type: 8 significand bits of bf16 to 24 of f32.
            unit = {"bf16": 2.0**-8, "f16": 2.0**-11}.get(type_name.dtype.name, 2.0**-21)
            np.testing.assert_allclose(wide_c, wide_a, rtol=8 * unit, atol=8 * unit)


@BY_CASE
def test_a_pass_keeps_the_graph_verified_and_its_meaning(name: str, graph_name: str) -> None:
    instance, before, caller = case_of(name, graph_name)
    assert not verify(before)
    after = Pipeline((instance,)).run(before, ready(instance, before, caller)) if not instance.requires else before
    assert not verify(after)
    agree(before, after, 5, instance.exact)


@BY_CASE
def test_a_second_run_changes_nothing_and_gives_the_same_object(name: str, graph_name: str) -> None:
    instance, before, caller = case_of(name, graph_name)
    if not instance.idempotent or instance.requires:
        pytest.skip("the pass says that it is not idempotent, or needs others first")
    once = instance.run(before, ready(instance, before, caller))
    assert instance.run(once, ready(instance, once, caller)) is once, print_graph(once)


@BY_CASE
def test_established_and_preserved_properties_hold(name: str, graph_name: str) -> None:
    instance, before, caller = case_of(name, graph_name)
    after = instance.run(before, ready(instance, before, caller))
    for prop in instance.establishes:
        assert not CHECKERS[prop](after)
    for prop in instance.preserves:
        prepared = Pipeline.parse(ESTABLISHED_BY[prop]).run(before)
        assert not CHECKERS[prop](instance.run(prepared, ready(instance, prepared, caller))), prop


@pytest.mark.parametrize("name", list(CHANGED))
def test_the_graph_of_a_pass_is_one_that_it_changes(name: str) -> None:
    case = CHANGED[name]
    assert case.item.run(case.graph, ready(case.item, case.graph, case.caller)) is not case.graph
    if isinstance(case.item, DevicePass) and "host" not in case.item.kinds:
        assert case.item.run(case.graph, context_of(host_device(), Options(), caller=case.caller)) is case.graph
        assert case.item.run(case.graph, PassContext()) is case.graph


def test_every_pass_around_planning_has_a_graph_that_it_changes() -> None:
    default = {item.name for item in device_pipeline(Options()).passes} - {"plan-layouts"}
    assert set(CHANGED) == default


ESTABLISHED_BY = {prop: next(n for n, kind in sorted(PASSES.items()) if prop in kind.establishes) for prop in Property}


@pytest.mark.parametrize("name", sorted(PASSES))
def test_the_contract_is_whole(name: str) -> None:
    kind = PASSES[name]
    assert kind.name == name and (kind.__doc__ or "").strip() and "Exact:" in (kind.__doc__ or "")
    for properties in (kind.requires, kind.establishes, kind.preserves):
        assert properties <= frozenset(Property)
    assert all(f.default is not dataclasses.MISSING for f in dataclasses.fields(kind))
    assert all(f"{f.name}" in (kind.__doc__ or "") for f in dataclasses.fields(kind)), "every option stands in the docstring"


@BY_NAME
def test_options_round_trip_through_text(name: str) -> None:
    kind = PASSES[name]
    changed: dict[str, object] = {}
    for f in dataclasses.fields(kind):
        changed[f.name] = (not f.default) if isinstance(f.default, bool) else f.default + ("x" if isinstance(f.default, str) else 1)
    for instance in (kind(), kind(**changed)):
        assert Pipeline.parse(str(instance)).passes == (instance,)


def test_every_property_has_a_checker_and_a_pass_that_establishes_it() -> None:
    assert set(CHECKERS) == set(Property) == set(ESTABLISHED_BY)


@BY_GRAPH
@pytest.mark.parametrize("eager_rounding", [False, True])
def test_the_default_pipeline_keeps_the_meaning(graph_name: str, eager_rounding: bool) -> None:
    before = CORPUS[graph_name]()
    after = Pipeline.parse(DEFAULT_PIPELINE).run(before, PassContext(verify=2, eager_rounding=eager_rounding))
    agree(before, after, 11, exact=False)
    again = Pipeline.parse(DEFAULT_PIPELINE).run(after, PassContext(verify=2, eager_rounding=eager_rounding))
    assert print_graph(again) == print_graph(after)


@given(graphs(num_nodes=10))
def test_random_graphs_keep_every_bit_through_exact_passes(graph: Graph) -> None:
    exact = "inline-views,simplify-index,simplify-scalar{exact_only=true},merge-equal-nodes,remove-dead-nodes"
    agree(graph, Pipeline.parse(exact).run(graph, PassContext(verify=2)), 3, exact=True)


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_text_corpus_passes_the_default_pipeline(path: Path) -> None:
    given_text, _, expected = path.read_text().partition("\n---- ")
    if not expected.startswith("expected"):
        pytest.skip("the file shows an error")
    graph = parse_graph(given_text.partition("passes:")[2].partition("\n")[2])
    assert not verify(Pipeline.parse(DEFAULT_PIPELINE).run(graph, PassContext(verify=2)))


def test_passes_are_values() -> None:
    for kind in PASSES.values():
        assert issubclass(kind, Pass) and kind() == kind() and hash(kind()) == hash(kind())


@pytest.mark.parametrize("device", [H200, host_device()], ids=["h200", "host"])
@pytest.mark.parametrize("fuse", [True, False])
@BY_GRAPH
def test_the_whole_order_of_a_compile_keeps_the_meaning(graph_name: str, fuse: bool, device: DeviceSpec) -> None:
    before, options = CORPUS[graph_name](), Options(verify=2, fuse=fuse)
    context = context_of(device, options)
    after = device_pipeline(options).run(normal_pipeline(options).run(before, context), context)
    agree(before, after, 11, exact=False)
    assert context.layouts.graph is after


@pytest.mark.parametrize("graph_name", ["norms", "gathers", "layouts", "random-3"])
def test_kernels_compute_what_the_graph_means(graph_name: str) -> None:
    """Behind fusion the graph has a node for each value of a kernel; with their subgraphs in place of them it means what it did."""
    before, context = CORPUS[graph_name](), context_of(host_device(), Options(verify=2), place="host")
    fused = Pipeline.parse("fusion,codegen").run(before, context)
    assert set(context.attributes["kernel"]) == {n.name for n in fused.nodes if kernel_of(n)} != set()
    flat, _ = flattened(fused, context.attributes["subgraph"])
    agree(before, flat, 11, exact=False)
