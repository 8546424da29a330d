"""Candidates: sets of units that may become one kernel, each with its schedule, its price and the time that it saves.

Generators offer sets. Each set is tried once, whichever generator offers it, and a pattern's schedule and price are computed once for all
sets that are equal up to names. A set that cannot be a kernel is recorded with its reason. The choice among candidates is made elsewhere.
"""
from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.options import Options
from tilefuse.base.search.limits import SEARCH
from tilefuse.plan.generators.units import Unit, Units
from tilefuse.plan.pattern import Pattern
from tilefuse.plan.price.price import Priced, Pricer


@dataclass(frozen=True, slots=True)
class Candidate:
    """Units for one kernel. `score_us` is f(P) of FusionStitching 4.3: the time of the units alone minus the time of the kernel."""

    members: tuple[int, ...]
    generator: str
    priced: Priced
    score_us: float


class Candidates:
    """All candidates of one graph. `units` are its units before any merge; they are not changed.

    max_new: number of structures that may be scheduled for candidates; beyond it, only sets equal to known ones are accepted. It is a
    number and not a time, so that plans do not depend on the machine's speed. `until` (of time.thread_time, seconds) is the emergency
    limit.
    """

    def __init__(self, units: Units, pricer: Pricer, options: Options, max_new: int, until: float) -> None:
        self.units = units
        self.by_members: dict[tuple[int, ...], Candidate] = {}
        self.rejected: dict[tuple[int, ...], tuple[str, Rejected]] = {}
        self.refused: list[tuple[tuple[int, ...], str, Rejected]] = []
        self.alone: dict[int, Priced] = {}
        self.without_schedule: list[int] = []
        self.walks, self.reduced = pricer.products.walks, pricer.products.reduced
        self._alone_us: dict[int, float] = {}
        self._pricer, self.as_part = pricer, pricer.as_part
        self._options = options
        self._until = until
        fusible, node_by_name = pricer.products.fusible, units.graph.node_by_name
        self._fusible = {n: not u.is_library or all(fusible(node_by_name[v]) for v in u.core) for n, u in units.units.items()}
        for number, unit in units.units.items():
            if not unit.is_library:
                priced = pricer.price(units.pattern(unit))
                if isinstance(priced, Rejected):
                    self.without_schedule.append(number)
                else:
                    self.alone[number] = priced
        self._most_scheduled = pricer.num_judged + max_new

    def allow(self, max_new: int) -> None:
        """Lets this many more structures be scheduled from now on."""
        self._most_scheduled = self._pricer.num_judged + max_new

    @property
    def is_over(self) -> bool:
        """Whether the time for generating candidates is over."""
        return time.thread_time() > self._until

    def fusible(self, unit: int) -> bool:
        """Whether a kernel may hold the unit."""
        return self._fusible[unit]

    def alone_us(self, members: Iterable[int]) -> float:
        """Time of the units as one kernel or call each. Units: microseconds."""
        known = self._alone_us
        return sum([known[m] if m in known else self._unit_us(m) for m in members])

    def _unit_us(self, number: int) -> float:
        unit, priced = self.units.units[number], self.alone.get(number)
        us = self._pricer.call_or_kernel(unit.core, self.units.kernel(unit))[0] if priced is None else priced.cost.us
        self._alone_us[number] = us
        return us

    def offer(self, members: Iterable[int], generator: str, packed: bool = False, afresh: bool = False) -> Candidate | Rejected:
        """The candidate of these units, or the reason why there is none. A set that was offered before gets its first answer again.

        packed: as independent parts in one launch. Such a set is known to be convex, and the limits of a single kernel body do not apply.
        afresh: a set that was refused before is tried again, as parts where it was one body.
        """
        key = tuple(sorted(set(members)))
        if key in self.by_members:
            return self.by_members[key]
        if key in self.rejected and not afresh:
            return self.rejected[key][1]
        tried = self._tried(key, packed)
        if isinstance(tried, Rejected):
            self.rejected[key] = (generator, tried)
            return tried
        self.rejected.pop(key, None)
        score_us = self.alone_us(key) - tried.cost.us
        candidate = self.by_members[key] = Candidate(key, generator, tried, score_us)
        return candidate

    def carry_over(self, old: Candidates, candidate: Candidate) -> None:
        """Adopts another set's candidate, which is none of these units' own: same nodes, same price, same time saved."""
        key = tuple(sorted(self.units.unit_of[old.units.units[m].core[0]] for m in candidate.members))
        if key not in self.by_members and key not in self.rejected:
            self.by_members[key] = Candidate(key, candidate.generator, candidate.priced, candidate.score_us)

    def unit_of(self, members: Sequence[int]) -> Unit:
        """The units as one. A node that one unit recomputes and another owns is computed once."""
        return self.units.union([self.units.units[m] for m in members])

    def strike_out(self, members: tuple[int, ...], why: Rejected) -> None:
        """Takes a candidate back."""
        self.rejected[members] = (self.by_members.pop(members).generator, why)

    def refuse(self, members: Sequence[int], generator: str, why: Rejected) -> None:
        """Records why a generator did not offer a set."""
        self.refused.append((tuple(members), generator, why))

    def _tried(self, key: tuple[int, ...], packed: bool) -> Priced | Rejected:
        call = next((m for m in key if not self._fusible[m]), None)
        if call is not None and not self._walks_whole(key):
            return Rejected(Reason.LIBRARY_CALL, f"%{self.units.units[call].core[0]} is a call of the library")
        unit = self.unit_of(key)
        num_nodes = len(unit.core)
        if not packed and num_nodes > self._options.max_kernel_nodes:
            return Rejected(Reason.TOO_MANY_NODES, f"{num_nodes} nodes, at most {self._options.max_kernel_nodes}")
        if not packed and not is_convex(self.units, key):
            return Rejected(Reason.NOT_CONVEX, "a path leaves the pattern and comes back")
        pattern = self.units.pattern(unit)
        tried = self._priced(pattern, packed)
        if not packed or num_nodes > self._options.max_kernel_nodes:
            return tried
        # Independent patterns may still share one loop over their domain, which reads a common operand once.
        together = self._priced(pattern, False)
        if isinstance(tried, Rejected) or isinstance(together, Rejected):
            return together if isinstance(tried, Rejected) and not isinstance(together, Rejected) else tried
        return together if together.cost.us < tried.cost.us else tried

    def _walks_whole(self, key: tuple[int, ...]) -> bool:
        """Whether each library call of a set that only a walk can hold belongs to a walk that lies entirely in the set."""
        nodes = {n for m in key for n in self.units.units[m].core}
        whole = {n for walk in self.walks if all(n in nodes or n not in self.units.unit_of for n in walk) for n in walk}
        return all(self._fusible[m] or whole.issuperset(self.units.units[m].core) for m in key)

    def _priced(self, pattern: Pattern, packed: bool) -> Priced | Rejected:
        if self._pricer.num_judged >= self._most_scheduled and not self._pricer.knows(pattern, limited=not packed):
            return Rejected(Reason.NOT_TRIED, "the limit on new structures was reached")
        return self._pricer.price(pattern, limited=not packed)

    def form(self, unit: int) -> tuple[int, ...]:
        """Equal for units that are equal up to names."""
        return self.form_of(self.units.pattern(self.units.units[unit]))

    def form_of(self, pattern: Pattern) -> tuple[int, ...]:
        """Equal for patterns that are equal up to names."""
        return self._pricer.form(pattern)

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Candidates of each generator, by name."""
        names = [c.generator for c in self.by_members.values()]
        return tuple((name, names.count(name)) for name in sorted(set(names)))


def is_convex(units: Units, members: Sequence[int]) -> bool:
    """Whether no path leaves the set and comes back. Also False where the search would visit more than `SEARCH.generators.visited` units.

    Cost: linear in the units between the first and the last member.
    """
    inside, last = set(members), max(members)
    successors = units.contracted.successors
    stack = [s for m in members for s in successors[m] if s not in inside and s < last]
    seen: set[int] = set()
    while stack:
        unit = stack.pop()
        if unit in seen:
            continue
        seen.add(unit)
        if len(seen) > SEARCH.generators.visited:
            return False
        for following in successors[unit]:
            if following in inside:
                return False
            if following < last:
                stack.append(following)
    return True
