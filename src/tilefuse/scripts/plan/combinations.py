"""Combinations of fusion implementations that cover all calls of a script, generated lazily in order of predicted time.

    calls 0 1 2 3      {0,1} template 1.2 us    {0,1} routines 1.3 us    {2} ...    {3} ...    {2,3} ...
    first: the cheapest cover; then the next one, whichever fusion or implementation it changes

Best-first search over covers: the lowest uncovered call takes a fusion, whose implementations come in order of predicted time. The
uncovered calls cost at least their cheapest cover, computed once per set of calls. The search therefore expands only covers that lead to a
combination, except covers whose kernels would wait for each other.
Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.2.
"""
from __future__ import annotations

import functools
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
    content   data of the kind besides the decision
    """

    calls: tuple[int, ...]
    kind: str
    predicted_us: float
    decision: Decision | None = None
    content: object = None

    def __str__(self) -> str:
        what = str(self.decision) if self.decision else f"calls {list(self.calls)}"
        return f"{self.kind}: {what}, {self.predicted_us:.2f} us"


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
    """A partial cover: its last part is number `rank` of its fusion's implementations."""

    parts: tuple[FusionImplementation, ...]
    rank: int
    covered: int
    cost_us: float


def combinations(graph: CallGraph, implementations: Mapping[tuple[int, ...], Sequence[FusionImplementation]]) -> Iterator[Combination]:
    """All combinations, in order of predicted time; equal ones in the order of the table.

    implementations: by the calls of the fusion; those of one fusion in any order. A call without any leaves no combination.
    Cost: lazy; memory grows with the combinations consumed.
    """
    everything = (1 << len(graph.calls)) - 1
    table = {sum(1 << c for c in calls): sorted(ways, key=lambda w: w.predicted_us) for calls, ways in implementations.items() if ways}
    by_first = [[mask for mask in table if mask >> c & 1] for c in range(len(graph.calls))]

    @functools.cache
    def rest_us(covered: int) -> float:
        """Cost of the cheapest cover of the uncovered calls, ignoring cycles between kernels. Units: microseconds."""
        if covered == everything:
            return 0.0
        lowest = (~covered & covered + 1).bit_length() - 1
        ways = (table[mask][0].predicted_us + rest_us(covered | mask) for mask in by_first[lowest] if not mask & covered)
        return min(ways, default=math.inf)

    number = itertools.count()
    queue: list[tuple[float, int, _Cover, int]] = []

    def push(parts: tuple[FusionImplementation, ...], covered: int, cost_us: float, mask: int, rank: int) -> None:
        ways = table[mask]
        if rank < len(ways):
            cover = _Cover((*parts, ways[rank]), rank, covered | mask, cost_us + ways[rank].predicted_us)
            if (bound_us := cover.cost_us + rest_us(cover.covered)) < math.inf:
                heapq.heappush(queue, (bound_us, next(number), cover, mask))

    def extend(parts: tuple[FusionImplementation, ...], covered: int, cost_us: float) -> None:
        lowest = (~covered & covered + 1).bit_length() - 1
        for mask in by_first[lowest]:
            if not mask & covered:
                push(parts, covered, cost_us, mask, 0)

    if not everything:
        yield Combination(())
        return
    extend((), 0, 0.0)
    while queue:
        _, _, cover, mask = heapq.heappop(queue)
        last = cover.parts[-1]
        # The queue holds one entry per fusion: its next implementation enters when this one leaves.
        push(cover.parts[:-1], cover.covered & ~mask, cover.cost_us - last.predicted_us, mask, cover.rank + 1)
        ordered = in_order(graph, cover.parts)
        if ordered is None:
            continue
        if cover.covered == everything:
            yield Combination(ordered)
        else:
            extend(cover.parts, cover.covered, cover.cost_us)


def cheapest(graph: CallGraph, table: MutableMapping[tuple[int, ...], Sequence[FusionImplementation]],
             true: Callable[[tuple[int, ...]], Sequence[FusionImplementation]], enough_us: float = math.inf) -> Combination | None:
    """The first of `combinations`; a fusion's true implementations are computed only if they may be part of it. None without a cover.

    table: for each fusion, implementations with lower bounds on the times of its true ones, which `true` computes; they replace the bounds.
    enough_us: a combination whose bound exceeds this is returned unrefined.
    """
    known: set[tuple[int, ...]] = set()
    while True:
        best = next(combinations(graph, table), None)
        if best is None or best.predicted_us > enough_us:
            return best
        vague = [p.calls for p in best.parts if p.calls not in known]
        if not vague:
            return best
        known.update(vague)
        table.update({calls: true(calls) for calls in vague})


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
