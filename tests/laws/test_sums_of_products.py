"""Laws of the recogniser of contractions: it knows every form that is drawn, and it is never wrong about any node."""
from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.random_graphs import random_inputs
from tests.laws.random_products import random_products
from tests.laws.random_sums import random_sum, random_tree, value_of
from tilefuse.base.candidate import Rejected
from tilefuse.domain.sum_of_products import SumOfProducts, sum_of_products
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.verify import verify
from tilefuse.plan.rewrites.called_products import with_calls
from tilefuse.plan.rewrites.library_product import library_products

SEEDS = st.integers(0, 2**32)
# Unit in the last place of the narrowest type of sums of products, bf16, relative to the magnitudes that are added.
BF16_ROUNDING = 2.0**-7


def assert_equal(contraction: SumOfProducts, graph: Graph, seed: int) -> None:
    inputs = random_inputs(graph, seed)
    (computed,) = interpret(Graph(graph.name, graph.inputs, graph.nodes, (contraction.node,)), inputs)
    expected, magnitude = value_of(contraction, graph, inputs)
    arithmetic = contraction.arithmetic
    is_exact = min(arithmetic.products.bits, arithmetic.result.bits) > 16 or not arithmetic.result.is_float
    tolerance = np.zeros_like(magnitude) if is_exact else 2 * BF16_ROUNDING * magnitude
    assert np.all(np.abs(np.asarray(computed).astype(np.float64) - expected) <= tolerance)


@given(SEEDS)
def test_sums_in_all_forms_are_recognised_and_mean_the_same(seed: int) -> None:
    graph = random_sum(Random(seed))
    assert not verify(graph)
    contraction = sum_of_products(graph.nodes[-1], graph)
    assert not isinstance(contraction, Rejected), contraction
    assert_equal(contraction, graph, seed)


@given(SEEDS)
def test_library_products_of_sums_mean_the_same(seed: int) -> None:
    """Every way that the library offers, whatever its price."""
    graph = random_sum(Random(seed))
    inputs = random_inputs(graph, seed)
    (expected,) = interpret(graph, inputs)
    contraction = sum_of_products(graph.nodes[-1], graph)
    assert isinstance(contraction, SumOfProducts)
    ways = library_products(contraction, graph, False)
    _, magnitude = value_of(contraction, graph, inputs)
    for way in [] if isinstance(ways, Rejected) else ways:
        called = with_calls(graph, {contraction.node: way})
        assert not verify(called) and any(n.kind == "library.matmul" for n in called.nodes)
        (computed,) = interpret(called, inputs)
        is_exact = contraction.arithmetic.result.bits > 16 and not contraction.arithmetic.rounds_products
        tolerance = np.zeros_like(magnitude) if is_exact else 2 * BF16_ROUNDING * magnitude
        assert np.all(np.abs(np.asarray(computed, np.float64) - np.asarray(expected, np.float64)) <= tolerance)


def test_most_sums_without_conditions_have_a_library_product() -> None:
    """The law about library products would hold of a mapping that refuses all."""
    graphs = [random_sum(Random(seed)) for seed in range(60)]
    contractions = [c for c in (sum_of_products(g.nodes[-1], g) for g in graphs) if isinstance(c, SumOfProducts)]
    plain = [(c, g) for c, g in zip(contractions, graphs, strict=True) if not c.bounds and not c.is_vector and c.arithmetic.total.is_float]
    mapped = [c for c, g in plain if not isinstance(library_products(c, g, False), Rejected)]
    assert len(plain) > 10 and len(mapped) > 0.7 * len(plain)


@given(SEEDS)
def test_contractions_of_arbitrary_sums_mean_the_same(seed: int) -> None:
    graph = random_tree(Random(seed))
    assert not verify(graph)
    contraction = sum_of_products(graph.nodes[-1], graph)
    if not isinstance(contraction, Rejected):
        assert_equal(contraction, graph, seed)


@given(SEEDS)
def test_contractions_of_library_products_mean_the_same(seed: int) -> None:
    graph = random_products(Random(seed))
    for node in graph.nodes:
        contraction = sum_of_products(node, graph)
        if node.kind == "library.matmul" or not isinstance(contraction, Rejected):
            assert isinstance(contraction, SumOfProducts)
            assert_equal(contraction, graph, seed)


def test_arbitrary_sums_are_of_both_kinds() -> None:
    """The law about them would hold of a recogniser that knows none, or all."""
    known = [isinstance(sum_of_products(g.nodes[-1], g), SumOfProducts) for g in (random_tree(Random(seed)) for seed in range(100))]
    assert 10 < sum(known) < 90
