"""Cycles of a graph whose chosen node sets are contracted to one node each.

    a -> b -> c     {a, c} as one kernel:   {a, c} -> b -> {a, c}
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        for part in strongly_connected(successors, any_order=False):
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


def strongly_connected(successors: Mapping[int, Iterable[int]], any_order: bool = True) -> list[tuple[int, ...]]:
    """The strongly connected components of the nodes that are keys or reachable from them, each ascending.

    any_order: False where cycles are searched component by component, which must give equal cycles for graphs of any size.
    Cost: linear. The first call for a larger graph imports networkx (0.2 s) unless torch.compile has.
    """
    if len(successors) <= SEARCH.selection.few_nodes:
        parts = _mutually_reached(successors)
        if any_order or sum(len(part) > 1 for part in parts) <= 1:
            return parts
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(successors)
    graph.add_edges_from((node, following) for node, next_nodes in successors.items() for following in next_nodes)
    return [tuple(sorted(part)) for part in networkx.strongly_connected_components(graph)]


def _mutually_reached(successors: Mapping[int, Iterable[int]]) -> list[tuple[int, ...]]:
    """The same components from sets of reachable nodes. Cost: quadratic in the nodes."""
    nodes = list(dict.fromkeys((*successors, *(following for next_nodes in successors.values() for following in next_nodes))))
    number = {node: n for n, node in enumerate(nodes)}
    reached = [1 << n for n in range(len(nodes))]
    for node, next_nodes in successors.items():
        for following in next_nodes:
            reached[number[node]] |= 1 << number[following]
    for through in range(len(nodes)):
        for n in range(len(nodes)):
            if reached[n] >> through & 1:
                reached[n] |= reached[through]
    return list(dict.fromkeys(tuple(sorted(nodes[m] for m in range(len(nodes)) if reached[n] >> m & 1 and reached[m] >> n & 1))
                              for n in range(len(nodes))))
