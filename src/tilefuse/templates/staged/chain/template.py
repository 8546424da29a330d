"""Chains of products as a template.

    up [GRID-CTA_128,CTA_256,LOOP_64]R; down [GRID-CTA_128,CTA_64,LOOP_64]; left_slots=2; slots=5; warpgroups=2; cta_num=132; cta_size=384;
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import COLUMN, ROW
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.notation import Worker
from tilefuse.templates.request import Price, Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.staged.chain.choose import candidates, choose_chain
from tilefuse.templates.staged.chain.compose import compose_chain
from tilefuse.templates.staged.chain.form import chain_form
from tilefuse.templates.staged.chain.plan import ChainPlan
from tilefuse.templates.staged.chain.record import ProductChain
from tilefuse.templates.staged.chain.tree import chain_tree
from tilefuse.templates.staged.notation import BLOCKS, THREADS, Numbers, Settings
from tilefuse.templates.staged.template import PipelineTemplate
from tilefuse.templates.template import Resources


class ProductChainTemplate(PipelineTemplate[ProductChain, ChainPlan]):
    """Products back to back by persistent blocks: sums become the next left operand in the registers of their warpgroup."""

    record = ProductChain
    plan_type = ChainPlan
    noun = "a chain of products"
    settings = Settings(("left_slots", "slots", "warpgroups", BLOCKS, THREADS))
    places = {(ROW, Worker.CTA): "rows", (COLUMN, Worker.CTA): "columns of {value}"}
    met_by = "rows are 64 or 128 for each warpgroup, columns those of the sums in whole instructions"

    def plan(self, graph: Graph, layouts: Layouts, device: DeviceSpec, fixed: ProductChain | None,
             ceiling: Price | None = None) -> ChainPlan | Rejected:
        """The layers of a chain in the cheapest tiles."""
        form = chain_form(graph, layouts)
        return form if isinstance(form, Rejected) else choose_chain(form, device, fixed)

    def tree(self, plan: ChainPlan) -> StageTree:
        """A main loop a product, with the maps behind it."""
        return chain_tree(plan)

    def near(self, program: TileProgram, plan: ChainPlan, device: DeviceSpec) -> Iterator[ProductChain]:
        """Every tile that is tried, and with the plan's own tile fewer slots of the left operand."""
        yield from candidates(plan.form, device)
        if plan.choice.left_slots > 2:
            yield replace(plan.choice, left_slots=plan.choice.left_slots - 1)

    def choice_with(self, plan: ChainPlan, numbers: Numbers) -> ProductChain:
        """Each product has columns of its own."""
        columns = tuple(numbers.get(f"columns of {layer.form.product.name}", c)
                        for layer, c in zip(plan.layers, plan.choice.columns, strict=True))
        return replace(super().choice_with(plan, numbers), columns=columns)

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Its accumulators, its left operands and its slots."""
        plan = self.plan_of(program)
        return Resources(plan.registers + device.fitted.pipelined.registers, plan.shared_bytes, min_blocks=1)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The pipeline of a block."""
        return compose_chain(program, device, settled)

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The products of a pattern, each with the maps behind it."""
        if request.is_part or not request.has_products:
            return Rejected(Reason.OTHER_TEMPLATE, "no products with a kernel of their own")
        return self.schedule(request.graph, request.layouts, request.device)


_TEMPLATE = ProductChainTemplate()
schedule_chain, chain_by_hand, plan_of = _TEMPLATE.schedule, _TEMPLATE.program_by_hand, _TEMPLATE.plan_of
