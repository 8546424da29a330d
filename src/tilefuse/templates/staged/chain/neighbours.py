"""Neighbours of chains of products for tuning: other tiles, other slots."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.chain.choose import candidates
from tilefuse.templates.staged.chain.plan import ChainPlan
from tilefuse.templates.staged.chain.record import ProductChain


def chain_neighbours(plan: ChainPlan, device: DeviceSpec) -> Iterator[ProductChain]:
    """Every tile that is tried, and with the plan's own tile fewer slots of the left operand."""
    yield from candidates(plan.form, device)
    if plan.choice.left_slots > 2:
        yield replace(plan.choice, left_slots=plan.choice.left_slots - 1)
