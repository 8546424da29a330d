"""Neighbours of walks between several products for tuning: other tiles, fewer slots, blocks that take one tile each."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.recomputed.choose import candidates
from tilefuse.templates.staged.recomputed.plan import BackPlan
from tilefuse.templates.staged.recomputed.record import WalkedBack


def back_neighbours(plan: BackPlan, layouts: Layouts, device: DeviceSpec) -> Iterator[WalkedBack]:
    """Every tile that is tried, and the plan's own with other slots, bands and blocks."""
    yield from candidates(plan.form, layouts, device)
    choice = plan.choice
    if choice.slots > 2:
        yield replace(choice, slots=choice.slots - 1)
    yield replace(choice, blocks=plan.num_tiles)
    yield replace(choice, band=1)
