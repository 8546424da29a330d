"""All fusions of a script: sets of its calls that one kernel can run and that spare a load or store.

A fusion is convex, its calls share one grid (equal nesting, equal extents), no call uses the result of a reduction that another one
computes, and the fusion saves at least one load or store. Each rejected set of calls keeps its reason.
Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", sections 3.2 and 4.2.
"""
from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.schedule.grid import Grid, bind_grid

# Rank of a single call before all sets.
FIRST_RANK = -(1 << 62)


@dataclass(frozen=True)
class Fusion:
    """Calls that one kernel may run. Units: words.

    calls   numbers in the script, ascending; a single call is a fusion too
    spared  words of global memory that the fusion neither stores nor loads, compared with one kernel per call
    """

    calls: tuple[int, ...]
    grid: Grid
    spared: int


@dataclass(frozen=True)
class Fusions:
    """Legal fusions, single calls first, and rejected sets of calls: (calls, reason)."""

    legal: tuple[Fusion, ...]
    rejected: tuple[tuple[tuple[int, ...], Rejected], ...]


def find_fusions(graph: CallGraph) -> Fusions:
    """All fusions of a script.

    A call on numbers alone belongs to the first call that uses its result. Every block of that call's kernel runs it.
    Cost: one step per connected set of such groups that fits one grid; at most SEARCH.scripts.sets of them.
    """
    groups = call_groups(graph)
    shared = [_vectors(graph, g) for g in groups]
    dependents = _dependents(graph)
    fusions: list[Fusion] = []
    rejected: list[tuple[tuple[int, ...], Rejected]] = []
    # Single groups come first, then the sets that save most: `SEARCH.scripts.sets` cuts off the others.
    open_sets: list[tuple[int, tuple[int, ...]]] = [(FIRST_RANK, (n,)) for n in range(len(groups))]
    entered = {numbers for _, numbers in open_sets}
    while open_sets:
        current = heapq.heappop(open_sets)[1]
        calls = tuple(sorted(c for n in current for c in groups[n]))
        grid = bind_grid(graph, calls)
        reason = grid if isinstance(grid, Rejected) else reduced_inside(graph, calls)
        if reason is not None:
            # Every larger set fails for the same reason.
            rejected.append((calls, reason))
            continue
        assert isinstance(grid, Grid)
        between = _call_between(calls, dependents, len(graph.calls))
        spared = spared_words(graph, calls, grid) if len(current) > 1 else 0
        if between is not None:
            rejected.append((calls, Rejected(Reason.NOT_CONVEX, f"call {between} depends on the set and is needed by it")))
        elif len(current) > 1 and not spared:
            rejected.append((calls, Rejected(Reason.SLOWER_THAN_PARTS, "no load or store is spared")))
        else:
            fusions.append(Fusion(calls, grid, spared))
        used = frozenset(v for n in current for v in shared[n])
        for n in range(len(groups)):
            wider = tuple(sorted((*current, n)))
            if n not in current and used & shared[n] and wider not in entered and len(entered) < SEARCH.scripts.sets:
                entered.add(wider)
                heapq.heappush(open_sets, (-spared, wider))
    fusions.sort(key=lambda f: (len(f.calls), f.calls))
    return Fusions(tuple(fusions), tuple(rejected))


def call_groups(graph: CallGraph) -> tuple[tuple[int, ...], ...]:
    """Each call with the calls on numbers alone whose results it is the first to use. A call whose number nobody uses is its own group."""
    home = list(range(len(graph.calls)))
    for c in reversed(range(len(graph.calls))):
        readers = [r for result in graph.calls[c].results for r in graph.readers(result)]
        if not graph.calls[c].function.sizes and readers:
            home[c] = home[min(readers)]
    members: dict[int, list[int]] = {}
    for c, h in enumerate(home):
        members.setdefault(h, []).append(c)
    return tuple(tuple(m) for m in members.values())


