"""Kernel packing: kernels that do not depend on each other, in one launch.

    adam(w0)  adam(w1)  ...  adam(w95)  ->  one kernel with 96 parts           the steps of an optimiser
    f(x)  g(x)                          ->  one kernel that reads x            siblings
    f(x)  f(y)                          ->  one kernel over one space          like iteration spaces

Kernels of a plan at equal depth (counted from the inputs) or equal height (counted from the results) never depend on each other, and
merging kernels of equal depth only never closes a cycle. Their number is not limited here: the scheduler decides how many
one launch holds, and a refused union is halved. This file proposes unions, and the integer program decides. The packed kernels of greedy
planning (`pack_kernels.py`) are its start, and the result where no program is solved.
Source: FusionStitching 4.2 and 5.1, "kernel packing", figure 5 (a).
"""
from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from tilefuse.base.candidate import Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.plan.generators.candidates import Candidates, is_convex
from tilefuse.plan.price.price import Priced
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.request import is_vector_product


@dataclass(frozen=True, slots=True)
class Group:
    """Units that are one kernel of a plan; `priced` is None for a library call."""

    members: tuple[int, ...]
    priced: Priced | None


def packing(candidates: Candidates, plan: Sequence[Group]) -> None:
    """Offers unions of the plan's kernels. Requires: `plan` covers all units, in an order of execution."""
    free: dict[int, Priced] = {}
    for number, group in enumerate(plan):
        if group.priced is None:
            continue
        program = candidates.as_part(group.priced.program)
        why = kernel_template(program.choice).part_refusal(program)
        if why is None:
            free[number] = group.priced
        else:
            candidates.refuse(group.members, "packing", why)
    depth, height = depths(candidates, plan)
    for levels in (height, depth):
        alike: dict[int, list[int]] = {}
        for number in free:
            alike.setdefault(levels[number], []).append(number)
        for level in sorted(alike):
            for kernels in unions(candidates, plan, alike[level], free):
                _offer(candidates, plan, kernels)
                if candidates.is_over:
                    return


def siblings(candidates: Candidates) -> None:
    """Offers products of one value in one launch. Each comes with its users in the best candidate that holds no other call.

        q = n wq + bq,  k = n wk + bk   ->   one kernel, where the plan has norm(x) and q in one since that beats norm, q and k apart
        n = norm(x) ahead of both       ->   also one kernel in which the part of each product computes the norm
    """
    units = candidates.units
    position = units.contracted.position
    own: dict[int, tuple[float, tuple[int, ...]]] = {}
    for members, candidate in candidates.by_members.items():
        calls = [m for m in members if units.units[m].is_library]
        if len(calls) == 1 and all(position[m] >= position[calls[0]] for m in members):
            own[calls[0]] = max(own.get(calls[0], (0.0, ())), (candidate.score_us, members))
    for products in (p for p in _readers_of_one_value(candidates) if _independent(candidates, p)):
        ahead = _read_by_these_alone(candidates, products)
        # Also offer the products with their users only, or the products alone: the maps behind one product may wait for another.
        for parts in ([own.get(p, (0.0, (p,)))[1] or (p,) for p in products], [(p,) for p in products]):
            together = [m for part in parts for m in part]
            if len(set(together)) == len(together) and is_convex(units, together) and not _overwrites(candidates, parts):
                candidates.offer(together, "packing", packed=True, afresh=True)
                if not ahead:
                    break
                if is_convex(units, (*ahead, *together)):
                    candidates.offer((*ahead, *together), "packing", packed=True, afresh=True)
        if candidates.is_over:
            return


def _read_by_these_alone(candidates: Candidates, products: Sequence[int]) -> tuple[int, ...]:
    """Maps and reductions ahead of products with a vector that nothing else reads: a norm, which each block of a walk computes again."""
    units, graph = candidates.units, candidates.units.graph
    if not all(is_vector_product(graph.node_by_name[n], graph) for p in products for n in units.units[p].core):
        return ()
    predecessors, successors = units.contracted.predecessors, units.contracted.successors
    ahead: set[int] = set()
    todo = [m for p in products for m in predecessors[p]]
    while todo:
        unit = todo.pop()
        simple = all(graph.node_by_name[n].category in ("map", "reduce") and n not in graph.escaping for n in units.units[unit].core)
        if unit not in ahead and simple and all(s in ahead or s in products for s in successors[unit]):
            ahead.add(unit)
            todo += predecessors[unit]
    return tuple(sorted(ahead))


