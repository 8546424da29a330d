"""Planning by integer program: all generators propose candidates, one program decides.

    greedy connecting (with its steps) ----+
    substitution, exploration -------------+-> integer program -> kernels, recomputed maps -> packing -> integer program -> plan
    single nodes --------------------------+

The program starts from the plan of greedy connecting, so the result is never worse than that plan under its own costs.
Source: FusionStitching (arXiv:1911.11576), 4.1 to 4.3.
"""
from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from tilefuse.base import trace
from tilefuse.base.candidate import Reason, Rejected, group_by_reason
from tilefuse.base.errors import InfeasibleError
from tilefuse.base.options import Options
from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.graph import Graph
from tilefuse.plan.generators.candidates import Candidate, Candidates
from tilefuse.plan.generators.connect import Connecting
from tilefuse.plan.generators.exploratory import exploratory
from tilefuse.plan.generators.found import Found
from tilefuse.plan.generators.packing import Group, packing, siblings
from tilefuse.plan.generators.substitution import after_products, left_by_products, substitution
from tilefuse.plan.generators.units import Units
from tilefuse.plan.generators.walking import offer_reduced_products, offer_walks
from tilefuse.plan.pattern import Search, View
from tilefuse.plan.price.price import Pricer
from tilefuse.plan.select.components import select
from tilefuse.plan.select.ilp import SCORE_TOLERANCE_US, Column, Selection
from tilefuse.plan.select.memory import PeakMemory, more_with_packing, peak, stored_values
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import MEBIBYTE


def plan_globally(graph: Graph, views: dict[str, View], pricer: Pricer, options: Options, device: DeviceSpec,
                  greedy: Found, given_up: Collection[str] = ()) -> tuple[Found, Search]:
    """A plan that saves the most time of all choices of candidates, and the record of its search.

    Never slower than `greedy` by predicted time, except under a ceiling on peak memory, which greedy connecting ignores.
    Raises: InfeasibleError where no choice keeps the ceiling; ToolchainError where the solver fails.
    """
    return _Decision(graph, views, pricer, options, device, greedy, given_up).run()


def pack_globally(graph: Graph, views: dict[str, View], pricer: Pricer, options: Options, device: DeviceSpec, plan: Found,
                  packed: Iterable[Sequence[str]]) -> tuple[Found, Search]:
    """The kernels of a plan with independent ones packed into common launches, where that saves time without keeping much more memory
    alive.

    packed: sets of nodes whose kernels are offered as one launch, in addition to the generator's unions.
    Raises: ToolchainError where the solver fails.
    """
    return _Decision(graph, views, pricer, options, device, plan).pack(packed)


