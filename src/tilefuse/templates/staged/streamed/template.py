"""Streamed products as a template."""
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
from tilefuse.templates.staged.streamed.choose import may_be_streamed
from tilefuse.templates.staged.streamed.compose import compose_stream
from tilefuse.templates.staged.streamed.neighbours import stream_neighbours
from tilefuse.templates.staged.streamed.plan import StreamPlan
from tilefuse.templates.staged.streamed.program import schedule_stream, stream_by_hand
from tilefuse.templates.staged.streamed.record import Streamed
from tilefuse.templates.staged.streamed.stream_work import registers_of
from tilefuse.templates.staged.streamed.tree import stream_tree
from tilefuse.templates.template import Overlaps, Resources


class StreamedTemplate(OwnLaunchTemplate[Streamed]):
    """Products of few rows at the speed of reading their weights, with the rows' norms before and any maps behind."""

    record = Streamed
    priority = 2

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """Weights once, rows for every block."""
        return plan_of(program).work

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Sums and elements of a step in registers; rows and rings in shared memory."""
        plan = plan_of(program)
        return Resources(registers_of(plan, device), plan.shared_bytes, min_blocks=1)

    def overlaps(self, choice: Streamed) -> Overlaps:
        """Copies of weights may begin while the kernel ahead still runs, however many bytes they are; everything else waits."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=True, fetches_settled=True)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """Rows on chip, then steps along the inner axis."""
        return compose_stream(program, device, settled)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Streamed, ...]:
        """Other tiles, warps, clusters and slots."""
        return others_than(self.choice_of(program), stream_neighbours(plan_of(program)))

    def program_with(self, program: TileProgram, choice: Streamed, device: DeviceSpec) -> TileProgram | Rejected:
        """The products in those tiles."""
        return schedule_stream(program.graph, program.layouts, device, choice)

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The products with the settings that the template writes."""
        return stream_by_hand(program, template, device)

    def propose(self, request: Request) -> TileProgram | Rejected:
        """Products of few rows with the rows' norms before them and maps behind them."""
        if request.is_part or not request.has_products:
            return Rejected(Reason.OTHER_TEMPLATE, "no product with a kernel of its own")
        return schedule_stream(request.graph, request.layouts, request.device)

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """Products of few rows."""
        return may_be_streamed(node, graph, device)

    # -- updates in place, explanations ----------------------------------------------------------------------------------------

    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """False: every block reads all rows."""
        return False

    def reads_end_before_writes(self, program: TileProgram, value: str, target: str) -> bool:
        """False: other blocks may still read the rows."""
        return False

    def reads_where_it_stores(self, program: TileProgram, value: str, target: str) -> bool:
        """False: which elements maps read beside the sums is not looked at."""
        return False

    def computed_by_several(self, program: TileProgram) -> frozenset[str]:
        """None: each element of a result is one block's."""
        return frozenset()

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """The products, a block's columns with the inner elements of a step, and a warp's."""
        plan = plan_of(program)
        form, lanes = plan.form, plan.lanes
        row = ("row", form.rows)
        return (LevelTile("grid", (("lead", form.num_leads), row, ("column", form.columns))),
                LevelTile("block", (row, ("column", plan.columns), ("inner", plan.step))),
                LevelTile("warp", (row, ("column", lanes.columns), ("inner", lanes.depth))))

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """Rows on chip, and the loop that streams the weights."""
        return stream_tree(plan_of(program))

    def staging(self, program: TileProgram) -> Staging:
        """Rows and rings."""
        plan = plan_of(program)
        left = plan.form.contraction.left
        places, at = [SharedPlace(f"rows of %{left}", plan.reduction_bytes, plan.left_bytes)], plan.reduction_bytes + plan.left_bytes
        for stream in plan.form.streams:
            places.append(SharedPlace(f"ring of %{stream.value}", at, plan.ring_bytes(stream)))
            at += plan.ring_bytes(stream)
        return Staging((), tuple(places), plan.shared_bytes, plan.shared_bytes)


def plan_of(program: TileProgram) -> StreamPlan:
    """The plan of a streamed product. Raises: InternalError for another kernel."""
    if not isinstance(program.internal, StreamPlan):
        raise InternalError(f"kernel {program.name} ({program.template}) is no streamed product")
    return program.internal
