"""Cycles of a graph whose chosen node sets are contracted to one node each.

    a -> b -> c     {a, c} as one kernel:   {a, c} -> b -> {a, c}
"""
from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Cycles told of one strongly connected part at a time: each gives a cut, and the next solution shows those that are left.
MAX_CYCLES_A_PART = 32


@dataclass(frozen=True, slots=True)
class Cycle:
    """A closed walk over kernels. Groups below `num_columns` are columns, the others single nodes.

    pairs    (where it enters, where it leaves) of every column that it needs: those that it enters at another node than it leaves
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
        """For every taken column that stands in a cycle a shortest one; empty where the contracted graph has an order.

        Requires: the taken columns are disjoint. Cost: linear where there is no cycle.
        """
        group_of = list(range(len(self._columns), len(self._columns) + self._num_nodes))
        for column in taken:
            for node in self._columns[column]:
                group_of[node] = column
        # Edge between groups -> (node that it leaves, node that it enters), the first such pair.
        arcs: dict[tuple[int, int], tuple[int, int]] = {}
        successors: dict[int, list[int]] = {}
        for before, after in self._edges:
            a, b = group_of[before], group_of[after]
            if a != b and (a, b) not in arcs:
                arcs[a, b] = (before, after)
                successors.setdefault(a, []).append(b)
        found: dict[Cycle, None] = {}
        for part in strongly_connected(successors):
            if len(part) > 1:
                starts = [g for g in part if g < len(self._columns)][:MAX_CYCLES_A_PART]
                found.update(dict.fromkeys(self._through(successors, arcs, g) for g in starts))
        return list(found)

    def _through(self, successors: Mapping[int, Sequence[int]], arcs: Mapping[tuple[int, int], tuple[int, int]], start: int) -> Cycle:
        """A shortest cycle through a group. Requires: `start` lies in a strongly connected part of more than one group."""
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
        # A walk may begin anywhere; the cycle is the same.
        order = sorted(range(len(pairs)), key=pairs.__getitem__)
        return Cycle(tuple(pairs[i] for i in order), tuple(columns[i] for i in order), tuple(sorted(nodes)))


def strongly_connected(successors: Mapping[int, Iterable[int]]) -> list[tuple[int, ...]]:
    """The strongly connected parts of a graph, each ascending, of nodes that are keys or are reached from them.

    A part comes before those that lead to it; else they stand in the order of the keys and of what each leads to.
    Cost: linear. Source: Tarjan 1972, "Depth-first search and linear graph algorithms", SIAM J. Comput. 1, without recursion.
    """
    # Numbers in the order of the first visit; a node of a part that is complete counts as behind all others.
    visited: dict[int, int] = {}
    complete = sys.maxsize
    found: list[tuple[int, ...]] = []
    waiting: list[int] = []
    for start in successors:
        if start in visited:
            continue
        first = visited[start] = len(visited)
        waiting.append(start)
        # Nodes on the way, what is left of their successors, and the earliest node that each is known to lead back to.
        way, left, earliest = [start], [iter(successors[start])], [first]
        while way:
            node = way[-1]
            for following in left[-1]:
                number = visited.get(following)
                if number is None:
                    number = visited[following] = len(visited)
                    waiting.append(following)
                    way.append(following)
                    left.append(iter(successors.get(following, ())))
                    earliest.append(number)
                    break
                if number < earliest[-1]:
                    earliest[-1] = number
            else:
                way.pop()
                left.pop()
                back = earliest.pop()
                if way and back < earliest[-1]:
                    earliest[-1] = back
                if back == visited[node]:
                    at = len(waiting) - 1
                    while waiting[at] != node:
                        at -= 1
                    part = waiting[at:]
                    del waiting[at:]
                    visited.update(dict.fromkeys(part, complete))
                    found.append(tuple(sorted(part)))
    return found
