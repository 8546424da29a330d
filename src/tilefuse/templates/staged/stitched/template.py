"""Stitched kernels, of several stages over one tile, as a template.

    x [GRID-CTA_8,CTA]S; h [GRID-CTA_8,CTA,THREAD]S; y [GRID-CTA_8,CTA]; tile_0=8; tile_1=64; cta_num=512; cta_size=256;
"""
from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Set
from dataclasses import replace
from math import log2, prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import SPLIT, contraction_of, matrix_arithmetic
from tilefuse.domain.parts import structure_but_starts
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.ir import Kernel
from tilefuse.passes.device.padding import PADDED
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.any_size import AnySize
from tilefuse.templates.explained import Staging
from tilefuse.templates.notation import Schedule, Setting, Step, Template, Worker
from tilefuse.templates.parts import PackedGroup
from tilefuse.templates.registry import kernel_templates
from tilefuse.templates.request import Price, Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.staged.notation import BLOCKS, THREADS, Settings, template_of
from tilefuse.templates.staged.stitched.by_hand import stitched_by_hand
from tilefuse.templates.staged.stitched.choose import choose_stitch
from tilefuse.templates.staged.stitched.compose import compose_stitch
from tilefuse.templates.staged.stitched.connect import connections
from tilefuse.templates.staged.stitched.overwrites import computed_by_several, stage_reads_end_before_writes
from tilefuse.templates.staged.stitched.pattern import anchor_of
from tilefuse.templates.staged.stitched.plan import StitchPlan
from tilefuse.templates.staged.stitched.record import Stitched, Tiles
from tilefuse.templates.staged.stitched.stage_work import registers_of
from tilefuse.templates.staged.stitched.tree import staged_values, staging_of, stitch_tree
from tilefuse.templates.staged.template import StagedTemplate
from tilefuse.templates.template import Overlaps, Resources


def gains_parts(node: Node, graph: Graph, device: DeviceSpec) -> bool:
    """Whether stages multiply high and low parts of f32 on tensor cores, where the library multiplies on threads."""
    contraction = contraction_of(node, graph)
    if contraction is None or not device.has_matrix_unit:
        return False
    return matrix_arithmetic(contraction, graph.type_of(contraction.left).dtype, graph.type_of(contraction.right).dtype) == SPLIT


def fits_one_block(graph: Graph, device: DeviceSpec) -> bool:
    """Whether a pattern with reductions is so small that one launch less is worth one block that computes its stages in turn."""
    steps = sum(n.type.num_elements * prod(e for _, e in n.over) for n in graph.nodes)
    return steps <= device.fitted.stitch.one_block_steps and any(n.category == "reduce" for n in graph.nodes)