def _readers_of_one_value(candidates: Candidates) -> Iterator[tuple[int, ...]]:
    """Products that read one value: all of them, and those that can start at the same time."""
    units = candidates.units
    readers: dict[str, list[int]] = {}
    for number, unit in units.units.items():
        if unit.is_library and candidates.fusible(number):
            for value in units.sources(unit):
                readers.setdefault(value, []).append(number)
    depth, _ = depths(candidates, [Group((n,), None) for n in units.units])
    place = {n: p for p, n in enumerate(units.units)}
    sets: dict[tuple[int, ...], None] = {}
    for products in readers.values():
        sets[tuple(products)] = None
        by_depth: dict[int, list[int]] = {}
        for product in products:
            by_depth.setdefault(depth[place[product]], []).append(product)
        sets |= {tuple(some): None for some in by_depth.values()}
    return (readers for readers in sets if 1 < len(readers) <= SEARCH.packing.siblings)


def _independent(candidates: Candidates, products: Sequence[int]) -> bool:
    """Whether none of these calls waits for another. The steps of a recurrence read the same weights but do wait."""
    successors = candidates.units.contracted.successors
    return is_convex(candidates.units, products) and not any(s in products for p in products for s in successors[p])


def depths(candidates: Candidates, plan: Sequence[Group]) -> tuple[list[int], list[int]]:
    """For every kernel of the plan, the number of kernels on the longest path from an input to it, and from it to a result."""
    group_of = {unit: number for number, group in enumerate(plan) for unit in group.members}
    before: list[set[int]] = [set() for _ in plan]
    after: list[set[int]] = [set() for _ in plan]
    for unit, followers in candidates.units.contracted.successors.items():
        for following in followers:
            a, b = group_of[unit], group_of[following]
            if a != b:
                before[b].add(a)
                after[a].add(b)
    depth, height = [0] * len(plan), [0] * len(plan)
    for number in range(len(plan)):
        depth[number] = max((depth[p] + 1 for p in before[number]), default=0)
    for number in reversed(range(len(plan))):
        height[number] = max((height[s] + 1 for s in after[number]), default=0)
    return depth, height


def unions(candidates: Candidates, plan: Sequence[Group], kernels: Sequence[int], priced: dict[int, Priced]) -> Iterator[tuple[int, ...]]:
    """Sets of at least two of these kernels, the most promising first: equal kernels, readers of one value, similar iteration spaces,
    kernels dominated by launch time.

    The last set is all of them: one kernel for a whole depth.
    """
    classes: dict[tuple[Hashable, ...], list[int]] = {}
    for number in kernels:
        program = priced[number].program
        classes.setdefault(("equal", id(priced[number])), []).append(number)
        classes.setdefault(("space", program.template, program.launch.num_blocks), []).append(number)
        classes.setdefault(("template", program.template), []).append(number)
        for value in candidates.units.sources(candidates.unit_of(plan[number].members)):
            classes.setdefault(("reads", value), []).append(number)
    sets = {tuple(members): None for kind in ("equal", "reads", "space", "template") for key, members in classes.items() if key[0] == kind}
    sets[tuple(n for n in kernels if priced[n].cost.source == "launch")] = None
    sets[tuple(kernels)] = None
    for union in sets:
        if len(union) > 1:
            yield union


def _offer(candidates: Candidates, plan: Sequence[Group], kernels: tuple[int, ...]) -> None:
    """Offers the union; where it is refused, its halves, recursively."""
    queue = [kernels]
    for tried, some in enumerate(queue):
        if tried >= SEARCH.packing.tried_subsets or candidates.is_over:
            return
        if _overwrites(candidates, [plan[n].members for n in some]):
            continue
        outcome = candidates.offer([u for n in some for u in plan[n].members], "packing", packed=True)
        if isinstance(outcome, Rejected) and len(some) > 2:
            middle = len(some) // 2
            queue += [half for half in (some[:middle], some[middle:]) if len(half) > 1]


def _overwrites(candidates: Candidates, kernels: Sequence[Sequence[int]]) -> bool:
    """Whether one of the kernels (given by units) updates an input that another one reads. Packed, it could not update in place."""
    graph, units = candidates.units.graph, candidates.units
    targets = {value: target for target, value in graph.updates}
    home = {targets[v]: k for k, members in enumerate(kernels) for u in members for v in units.units[u].core if v in targets}
    return bool(home) and any(home.get(v, k) != k for k, members in enumerate(kernels) for v in units.sources(candidates.unit_of(members)))
