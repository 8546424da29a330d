"""The template of kernels of stages: a plan has a tree, and program, notation, levels of edges and explanations follow from it.

    graph -> plan (form, tiles, work) -> tree of stages -> tile program, schedules as text, places in shared memory, parts of workers

A kind of kernel says which plan a pattern has, its tree, and its kernel IR.
"""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import InternalError, UserError
from tilefuse.domain.tile import Choice, TileProgram, kernel_name
from tilefuse.domain.work import Work
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import LevelTile, SharedPlace, Staging
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.notation import Template, print_template
from tilefuse.templates.own_launch import OwnLaunchTemplate
from tilefuse.templates.request import Price
from tilefuse.templates.stage_tree import StageTree, edge_levels
from tilefuse.templates.staged.notation import (
    BLOCKS,
    FIELD_BY_SETTING,
    THREADS,
    Numbers,
    Places,
    Settings,
    check_schedules,
    numbers_of,
    template_of,
)
from tilefuse.templates.template import KernelTemplate, Overlaps

C = TypeVar("C", bound=Choice)


class Planned(Protocol):
    """A plan: all that is decided of a kernel of stages."""

    @property
    def choice(self) -> Any:
        """The record, as the search left it."""
        ...

    @property
    def work(self) -> Work:
        """The work of the kernel; its grid is the launch."""
        ...

    @property
    def shared_bytes(self) -> int:
        """Shared memory a block. Units: bytes."""
        ...

    @property
    def flops(self) -> int:
        """Floating-point operations of the kernel."""
        ...


P = TypeVar("P", bound=Planned)


