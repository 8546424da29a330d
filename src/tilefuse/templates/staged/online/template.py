"""Walks along an axis between products as a template."""
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
from tilefuse.templates.staged.online.choose import OnlinePlan
from tilefuse.templates.staged.online.compose import compose_online
from tilefuse.templates.staged.online.neighbours import online_neighbours
from tilefuse.templates.staged.online.program import schedule_online
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.traffic import online_traffic
from tilefuse.templates.template import Ending, KernelTemplate, Overlaps, Resources


class OnlineTemplate(KernelTemplate[Online]):
    """Products along an axis that a block walks in turns, with running maxima and sums between them."""

    record = Online

    def priced_traffic(self, program: TileProgram, device: DeviceSpec, near_bytes: int = UNLIMITED) -> LevelTraffic:
        """Its boundary: the estimate of its turns' time counts their waits for L2 and shared memory."""
        return LevelTraffic(program.bytes_moved, 0)

    def traffic(self, program: TileProgram, device: DeviceSpec) -> LevelTraffic:
        """Operands of the walked columns once a block, those of its rows once."""
        l2_bytes, shared_bytes = online_traffic(walk_plan_of(program))
        return replace(self.priced_traffic(program, device), l2_bytes=l2_bytes, shared_bytes=shared_bytes)

    def endings(self, program: TileProgram) -> tuple[Ending, ...]:
        """None: blocks finish their own rows."""
        return ()

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Its tiles, and as many registers as its bound on blocks leaves a thread."""
        return Resources(0, walk_plan_of(program).shared_bytes, min_blocks=self.choice_of(program).resident)

    def overlaps(self, choice: Online) -> Overlaps:
        """Every block walks the whole axis."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=False)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The turns of a block, then its results."""
        return compose_online(program, device)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Online, ...]:
        """Other tiles, threads and numbers of stages."""
        base = self.choice_of(program)
        return others_than(base, online_neighbours(base))

    def program_with(self, program: TileProgram, choice: Online, device: DeviceSpec) -> TileProgram | Rejected:
        """The walk in those tiles."""
        return schedule_online(program.graph, program.layouts, device, choice)


def walk_plan_of(program: TileProgram) -> OnlinePlan:
    """The plan of a walk between products. Raises: InternalError for another kernel."""
    if not isinstance(program.internal, OnlinePlan):
        raise InternalError(f"kernel {program.name} ({program.template}) walks no axis between products")
    return program.internal
