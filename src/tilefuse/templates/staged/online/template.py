"""Walks along an axis between products as a template.

    o [GRID,GRID-CTA_128,WARP,LOOP_64]; stages=2;     128 rows a block, 64 columns a turn, the next turn's operands fetched ahead
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from itertools import product

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.notation import Worker
from tilefuse.templates.own_launch import OwnLaunchTemplate
from tilefuse.templates.request import Price, Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.staged.notation import BLOCKS, THREADS, Settings
from tilefuse.templates.staged.online.choose import choose_online
from tilefuse.templates.staged.online.compose import compose_online
from tilefuse.templates.staged.online.plan import OnlinePlan
from tilefuse.templates.staged.online.products import ROW, WALK, online_form
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.online.tree import online_tree
from tilefuse.templates.staged.template import StagedTemplate
from tilefuse.templates.template import Overlaps, Resources


class OnlineTemplate(StagedTemplate[Online, OnlinePlan], OwnLaunchTemplate[Online]):
    """Products along an axis that a block walks in turns, with running maxima and sums between them."""

    record = Online
    tries_many = 1
    plan_type = OnlinePlan
    noun = "a walk between products"
    settings = Settings(("resident", "stages", BLOCKS, THREADS), rare=("resident",))
    places = {(ROW, Worker.CTA): "rows", (WALK, Worker.LOOP): "columns"}
    met_by = "rows are whole instructions a warp, columns a multiple of 16"

    def plan(self, graph: Graph, layouts: Layouts, device: DeviceSpec, fixed: Online | None,
             ceiling: Price | None = None) -> OnlinePlan | Rejected:
        """The walk in the cheapest tiles."""
        form = online_form(graph)
        return form if isinstance(form, Rejected) else choose_online(form, device, fixed, ceiling)

    def tree(self, plan: OnlinePlan) -> StageTree:
        """The loop along the walked axis, and the products in it."""
        return online_tree(plan)

    def near(self, program: TileProgram, plan: OnlinePlan, device: DeviceSpec) -> Iterator[Online]:
        """Tiles twice as long and half as long, other threads, with and without prefetching, without a bound on registers."""
        base = plan.choice
        sides = ((side // 2, side, side * 2) for side in (base.rows, base.columns))
        yield from (Online(rows, columns, threads, stages) for threads, rows, columns, stages in product((128, 256), *sides, (1, 2))
                    if rows and columns)

    def facts(self, plan: OnlinePlan) -> tuple[tuple[str, object], ...]:
        """Shared memory, and the unit that multiplies."""
        return ("allocated_bytes", plan.shared_bytes), ("unit", plan.unit)

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Its tiles, and as many registers as its bound on blocks leaves a thread."""
        return Resources(0, self.plan_of(program).shared_bytes, min_blocks=self.choice_of(program).resident)

    def overlaps(self, choice: Online) -> Overlaps:
        """Every block walks the whole axis."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=False)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The turns of a block, then its results."""
        return compose_online(program, device)

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The walk between the products of a pattern, on a device; values between the products stay unrounded."""
        if request.eager_rounding or request.is_part or not request.has_products or request.device.kind != "cuda":
            return Rejected(Reason.OTHER_TEMPLATE, "no kernel of its own on a device whose products leave their results unrounded")
        return self.schedule(request.graph, request.layouts, request.device, ceiling=request.ceiling)

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """False: walks are found as wholes (`plan/walks.py`)."""
        return False


_TEMPLATE = OnlineTemplate()
schedule_online, walk_plan_of = _TEMPLATE.schedule, _TEMPLATE.plan_of