class StagedTemplate(KernelTemplate[C], Generic[C, P]):
    """Kernels of one kind.

    noun      of a kernel of this kind, for messages
    settings  of its notation; places: numbers of its record that steps of axes are; follows: written numbers that follow from its record
    rare      numbers of the record that explanations leave out where they have their usual value
    met_by    the hint where written tiles do not fit
    """

    plan_type: type[P]
    noun: ClassVar[str]
    settings: ClassVar[Settings]
    places: ClassVar[Places] = {}
    follows: ClassVar[tuple[str, ...]] = (THREADS,)
    rare: ClassVar[tuple[str, ...]] = ()
    met_by: ClassVar[str]
    priority = 2

    @abstractmethod
    def plan(self, graph: Graph, layouts: Layouts, device: DeviceSpec, fixed: C | None, ceiling: Price | None = None) -> P | Rejected:
        """The plan of a pattern given as a graph of its own, or why there is none.

        fixed: a choice made by hand or by a tuner. ceiling: the price of a program of another kind; where all plans cost more, there may be
        none.
        """

    @abstractmethod
    def tree(self, plan: P) -> StageTree:
        """The tree of a plan."""

    @abstractmethod
    def near(self, program: TileProgram, plan: P, device: DeviceSpec) -> Iterator[C]:
        """Choices that tuning tries, as of `neighbours`; the program's own may be among them, and some may come twice."""

    def facts(self, plan: P) -> tuple[tuple[str, object], ...]:
        """Decisions beside the numbers of the record, for explanations."""
        return ()

    def text(self, plan: P, tree: StageTree, launch: Launch) -> Template:
        """The plan in the notation."""
        return template_of(tree.values(), self.settings.of(plan.choice, launch.num_blocks))

    # -- from a plan to a program ------------------------------------------------------------------------------------------------

    def schedule(self, graph: Graph, layouts: Layouts, device: DeviceSpec, fixed: C | None = None,
                 ceiling: Price | None = None) -> TileProgram | Rejected:
        """The tile program of a pattern given as a graph of its own, or why there is none. fixed, ceiling: as of `plan`.

        Units: bytes_read counts every boundary value once, however many blocks read it.
        """
        plan = self.plan(graph, layouts, device, fixed, ceiling)
        if isinstance(plan, Rejected):
            return plan
        tree, launch, choice = self.tree(plan), plan.work.grid, plan.choice
        assert launch is not None, "the work of a kernel of stages has a launch"
        numbers = ((f.name, int(getattr(choice, f.name))) for f in fields(choice) if isinstance(getattr(choice, f.name), int)
                   and not (f.name in self.rare and getattr(choice, f.name) == f.default))
        return TileProgram(
            name=kernel_name(graph), graph=graph, choice=choice, notation=print_template(self.text(plan, tree, launch)),
            layouts={v: layouts[v] for v in graph.type_by_name if v in layouts}, parameters=tuple(sorted((*numbers, *self.facts(plan)))),
            levels=edge_levels(graph, tree), launch=launch, bytes_read=boundary_work(graph).read_bytes,
            bytes_written=sum(graph.type_of(r).num_bytes for r in graph.results), flops=plan.flops, internal=plan)

    def plan_of(self, program: TileProgram) -> P:
        """The plan of a program. Raises: InternalError for a kernel of another kind."""
        if not isinstance(program.internal, self.plan_type):
            raise InternalError(f"kernel {program.name} ({program.template}) is not {self.noun}")
        return program.internal

    def program_with(self, program: TileProgram, choice: C, device: DeviceSpec) -> TileProgram | Rejected:
        """The pattern's plan with that choice."""
        return self.schedule(program.graph, program.layouts, device, choice)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[C, ...]:
        """Those of `near`."""
        return others_than(self.choice_of(program), self.near(program, self.plan_of(program), device))

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """The work by which the plan was chosen."""
        return self.plan_of(program).work

    # -- written templates -------------------------------------------------------------------------------------------------------

    def numbers(self, template: Template, plan: P) -> Numbers:
        """The numbers that a template writes."""
        return numbers_of(template, self.tree(plan).values(), self.places, self.settings, self.noun)

    def choice_with(self, plan: P, numbers: Numbers) -> C:
        """The plan's choice with other numbers."""
        setting_by_field = {"threads": THREADS} | {name: setting for setting, name in FIELD_BY_SETTING.items()}
        base: Any = plan.choice
        old_by_field = {f.name: getattr(base, f.name) for f in fields(base) if isinstance(getattr(base, f.name), int)}
        changed: C = replace(base, **{name: type(old)(numbers.get(setting_by_field.get(name, name), old))
                                      for name, old in old_by_field.items()})
        return changed

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The program's pattern with the numbers that a template writes."""
        plan = self.plan_of(program)
        numbers = self.numbers(template, plan)
        choice = self.choice_with(plan, numbers)
        where = template.schedules[0].span if template.schedules else None
        for name in self.follows:
            own = getattr(choice, FIELD_BY_SETTING.get(name, name))
            if numbers.get(name, own) != own:
                unit = " threads a block" if name == THREADS else ""
                raise UserError(f"{name} of {numbers.get(name, own)}{unit}, and the other numbers give {own}", where=where,
                                hint=f"{name}={own}")
        result = self.schedule(program.graph, program.layouts, device, choice)
        if isinstance(result, Rejected):
            raise UserError(f"the template cannot be met: {result}", where=where, hint=self.met_by)
        blocks = result.launch.num_blocks
        if not hasattr(choice, FIELD_BY_SETTING[BLOCKS]) and numbers.get(BLOCKS, blocks) != blocks:
            raise UserError(f"{BLOCKS} of {numbers.get(BLOCKS, blocks)}, and the tiles make {blocks} blocks", where=where,
                            hint=f"{BLOCKS}={blocks}")
        check_schedules(template, result, self.noun)
        return result

    # -- explanations ------------------------------------------------------------------------------------------------------------

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """The tree of the program's plan."""
        return self.tree(self.plan_of(program))

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """Those of the tree."""
        return self.tree(self.plan_of(program)).workers

    def staging(self, program: TileProgram) -> Staging:
        """The place of each value of the tree that has one of its own."""
        plan = self.plan_of(program)
        places = tuple(SharedPlace(v.value, v.offset_bytes, v.shared_bytes) for v in self.tree(plan).values()
                       if v.shared_bytes and not v.place)
        return Staging((), places, plan.shared_bytes, plan.shared_bytes)


class PipelineTemplate(StagedTemplate[C, P], OwnLaunchTemplate[C]):
    """Kernels whose persistent blocks have producing and consuming warpgroups."""

    def overlaps(self, choice: C) -> Overlaps:
        """Blocks take tiles in turn, and fetch operands that the kernel ahead does not write while that one runs."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=True, one_wave=True)

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """False: chains and walks are proposed as wholes (`plan/chains.py`, `plan/walks.py`)."""
        return False
