"""Walks between several products as a template.

    s [GRID,GRID-CTA_128,LOOP_64]R; d [GRID,GRID-CTA_128,LOOP_64]R; dk [GRID,GRID-CTA_128,WARP,LOOP_64]R; dv [..]R;
    kept_slots=1; slots=3; warpgroups=2; band=1; cta_num=132; cta_size=384;
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace

from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.request import Price
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.staged.notation import BLOCKS, THREADS, Settings
from tilefuse.templates.staged.recomputed.choose import candidates, choose_back
from tilefuse.templates.staged.recomputed.compose import compose_back
from tilefuse.templates.staged.recomputed.form import back_form
from tilefuse.templates.staged.recomputed.plan import BackPlan
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.recomputed.tree import back_tree
from tilefuse.templates.staged.walked.template import TiledWalkTemplate


class WalkedBackTemplate(TiledWalkTemplate[WalkedBack, BackPlan]):
    """Several products on either side of elements of scores, by persistent blocks: scores, elements and sums stay in registers."""

    record = WalkedBack
    plan_type = BackPlan
    noun = "a walk between several products"
    settings = Settings(("kept_slots", "slots", "bias_ring", "warpgroups", "band", BLOCKS, THREADS), ("bias_ring",))
    met_by = "columns are a multiple of 16"

    def plan(self, graph: Graph, layouts: Layouts, device: DeviceSpec, fixed: WalkedBack | None,
             ceiling: Price | None = None) -> BackPlan | Rejected:
        """The walk in the cheapest tiles."""
        form = back_form(graph, layouts)
        return form if isinstance(form, Rejected) else choose_back(form, layouts, device, fixed)

    def tree(self, plan: BackPlan) -> StageTree:
        """The loop along the walked axis, and the products in it."""
        return back_tree(plan)

    def near(self, program: TileProgram, plan: BackPlan, device: DeviceSpec) -> Iterator[WalkedBack]:
        """Every tile that is tried, and the plan's own with other slots, bands and blocks."""
        yield from candidates(plan.form, program.layouts, device)
        choice = plan.choice
        if choice.slots > 2:
            yield replace(choice, slots=choice.slots - 1)
        yield replace(choice, blocks=plan.num_tiles)
        yield replace(choice, band=1)
        if choice.bias_ring:
            yield replace(choice, bias_ring=False)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The pipeline of a block."""
        return compose_back(program, device, settled)


_TEMPLATE = WalkedBackTemplate()
schedule_back, back_by_hand, walked_back_of = _TEMPLATE.schedule, _TEMPLATE.program_by_hand, _TEMPLATE.plan_of
