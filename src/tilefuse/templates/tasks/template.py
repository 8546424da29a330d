"""Kernels of tasks as a template: its answers follow from its bodies' templates."""
from __future__ import annotations

from collections.abc import Iterable, Set

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import UserError
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.notation import Template
from tilefuse.templates.request import Request
from tilefuse.templates.tasks.bodied import BodiedTemplate
from tilefuse.templates.tasks.compose import compose_tasks
from tilefuse.templates.tasks.price import tasks_work
from tilefuse.templates.tasks.record import Tasks


class TasksTemplate(BodiedTemplate[Tasks]):
    """Kernels that a plan has one behind the other, as stages of one kernel (`plan/select/grid_level.py` proposes them)."""

    record = Tasks

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """The critical path of its stages."""
        return tasks_work(program, self.choice_of(program), device)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """One group of statements for each body, and the order of their tasks."""
        return compose_tasks(program, self.choice_of(program), device)

    def stands_for(self, program: TileProgram) -> tuple[TileProgram, ...]:
        """Its stages as kernels, with the threads that each has by itself."""
        choice = self.choice_of(program)
        return tuple(choice.alone[s.body] for s in choice.stages)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Tasks, ...]:
        """None: its stages are tuned as kernels of their own."""
        return ()

    def program_with(self, program: TileProgram, choice: Tasks, device: DeviceSpec) -> TileProgram | Rejected:
        """The program itself: a kernel of tasks has no other choices."""
        return program if choice == program.choice else Rejected(Reason.OTHER_TEMPLATE, "a kernel of tasks has no neighbours")

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """Raises: UserError: its stages are written as kernels of their own, under the option grid_level=off."""
        raise UserError(f"kernel {program.name} consists of tasks, which no template writes",
                        hint="grid_level=off plans its stages as kernels, whose templates can be written")

    def propose(self, request: Request) -> TileProgram | Rejected:
        """None for a single pattern: kernels of a plan are joined, not patterns."""
        return Rejected(Reason.OTHER_TEMPLATE, "kernels of a plan become tasks, not patterns")
