"""Kernels of tasks as a template: its answers follow from its bodies' templates."""
from __future__ import annotations

from collections.abc import Iterable, Set

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import UserError
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.ir.graph import Graph, Node
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import NO_STAGES, LevelTile, Staging, largest_result, numbered
from tilefuse.templates.notation import Template
from tilefuse.templates.own_launch import OwnLaunchTemplate
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.request import Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.tasks.compose import compose_tasks
from tilefuse.templates.tasks.price import tasks_work
from tilefuse.templates.tasks.record import Tasks
from tilefuse.templates.template import Overlaps, Resources


class TasksTemplate(OwnLaunchTemplate[Tasks]):
    """Kernels that a plan has one behind the other, as stages of one kernel (`plan/select/join_tasks.py` proposes them)."""

    record = Tasks
    priority = 3

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """The critical path of its stages."""
        return tasks_work(program, self.choice_of(program), device)

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """The most of each that a body needs."""
        needs = [kernel_template(b.choice).resources(b, device) for b in self.choice_of(program).bodies]
        return Resources(max(r.registers for r in needs), max(r.shared_bytes for r in needs))

    def overlaps(self, choice: Tasks) -> Overlaps:
        """Blocks take tasks of all kinds: there is no one direction, and the counters are the kernel ahead's until it has ended."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=False)

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

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """False: its bodies' templates do."""
        return False

    def own_kernel_share(self, device: DeviceSpec) -> float:
        """That of kernels whose prices leave out reads of cold weights."""
        return device.fitted.products.own_kernel_share

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """The largest result; each body has tiles of its own."""
        return (LevelTile("grid", numbered(largest_result(program))),)

    def staging(self, program: TileProgram) -> Staging:
        """Nothing for the kernel as a whole."""
        return NO_STAGES

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """None: the stages of its grid are listed among the parameters."""
        return None
