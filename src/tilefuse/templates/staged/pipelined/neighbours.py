"""Neighbours of pipelined products for tuning: other tiles, fewer slots, bands of other heights."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.choose import candidates
from tilefuse.templates.staged.pipelined.plan import ProductPlan
from tilefuse.templates.staged.pipelined.record import Pipelined


def product_neighbours(plan: ProductPlan, device: DeviceSpec) -> Iterator[Pipelined]:
    """Every tile that is tried, and with the plan's own tile fewer slots and other bands."""
    yield from candidates(plan.form, device)
    base = plan.choice
    if base.slots > 2:
        yield replace(base, slots=base.slots - 1)
    for band in (base.band // 2, base.band * 2):
        if band and (plan.form.num_groups or plan.row_tiles % band == 0):
            yield replace(base, band=band)