@dataclass
class _Decision:
    """State of one decision."""

    graph: Graph
    views: dict[str, View]
    pricer: Pricer
    options: Options
    device: DeviceSpec
    greedy: Found
    given_up: Collection[str] = ()

    def run(self) -> tuple[Found, Search]:
        """Candidates, program, recomputation, packing, program."""
        self._begin()
        candidates = self._candidates(self.greedy.light)
        if candidates.without_schedule:
            # A map that greedy connecting recomputes inside its kernels cannot be recomputed by every unit alone.
            if self.ceiling_bytes:
                candidates = self._candidates(frozenset())
            else:
                return self.greedy, self._search("greedy", candidates, [])
        start = _offer_greedy(candidates, self.greedy)
        begun_us = sum(candidates.by_members[m].score_us for m in start if m in candidates.by_members)
        substitution(candidates)
        candidates.allow(SEARCH.selection.new_structures)
        after_products(candidates)
        offer_walks(candidates)
        candidates.allow(SEARCH.selection.new_structures)
        left_by_products(candidates, start)
        candidates.allow(SEARCH.selection.new_structures)
        offer_reduced_products(candidates)
        candidates.allow(SEARCH.selection.new_structures)
        exploratory(candidates, self.device)
        taken = self._selected(candidates, start, self.ceiling_bytes)
        if not self.ceiling_bytes:
            taken = self._connected(candidates, taken, start)
        plan = self._plan(candidates, taken, recompute=not self.ceiling_bytes)
        if plan.light != candidates.units.light:
            candidates, taken = self._carried_over(candidates, plan)
        if not candidates.without_schedule:
            candidates.allow(2 * SEARCH.selection.new_structures)
            siblings(candidates)
            packing(candidates, _groups(candidates, taken))
            packed = self._packed(candidates, taken)
            if packed != taken:
                parts = tuple(plan.chosen)
                plan, taken = replace(self._plan(candidates, packed, recompute=False), parts=parts), packed
        search = self._search("ilp", candidates, taken)
        trace.current().event("planned globally", "plan", candidates=len(candidates.by_members), rejected=len(candidates.rejected),
                              rounds=search.rounds, cuts=search.cuts, saved_us=search.objective_us)
        saved_more_us = sum(c.score_us for c in taken) - begun_us
        if not self.ceiling_bytes and plan.light == self.greedy.light and saved_more_us <= SCORE_TOLERANCE_US:
            return self.greedy, replace(search, planner="both")
        refused = self.greedy.num_rejected + len(candidates.rejected) + len(candidates.refused)
        return replace(plan, rejected=self.greedy.rejected, num_rejected=refused, steps=self.greedy.steps), search

    def pack(self, packed: Iterable[Sequence[str]]) -> tuple[Found, Search]:
        """The plan `greedy` with its kernels as units; only packing proposes candidates."""
        self._begin()
        units = Units(self.graph, set(self.greedy.light), self.views)
        kernels = {c.core: (c.generator, c.priced) for c in self.greedy.chosen if c.core and c.priced is not None}
        units.regroup(tuple(sorted({units.unit_of[n] for n in core})) for core in kernels)
        candidates = Candidates(units, self.pricer, self.options, 2 * SEARCH.selection.new_structures,
                                self.began + self.options.plan_seconds * SEARCH.selection.generator_share)
        taken: list[Candidate] = []
        if not candidates.without_schedule:
            for nodes in packed:
                _offer_nodes(candidates, nodes, "packing", packed=True)
            siblings(candidates)
            packing(candidates, _groups(candidates, ()))
            taken = self._packed(candidates, [])
        search = self._search("seeded", candidates, taken)
        if not taken:
            return self.greedy, search
        packed_units = {m for c in taken for m in c.members}
        launches = [(c.generator, candidates.unit_of(c.members).core, c.priced) for c in taken]
        rest = [(*kernels[unit.core], unit.core)
                for number, unit in units.units.items() if number not in packed_units and unit.core in kernels]
        again = Connecting(self.graph, self.views, self.pricer, self.options, set(self.greedy.light))
        plan = again.continue_from([*((g, core, p) for g, p, core in rest), *launches], merge=False)
        assert not isinstance(plan, Rejected), "every kernel of the plan has a schedule"
        return replace(plan, rejected=self.greedy.rejected, num_rejected=self.greedy.num_rejected, parts=tuple(self.greedy.chosen)), search

    def _begin(self) -> None:
        self.started, self.began = time.perf_counter(), time.thread_time()
        self.until = self.began + self.options.plan_seconds
        self.ceiling_bytes = self.options.peak_memory_mb * MEBIBYTE
        self.selections: list[Selection] = []
        self.solved: dict[Hashable, Selection] = {}

    def _candidates(self, light: frozenset[str]) -> Candidates:
        return Candidates(Units(self.graph, set(light), self.views), self.pricer, self.options, SEARCH.selection.new_structures,
                          self.began + self.options.plan_seconds * SEARCH.selection.generator_share)

    def _selected(self, candidates: Candidates, start: Sequence[tuple[int, ...]], ceiling_bytes: int) -> list[Candidate]:
        """The candidates that together save the most time. They are sorted by their units, so that the order of generators has no
        influence."""
        units = candidates.units
        listed = [c for _, c in sorted(candidates.by_members.items()) if c.score_us > 0 or ceiling_bytes]
        number_of = {c.members: n for n, c in enumerate(listed)}
        edges = [(a, b) for a, followers in units.contracted.successors.items() for b in followers]
        columns = [Column(c.members, c.score_us) for c in listed]
        separator = PeakMemory(units, columns, ceiling_bytes) if ceiling_bytes else None
        begin = [number_of[m] for m in start if m in number_of]
        try:
            chosen = select(len(units.units), edges, columns, max(self.until - time.thread_time(), 0.0), begin, separator, self.solved,
                            self.pricer.store)
        except InfeasibleError as cause:
            raise self._too_little(candidates, start, ceiling_bytes) from cause
        self.selections.append(chosen)
        return [listed[n] for n in chosen.taken]

    def _connected(self, candidates: Candidates, taken: list[Candidate], start: Sequence[tuple[int, ...]]) -> list[Candidate]:
        """The choice when unions of its own kernels with each other and with single units are candidates too, until none is new.

        The program takes units away from the kernels of greedy connecting. The units that it leaves may be cheaper as one kernel, and no
        generator has proposed them alone:

            greedy connecting   {product} {add, norm}      program   {product, add} {mean} {variance, norm}      ->   {mean, variance, norm}
        """
        met = {tuple(sorted(start))}
        while (kernels := tuple(sorted(c.members for c in taken))) not in met:
            met.add(kernels)
            again = Connecting(self.graph, self.views, self.pricer, self.options, set(candidates.units.light))
            plan = again.continue_from([(c.generator, candidates.unit_of(c.members).core, c.priced) for c in taken], recompute=False)
            if isinstance(plan, Rejected) or not plan.steps:
                break
            for core in plan.steps:
                _offer_nodes(candidates, core, "connect")
            taken = self._selected(candidates, kernels, 0)
        return taken

    def _too_little(self, candidates: Candidates, start: Sequence[tuple[int, ...]], ceiling_bytes: int) -> InfeasibleError:
        """Requires: the groups in `start` are candidates, disjoint, and have an order of execution."""
        stored = stored_values(candidates.units)
        lowest = min((peak(candidates.units, stored, groups) for groups in (start, ())), key=lambda p: p.num_bytes)
        largest = sorted(lowest.live, key=lambda v: (-v.num_bytes, v.name))[:3]
        largest_text = ", ".join(f"%{v.name} with {v.num_bytes}" for v in largest)
        return InfeasibleError(
            f"no plan of @{self.graph.name} was found that keeps intermediate values within {ceiling_bytes} bytes (peak_memory_mb="
            f"{self.options.peak_memory_mb}); a plan that was found needs {lowest.num_bytes}, most of it for {largest_text}",
            hint=f"peak_memory_mb={-(-lowest.num_bytes // MEBIBYTE)} is enough, 0 is no ceiling", notes=_reasons(candidates))

    def _plan(self, candidates: Candidates, taken: Sequence[Candidate], recompute: bool) -> Found:
        kernels = [(c.generator, c.members, c.priced) for c in taken]
        return Connecting(self.graph, self.views, self.pricer, self.options, set(candidates.units.light)).resume(kernels, recompute)

    def _carried_over(self, old: Candidates, recomputed: Found) -> tuple[Candidates, list[Candidate]]:
        """The candidates after more maps became light, and the kernels of the plan among them."""
        new = self._candidates(recomputed.light)
        plan = [_offer_nodes(new, c.pattern.nodes, c.generator) for c in recomputed.chosen if c.priced is not None]
        changed = _units_touching(old, recomputed.light ^ old.units.light)
        for candidate in old.by_members.values():
            if changed.isdisjoint(candidate.members):
                new.carry_over(old, candidate)
            else:
                _offer_nodes(new, old.unit_of(candidate.members).core, candidate.generator)
        return new, [new.by_members[m] for m in plan if m in new.by_members]

    def _packed(self, candidates: Candidates, taken: list[Candidate]) -> list[Candidate]:
        """The choice when packed kernels are candidates too.

        Without a ceiling, packed kernels that keep much more memory alive are refused: at every peak, those that add most to it are
        removed.
        """
        start = [c.members for c in taken]
        if self.ceiling_bytes:
            return self._selected(candidates, start, self.ceiling_bytes)
        memory = PeakMemory(candidates.units, [], 1)
        live_bytes = peak(candidates.units, memory.stored, start).num_bytes
        held_bytes = peak(candidates.units, memory.stored, start, self.given_up).num_bytes
        allowed_bytes = held_bytes + more_with_packing(live_bytes, held_bytes if self.given_up else None)
        for _ in range(SEARCH.selection.peaks):
            packed = self._selected(candidates, start, 0)
            most = peak(candidates.units, memory.stored, [c.members for c in packed], self.given_up)
            excess_bytes = most.num_bytes - allowed_bytes
            waiting = sorted((-memory.change_bytes(c.members, most.moment), c.score_us, c.members)
                             for c in packed if c.generator == "packing")
            if excess_bytes <= 0 or not waiting:
                return packed if excess_bytes <= 0 else taken
            moment = candidates.units.units[most.moment].core[-1]
            for change, _, members in waiting:
                candidates.strike_out(members, Rejected(Reason.MEMORY, f"{most.num_bytes} bytes of intermediate values at %{moment}"))
                excess_bytes += change
                if excess_bytes <= 0:
                    break
        return taken

    def _search(self, planner: str, candidates: Candidates, taken: Sequence[Candidate]) -> Search:
        last = self.selections[-1] if self.selections else Selection((), 0.0, 0.0, 0, 0, 0.0, False)
        rounds, cuts = sum(s.rounds for s in self.selections), sum(s.cuts for s in self.selections)
        reasons = group_by_reason(why for _, why in candidates.rejected.values())
        live = peak(candidates.units, stored_values(candidates.units), [c.members for c in taken])
        return Search(planner, last.objective_us, last.bound_us, rounds, cuts, time.perf_counter() - self.started, last.proven,
                      self.greedy.objective_us, live.num_bytes, candidates.counts(),
                      tuple((reason.value, len(items)) for reason, items in reasons.items()))


