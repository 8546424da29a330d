"""Combinations of fusion implementations that cover all calls of a script, generated lazily in order of predicted time.

    calls 0 1 2 3      {0,1} template 1.2 us    {0,1} routines 1.3 us    {2} ...    {3} ...    {2,3} ...
    first: the cheapest cover; then the next one, whichever fusion or implementation it changes

Best-first search over covers: the lowest uncovered call takes a fusion, whose implementations come in order of predicted time. The
uncovered calls cost at least their cheapest cover, computed once per set of calls. The search therefore expands only covers that lead to a
combination, except covers whose kernels would wait for each other.
Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.2.
"""
from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from tilefuse.ir.order import topological_order
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.schedule.elements import Decision

ROUTINES, TEMPLATE = "routines", "template"


@dataclass(frozen=True)
class FusionImplementation:
    """One way to run some calls in one kernel, plus kernels that clear or finish its reductions. Units: predicted time in microseconds.

    kind      "routines": the library's routines, fused as `decision` states; "template": compiled from the meanings of the calls
    content   the scheduled kernel, for routines that are scheduled
    """

    calls: tuple[int, ...]
    kind: str
    predicted_us: float
    decision: Decision | None = None
    content: object = None

    def __str__(self) -> str:
        description = str(self.decision) if self.decision else f"calls {list(self.calls)}"
        return f"{self.kind}: {description}, {self.predicted_us:.2f} us"


@dataclass(frozen=True)
class Combination:
    """Implementations that cover every call once, in an order that respects the data."""

    parts: tuple[FusionImplementation, ...]

    @property
    def predicted_us(self) -> float:
        """Sum of the parts. Units: microseconds."""
        return sum(p.predicted_us for p in self.parts)


@dataclass(frozen=True)
class _Cover:
    """A partial cover. `last`: the calls of its last part as bits; `rank`: number of that part among their implementations."""

    parts: tuple[FusionImplementation, ...]
    last: int
    rank: int
    covered: int
    cost_us: float


class _CoverSearch:
    """Best-first search over covers. Sets of calls are numbers whose bits are the calls."""

    def __init__(self, graph: CallGraph, implementations: Mapping[tuple[int, ...], Sequence[FusionImplementation]]) -> None:
        self.graph = graph
        self.all_calls = (1 << len(graph.calls)) - 1
        self.table = {sum(1 << c for c in calls): sorted(alternatives, key=lambda part: part.predicted_us)
                      for calls, alternatives in implementations.items() if alternatives}
        self.sets_by_call = [[mask for mask in self.table if mask >> c & 1] for c in range(len(graph.calls))]
        self._bound_us: dict[int, float] = {self.all_calls: 0.0}
        self._open: list[tuple[float, int, _Cover]] = []
        self._entered = itertools.count()

    def results(self) -> Iterator[Combination]:
        """All combinations, in order of predicted time."""
        if not self.all_calls:
            yield Combination(())
            return
        self._extend((), 0, 0.0)
        while self._open:
            _, _, cover = heapq.heappop(self._open)
            # One entry a fusion is open: its next implementation enters when this one leaves.
            before_us = cover.cost_us - cover.parts[-1].predicted_us
            self._enter(cover.parts[:-1], cover.covered & ~cover.last, before_us, cover.last, cover.rank + 1)
            ordered = in_order(self.graph, cover.parts)
            if ordered is None:
                continue
            if cover.covered == self.all_calls:
                yield Combination(ordered)
            else:
                self._extend(cover.parts, cover.covered, cover.cost_us)

    def _extend(self, parts: tuple[FusionImplementation, ...], covered: int, cost_us: float) -> None:
        """Enters the covers in which the lowest uncovered call takes each of its fusions."""
        for mask in self.sets_by_call[_lowest_missing(covered)]:
            if not mask & covered:
                self._enter(parts, covered, cost_us, mask, 0)

    def _enter(self, parts: tuple[FusionImplementation, ...], covered: int, cost_us: float, mask: int, rank: int) -> None:
        """Enters the cover that adds implementation `rank` of a fusion, unless no combination holds it."""
        alternatives = self.table[mask]
        if rank == len(alternatives):
            return
        cover = _Cover((*parts, alternatives[rank]), mask, rank, covered | mask, cost_us + alternatives[rank].predicted_us)
        bound_us = cover.cost_us + self._rest_us(cover.covered)
        if bound_us < math.inf:
            heapq.heappush(self._open, (bound_us, next(self._entered), cover))

    def _rest_us(self, covered: int) -> float:
        """Cost of the cheapest cover of the uncovered calls; cycles between kernels are ignored. Units: microseconds."""
        if covered not in self._bound_us:
            masks = (mask for mask in self.sets_by_call[_lowest_missing(covered)] if not mask & covered)
            self._bound_us[covered] = min((self.table[mask][0].predicted_us + self._rest_us(covered | mask) for mask in masks),
                                          default=math.inf)
        return self._bound_us[covered]


def _lowest_missing(bits: int) -> int:
    """Number of the lowest bit that is not set."""
    return (~bits & bits + 1).bit_length() - 1


def combinations(graph: CallGraph, implementations: Mapping[tuple[int, ...], Sequence[FusionImplementation]]) -> Iterator[Combination]:
    """All combinations, in order of predicted time; equal ones in the order of the table.

    implementations: by the calls of the fusion; those of one fusion in any order. A call without any leaves no combination.
    Cost: lazy; memory grows with the combinations consumed.
    """
    return _CoverSearch(graph, implementations).results()


def cheapest(graph: CallGraph, table: MutableMapping[tuple[int, ...], Sequence[FusionImplementation]],
             refine: Callable[[tuple[int, ...]], Sequence[FusionImplementation]], enough_us: float = math.inf) -> Combination | None:
    """The first of `combinations`; a fusion is refined only if its implementations may be part of it. None without a cover.

    table: implementations of each fusion with lower bounds on their times; those that `refine` returns replace them.
    enough_us: a combination whose bound exceeds this is returned unrefined.
    """
    refined: set[tuple[int, ...]] = set()
    while True:
        best = next(combinations(graph, table), None)
        if best is None or best.predicted_us > enough_us:
            return best
        bounds_only = [part.calls for part in best.parts if part.calls not in refined]
        if not bounds_only:
            return best
        refined.update(bounds_only)
        table.update({calls: refine(calls) for calls in bounds_only})


def in_order(graph: CallGraph, parts: Sequence[FusionImplementation]) -> tuple[FusionImplementation, ...] | None:
    """Parts in topological order of their data; None if they form a cycle.

    Each call that no part covers counts as its own kernel.
    """
    kernel_of = {c: n for n, p in enumerate(parts) for c in p.calls}
    for c in range(len(graph.calls)):
        kernel_of.setdefault(c, len(parts) + c)
    feeds: dict[int, dict[int, None]] = {n: {} for n in kernel_of.values()}
    for c, call in enumerate(graph.calls):
        for variable in call.arguments:
            producer = graph.producer(variable) if isinstance(variable, str) else None
            if producer is not None and kernel_of[producer] != kernel_of[c]:
                feeds[kernel_of[producer]][kernel_of[c]] = None
    first = {n: min(c for c, k in kernel_of.items() if k == n) for n in feeds}
    order = topological_order(feeds, first.__getitem__)
    return tuple(parts[n] for n in order if n < len(parts)) if len(order) == len(feeds) else None
