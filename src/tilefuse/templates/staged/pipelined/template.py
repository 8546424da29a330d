"""Pipelined products as a template."""
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
from tilefuse.templates.staged.pipelined.choose import may_be_pipelined
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.neighbours import product_neighbours
from tilefuse.templates.staged.pipelined.plan import ProductPlan
from tilefuse.templates.staged.pipelined.program import product_by_hand, schedule_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.tree import product_tree
from tilefuse.templates.template import Overlaps, Resources


class PipelinedTemplate(OwnLaunchTemplate[Pipelined]):
    """Products of one left operand by persistent blocks: producers fill a ring of operand tiles, consumer warpgroups multiply and write the
    results."""

    record = Pipelined
    priority = 2

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """Operands once for every tile, results once, cycles of the tensor cores."""
        return plan_of(program).work

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Its accumulators and its slots."""
        plan = plan_of(program)
        registers = plan.all_sums + plan.row_registers + plan.expanded_registers + plan.scale_registers
        registers += device.fitted.pipelined.registers
        return Resources(registers, plan.shared_bytes, min_blocks=1)

    def overlaps(self, choice: Pipelined) -> Overlaps:
        """Blocks take tiles in bands."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=choice.swapped, fetches_settled=True, one_wave=True)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The pipeline of a block."""
        return compose_product(program, device, settled)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Pipelined, ...]:
        """Other tiles, slots and bands."""
        return others_than(self.choice_of(program), product_neighbours(plan_of(program), device))

    def program_with(self, program: TileProgram, choice: Pipelined, device: DeviceSpec) -> TileProgram | Rejected:
        """The product in those tiles."""
        return schedule_product(program.graph, program.layouts, device, choice)

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The product in the tiles that the template writes."""
        return product_by_hand(program, template, device)

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The product of a pattern with what follows it element by element, and reductions of groups of its columns, or of whole rows in
        scattered clusters.

        Whole rows in one block or in hardware's clusters are left to other kernels, which are faster behind a product of ours (findings.md,
        rows over the sums).
        """
        if request.is_part or not request.has_products:
            return Rejected(Reason.OTHER_TEMPLATE, "no product with a kernel of its own")
        program = schedule_product(request.with_sums_kept, request.layouts, request.device)
        plan = plan_of(program) if isinstance(program, TileProgram) else None
        if plan is not None and plan.form.reduced.stages and not plan.form.reduced.width and not plan.choice.scattered:
            whole = plan.form.reduced.stages[0].reductions[0]
            return Rejected(Reason.OTHER_TEMPLATE, f"%{whole} reduces whole rows, which plans leave to other kernels")
        return program

    def own_kernel_share(self, device: DeviceSpec) -> float:
        """That of kernels whose price counts every read."""
        return device.fitted.pipelined.own_kernel_share

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """Products of a type that warpgroup instructions multiply."""
        return may_be_pipelined(node, graph, device)

    # -- explanations ----------------------------------------------------------------------------------------------------------

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """The product, the tiles of a cluster, a block's tile with the inner elements of a slot, a warpgroup's rows of it."""
        plan, c = plan_of(program), self.choice_of(program)
        form = plan.form
        inner = ("inner", c.depth)
        of_cluster = (("row", c.rows), ("column", c.columns * c.cluster_columns), ("inner", c.depth * c.cluster_parts))
        together = (LevelTile("cluster", of_cluster),) if c.cluster > 1 else ()
        return (LevelTile("grid", (("lead", form.num_leads), ("row", form.rows), ("column", form.columns))), *together,
                LevelTile("block", (("row", c.rows), ("column", c.columns), inner)),
                LevelTile("warpgroup", (("row", c.warpgroup_rows), ("column", c.columns), inner), c.warpgroups))

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """Tiles in turn, the main loop with its rings, maps and reductions on the sums."""
        return product_tree(plan_of(program))

    def staging(self, program: TileProgram) -> Staging:
        """The slots of all operands, the stages of results, the parts that blocks of a cluster exchange."""
        plan = plan_of(program)
        named = [f"slots of %{t.operand.value}" + (f" from element {t.operand.first}" if t.operand.first else "") for t in plan.operands]
        places = [SharedPlace(name, t.offset_bytes, t.elements * plan.choice.slots * t.operand.dtype.itemsize)
                  for name, t in zip(named, plan.operands, strict=True)]
        places += [SharedPlace(f"stages of %{r.name}", r.offset_bytes, r.num_bytes(plan.choice.warpgroups)) for r in plan.beside.tiles]
        places += [SharedPlace(f"parts of rows: {', '.join('%' + p.name for p in e.parts)}", e.offset_bytes, e.num_bytes)
                   for e in plan.exchanges]
        if plan.received is not None:
            places.append(SharedPlace(f"sums of {plan.choice.cluster} parts of the inner axis", plan.received.offset_bytes,
                                      plan.received.num_bytes))
        return Staging((), tuple(places), plan.shared_bytes, plan.shared_bytes)


def plan_of(program: TileProgram) -> ProductPlan:
    """The plan of a pipelined product. Raises: InternalError for another kernel."""
    if not isinstance(program.internal, ProductPlan):
        raise InternalError(f"kernel {program.name} ({program.template}) is no pipelined product")
    return program.internal
