"""The contracted graph: units of nodes with an order of execution that survives merging.

    a -> b -> c        merge a, b         ab -> c
     \\------> c                           (legal: no path leaves the pair and comes back)

A merge repairs the order only between the two merged units, so its cost depends on the units between them and not on the size of the graph.
Source: Pearce and Kelly 2006, "A dynamic topological sort algorithm for directed acyclic graphs", ACM JEA 11.
"""
from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

from tilefuse.base.search.limits import SEARCH

T = TypeVar("T", bound=Hashable)



class ContractedGraph:
    """Units (numbers), their edges, and a topological position of each. Dictionaries serve as ordered sets."""

    def __init__(self, num_units: int, edges: Iterable[tuple[int, int]]) -> None:
        """Requires: every edge leads from a smaller to a larger number (units are numbered in graph order)."""
        self.successors: dict[int, dict[int, None]] = {u: {} for u in range(num_units)}
        self.predecessors: dict[int, dict[int, None]] = {u: {} for u in range(num_units)}
        self.position: dict[int, int] = {u: u for u in range(num_units)}
        self._next = num_units
        for before, after in edges:
            assert before < after
            self.successors[before][after] = None
            self.predecessors[after][before] = None

    def between(self, first: int, last: int) -> tuple[list[int], list[int]] | None:
        """Units that must stay after the merged unit and units that must stay before it: (descendants of `first`, ancestors of `last`).

        Requires: position[first] < position[last]; only units between the two positions are listed.
        Returns None where a third unit lies on a path between them (merging would close a cycle), or where the search exceeds
        `SEARCH.generators.visited`.
        """
        low, high = self.position[first], self.position[last]
        after = self._reach(first, last, self.successors, low, high)
        if after is None:
            return None
        before = self._reach(last, first, self.predecessors, low, high)
        if before is None:
            return None
        # A third unit on a path from `first` to `last` is reached from both sides.
        return None if not set(after).isdisjoint(before) else (after, before)

    def _reach(self, start: int, other: int, edges: dict[int, dict[int, None]], low: int, high: int) -> list[int] | None:
        seen: dict[int, None] = {}
        stack = [u for u in edges[start] if u != other]
        while stack:
            unit = stack.pop()
            if unit in seen or not low < self.position[unit] < high:
                continue
            seen[unit] = None
            if len(seen) > SEARCH.generators.visited:
                return None
            if other in edges[unit]:
                return None
            stack.extend(edges[unit])
        return list(seen)

    def merge(self, first: int, last: int, between: tuple[list[int], list[int]]) -> int:
        """Merges two units, given the answer of `between`; returns the new unit's number. The order stays topological."""
        after, before = between
        self._reorder(first, last, after, before)
        new = self._next
        self._next += 1
        self.position[new] = self.position[first]
        for edges, back in ((self.successors, self.predecessors), (self.predecessors, self.successors)):
            joined = {u: None for old in (first, last) for u in edges[old] if u not in (first, last)}
            edges[new] = joined
            for neighbour in joined:
                back[neighbour].pop(first, None)
                back[neighbour].pop(last, None)
                back[neighbour][new] = None
        for old in (first, last):
            del self.successors[old], self.predecessors[old], self.position[old]
        return new

    def _reorder(self, first: int, last: int, after: list[int], before: list[int]) -> None:
        """Moves ancestors of `last` before the pair and descendants of `first` behind it, within the positions that they hold together."""
        at = self.position.__getitem__
        moved = [*sorted(before, key=at), first, last, *sorted(after, key=at)]
        for unit, place in zip(moved, sorted(map(at, moved)), strict=True):
            self.position[unit] = place

    def ordered(self) -> list[int]:
        """All units in topological order."""
        return sorted(self.position, key=self.position.__getitem__)