class StitchedTemplate(StagedTemplate[Stitched, StitchPlan]):
    """Stages over one tile of the largest result, with values between stages in shared memory."""

    record = Stitched
    tries_many = 2
    plan_type = StitchPlan
    noun = "a stitched kernel"
    settings = Settings((BLOCKS, THREADS))
    met_by = "smaller tiles take less shared memory"

    def plan(self, graph: Graph, layouts: Layouts, device: DeviceSpec, fixed: Stitched | None,
             ceiling: Price | None = None) -> StitchPlan | Rejected:
        """The stages over the cheapest tile."""
        if device.kind != "cuda" and fixed is None:
            return Rejected(Reason.LIBRARY_CALL, "the host's library multiplies matrices faster")
        candidate = choose_stitch(graph, device, fixed, ceiling)
        return candidate if isinstance(candidate, Rejected) else candidate.plan

    def tree(self, plan: StitchPlan) -> StageTree:
        """The stages of a tile, in a loop over tiles where blocks take several."""
        return stitch_tree(plan)

    def text(self, plan: StitchPlan, tree: StageTree, launch: Launch) -> Template:
        """One schedule a piece of a stage; the tile of the largest result and the blocks that take several tiles are settings."""
        tiles = tuple(Setting(f"tile_{n}", extent) for n, extent in enumerate(plan.choice.tiles))
        groups = (Setting("groups", plan.choice.groups),) if plan.choice.groups else ()
        stages = template_of(staged_values(plan), (*tiles, *groups, *self.settings.of(plan.choice, launch.num_blocks)), (Level.SHARED,))
        by_readers = (Schedule(v, ((Step(Worker.THREAD),),), (level,)) for v, level in plan.choice.levels if level is Level.REGISTER)
        return replace(stages, schedules=(*stages.schedules, *by_readers))

    def facts(self, plan: StitchPlan) -> tuple[tuple[str, object], ...]:
        """Shared memory, and the tile."""
        return ("allocated_bytes", plan.shared_bytes), ("requested_bytes", plan.requested_bytes), ("tiles", plan.choice.tiles)

    def near(self, program: TileProgram, plan: StitchPlan, device: DeviceSpec) -> Iterator[Stitched]:
        """Tiles twice as long and half as long in each dimension, other numbers of threads, other levels of maps."""
        base, shape = plan.choice, program.graph.type_of(anchor_of(program.graph)).shape
        for threads in (128, 256, 512):
            yield replace(base, threads=threads)
            for place, extent in enumerate(base.tiles):
                for other in (extent * 2, extent // 2):
                    if len(shape) == len(base.tiles) and 1 <= other <= shape[place]:
                        yield replace(base, threads=threads, tiles=(*base.tiles[:place], other, *base.tiles[place + 1:]))
        yield from (c.choice for c in connections(program.graph, device, base)[:SEARCH.stages.connections])

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The stages over the tile that the template writes."""
        return stitched_by_hand(program, template, device, self.schedule)

    def staging(self, program: TileProgram) -> Staging:
        """The stages in order, and the place of each stored piece."""
        return staging_of(self.plan_of(program))

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """The stage with the largest register tile, and all tiles in shared memory."""
        plan = self.plan_of(program)
        # Without a bound the assembler gives stages that start early few registers.
        return Resources(registers_of(plan, device), plan.shared_bytes, min_blocks=1)

    def overlaps(self, choice: Stitched) -> Overlaps:
        """Its stages read tiles in an order of their own; what is the same for all tiles it fetches first."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=True)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """One loop nest a stage, with barriers between them."""
        return compose_stitch(program, device, taken, settled)

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    def propose(self, request: Request) -> TileProgram | Rejected:
        """Tiles for patterns with products, those of a pattern like it where the search has one; one block for small patterns without."""
        products = [n for n in request.graph.nodes if n.category == "library"] if request.replaces_calls else []
        # Products that no template holds alone may be held between others (`plan/walks.py`).
        large = next((n.name for n in products if not self.holds_product(n, request.graph, request.device)
                      and not gains_parts(n, request.graph, request.device)
                      and any(t.holds_product(n, request.graph, request.device) for t in kernel_templates())), None)
        if large is not None:
            return Rejected(Reason.LIBRARY_CALL, f"operands of %{large} do not stay on chip, and the library multiplies it faster")
        if request.has_products and not request.is_part:
            return self.schedule_like(request.choices, request.graph, request.layouts, request.device, request.ceiling)
        if request.has_products or fits_one_block(request.graph, request.device):
            return self.schedule(request.graph, request.layouts, request.device, ceiling=request.ceiling)
        return Rejected(Reason.OTHER_TEMPLATE, "a pattern without products is computed in stages where one block suffices")

    def schedule_like(self, known: Tiles, graph: Graph, layouts: Layouts, device: DeviceSpec,
                      ceiling: Price | None = None) -> TileProgram | Rejected:
        """As `schedule`; a pattern that differs from one in `known` in where it begins to read takes that one's tiles."""
        form = structure_but_starts(graph, {v: layouts[v] for v in graph.type_by_name if v in layouts})
        again = self.schedule(graph, layouts, device, known[form]) if form in known else None
        if isinstance(again, TileProgram):
            return again
        program = self.schedule(graph, layouts, device, ceiling=ceiling)
        if isinstance(program, TileProgram):
            known[form] = self.choice_of(program)
        return program

    def own_kernel_share(self, device: DeviceSpec) -> float:
        """That of kernels whose prices leave out reads of cold weights."""
        return device.fitted.products.own_kernel_share

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """Products whose inner axis lies on chip whole, and whose right operand is small: its tiles come again for every block.

        None that were padded: stages read rows at any place, and padding is for the library and for tensor copies.
        """
        contraction = contraction_of(node, graph)
        if contraction is None or contraction.inner > SEARCH.stages.inner or node.attribute(PADDED):
            return False
        right, fitted = graph.type_of(contraction.right), device.fitted.products
        limit_bytes = fitted.large_for_few_rows_bytes if node.type.shape[-2] <= fitted.few_rows else fitted.large_operand_bytes
        return prod(right.shape[-2:]) * right.dtype.itemsize <= limit_bytes

    # -- updates in place, parts of packed kernels -----------------------------------------------------------------------------

    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """Stages pass values between threads: `reads_end_before_writes` says what they have read by then."""
        return False

    def reads_end_before_writes(self, program: TileProgram, value: str, target: str) -> bool:
        """Whether the block has read its part of `target` before a barrier, or reads each element in the thread that overwrites it."""
        return stage_reads_end_before_writes(self.plan_of(program), value, target)

    def reads_where_it_stores(self, program: TileProgram, value: str, target: str) -> bool:
        """False: tiles of operands and of results differ."""
        return False

    def computed_by_several(self, program: TileProgram) -> frozenset[str]:
        """Results that lie in the tiles of several blocks."""
        return computed_by_several(self.plan_of(program))

    @property
    def any_size(self) -> AnySize[Stitched] | None:
        """None: extents stand in the body of a stage."""
        return None

    @property
    def packs(self) -> bool:
        """Stages are one pattern."""
        return False

    def stands_for(self, program: TileProgram) -> tuple[TileProgram, ...]:
        """None: its nodes would be kernels of their own."""
        return ()

    def groups(self, program: TileProgram) -> tuple[PackedGroup, ...]:
        """None: stages are one pattern."""
        return ()

    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """A persistent grid needs a launch of its own."""
        if self.choice_of(program).groups:
            return Rejected(Reason.SHARED_MEMORY, f"%{program.graph.results[0]} is a persistent grid that fills the device")
        return None

    def with_threads(self, program: TileProgram, threads: int, device: DeviceSpec) -> Stitched | None:
        """Whole warps, and enough of them to hide the latency of its stages."""
        legal = threads % WARP == 0 and threads >= device.fitted.packed.least_stitched_threads
        return replace(self.choice_of(program), threads=threads) if legal else None

    def in_turns(self, program: TileProgram, blocks: int, fetches_early: bool, device: DeviceSpec) -> TileProgram | None:
        """None: its blocks load tiles behind the kernel ahead."""
        return None

    def turns_bytes(self, program: TileProgram) -> int:
        """0: as `in_turns`."""
        return 0

    def thread_loss(self, choice: Stitched, changed: Stitched, device: DeviceSpec) -> float:
        """As much for each doubling as for each halving."""
        return device.fitted.packed.row_threads_loss * abs(log2(changed.num_threads / choice.num_threads))

    def likeness(self, program: TileProgram) -> Hashable | None:
        """None: extents stand in the body of a stage."""
        return None


_TEMPLATE = StitchedTemplate()
schedule_stitched, schedule_like, plan_of = _TEMPLATE.schedule, _TEMPLATE.schedule_like, _TEMPLATE.plan_of
