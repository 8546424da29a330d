"""Pipelined walks between two products as a template.

    scores [GRID,GRID-CTA_128,LOOP_128]R; top [GRID,GRID-CTA_128,LOOP_128]W; o [GRID,GRID-CTA_128,WARP,LOOP_128];
    left_slots=2; slots=4; warpgroups=2; in_turn=true; band=1; cta_num=132; cta_size=384;
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from typing import Protocol, TypeVar

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import SharedPlace, Staging
from tilefuse.templates.notation import Template, Worker
from tilefuse.templates.request import Price, Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.staged.notation import BLOCKS, THREADS, Settings, template_of
from tilefuse.templates.staged.online.products import ROW, WALK
from tilefuse.templates.staged.template import PipelineTemplate, Planned
from tilefuse.templates.staged.walked.choose import candidates, choose_walk
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.form import walk_form
from tilefuse.templates.staged.walked.plan import WalkPlan
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.tree import walk_tree
from tilefuse.templates.template import Resources


class TiledPlan(Planned, Protocol):
    """A plan of a walk on warpgroup instructions."""

    @property
    def registers(self) -> int:
        """Registers of a consumer thread for scores, powers and sums."""
        ...


C = TypeVar("C", bound=Choice)
T = TypeVar("T", bound=TiledPlan)


class TiledWalkTemplate(PipelineTemplate[C, T]):
    """Walks whose tiles of rows warpgroups share: columns of the walked axis a turn."""

    places = {(ROW, Worker.CTA): "rows", (WALK, Worker.LOOP): "columns"}
    follows = ("rows", THREADS)

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Scores, powers and sums, and slots."""
        plan = self.plan_of(program)
        return Resources(plan.registers + device.fitted.walks.registers, plan.shared_bytes, min_blocks=1)

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The walk between the products of a pattern; values between the products stay unrounded."""
        if request.eager_rounding or request.is_part or not request.has_products:
            return Rejected(Reason.OTHER_TEMPLATE, "no kernel of its own whose products leave their results unrounded")
        return self.schedule(request.graph, request.layouts, request.device)


class PipelinedWalkTemplate(TiledWalkTemplate[PipelinedWalk, WalkPlan]):
    """Two products with reductions between them by persistent blocks: scores and powers stay in the registers of their warpgroup."""

    record = PipelinedWalk
    plan_type = WalkPlan
    noun = "a pipelined walk"
    settings = Settings(("left_slots", "slots", "bias_slots", "warpgroups", "in_turn", "band", "heads", "parts", BLOCKS, THREADS),
                        ("in_turn",), ("heads", "parts"))
    rare = ("heads", "parts")
    met_by = "columns are a multiple of 16, slots two or more"

    def plan(self, graph: Graph, layouts: Layouts, device: DeviceSpec, fixed: PipelinedWalk | None,
             ceiling: Price | None = None) -> WalkPlan | Rejected:
        """The walk in the cheapest tiles."""
        form = walk_form(graph, layouts)
        return form if isinstance(form, Rejected) else choose_walk(form, layouts, device, fixed)

    def tree(self, plan: WalkPlan) -> StageTree:
        """The loop along the walked axis, and the products in it."""
        return walk_tree(plan)

    def text(self, plan: WalkPlan, tree: StageTree, launch: Launch) -> Template:
        """As of `StagedTemplate`; walks without biases have no rings of biases."""
        without = () if plan.form.biases else ("bias_slots",)
        return template_of(tree.values(), self.settings.of(plan.choice, launch.num_blocks, without))

    def near(self, program: TileProgram, plan: WalkPlan, device: DeviceSpec) -> Iterator[PipelinedWalk]:
        """Every tile that is tried, and the plan's own with other slots, bands, parts and blocks."""
        form, choice = walk_form(program.graph, program.layouts), plan.choice
        assert not isinstance(form, Rejected), "the program is a walk"
        yield from candidates(form, program.layouts, device)
        if choice.slots > 2:
            yield replace(choice, slots=choice.slots - 1)
        yield replace(choice, blocks=plan.num_items)
        if choice.parts > 1:
            yield from (replace(choice, parts=n, blocks=plan.num_tiles * n) for n in (choice.parts * 2, choice.parts // 2))
        yield replace(choice, band=1)
        yield replace(choice, in_turn=not choice.in_turn)

    def staging(self, program: TileProgram) -> Staging:
        """As of `StagedTemplate`, with the rows of combined parts."""
        staging, sums = super().staging(program), self.plan_of(program).sums
        if sums is None:
            return staging
        place = SharedPlace("rows of combined parts", sums.offset_bytes, sums.end_bytes - sums.offset_bytes)
        return replace(staging, places=(*staging.places, place))

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The pipeline of a block."""
        return compose_walk(program, device, settled)


_TEMPLATE = PipelinedWalkTemplate()
schedule_walk, walk_by_hand, pipelined_walk_of = _TEMPLATE.schedule, _TEMPLATE.program_by_hand, _TEMPLATE.plan_of
