"""Walks between several products as a template."""
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
from tilefuse.templates.staged.recomputed.compose import compose_back
from tilefuse.templates.staged.recomputed.neighbours import back_neighbours
from tilefuse.templates.staged.recomputed.plan import BackPlan
from tilefuse.templates.staged.recomputed.program import back_by_hand, schedule_back
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.recomputed.tree import back_tree
from tilefuse.templates.template import Overlaps, Resources


class WalkedBackTemplate(OwnLaunchTemplate[WalkedBack]):
    """Several products on either side of elements of scores, by persistent blocks: scores, elements and sums stay in registers."""

    record = WalkedBack
    priority = 2

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """Operands of rows once a tile, walked ones once a turn, cycles of the tensor cores and of the special unit."""
        return walked_back_of(program).work

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Its scores, elements and sums, and its slots."""
        plan = walked_back_of(program)
        return Resources(plan.registers + device.fitted.walks.registers, plan.shared_bytes, min_blocks=1)

    def overlaps(self, choice: WalkedBack) -> Overlaps:
        """Blocks take tiles in turns."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=True, one_wave=True)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The pipeline of a block."""
        return compose_back(program, device, settled)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[WalkedBack, ...]:
        """Other columns, warpgroups, slots and orders of tiles."""
        return others_than(self.choice_of(program), back_neighbours(walked_back_of(program), program.layouts, device))

    def program_with(self, program: TileProgram, choice: WalkedBack, device: DeviceSpec) -> TileProgram | Rejected:
        """The walk in those tiles."""
        return schedule_back(program.graph, program.layouts, device, choice)

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The walk in the tiles that the template writes."""
        return back_by_hand(program, template, device)

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The walk between the products of a pattern; values between the products stay unrounded."""
        if request.eager_rounding or request.is_part or not request.has_products:
            return Rejected(Reason.OTHER_TEMPLATE, "no kernel of its own whose products leave their results unrounded")
        return schedule_back(request.graph, request.layouts, request.device)

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """False: walks are found as wholes (`plan/walks.py`)."""
        return False

    # -- explanations ----------------------------------------------------------------------------------------------------------

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """Rows of results a block and a warpgroup, and the columns of the walked axis that they take at a time."""
        c, plan = self.choice_of(program), walked_back_of(program)
        columns, form = ("walked axis, a turn", c.columns), plan.form.online
        return (LevelTile("grid", (("lead", form.num_leads), ("row", form.num_rows))), LevelTile("block", (("row", c.rows), columns)),
                LevelTile("warpgroup", (("row", c.rows // c.warpgroups), columns), c.warpgroups))

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """The loop along the walked axis, and the products in it."""
        return back_tree(walked_back_of(program))

    def staging(self, program: TileProgram) -> Staging:
        """The rings of the operands, and the stages of results."""
        plan = walked_back_of(program)
        places = tuple(SharedPlace(f"slots of %{t.operand.value}", t.offset_bytes, t.slot_bytes * plan.slots(t)) for t in plan.tiles)
        places += tuple(SharedPlace(f"slots of %{v.read.value}", v.offset_bytes, v.slot_bytes * plan.choice.slots) for v in plan.vectors)
        places += tuple(SharedPlace(f"stage of %{r.name}", r.offset_bytes, r.end_bytes - r.offset_bytes) for r in plan.staged)
        return Staging((), places, plan.shared_bytes, plan.shared_bytes)


def walked_back_of(program: TileProgram) -> BackPlan:
    """The plan of a walk between several products. Raises: InternalError for another kernel."""
    if not isinstance(program.internal, BackPlan):
        raise InternalError(f"kernel {program.name} ({program.template}) is no walk between several products")
    return program.internal
