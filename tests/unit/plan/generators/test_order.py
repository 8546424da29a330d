"""An order made at once is the one that networkx gives. The contracted graph stays topological and refuses merges that close a cycle."""
from __future__ import annotations

import random
from collections.abc import Mapping

import networkx as nx
import pytest

from tilefuse.base.search.plans import GeneratorLimits
from tilefuse.ir.order import topological_order
from tilefuse.plan.generators.order import ContractedGraph


@pytest.mark.parametrize("seed", range(20))
def test_an_order_at_once_goes_by_places(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 30)
    places = draw.sample(range(1000), count)
    edges = {a: [b for b in range(a + 1, count) if draw.random() < 0.15] for a in range(count)}
    expected = list(nx.lexicographical_topological_sort(nx.DiGraph(edges), key=places.__getitem__))
    assert topological_order(edges, places.__getitem__) == expected


def test_an_order_ends_at_a_circle_unless_one_of_its_nodes_is_released() -> None:
    """3 waits for 2, which waits for 1, which waits for 3; 0 and 4 do not."""
    edges = {0: [1, 4], 1: [2], 2: [3], 3: [1], 4: [3]}
    told: list[list[int]] = []

    def release(found: Mapping[int, None]) -> int:
        told.append(list(found))
        return 2

    assert topological_order(edges, int) == [0, 4]
    assert topological_order(edges, int, release) == [0, 4, 2, 3, 1] and told == [[0, 4]]


def closes_cycle(edges: nx.DiGraph, a: int, b: int) -> bool:
    """Whether contracting a and b leaves a cycle, found by contracting."""
    joined = nx.contracted_nodes(edges, a, b, self_loops=False, copy=True)
    return not nx.is_directed_acyclic_graph(joined)


@pytest.mark.parametrize("seed", range(30))
def test_merging_agrees_with_contraction_and_keeps_the_order(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(3, 14)
    pairs = {(a, b) for a in range(count) for b in range(a + 1, count) if draw.random() < 0.25}
    ours = ContractedGraph(count, sorted(pairs))
    theirs = nx.DiGraph()
    theirs.add_nodes_from(range(count))
    theirs.add_edges_from(pairs)
    for _ in range(40):
        units = sorted(ours.position)
        if len(units) < 2:
            break
        a, b = draw.sample(units, 2)
        if ours.position[a] > ours.position[b]:
            a, b = b, a
        found = ours.between(a, b)
        assert (found is None) == closes_cycle(theirs, a, b), f"seed {seed}: {a}, {b}"
        if found is None:
            continue
        new = ours.merge(a, b, found)
        theirs = nx.relabel_nodes(nx.contracted_nodes(theirs, a, b, self_loops=False, copy=True), {a: new})
        assert set(theirs.edges) == {(u, v) for u, after in ours.successors.items() for v in after}, f"seed {seed}"
        assert all(ours.position[u] < ours.position[v] for u, v in theirs.edges), f"seed {seed}"
        assert len(set(ours.position.values())) == len(ours.position)


def test_a_search_that_spans_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GeneratorLimits, "visited", 3)
    fan = ContractedGraph(8, [(0, n) for n in range(1, 7)] + [(0, 7)])
    assert fan.between(0, 7) is None
