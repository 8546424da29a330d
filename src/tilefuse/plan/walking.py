"""The generator of walks: each as a whole (`walks.py`), then with the maps around it as long as that saves more.

    {scores, ..., y}   ->   {scaled q, scores, ..., y}   ->   {scaled q, scores, ..., y, y + residual}
"""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.plan.candidates import Candidate, Candidates
from tilefuse.schedule.online_products import online_form

# Nodes that a walk takes in beside it.
MAX_GROWTH = 8


def offer_walks(candidates: Candidates) -> None:
    """Offers every walk of the products that kernels may hold, and what grows from it by one neighbour at a time while that saves more."""
    units = candidates.units
    for walk in candidates.walks:
        members = tuple(dict.fromkeys(units.unit_of[n] for n in walk if n in units.unit_of))
        form = online_form(units.pattern(candidates.unit_of(members)).graph(units.graph))
        if isinstance(form, Rejected):
            # As where the softmax is kept for its gradient.
            candidates.refuse(members, "walk", form)
            continue
        best = candidates.offer(members, "walk")
        for _ in range(MAX_GROWTH):
            if not isinstance(best, Candidate):
                break
            grown = [candidates.offer((*best.members, n), "walk") for n in _neighbours(candidates, best.members)]
            better = [c for c in grown if isinstance(c, Candidate) and c.score_us > best.score_us]
            if not better:
                break
            best = max(better, key=lambda c: (c.score_us, c.members))


def _neighbours(candidates: Candidates, members: tuple[int, ...]) -> list[int]:
    """Producers and users of the members that are no calls."""
    contracted, inside = candidates.units.contracted, set(members)
    near = dict.fromkeys(n for m in members for n in (*contracted.predecessors[m], *contracted.successors[m]) if n not in inside)
    return [n for n in near if not candidates.units.units[n].is_library]
