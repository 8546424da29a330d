"""Pipelined products as a template.

    linear [GRID-CTA_128,GRID-CTA_256,LOOP_64]R; slots=4; warpgroups=2; band=8; cta_num=132; cta_size=384;
    linear [GRID-CTA_128,GRID-CLUSTER_4-CTA_256,LOOP_64]R; ...       the blocks of a cluster hold whole rows and reduce them together
    linear [GRID-CTA_128,GRID-CLUSTER_6-CTA_128,LOOP_64]R; scattered=true; ...     the same, on any multiprocessors
    linear [GRID-CTA_16,GRID-CTA_128,LOOP_64]R; swapped; ...         128 columns are the rows of instructions
    linear [GRID-CTA_64,GRID-CTA_64,CLUSTER_4-LOOP_64]R; ...         the blocks of a cluster have a part each of the inner axis
    linear [GRID-CTA_64,GRID-CTA_64,GRID_3-CLUSTER_4-LOOP_64]R; ...  three clusters with four parts each: twelve parts of the inner axis
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import COLUMN, INNER, ROW
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.notation import Attr, Template, Worker
from tilefuse.templates.request import Price, Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.staged.notation import BLOCKS, THREADS, Numbers, Settings, numbers_of
from tilefuse.templates.staged.pipelined.choose import candidates, choose_product, is_cheaper_unscattered, may_be_pipelined
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.form import product_form
from tilefuse.templates.staged.pipelined.overwrites import reads_end_before_stores
from tilefuse.templates.staged.pipelined.plan import ProductPlan
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.tree import product_tree
from tilefuse.templates.staged.template import PipelineTemplate
from tilefuse.templates.template import Overlaps, Resources

FLAGS = ("pingpong", "swapped", "multicast", "scattered", "by_warps")


class PipelinedTemplate(PipelineTemplate[Pipelined, ProductPlan]):
    """Products of one left operand by persistent blocks: producers fill a ring of operand tiles, consumer warpgroups multiply and write the
    results."""

    record = Pipelined
    tries_many = 1
    plan_type = ProductPlan
    noun = "a pipelined product"
    settings = Settings(("slots", "warpgroups", *FLAGS, "resident", "band", BLOCKS, THREADS), FLAGS, ("resident",))
    rare = ("by_warps", "resident")
    met_by = "rows are 64 for each warpgroup or a multiple, columns and inner elements multiples of 128 bytes"

    def plan(self, graph: Graph, layouts: Layouts, device: DeviceSpec, fixed: Pipelined | None,
             ceiling: Price | None = None) -> ProductPlan | Rejected:
        """The products in the cheapest tiles."""
        form = product_form(graph, layouts)
        return form if isinstance(form, Rejected) else choose_product(form, device, fixed, ceiling)

    def tree(self, plan: ProductPlan) -> StageTree:
        """Tiles in turn, the main loop with its rings, maps and reductions on the sums."""
        return product_tree(plan)

    def near(self, program: TileProgram, plan: ProductPlan, device: DeviceSpec) -> Iterator[Pipelined]:
        """Every tile that is tried, and with the plan's own tile fewer slots and bands of other heights."""
        yield from candidates(plan.form, device)
        base = plan.choice
        if base.slots > 2:
            yield replace(base, slots=base.slots - 1)
        for band in (base.band // 2, base.band * 2):
            if band and (plan.form.num_groups or plan.row_tiles % band == 0):
                yield replace(base, band=band)

    def numbers(self, template: Template, plan: ProductPlan) -> Numbers:
        """Rows of tiles are columns of the product where operands are swapped. Clusters and parts of the inner axis stand in schedules."""
        swapped = next((bool(s.value) for s in template.settings if s.name == "swapped"), plan.choice.swapped)
        rows, columns = (COLUMN, ROW) if swapped else (ROW, COLUMN)
        places = {(rows, Worker.CTA): "rows", (columns, Worker.CTA): "columns", (INNER, Worker.LOOP): "depth"}
        numbers = numbers_of(template, self.tree(plan).values(), places, self.settings, self.noun)
        for schedule in template.schedules:
            if len(schedule.attrs) > 2:
                across, inner = schedule.attrs[-3 if swapped else -2], schedule.attrs[-1]
                in_cluster = _count(inner, Worker.CLUSTER, plan.choice.cluster)
                numbers.add("cluster", max(_count(across, Worker.CLUSTER, plan.choice.cluster), in_cluster), schedule.span)
                numbers.add("split", in_cluster * _count(inner, Worker.GRID, plan.choice.memory_parts), schedule.span)
        return numbers

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Its accumulators and its slots."""
        plan = self.plan_of(program)
        return Resources(plan.registers + device.fitted.pipelined.registers, plan.shared_bytes, min_blocks=1)

    def overlaps(self, choice: Pipelined) -> Overlaps:
        """Weights of few rows come before the kernel waits for the one ahead."""
        return replace(super().overlaps(choice), waits_itself=choice.swapped)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The pipeline of a block."""
        return compose_product(program, device, settled)

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The product of a pattern with what follows it element by element, and reductions of groups of its columns, or of whole rows in
        scattered clusters.

        Whole rows in one block or in hardware's clusters are left to other kernels, which are faster behind a product of ours (findings.md,
        rows over the sums).
        """
        if request.is_part or not request.has_products:
            return Rejected(Reason.OTHER_TEMPLATE, "no product with a kernel of its own")
        form = product_form(request.with_sums_kept, request.layouts)
        if not isinstance(form, Rejected) and form.reduced.stages and not form.reduced.width:
            whole = form.reduced.stages[0].reductions[0]
            if is_cheaper_unscattered(form, request.device):
                return Rejected(Reason.OTHER_TEMPLATE, f"%{whole} reduces whole rows, which plans leave to other kernels")
        return self.schedule(request.with_sums_kept, request.layouts, request.device, ceiling=request.ceiling)

    def reads_end_before_writes(self, program: TileProgram, value: str, target: str) -> bool:
        """Where a result takes the place of a value that it reads at the element at hand alone."""
        return reads_end_before_stores(self.plan_of(program), value, target)

    def own_kernel_share(self, device: DeviceSpec) -> float:
        """That of kernels whose price counts every read."""
        return device.fitted.pipelined.own_kernel_share

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """Products of a type that warpgroup instructions multiply."""
        return may_be_pipelined(node, graph, device)


def _count(attr: Attr, worker: Worker, otherwise: int) -> int:
    """Workers of a kind that share a loop; `otherwise` where the template writes no number."""
    return next((otherwise if s.count is None else s.count for s in attr if s.worker is worker), 1)


_TEMPLATE = PipelinedTemplate()
schedule_product, product_by_hand, plan_of = _TEMPLATE.schedule, _TEMPLATE.program_by_hand, _TEMPLATE.plan_of
