"""Kernels that update an input run after those that read what it held, where nothing speaks against it: only then is it updated in place.

    k0: w' = w - f(g)   k1: h = g w            ->            k1: h = g w   k0: w' = w - f(g), over w

`behind_readers` puts the nodes of a graph in such an order before anything is planned, `orders` tells the planner which order that is, so
that no kernel is made that must write before another one reads; `updates_last` orders the kernels of a cover.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilefuse.ir.graph import Graph
from tilefuse.plan.assemble import Chosen
from tilefuse.plan.generators.order import topological_order
from tilefuse.plan.pattern import View, read_values


def behind_readers(graph: Graph) -> Graph:
    """The graph with updates behind all nodes that read what they overwrite, else in the order that it had; the same object if it had it.

    Where two updates wait for each other's readers (values that change places), one stands too early and will be copied.
    Cost: linear in the reads, but for a heap.
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
        """An update on a circle of nodes each of which waits for the next."""
        name = next(n.name for n in graph.nodes if n.name not in done)
        path: dict[str, None] = {}
        while name not in path:
            path[name] = None
            name = min(needs[name] - done.keys() or waits[name] - done.keys())
        circle = list(path)[list(path).index(name):]
        return next(n for n in circle if needs[n] <= done.keys())

    return replace(graph, nodes=tuple(graph.node_by_name[name] for name in topological_order(followers, position.__getitem__, released)))


def orders(graph: Graph, users: Mapping[str, Mapping[str, None]]) -> Iterator[tuple[str, str]]:
    """Pairs (reader, update): the reader of an input's old contents stands before the node that overwrites them.

    users: for every value in memory the nodes that read it. Requires: the order of the nodes is that of `behind_readers`.
    """
    position = graph.position_by_name
    for target, value in graph.updates:
        for reader in users.get(target, ()):
            if value in position and position[reader] < position[value]:
                yield reader, value


def updates_last(graph: Graph, views: Mapping[str, View], chosen: Sequence[Chosen]) -> list[Chosen]:
    """The cover in an order in which as many updates as possible stand behind all that reads the old contents; else as it was.

    Requires: `chosen` is in order of execution.
    Cost: linear in the reads, and for each update that stands too early in what lies between it and the last reader.
    """
    if not graph.updates:
        return list(chosen)
    followers, early = _waiting(graph, views, chosen)
    order = list(range(len(chosen)))
    place = list(order)
    for update, readers in early:
        last = max(readers, key=place.__getitem__)
        if place[last] < place[update]:
            continue
        first, end = place[update], place[last]
        moved = {update}
        for n in order[first:end + 1]:
            if n in moved:
                moved |= followers[n]
        if not moved.isdisjoint(readers):
            continue
        between = order[first:end + 1]
        order[first:end + 1] = [n for n in between if n not in moved] + [n for n in between if n in moved]
        for at in range(first, end + 1):
            place[order[at]] = at
        for n in readers:
            followers[n].add(update)
    return [chosen[n] for n in order]


def _waiting(graph: Graph, views: Mapping[str, View], chosen: Sequence[Chosen]) -> tuple[list[set[int]], list[tuple[int, list[int]]]]:
    """For every item those that must stay behind it; and each update that stands before a reader of the old contents, with all readers."""
    writer = {v: n for n, item in enumerate(chosen) for v in item.pattern.written}
    followers: list[set[int]] = [set() for _ in chosen]
    readers: dict[str, list[int]] = {target: [] for target, _ in graph.updates}
    for n, item in enumerate(chosen):
        for v in read_values(graph, views, item.pattern):
            if v in readers:
                readers[v].append(n)
            if v in writer and writer[v] != n:
                followers[writer[v]].add(n)
    early: list[tuple[int, list[int]]] = []
    for target, value in graph.updates:
        update = writer.get(value)
        if update is None:
            continue
        others = [n for n in readers[target] if n != update]
        for n in (n for n in others if n < update):
            followers[n].add(update)
        if others and others[-1] > update:
            early.append((update, others))
    return followers, early
