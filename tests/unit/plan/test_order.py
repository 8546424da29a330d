"""The contracted graph: its order stays topological, and it refuses exactly the merges that would close a cycle."""
from __future__ import annotations

import random

import networkx as nx
import pytest

from tilefuse.plan import order
from tilefuse.plan.order import ContractedGraph


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
    monkeypatch.setattr(order, "MAX_VISITED", 3)
    fan = ContractedGraph(8, [(0, n) for n in range(1, 7)] + [(0, 7)])
    assert fan.between(0, 7) is None
