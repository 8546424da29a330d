"""Chains of products as a template."""
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
from tilefuse.templates.explained import LevelTile, SharedPlace, StageFacts, StagePiece, Staging
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.notation import Template
from tilefuse.templates.own_launch import OwnLaunchTemplate
from tilefuse.templates.request import Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.staged.chain.compose import compose_chain
from tilefuse.templates.staged.chain.neighbours import chain_neighbours
from tilefuse.templates.staged.chain.plan import DEPTH, ITEM_BYTES, ChainPlan
from tilefuse.templates.staged.chain.program import chain_by_hand, schedule_chain
from tilefuse.templates.staged.chain.record import ProductChain
from tilefuse.templates.staged.chain.tree import chain_tree
from tilefuse.templates.template import Overlaps, Resources


class ProductChainTemplate(OwnLaunchTemplate[ProductChain]):
    """Products back to back by persistent blocks: sums become the next left operand in the registers of their warpgroup."""

    record = ProductChain
    priority = 2

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """The first operand and results once, right operands for every tile or block, cycles of the tensor cores and of maps."""
        return plan_of(program).work

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Its accumulators, its left operands and its slots."""
        plan = plan_of(program)
        return Resources(plan.registers + device.fitted.pipelined.registers, plan.shared_bytes, min_blocks=1)

    def overlaps(self, choice: ProductChain) -> Overlaps:
        """Blocks take tiles in turns."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=True, one_wave=True)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The pipeline of a block."""
        return compose_chain(program, device, settled)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[ProductChain, ...]:
        """Other rows, warpgroups and slots."""
        return others_than(self.choice_of(program), chain_neighbours(plan_of(program), device))

    def program_with(self, program: TileProgram, choice: ProductChain, device: DeviceSpec) -> TileProgram | Rejected:
        """The chain in those tiles."""
        return schedule_chain(program.graph, program.layouts, device, choice)

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The chain in the tiles that the template writes."""
        return chain_by_hand(program, template, device)

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The products of a pattern, each with the maps behind it."""
        if request.is_part or not request.has_products:
            return Rejected(Reason.OTHER_TEMPLATE, "no products with a kernel of their own")
        return schedule_chain(request.graph, request.layouts, request.device)

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """False: chains are found as wholes (`plan/chains.py`)."""
        return False

    # -- explanations ----------------------------------------------------------------------------------------------------------

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """Rows of all layers, a block's rows, a warpgroup's; the widest layer's columns."""
        plan, c = plan_of(program), self.choice_of(program)
        columns = ("column", max(c.columns))
        return (LevelTile("grid", (("lead", plan.form.first.num_leads), ("row", plan.form.rows))),
                LevelTile("block", (("row", c.rows), columns, ("inner", DEPTH))),
                LevelTile("warpgroup", (("row", plan.rows), columns, ("inner", DEPTH)), c.warpgroups))

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """A main loop a product, with the maps behind it."""
        return chain_tree(plan_of(program))

    def staging(self, program: TileProgram) -> Staging:
        """The products of a tile in order, each with the maps behind it, and the rings of operands."""
        plan = plan_of(program)
        choice, results = plan.choice, program.graph.results
        stages: list[StageFacts] = []
        for layer in plan.layers:
            form, tile = layer.form, (choice.rows, layer.columns)
            maps = {n.name: n for p in (layer.ahead, layer.results) if p is not None for n in p.form.graph.nodes if n.category != "library"}
            pieces = [StagePiece(form.product.name, "product", tile, False, form.product.name in results)]
            pieces += [StagePiece(name, "map", tile, False, name in results) for name in maps if len(maps[name].type.shape) >= len(tile)]
            stages.append(StageFacts("product", False, tuple(pieces)))
        places = [SharedPlace(f"slots of %{plan.left.operand.value}", 0, plan.left.elements * choice.left_slots * ITEM_BYTES)]
        for layer in plan.layers if plan.stays else plan.layers[:1]:
            name = f"%{layer.right.operand.value}" if plan.stays else "all right operands"
            num_bytes = layer.right.elements * (choice.slots or layer.fillings) * ITEM_BYTES
            places.append(SharedPlace(f"slots of {name}", layer.right.offset_bytes, num_bytes))
        places += [SharedPlace(f"stages of %{r.name}", r.offset_bytes, r.num_bytes(choice.warpgroups)) for r in plan.staged]
        return Staging(tuple(stages), tuple(places), plan.shared_bytes, plan.shared_bytes)


def plan_of(program: TileProgram) -> ChainPlan:
    """The plan of a chain of products. Raises: InternalError for another kernel."""
    if not isinstance(program.internal, ChainPlan):
        raise InternalError(f"kernel {program.name} ({program.template}) is no chain of products")
    return program.internal
