"""All fusions of a script: subgraphs of its calls that one kernel can run and that spare a transfer.

A fusion is convex, its calls share one grid (equal nesting, equal extents), no call uses the result of a reduction that another one
computes, and at least one load or store is spared. What is not a fusion keeps the reason.
Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", sections 3.2 and 4.2.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.ir.elementary import CallGraph
from tilefuse.schedule.routine_grid import Grid, bind_grid, parameter_variables

# Sets of calls looked at; scripts of the paper's sizes stay far below. Beyond it only smaller fusions are found.
MOST_SETS = 20000


@dataclass(frozen=True)
class Fusion:
    """Calls that one kernel may run. Units: words.

    calls   numbers in the script, ascending; a single call is a fusion too
    spared  words of global memory that are neither stored nor loaded because of the fusion
    """

    calls: tuple[int, ...]
    grid: Grid
    spared: int


@dataclass(frozen=True)
class Fusions:
    """What can be fused, single calls first, and what was given up: (calls, why)."""

    found: tuple[Fusion, ...]
    rejected: tuple[tuple[tuple[int, ...], Rejected], ...]


def find_fusions(graph: CallGraph) -> Fusions:
    """All fusions of a script.

    Cost: one step a connected set of calls that fits one grid; at most MOST_SETS of them.
    """
    count = len(graph.calls)
    neighbours = [_sharing(graph, c) for c in range(count)]
    after = _reached(graph)
    found: list[Fusion] = []
    rejected: list[tuple[tuple[int, ...], Rejected]] = []
    todo: list[frozenset[int]] = [frozenset([c]) for c in range(count)]
    seen = set(todo)
    while todo:
        current = todo.pop(0)
        calls = tuple(sorted(current))
        grid = bind_grid(graph, calls)
        why = grid if isinstance(grid, Rejected) else reduced_inside(graph, calls)
        if why is not None:
            # Both grow worse with more calls, so nothing larger is tried.
            rejected.append((calls, why))
            continue
        assert isinstance(grid, Grid)
        outside = _between(calls, after, count)
        if outside is not None:
            rejected.append((calls, Rejected(Reason.NOT_CONVEX, f"call {outside} stands between")))
        elif len(calls) > 1 and not (spared := spared_words(graph, calls, grid)):
            rejected.append((calls, Rejected(Reason.SLOWER_THAN_PARTS, "no load or store is spared")))
        else:
            found.append(Fusion(calls, grid, spared if len(calls) > 1 else 0))
        for c in sorted({n for member in current for n in neighbours[member]} - current):
            wider = current | {c}
            if wider not in seen and len(seen) < MOST_SETS:
                seen.add(wider)
                todo.append(wider)
    return Fusions(tuple(found), tuple(rejected))


def _sharing(graph: CallGraph, call: int) -> frozenset[int]:
    """Calls that read or write a variable in common with one."""
    own = _variables(graph, call)
    return frozenset(c for c in range(len(graph.calls)) if c != call and own & _variables(graph, c))


def _variables(graph: CallGraph, call: int) -> frozenset[str]:
    one = graph.calls[call]
    return frozenset(v for v in (*one.arguments, *one.results) if isinstance(v, str))


def _reached(graph: CallGraph) -> list[int]:
    """For every call the set (as bits) of those that depend on it."""
    after = [0] * len(graph.calls)
    for c in reversed(range(len(graph.calls))):
        for result in graph.calls[c].results:
            for reader in graph.readers(result):
                after[c] |= 1 << reader | after[reader]
    return after


def _between(calls: tuple[int, ...], after: list[int], count: int) -> int | None:
    """A call outside that depends on one of the set and on which another one depends."""
    inside = sum(1 << c for c in calls)
    reached = 0
    for c in calls:
        reached |= after[c]
    return next((c for c in range(count) if reached >> c & 1 and not inside >> c & 1 and after[c] & inside), None)


def reduced_inside(graph: CallGraph, calls: tuple[int, ...]) -> Rejected | None:
    """Why a set of calls needs a global barrier inside: a reduction's result is complete only when all blocks are done."""
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
    """Words of global memory that a fusion of these calls neither loads nor stores, compared with one kernel a call.

    Units: words, each variable counted once however often a kernel reads it.
    """
    loads: dict[tuple[str, tuple[str, ...]], int] = {}
    spared = 0
    produced = {r for c in calls for r in graph.calls[c].results}
    for c, axis_of in zip(calls, grid.axis_of, strict=True):
        for variable, axes in _read(graph, c, axis_of):
            loads[variable, axes] = loads.get((variable, axes), 0) + 1
        for result in graph.calls[c].results:
            read_elsewhere = any(u not in calls for u in graph.readers(result))
            if graph.readers(result) and not read_elsewhere and result not in graph.outputs:
                spared += prod(graph.variables[result].shape)
    for (variable, _), times in loads.items():
        spared += (times if variable in produced else times - 1) * prod(graph.variables[variable].shape)
    return spared


def _read(graph: CallGraph, call: int, axis_of: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(variable, directions) of everything that a call reads."""
    one = graph.calls[call]
    outputs = {p.name for p in one.function.outputs}
    for name, variable, sizes in parameter_variables(one):
        if name not in outputs:
            yield variable, tuple(axis_of[s] for s in sizes)
    for p, given in zip(one.function.inputs, one.arguments, strict=True):
        if isinstance(given, str) and not p.extents and graph.producer(given) is not None:
            yield given, ()
