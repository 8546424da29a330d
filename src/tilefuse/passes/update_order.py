"""The order of nodes around updates: readers of an input's old contents stand before the node that overwrites them.

    w' = w - f(g)   h = g w            ->            h = g w   w' = w - f(g)
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.graph import Graph
from tilefuse.ir.order import topological_order
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass


@register_pass
@dataclass(frozen=True)
class OrderUpdates(Pass):
    """Put nodes that update an input after all readers of its old contents, so that it can be updated in place.

    Exact: bit for bit; only the order of the nodes changes.
    """

    name: ClassVar[str] = "order-updates"
    preserves: ClassVar[Properties] = frozenset(Property)

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph in that order; `graph` itself where it has it."""
        return behind_readers(graph)


def behind_readers(graph: Graph) -> Graph:
    """The graph with updates after all readers of the contents that they overwrite, otherwise in the given order; the same object if it has
    that order.

    Where two updates wait for each other's readers (values that change places), one stands too early and is copied later.
    Cost: linear in the reads, apart from a heap.
    """
    position = graph.position_by_name
    targets = {value: target for target, value in graph.updates if value in position and value != target}
    if all(position[r] <= position[v] for v, t in targets.items() for r in graph.users_by_name[t]):
        return graph
    needs = {n.name: {v for v in n.reads() if v in position} for n in graph.nodes}
    waits = {v: {r for r in graph.users_by_name[t] if r != v} for v, t in targets.items()}
    followers: dict[str, dict[str, None]] = {name: {} for name in needs}
    for name, before in needs.items():
        for v in before | waits.get(name, set()):
            followers[v][name] = None

    def released(done: Mapping[str, None]) -> str:
        """An update on a cycle of nodes each of which waits for the next."""
        name = next(n.name for n in graph.nodes if n.name not in done)
        path: dict[str, None] = {}
        while name not in path:
            path[name] = None
            name = min(needs[name] - done.keys() or waits[name] - done.keys())
        circle = list(path)[list(path).index(name):]
        return next(n for n in circle if needs[n] <= done.keys())

    nodes = tuple(graph.node_by_name[name] for name in topological_order(followers, position.__getitem__, released))
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)