def _offer_greedy(candidates: Candidates, greedy: Found) -> list[tuple[int, ...]]:
    """Offers every kernel of greedy connecting and every step on the way to it; returns the kernels of its plan that are candidates.

    A map that several kernels recompute is assigned to the kernel that writes it, or to none: the returned kernels are disjoint. They
    depend on each other no more than in greedy connecting's plan, so they have an order of execution.
    """
    for core in greedy.steps:
        _offer_nodes(candidates, core, "connect")
    kernels: list[tuple[int, ...]] = []
    for chosen in greedy.chosen:
        if chosen.priced is not None:
            own = set(chosen.pattern.written)
            responsible = [n for n in chosen.pattern.nodes if n in own or n not in greedy.light]
            members = _offer_nodes(candidates, responsible, "connect")
            if members in candidates.by_members:
                kernels.append(members)
    return kernels


def _offer_nodes(candidates: Candidates, nodes: Sequence[str], generator: str, packed: bool = False) -> tuple[int, ...]:
    """Offers the units of these nodes (light nodes have none); returns them. packed: as for `Candidates.offer`."""
    unit_of = candidates.units.unit_of
    members = tuple(sorted({unit_of[n] for n in nodes if n in unit_of}))
    if len(members) > 1:
        candidates.offer(members, generator, packed)
    return members


def _units_touching(candidates: Candidates, nodes: Collection[str]) -> set[int]:
    """Units that compute one of these nodes, read it, or compute one of its operands."""
    units = candidates.units
    near = {*nodes, *(u for n in nodes for u in units.graph.users_by_name[n]), *(units.memory(v) for n in nodes for v in units.reads(n))}
    return {number for number, unit in units.units.items() if not near.isdisjoint(unit.core) or not near.isdisjoint(unit.extra)}


def _groups(candidates: Candidates, taken: Sequence[Candidate]) -> list[Group]:
    """The plan with these candidates and every other unit alone, in an order of execution."""
    priced_of = {c.members: c.priced for c in taken}
    return [Group(members, priced_of.get(members, candidates.alone.get(members[0])))
            for members in candidates.units.ordered(c.members for c in taken)]


def _reasons(candidates: Candidates) -> list[str]:
    """Number of rejections by reason."""
    reasons = group_by_reason(why for _, why in candidates.rejected.values())
    return [f"{len(items)} candidates rejected: {reason.value}, such as: {items[0].detail}" for reason, items in reasons.items()]
