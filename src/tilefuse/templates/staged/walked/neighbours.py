"""Neighbours of pipelined walks for tuning: other tiles, fewer slots, blocks that take one tile each."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.pipeline import WARPGROUP_ROWS
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.walked.choose import candidates, walks_of_few_rows
from tilefuse.templates.staged.walked.form import WalkForm
from tilefuse.templates.staged.walked.plan import WalkPlan
from tilefuse.templates.staged.walked.record import PipelinedWalk


def walk_neighbours(form: WalkForm, plan: WalkPlan, layouts: Layouts, device: DeviceSpec) -> Iterator[PipelinedWalk]:
    """Every tile that is tried, and the plan's own with other slots, bands, parts and blocks. form: of single heads."""
    yield from candidates(form, layouts, device)
    if form.online.num_rows <= WARPGROUP_ROWS:
        yield from walks_of_few_rows(form, layouts, device)
    choice = plan.choice
    if choice.slots > 2:
        yield replace(choice, slots=choice.slots - 1)
    yield replace(choice, blocks=plan.num_items)
    if choice.parts > 1:
        yield from (replace(choice, parts=n, blocks=plan.num_tiles * n) for n in (choice.parts * 2, choice.parts // 2))
    yield replace(choice, band=1)
    yield replace(choice, in_turn=not choice.in_turn)
