"""Pipelined walks between two products as a template."""
from __future__ import annotations

from collections.abc import Iterable, Set

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.ir.graph import Graph, Node
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import LevelTile, SharedPlace, Staging
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.notation import Template
from tilefuse.templates.own_launch import OwnLaunchTemplate
from tilefuse.templates.request import Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.form import walk_form
from tilefuse.templates.staged.walked.neighbours import walk_neighbours
from tilefuse.templates.staged.walked.plan import WalkPlan
from tilefuse.templates.staged.walked.program import schedule_walk, walk_by_hand
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.tree import walk_tree
from tilefuse.templates.template import Overlaps, Resources


class PipelinedWalkTemplate(OwnLaunchTemplate[PipelinedWalk]):
    """Two products with reductions between them by persistent blocks: scores and powers stay in the registers of their warpgroup."""

    record = PipelinedWalk
    priority = 2

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """Walked operands once a tile, those of its rows once, cycles of the tensor cores and of the special unit."""
        return pipelined_walk_of(program).work

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Its scores, powers and sums, and its slots."""
        plan = pipelined_walk_of(program)
        return Resources(plan.registers + device.fitted.walks.registers, plan.shared_bytes, min_blocks=1)

    def overlaps(self, choice: PipelinedWalk) -> Overlaps:
        """Blocks take tiles in turns."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=True, one_wave=True)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The pipeline of a block."""
        return compose_walk(program, device, settled)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[PipelinedWalk, ...]:
        """Other columns, warpgroups, slots, parts and orders of tiles."""
        form = walk_form(program.graph, program.layouts)
        assert not isinstance(form, Rejected), "the program is a walk"
        return others_than(self.choice_of(program), walk_neighbours(form, pipelined_walk_of(program), program.layouts, device))

    def program_with(self, program: TileProgram, choice: PipelinedWalk, device: DeviceSpec) -> TileProgram | Rejected:
        """The walk in those tiles."""
        return schedule_walk(program.graph, program.layouts, device, choice)

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The walk in the tiles that the template writes."""
        return walk_by_hand(program, template, device)

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The walk between the products of a pattern; values between the products stay unrounded."""
        if request.eager_rounding or request.is_part or not request.has_products:
            return Rejected(Reason.OTHER_TEMPLATE, "no kernel of its own whose products leave their results unrounded")
        return schedule_walk(request.graph, request.layouts, request.device)

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """False: walks are found as wholes (`plan/walks.py`)."""
        return False

    # -- explanations ----------------------------------------------------------------------------------------------------------

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """Rows of results a block and a warpgroup, and the columns of the walked axis that they take at a time."""
        c, plan = self.choice_of(program), pipelined_walk_of(program)
        columns, form = ("walked axis, a turn", c.columns), plan.form.online
        parts = (("part", c.parts),) if c.parts > 1 else ()
        grid = LevelTile("grid", (("lead", form.num_leads), ("row", form.num_rows), *parts))
        return (grid, LevelTile("block", (("row", c.rows), columns)),
                LevelTile("warpgroup", (("row", c.rows // c.warpgroups), columns), c.warpgroups))

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """The loop along the walked axis, and the products in it."""
        return walk_tree(pipelined_walk_of(program))

    def staging(self, program: TileProgram) -> Staging:
        """The rings of the three operands, the stages of results, and the rows of combined parts."""
        plan = pipelined_walk_of(program)
        places = tuple(SharedPlace(f"slots of %{t.operand.value}", t.offset_bytes, t.slot_bytes * plan.slots(t)) for t in plan.tiles)
        places += tuple(SharedPlace(f"stage of %{r.name}", r.offset_bytes, r.end_bytes - r.offset_bytes) for r in plan.staged)
        if plan.sums is not None:
            places += (SharedPlace("rows of combined parts", plan.sums.offset_bytes, plan.sums.end_bytes - plan.sums.offset_bytes),)
        return Staging((), places, plan.shared_bytes, plan.shared_bytes)


def pipelined_walk_of(program: TileProgram) -> WalkPlan:
    """The plan of a pipelined walk. Raises: InternalError for another kernel."""
    if not isinstance(program.internal, WalkPlan):
        raise InternalError(f"kernel {program.name} ({program.template}) is no pipelined walk")
    return program.internal
