"""Stitched kernels, of several stages over one tile, as a template."""
from __future__ import annotations

from collections.abc import Hashable, Iterable, Set
from dataclasses import replace
from math import log2, prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import SPLIT, contraction_of, matrix_arithmetic
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.ir.graph import Graph, Node
from tilefuse.kernel.ir import Kernel
from tilefuse.passes.device.padding import PADDED
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.any_size import AnySize
from tilefuse.templates.explained import LevelTile, Staging, largest_result, numbered
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.notation import Template
from tilefuse.templates.parts import PackedGroup
from tilefuse.templates.registry import kernel_templates
from tilefuse.templates.request import Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.staged.stitched.by_hand import stitched_by_hand
from tilefuse.templates.staged.stitched.compose import compose_stitch
from tilefuse.templates.staged.stitched.neighbours import stitched_neighbours
from tilefuse.templates.staged.stitched.overwrites import computed_by_several, stage_reads_end_before_writes
from tilefuse.templates.staged.stitched.plan import StitchPlan
from tilefuse.templates.staged.stitched.program import fits_one_block, schedule_like, schedule_stitched, staging_of, stitch_tree
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.stage_work import registers_of
from tilefuse.templates.template import KernelTemplate, Overlaps, Resources


def gains_parts(node: Node, graph: Graph, device: DeviceSpec) -> bool:
    """Whether stages multiply high and low parts of f32 on tensor cores, where the library multiplies on threads."""
    contraction = contraction_of(node, graph)
    if contraction is None or not device.has_matrix_unit:
        return False
    return matrix_arithmetic(contraction, graph.type_of(contraction.left).dtype, graph.type_of(contraction.right).dtype) == SPLIT


class StitchedTemplate(KernelTemplate[Stitched]):
    """Stages over one tile of the largest result, with values between stages in shared memory."""

    record = Stitched

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """Reads and writes of each stage over all tiles, and the cycles of its blocks, as they were counted when its tiles were chosen."""
        return plan_of(program).work

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """The stage with the largest register tile, and all tiles in shared memory."""
        plan = plan_of(program)
        # Without a bound the assembler gives stages that start early few registers.
        return Resources(registers_of(plan, device), plan.shared_bytes, min_blocks=1)

    def overlaps(self, choice: Stitched) -> Overlaps:
        """Its stages read tiles in an order of their own; what is the same for all tiles it fetches first."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=True)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """One loop nest a stage, with barriers between them."""
        return compose_stitch(program, device, taken, settled)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Stitched, ...]:
        """Other tiles and threads."""
        base = self.choice_of(program)
        return others_than(base, stitched_neighbours(base, program))

    def program_with(self, program: TileProgram, choice: Stitched, device: DeviceSpec) -> TileProgram | Rejected:
        """The stages over that tile."""
        return schedule_stitched(program.graph, program.layouts, device, choice)

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The stages over the tile that the template writes."""
        return stitched_by_hand(program, template, device)

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    priority = 2

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
            return schedule_like(request.choices, request.graph, request.layouts, request.device)
        if request.has_products or fits_one_block(request.graph, request.device):
            return schedule_stitched(request.graph, request.layouts, request.device)
        return Rejected(Reason.OTHER_TEMPLATE, "a pattern without products is computed in stages where one block suffices")

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

    # -- updates in place, explanations, parts of packed kernels ---------------------------------------------------------------

    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """Stages pass values between threads: `reads_end_before_writes` says what they have read by then."""
        return False

    def reads_end_before_writes(self, program: TileProgram, value: str, target: str) -> bool:
        """Whether the block has read its part of `target` before a barrier, or reads each element in the thread that overwrites it."""
        return stage_reads_end_before_writes(plan_of(program), value, target)

    def reads_where_it_stores(self, program: TileProgram, value: str, target: str) -> bool:
        """False: tiles of operands and of results differ."""
        return False

    def computed_by_several(self, program: TileProgram) -> frozenset[str]:
        """Results that lie in the tiles of several blocks."""
        return computed_by_several(plan_of(program))

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """The tile of the largest result, spread over warps and threads."""
        c = self.choice_of(program)
        elements = prod(c.tiles)
        return (LevelTile("grid", numbered(largest_result(program))), LevelTile("block", numbered(c.tiles)),
                LevelTile("warp", (("element", -(-elements // -(-launch.num_threads // WARP))),)),
                LevelTile("thread", (("element", -(-elements // c.threads)),)))

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """The stages of a tile, in a loop over tiles where blocks take several."""
        return stitch_tree(plan_of(program), self.choice_of(program))

    def staging(self, program: TileProgram) -> Staging:
        """The stages in order, and the place of each stored piece."""
        return staging_of(plan_of(program))

    @property
    def any_size(self) -> AnySize[Stitched] | None:
        """None: extents stand in the body of a stage."""
        return None

    @property
    def packs(self) -> bool:
        """Stages are one pattern."""
        return False

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

    def thread_loss(self, choice: Stitched, changed: Stitched, device: DeviceSpec) -> float:
        """As much for each doubling as for each halving."""
        return device.fitted.packed.row_threads_loss * abs(log2(changed.num_threads / choice.num_threads))

    def likeness(self, program: TileProgram) -> Hashable | None:
        """None: extents stand in the body of a stage."""
        return None


def plan_of(program: TileProgram) -> StitchPlan:
    """The stages of a stitched kernel. Raises: InternalError for another kernel."""
    if not isinstance(program.internal, StitchPlan):
        raise InternalError(f"kernel {program.name} ({program.template}) is not stitched")
    return program.internal
