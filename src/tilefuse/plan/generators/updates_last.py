"""Kernels that update an input run after the kernels that read its old contents, where dependences allow: only then is it updated in place.

    k0: w' = w - f(g)   k1: h = g w            ->            k1: h = g w   k0: w' = w - f(g), over w

The pass `order-updates` puts the nodes of a graph into such an order before planning. `orders` gives the planner that order, so that no
kernel must write before another one reads. `updates_last` orders the kernels of a cover.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilefuse.ir.graph import Graph
from tilefuse.plan.assemble import Chosen
from tilefuse.plan.pattern import View, read_values


def orders(graph: Graph, users: Mapping[str, Mapping[str, None]]) -> Iterator[tuple[str, str]]:
    """Pairs (reader, update): the reader of an input's old contents stands before the node that overwrites them.

    users: for every value in memory the nodes that read it. Requires: the order of the nodes is that of the pass `order-updates`.
    """
    position = graph.position_by_name
    for target, value in graph.updates:
        for reader in users.get(target, ()):
            if value in position and position[reader] < position[value]:
                yield reader, value


def updates_last(graph: Graph, views: Mapping[str, View], chosen: Sequence[Chosen]) -> list[Chosen]:
    """The cover in an order in which as many updates as possible follow all readers of the old contents; the given order where none can
    move.

    Requires: `chosen` is in order of execution.
    Cost: linear in the reads; and for each update that stands too early, linear in the items between it and the last reader.
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
    """For every item, the items that must stay behind it; and each update that stands before a reader of the old contents, with all its
    readers."""
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
