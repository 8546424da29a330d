"""Substitution fusion: everything between two partition operators is one pattern.

    product  a b c  product  d e  product         step 1: {a, b, c}  {d, e}; with what they wait for: {product, a, b, c}  {product, d, e}
    product  a r c  product  d e  product         step 3, r a column reduction: {a} {c} {d, e}

Partition operators share a kernel with no other operator. Their list grows step by step, from operators that never fuse to those that fuse
less well than elementwise operators and row reductions. Each step yields patterns, and the integer program chooses among all of them.
Products that a kernel may hold are also offered together with all nodes after them: the gates of a recurrent cell need all columns of a
unit in one place, and fusing only half of them does not pay.
Source: FusionStitching (arXiv:1911.11576), 4.2.1 and algorithm 1.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.coordinates import over_is_contiguous
from tilefuse.ir.graph import Node
from tilefuse.plan.generators.candidates import Candidates


@dataclass(frozen=True, slots=True)
class Step:
    """One extension of the partition operators."""

    name: str
    partitions: Callable[[Node], bool]


# In the order in which they join the partition operators. Library operators that no kernel may hold are partition operators from the start
# (large products, convolutions). Running sums and scattered writes come last: fused, they restrict all operators around them.
STEPS = (
    Step("library", lambda n: False),
    Step("products", lambda n: n.category == "library"),
    Step("column-reductions", lambda n: n.category == "reduce" and n.type.num_elements > 1 and not over_is_contiguous(n)),
    Step("scalar-reductions", lambda n: n.category == "reduce" and n.type.num_elements == 1 and prod(e for _, e in n.over) > 1),
    Step("scans-and-scatters", lambda n: n.category in ("scan", "scatter")),
    Step("row-reductions", lambda n: n.category == "reduce"),
)


def substitution(candidates: Candidates) -> None:
    """Offers the patterns of all steps: each whole segment, and each connected part of it where it is not connected."""
    kinds: set[str] = set()
    for step in STEPS:
        parting = _partitions(candidates, kinds | {step.name})
        kinds.add(step.name)
        for segment in segments(candidates, parting):
            if len(segment) > 1:
                candidates.offer(segment, "substitution")
            for part in connected(candidates, segment):
                if 1 < len(part) < len(segment):
                    candidates.offer(part, "substitution")
        if candidates.is_over:
            return


def after_products(candidates: Candidates) -> None:
    """Offers each connected part between products together with the products that it waits for: with each of them, and with all.

    A second round leaves out values larger than the products, since a stack of all steps' outputs after the last step needs other thread
    blocks. It also adds the maps that the products read, such as a cell's concatenated input and state.
    """
    for kinds in (("library", "products"), tuple(s.name for s in STEPS)):
        parting = _partitions(candidates, set(kinds))
        for segment in segments(candidates, parting):
            for part in connected(candidates, segment):
                predecessors = (p for m in part for p in candidates.units.contracted.predecessors[m])
                products = sorted({p for p in predecessors if candidates.units.units[p].is_library and candidates.fusible(p)})
                largest = max((_num_elements(candidates, p) for p in products), default=0)
                small = tuple(m for m in part if _num_elements(candidates, m) <= largest)
                are_few = 0 < len(products) <= SEARCH.generators.products
                for awaited in dict.fromkeys((*((p,) for p in products), tuple(products))) if are_few else ():
                    before = tuple(m for p in awaited for m in candidates.units.contracted.predecessors[p] if _is_map(candidates, m))
                    for following in dict.fromkeys((part, small)):
                        candidates.offer((*awaited, *following), "substitution")
                        candidates.offer((*before, *awaited, *following), "substitution")
            if candidates.is_over:
                return


def left_by_products(candidates: Candidates, kernels: Sequence[tuple[int, ...]]) -> None:
    """Offers the connected parts that a kernel keeps where a candidate with a product takes some of its units away.

        kernels {product} {add, mean, variance, norm}, candidate {product, add}      ->      {mean, variance, norm}

    Without such a part, a program with the candidate leaves each of its units to a kernel of its own. kernels: disjoint sets of units.
    """
    kernel_of = {m: kernel for kernel in kernels for m in kernel}
    for members in list(candidates.by_members):
        if not any(candidates.units.units[m].is_library for m in members):
            continue
        taken = set(members)
        for kernel in dict.fromkeys(kernel_of[m] for m in members if m in kernel_of):
            for part in connected(candidates, tuple(m for m in kernel if m not in taken)):
                if 1 < len(part) < len(kernel):
                    candidates.offer(part, "substitution")
        if candidates.is_over:
            return


def _is_map(candidates: Candidates, unit: int) -> bool:
    """Whether a unit is a single map."""
    return all(candidates.units.graph.node_by_name[v].kind == "map" for v in candidates.units.units[unit].core)


def _num_elements(candidates: Candidates, unit: int) -> int:
    """Elements of a unit's largest value."""
    return max(candidates.units.graph.type_of(v).num_elements for v in candidates.units.units[unit].core)


def _partitions(candidates: Candidates, kinds: set[str]) -> set[int]:
    """Units that are partition operators when the named steps have joined."""
    tests = [s.partitions for s in STEPS if s.name in kinds]
    node_by_name = candidates.units.graph.node_by_name
    return {number for number, unit in candidates.units.units.items()
            if not candidates.fusible(number) or any(test(node_by_name[v]) for v in unit.core for test in tests)}


def segments(candidates: Candidates, parting: set[int]) -> Iterator[tuple[int, ...]]:
    """Units between partition operators, in a topological order sorted by the number of partition operators before each unit.

    Units with equal numbers are neighbours in that order, on all branches, so there are as few segments as possible. None of them depends
    on another through a partition operator, so each segment is convex and all together are free of cycles.
    """
    before: dict[int, int] = {}
    units_by_place: dict[int, list[int]] = {}
    for number in candidates.units.units:
        before[number] = max((before[p] + (p in parting) for p in candidates.units.contracted.predecessors[number]), default=0)
        if number not in parting:
            units_by_place.setdefault(before[number], []).append(number)
    for place in sorted(units_by_place):
        yield tuple(units_by_place[place])


def connected(candidates: Candidates, segment: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The parts of a segment that depend on each other, by first unit."""
    inside = set(segment)
    contracted = candidates.units.contracted
    seen: set[int] = set()
    for start in segment:
        if start in seen:
            continue
        part, stack = {start}, [start]
        while stack:
            unit = stack.pop()
            near = [n for n in (*contracted.predecessors[unit], *contracted.successors[unit]) if n in inside and n not in part]
            part.update(near)
            stack.extend(near)
        seen |= part
        yield tuple(sorted(part))
