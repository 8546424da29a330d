"""Cycles of a graph whose chosen node sets are contracted to one node each.

    a -> b -> c     {a, c} as one kernel:   {a, c} -> b -> {a, c}
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilefuse.base.search.limits import SEARCH


@dataclass(frozen=True, slots=True)
class Cycle:
    """A closed walk over kernels. Groups below `num_columns` are columns, the others single nodes.

    pairs    (entry, exit) of every column that the cycle needs: those that it enters at another node than it leaves
    columns  the columns of the pairs
    nodes    nodes at which it passes through other kernels
    """

    pairs: tuple[tuple[int, int], ...]
    columns: tuple[int, ...]
    nodes: tuple[int, ...]


class Contraction:
    """A graph and the node sets that may be contracted."""

    def __init__(self, num_nodes: int, edges: Sequence[tuple[int, int]], columns: Sequence[Sequence[int]]) -> None:
        self._num_nodes = num_nodes
        self._edges = edges
        self._columns = columns
        self.columns_of: dict[int, list[int]] = {}
        for number, members in enumerate(columns):
            for node in members:
                self.columns_of.setdefault(node, []).append(number)

    def holding(self, first: int, second: int) -> list[int]:
        """Columns that hold both nodes, ascending."""
        others = set(self.columns_of.get(second, ()))
        return [c for c in self.columns_of.get(first, ()) if c in others]

    def cycles(self, taken: Sequence[int]) -> list[Cycle]:
        """A shortest cycle for every chosen column that lies on one; empty where the contracted graph has an order.

        Requires: the taken columns are disjoint. Cost: linear where there is no cycle.
        """
        group_of = list(range(len(self._columns), len(self._columns) + self._num_nodes))
        for column in taken:
            for node in self._columns[column]:
                group_of[node] = column
        # Edge between groups -> (node that it leaves, node that it enters), for the first such pair.
        arcs: dict[tuple[int, int], tuple[int, int]] = {}
        successors: dict[int, list[int]] = {}
        for before, after in self._edges:
            a, b = group_of[before], group_of[after]
            if a != b and (a, b) not in arcs:
                arcs[a, b] = (before, after)
                successors.setdefault(a, []).append(b)
        shortest: dict[Cycle, None] = {}
        for part in strongly_connected(successors):
            if len(part) > 1:
                starts = [g for g in part if g < len(self._columns)][:SEARCH.selection.cycles_a_part]
                shortest.update(dict.fromkeys(self._through(successors, arcs, g) for g in starts))
        return list(shortest)

    def _through(self, successors: Mapping[int, Sequence[int]], arcs: Mapping[tuple[int, int], tuple[int, int]], start: int) -> Cycle:
        """A shortest cycle through a group. Requires: `start` lies in a strongly connected component of more than one group."""
        came_from: dict[int, int] = {}
        queue = [start]
        for group in queue:
            for following in successors.get(group, ()):
                if following not in came_from:
                    came_from[following] = group
                    queue.append(following)
            if start in came_from:
                break
        walk = [start]
        while (group := came_from[walk[-1]]) != start:
            walk.append(group)
        walk.reverse()
        steps = [arcs[a, b] for a, b in zip(walk, [*walk[1:], walk[0]], strict=True)]
        pairs: list[tuple[int, int]] = []
        columns: list[int] = []
        nodes: list[int] = []
        for place, group in enumerate(walk):
            enter, leave = steps[place - 1][1], steps[place][0]
            if enter != leave:
                pairs.append((enter, leave))
                columns.append(group)
            else:
                nodes.append(enter)
        # A cycle is the same from whichever group it starts: sorted, equal cycles compare equal.
        order = sorted(range(len(pairs)), key=pairs.__getitem__)
        return Cycle(tuple(pairs[i] for i in order), tuple(columns[i] for i in order), tuple(sorted(nodes)))


def strongly_connected(successors: Mapping[int, Iterable[int]]) -> list[tuple[int, ...]]:
    """The strongly connected components of the nodes that are keys or reachable from them, each ascending, in the order in which a search
    in depth leaves them.

    Cost: linear. Source: Tarjan 1972, "Depth-first search and linear graph algorithms".
    """
    parts: list[tuple[int, ...]] = []
    numbers: dict[int, int] = {}
    lowest: dict[int, int] = {}
    # Visited nodes whose component is not complete yet.
    waiting: dict[int, None] = {}
    path: list[tuple[int, Iterator[int]]] = []

    def enter(node: int) -> None:
        numbers[node] = lowest[node] = len(numbers)
        waiting[node] = None
        path.append((node, iter(successors.get(node, ()))))

    for source in successors:
        if source not in numbers:
            enter(source)
        while path:
            node, following = path[-1]
            fresh = None
            for other in following:
                if other not in numbers:
                    fresh = other
                    break
                if other in waiting:
                    lowest[node] = min(lowest[node], numbers[other])
            if fresh is not None:
                enter(fresh)
                continue
            path.pop()
            if path:
                lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
            if lowest[node] == numbers[node]:
                parts.append(_component(waiting, node))
    return parts


def _component(waiting: dict[int, None], root: int) -> tuple[int, ...]:
    """The nodes that were visited from the root of a component on; they no longer wait."""
    members: list[int] = []
    while not members or members[-1] != root:
        members.append(waiting.popitem()[0])
    return tuple(sorted(members))

