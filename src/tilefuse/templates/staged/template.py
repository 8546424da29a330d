"""Stitched kernels, of several stages over one tile, as a template."""
from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import InternalError
from tilefuse.domain.tile import TileProgram
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.levels import UNLIMITED, LevelTraffic
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.staged.choose_stitch import registers_of
from tilefuse.templates.staged.compose_stitch import compose_stitch
from tilefuse.templates.staged.neighbours import stitched_neighbours
from tilefuse.templates.staged.record import Stitched
from tilefuse.templates.staged.stitch_plan import StitchPlan
from tilefuse.templates.staged.stitched import schedule_stitched
from tilefuse.templates.staged.traffic import stitched_traffic
from tilefuse.templates.template import Ending, KernelTemplate, Overlaps, Resources


class StitchedTemplate(KernelTemplate[Stitched]):
    """Stages over one tile of the largest result, with values between stages in shared memory."""

    record = Stitched

    def priced_traffic(self, program: TileProgram, device: DeviceSpec, near_bytes: int = UNLIMITED) -> LevelTraffic:
        """Its boundary: the estimate of its stages' time counts their waits for L2 and shared memory."""
        return LevelTraffic(program.bytes_moved, 0)

    def traffic(self, program: TileProgram, device: DeviceSpec) -> LevelTraffic:
        """Reads and writes of each stage, over all tiles."""
        l2_bytes, shared_bytes = stitched_traffic(program.graph, plan_of(program), self.choice_of(program))
        return replace(self.priced_traffic(program, device), l2_bytes=l2_bytes, shared_bytes=shared_bytes)

    def endings(self, program: TileProgram) -> tuple[Ending, ...]:
        """None: blocks finish their own tiles."""
        return ()

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


def plan_of(program: TileProgram) -> StitchPlan:
    """The stages of a stitched kernel. Raises: InternalError for another kernel."""
    if not isinstance(program.internal, StitchPlan):
        raise InternalError(f"kernel {program.name} ({program.template}) is not stitched")
    return program.internal
