"""Walks along an axis between products as a template."""
from __future__ import annotations

from collections.abc import Iterable, Set

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.ir.graph import Graph, Node
from tilefuse.kernel.ir import Kernel
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import LevelTile, SharedPlace, Staging
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.notation import Template
from tilefuse.templates.own_launch import OwnLaunchTemplate
from tilefuse.templates.request import Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.staged.online.compose import compose_online
from tilefuse.templates.staged.online.neighbours import online_neighbours
from tilefuse.templates.staged.online.online_by_hand import online_by_hand
from tilefuse.templates.staged.online.plan import OnlinePlan
from tilefuse.templates.staged.online.program import schedule_online
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.online.tree import online_tree
from tilefuse.templates.template import Overlaps, Resources


class OnlineTemplate(OwnLaunchTemplate[Online]):
    """Products along an axis that a block walks in turns, with running maxima and sums between them."""

    record = Online

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """Operands of the walked columns once a block, those of its rows once, and the cycles of its turns, as counted for its tiles."""
        return walk_plan_of(program).work

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Its tiles, and as many registers as its bound on blocks leaves a thread."""
        return Resources(0, walk_plan_of(program).shared_bytes, min_blocks=self.choice_of(program).resident)

    def overlaps(self, choice: Online) -> Overlaps:
        """Every block walks the whole axis."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=False)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The turns of a block, then its results."""
        return compose_online(program, device)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Online, ...]:
        """Other tiles, threads and numbers of stages."""
        base = self.choice_of(program)
        return others_than(base, online_neighbours(base))

    def program_with(self, program: TileProgram, choice: Online, device: DeviceSpec) -> TileProgram | Rejected:
        """The walk in those tiles."""
        return schedule_online(program.graph, program.layouts, device, choice)

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The walk in the tiles that the template writes."""
        return online_by_hand(program, template, device)

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    priority = 2

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The walk between the products of a pattern, on a device; values between the products stay unrounded."""
        if request.eager_rounding or request.is_part or not request.has_products or request.device.kind != "cuda":
            return Rejected(Reason.OTHER_TEMPLATE, "no kernel of its own on a device whose products leave their results unrounded")
        return schedule_online(request.graph, request.layouts, request.device)

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """False: walks are found as wholes (`plan/walks.py`)."""
        return False

    # -- explanations ----------------------------------------------------------------------------------------------------------

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """Rows of results a block, and the columns of the walked axis that it takes at a time."""
        c, form = self.choice_of(program), walk_plan_of(program).form
        columns = ("walked axis, a turn", c.columns)
        return (LevelTile("grid", (("lead", form.num_leads), ("row", form.num_rows))), LevelTile("block", (("row", c.rows), columns)),
                LevelTile("warp", (("row", -(-c.rows // -(-launch.num_threads // WARP))), columns)))

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """The loop along the walked axis, and the products in it."""
        return online_tree(walk_plan_of(program))

    def staging(self, program: TileProgram) -> Staging:
        """The place of each tile in shared memory; no two tiles share one."""
        plan = walk_plan_of(program)
        places = tuple(SharedPlace(f"{t.role} {t.number}", t.offset_bytes, t.num_bytes) for t in plan.tiles)
        return Staging((), places, plan.shared_bytes, plan.shared_bytes)


def walk_plan_of(program: TileProgram) -> OnlinePlan:
    """The plan of a walk between products. Raises: InternalError for another kernel."""
    if not isinstance(program.internal, OnlinePlan):
        raise InternalError(f"kernel {program.name} ({program.template}) walks no axis between products")
    return program.internal
