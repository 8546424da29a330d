"""Candidates of a graph, for tests of one generator at a time."""
from __future__ import annotations

import math

from tests.unit.plan.stand_in import schedule_by_rows
from tilefuse.base.options import Options
from tilefuse.ir.graph import Graph
from tilefuse.plan.generators.candidates import Candidates
from tilefuse.plan.generators.units import Units
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.plan.price.price import Pricer, Scheduler, Ways
from tilefuse.plan.price.products import NO_PRODUCTS, Products
from tilefuse.target.device import H200


def candidates_of(graph: Graph, scheduler: Scheduler = schedule_by_rows, packer: Scheduler | None = None, max_new: int = 1000,
                  products: Products = NO_PRODUCTS, until: float = math.inf) -> Candidates:
    """No candidate yet; every node is a unit of its own, none is light."""
    pricer = Pricer(graph, {}, H200, Options(), Ways(scheduler, packer), AnalyticCost(H200), products)
    return Candidates(Units(graph, set(), {}), pricer, Options(), max_new, until)


def found_by(candidates: Candidates, generator: str) -> set[frozenset[str]]:
    """The sets that a generator proposed, by the names of their nodes."""
    return {names(candidates, c.members) for c in candidates.by_members.values() if c.generator == generator}


def names(candidates: Candidates, members: tuple[int, ...]) -> frozenset[str]:
    """The nodes of some units."""
    return frozenset(n for m in members for n in candidates.units.units[m].core)
