"""Decisions of a planner, before kernels are named and bound."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilefuse.base.candidate import Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.plan.assemble import Chosen
from tilefuse.plan.pattern import RejectedMerge
from tilefuse.plan.price.price import Pricer


@dataclass
class Found:
    """Patterns and library calls in execution order, and the merges that were refused.

    steps  every union that was taken on the way, by the nodes that it was responsible for
    light  nodes that each of their users computes for itself
    parts  the patterns as they were before independent ones were packed into common launches; None: nothing was packed
    """

    chosen: list[Chosen]
    objective_us: float
    rejected: dict[tuple[str, str], Rejected] = field(default_factory=dict)
    num_rejected: int = 0
    steps: tuple[tuple[str, ...], ...] = ()
    light: frozenset[str] = frozenset()
    parts: tuple[Chosen, ...] | None = None

    def before_packing(self) -> Sequence[Chosen]:
        """Patterns and library calls before any were packed."""
        return self.chosen if self.parts is None else self.parts

    def total_us(self, pricer: Pricer) -> float:
        """Time of the kernels and of those library calls that a kernel could have held. Units: microseconds."""
        return self.objective_us + pricer.calls_us(n for c in self.chosen if c.priced is None for n in c.pattern.nodes)

    def kept_rejected(self) -> tuple[RejectedMerge, ...]:
        """Refused merges whose two sides lie in different kernels of the final plan, at most `SEARCH.texts.rejected`."""
        home: dict[str, int] = {}
        for number, item in enumerate(self.chosen):
            home.update(dict.fromkeys(item.pattern.nodes, number))
        apart = [RejectedMerge(a, b, why) for (a, b), why in self.rejected.items() if home.get(a, -1) != home.get(b, -2)]
        return tuple(apart[:SEARCH.texts.rejected])
