"""Exploratory fusion: from a unit that moves much data, grow by one producer or user at a time, and try every set on the way.

    {b}  ->  {a, b} {b, c}  ->  {a, b, c} {b, c, d} ...        each set once, the one that saves most first

The search is exponential, hence bounded: seeds are only units with large tensors and few operands, the number of sets is limited, and seeds
with equal neighbourhoods are explored once. Sets that pay around one seed are tried at the same places around the others.
Source: FusionStitching (arXiv:1911.11576), 4.2.2 and algorithm 2.
"""
from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.roofline import launches_us, streamed_us
from tilefuse.plan.generators.candidates import Candidate, Candidates
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class Growth:
    """One step: from the member at `place` to its neighbour number `which` (producers first, then users)."""

    place: int
    which: int


def exploratory(candidates: Candidates, device: DeviceSpec) -> None:
    """Offers the sets that grow from every seed, within the limits of this file."""
    large = seeds(candidates, device)
    if not large:
        return
    explored: dict[Hashable, list[tuple[Growth, ...]]] = {}
    surroundings = colours(candidates)
    sets_left = SEARCH.generators.sets
    for seed in large:
        if sets_left <= 0 or candidates.is_over:
            return
        ways = explored.get(surroundings[seed])
        if ways is None:
            ways, tried = explore(candidates, seed, min(sets_left, SEARCH.generators.sets_a_seed))
            explored[surroundings[seed]] = ways
            sets_left -= tried
            continue
        for way in ways:
            members = _followed(candidates, seed, way)
            if members is not None:
                candidates.offer(members, "exploratory")


def seeds(candidates: Candidates, device: DeviceSpec) -> list[int]:
    """Units with few operands whose tensors take longer to move than a kernel takes to launch; most bytes first."""
    launch_us = launches_us(1, device)
    ranked: list[tuple[int, int]] = []
    for number, unit in candidates.units.units.items():
        priced = candidates.alone.get(number)
        if priced is None or len(candidates.units.sources(unit)) > SEARCH.generators.operands:
            continue
        num_bytes = priced.figures.bytes_moved
        if streamed_us(num_bytes, device) >= launch_us:
            ranked.append((-num_bytes, number))
    return [number for _, number in sorted(ranked)]


def explore(candidates: Candidates, seed: int, most: int) -> tuple[list[tuple[Growth, ...]], int]:
    """Growth sequences from a seed to the candidates around it, and the number of sets tried.

    A set without a schedule is not grown: only a larger set could have one, and another order of growth also reaches that.
    """
    ways: list[tuple[Growth, ...]] = []
    seen: set[frozenset[int]] = {frozenset((seed,))}
    queue: list[tuple[float, int, tuple[int, ...], tuple[Growth, ...]]] = [(0.0, 0, (seed,), ())]
    tried = 0
    while queue and tried < most and not candidates.is_over:
        _, _, members, way = heapq.heappop(queue)
        for growth, neighbour in _neighbours(candidates, members):
            grown = frozenset((*members, neighbour))
            if grown in seen or tried >= most:
                continue
            seen.add(grown)
            tried += 1
            outcome = candidates.offer(grown, "exploratory")
            if isinstance(outcome, Candidate):
                further = (*way, growth)
                if outcome.score_us > 0:
                    ways.append(further)
                heapq.heappush(queue, (-outcome.score_us, tried, (*members, neighbour), further))
    return ways, tried


def _neighbours(candidates: Candidates, members: tuple[int, ...]) -> list[tuple[Growth, int]]:
    """Producers and users of the members that may join them."""
    inside = set(members)
    growth_by_neighbour: dict[int, Growth] = {}
    for place, member in enumerate(members):
        for which, neighbour in enumerate(_around(candidates, member)):
            if neighbour not in inside and neighbour not in growth_by_neighbour and candidates.fusible(neighbour):
                growth_by_neighbour[neighbour] = Growth(place, which)
    return [(growth, neighbour) for neighbour, growth in growth_by_neighbour.items()]


def _around(candidates: Candidates, unit: int) -> tuple[int, ...]:
    contracted = candidates.units.contracted
    return (*contracted.predecessors[unit], *contracted.successors[unit])


def _followed(candidates: Candidates, seed: int, way: tuple[Growth, ...]) -> tuple[int, ...] | None:
    """The members that the same growth reaches from another seed; None where the neighbourhoods differ after all."""
    members = [seed]
    for growth in way:
        around = _around(candidates, members[growth.place])
        if growth.which >= len(around) or around[growth.which] in members or not candidates.fusible(around[growth.which]):
            return None
        members.append(around[growth.which])
    return tuple(members)


def colours(candidates: Candidates) -> dict[int, Hashable]:
    """A colour for every unit; those whose neighbourhoods agree within a radius have equal colours (colour refinement).

    Source: Weisfeiler and Leman 1968. Two colours may be equal by accident; each set is tried at its own place, so the plan stays correct.
    """
    contracted = candidates.units.contracted
    numbers: dict[Hashable, int] = {}
    colour = {n: numbers.setdefault(candidates.form(n), len(numbers)) for n in candidates.units.units}
    for _ in range(SEARCH.generators.alike_radius):
        numbers = {}
        signatures = {
            n: (colour[n], tuple(colour[p] for p in contracted.predecessors[n]), tuple(colour[s] for s in contracted.successors[n]))
            for n in colour}
        colour = {n: numbers.setdefault(t, len(numbers)) for n, t in signatures.items()}
    return dict(colour)