def calls_between_matrices(graph: CallGraph) -> tuple[tuple[int, ...], ...]:
    """Convex sets of calls on vectors and numbers between the same calls on matrices. Each set may be compiled as a whole.

    The longest paths to the calls of one set hold equally many calls on matrices. Scripts without calls on matrices have no sets. Sets of a
    single group are left out, because they are fusions already.
    """
    nested = [c.function.kind.nested for c in graph.calls]
    depth: list[int] = []
    for call in graph.calls:
        producers = [p for a in call.arguments if isinstance(a, str) and (p := graph.producer(a)) is not None]
        depth.append(max((depth[p] + nested[p] for p in producers), default=0))
    groups_by_depth: dict[int, list[tuple[int, ...]]] = {}
    for group in call_groups(graph):
        if not any(nested[c] for c in group):
            groups_by_depth.setdefault(max(depth[c] for c in group), []).append(group)
    call_sets = [tuple(sorted(c for group in groups for c in group)) for groups in groups_by_depth.values() if len(groups) > 1]
    return tuple(call_sets) if any(nested) else ()


def _vectors(graph: CallGraph, calls: tuple[int, ...]) -> frozenset[str]:
    """Vectors and matrices that some calls read or write."""
    used = (v for c in calls for v in (*graph.calls[c].arguments, *graph.calls[c].results))
    return frozenset(v for v in used if isinstance(v, str) and graph.variables[v].shape)


def _dependents(graph: CallGraph) -> list[int]:
    """For every call, the set of calls that depend on it, as bits."""
    dependents = [0] * len(graph.calls)
    for c in reversed(range(len(graph.calls))):
        for result in graph.calls[c].results:
            for reader in graph.readers(result):
                dependents[c] |= 1 << reader | dependents[reader]
    return dependents


def _call_between(calls: tuple[int, ...], dependents: list[int], count: int) -> int | None:
    """A call outside the set that depends on one of its calls and on which another one depends; None for a convex set."""
    inside = sum(1 << c for c in calls)
    reached = 0
    for c in calls:
        reached |= dependents[c]
    return next((c for c in range(count) if reached >> c & 1 and not inside >> c & 1 and dependents[c] & inside), None)


def reduced_inside(graph: CallGraph, calls: tuple[int, ...]) -> Rejected | None:
    """The reason why a set of calls needs a grid barrier: a call uses a reduction's result, which is complete only after all blocks."""
    for c in calls:
        if not graph.calls[c].function.kind.reduces:
            continue
        for result in graph.calls[c].results:
            users = [u for u in graph.readers(result) if u in calls]
            if users:
                return Rejected(Reason.NEEDS_GRID_SYNC, f"call {users[0]} ({graph.calls[users[0]].function.name}) uses {result}, which "
                                f"call {c} ({graph.calls[c].function.name}) completes at the end of its kernel")
    return None


def spared_words(graph: CallGraph, calls: tuple[int, ...], grid: Grid) -> int:
    """Words of global memory that a fusion of these calls neither loads nor stores, compared with one kernel per call.

    Units: words, each variable counted once however often a kernel reads it.
    """
    loads: dict[tuple[str, tuple[str, ...]], int] = {}
    spared = 0
    produced = {r for c in calls for r in graph.calls[c].results}
    for c, axis_of in zip(calls, grid.axis_of, strict=True):
        for variable, axes in _read(graph, c, axis_of):
            loads[variable, axes] = loads.get((variable, axes), 0) + 1
        for result in graph.calls[c].results if graph.calls[c].function.sizes else ():
            read_elsewhere = any(u not in calls for u in graph.readers(result))
            if graph.readers(result) and not read_elsewhere and result not in graph.outputs:
                spared += prod(graph.variables[result].shape)
    for (variable, _), times in loads.items():
        spared += (times if variable in produced else times - 1) * prod(graph.variables[variable].shape)
    return spared


def _read(graph: CallGraph, call: int, axis_of: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(variable, directions) of every operand that a call reads."""
    function = graph.calls[call].function
    outputs = {p.name for p in function.outputs}
    for name, variable, sizes in graph.calls[call].operands:
        if name not in outputs:
            yield variable, tuple(axis_of[s] for s in sizes)
