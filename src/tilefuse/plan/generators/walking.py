"""The generator of walks: offers each walk and chain as a whole (`walks.py`, `chains.py`), then grows it while that saves time.

    {scores, ..., y}   ->   {scaled q, scores, ..., y}   ->   {scaled q, scores, ..., y, y + residual}
"""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.plan.generators.candidates import Candidate, Candidates
from tilefuse.plan.pattern import Pattern
from tilefuse.plan.price.known_patterns import renamed_reason
from tilefuse.plan.price.structure import boundary
from tilefuse.templates.staged.chain.form import chain_form
from tilefuse.templates.staged.online.products import form_with_elements

# For every structure, the names of the first pattern that has it, and the reason why it is no walk.
Known = dict[tuple[int, ...], tuple[tuple[str, ...], Rejected | None]]


def offer_walks(candidates: Candidates) -> None:
    """Offers every walk of the products that kernels may hold, then grows it by one neighbour at a time while that saves time."""
    units = candidates.units
    refusals: Known = {}
    for walk in candidates.walks:
        members = tuple(dict.fromkeys(units.unit_of[n] for n in walk if n in units.unit_of))
        form = _refusal(candidates, units.pattern(candidates.unit_of(members)), refusals)
        if form is not None:
            # For example where the softmax is kept for its gradient.
            candidates.refuse(members, "walk", form)
            continue
        best = candidates.offer(members, "walk")
        for _ in range(SEARCH.generators.growth):
            if not isinstance(best, Candidate):
                break
            grown = [candidates.offer((*best.members, n), "walk") for n in _neighbours(candidates, best.members)]
            better = [c for c in grown if isinstance(c, Candidate) and c.score_us > best.score_us]
            if not better:
                break
            best = max(better, key=lambda c: (c.score_us, c.members))


def offer_reduced_products(candidates: Candidates) -> None:
    """Offers every product together with all reductions of its rows and sums of its columns: a part of these alone stores elements."""
    units = candidates.units
    for whole in candidates.reduced:
        members = tuple(dict.fromkeys(units.unit_of[n] for n in whole if n in units.unit_of))
        candidates.offer(members, "rows")


def _refusal(candidates: Candidates, pattern: Pattern, known: Known) -> Rejected | None:
    """The reason why a pattern does not have the form of a walk or of a chain. Patterns that are equal up to names are examined once."""
    whole = candidates.units.graph
    key, names = candidates.form_of(pattern), (*pattern.nodes, *boundary(whole, pattern))
    if key in known:
        others, why = known[key]
        again = why and renamed_reason(why, others, names)
        if why is None or again is not None:
            return again
    alone = pattern.graph(whole)
    form = form_with_elements(alone)
    follows = isinstance(form, Rejected) and not isinstance(chain_form(alone, {}), Rejected)
    known[key] = (names, form if isinstance(form, Rejected) and not follows else None)
    return known[key][1]


def _neighbours(candidates: Candidates, members: tuple[int, ...]) -> list[int]:
    """Producers and users of the members that are not library calls."""
    contracted, inside = candidates.units.contracted, set(members)
    near = dict.fromkeys(n for m in members for n in (*contracted.predecessors[m], *contracted.successors[m]) if n not in inside)
    return [n for n in near if not candidates.units.units[n].is_library]
