"""The notation of templates that are one walk: a choice as schedules and settings, and the parts that each walk says of it.

    Rows     m [GRID-CTA_4,WARP_16]W;        a block of 4 rows, each shared by 16 lanes
    Columns  s [GRID-CTA_16,GRID_8-CTA_32]S; 16 vectors of columns a block, 32 threads down each, 8 blocks down a column
    others   y [GRID,GRID-CTA_128];          a flat walk; y [GRID,GRID-CTA_128,THREAD]: each thread reduces its own elements

Settings are the numbers that loops do not show, under the names of their fields. Axis orders follow from the pattern. `walk_by_hand.py`
reads a written template back.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import MISSING, Field, fields
from math import prod
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import UserError
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.graph import Graph, Node
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.notation import Attr, Schedule, Setting, Template
from tilefuse.templates.template import C


class WalkSettings(Protocol):
    """The numbers of a choice in the flat words of the notation: a frozen dataclass, often the choice itself."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        ...


S = TypeVar("S", bound=WalkSettings)


class WalkNotation(ABC, Generic[C, S]):
    """How the choices of one walk are written and read.

    kind          name of such kernels in messages
    shown_fields  fields of the settings that loops show; the other numbers are written as settings
    """

    kind: ClassVar[str]
    shown_fields: ClassVar[frozenset[str]]

    # -- from a choice to its text -----------------------------------------------------------------------------------------------

    @abstractmethod
    def settings_of(self, choice: C) -> S:
        """The choice in the flat words of the notation. Exact: `choice_from` gives the choice back."""

    @abstractmethod
    def parameters(self, choice: C) -> tuple[tuple[str, Any], ...]:
        """The numbers of a choice by the notation's names, sorted, as explanations show them."""

    @abstractmethod
    def attrs(self, choice: C, domain: Domain, node: Node) -> tuple[Attr, ...]:
        """One attribute a dimension of the node: kept ones first, then reduced ones."""

    @abstractmethod
    def exchange_level(self, choice: C) -> Level:
        """Memory level at which the threads of a choice meet to share a reduction's result."""

    @abstractmethod
    def destinations(self, choice: C, is_exchanged: bool, is_result: bool) -> tuple[Level, ...]:
        """Levels to which a value goes beside global memory, or with it.

        is_exchanged: threads share the value, and the kernel reads it again; is_result: the kernel writes it.
        """

    # -- from a text to a choice -------------------------------------------------------------------------------------------------

    @abstractmethod
    def in_own_words(self, template: Template, choice: C, program: TileProgram, device: DeviceSpec) -> Template:
        """A template of whole dimensions in blocks, as the paper has them, in the words of the walk; the same object where it has none.

        choice: the program's own. Raises: UserError for blocks whose elements do not lie one after another, or counts that do not cover a
        dimension.
        """

    @abstractmethod
    def with_loops(self, settings: S, schedule: Schedule, usual: Schedule, num_kept: int) -> S:
        """The settings with the numbers of a schedule's loops. `usual`: the schedule of the scheduler's own choice, of as many dimensions.

        Raises: UserError for loops that no choice has.
        """

    @abstractmethod
    def with_covering_steps(self, settings: S, domain: Domain) -> S:
        """The settings with the least number of steps a thread that cover the domain; as they are where no setting counts them."""

    @abstractmethod
    def choice_from(self, settings: S, usual: S, domain: Domain, device: DeviceSpec) -> C | Rejected:
        """The choice that settings write, or why the pattern and the device have none. `usual`: settings of the scheduler's own choice."""

    # -- shared by all walks -------------------------------------------------------------------------------------------------------

    def template_of(self, choice: C, domain: Domain, graph: Graph, launch: Launch) -> Template:
        """The template of a choice: a schedule for every value that threads exchange or that goes to global memory."""
        shared = {i.node.name for i in domain.instances if i.shared and i.second_of is None}
        written = {name for name, _, _ in domain.outputs} | set(graph.results)
        schedules: list[Schedule] = []
        for node in graph.nodes:
            name = node.name
            if name in shared or name in written:
                is_exchanged = name in shared and bool(graph.users_by_name[name])
                levels = self.destinations(choice, is_exchanged, name in written)
                schedules.append(Schedule(name, self.attrs(choice, domain, node), levels))
        sizes = (Setting("cta_num", launch.num_blocks), Setting("cta_size", launch.num_threads))
        return Template(tuple(schedules), (*self.written_settings(choice), *sizes))

    def written_settings(self, choice: C) -> tuple[Setting, ...]:
        """The numbers of a choice that its loops do not show, without those that have their default."""
        settings = self.settings_of(choice)
        values = ((f, getattr(settings, f.name)) for f in self.setting_fields(settings))
        return tuple(Setting(f.name, value) for f, value in values if f.default is MISSING or value != f.default)

    def setting_fields(self, settings: S) -> list[Field[Any]]:
        """The fields that templates write as settings."""
        return [f for f in fields(settings) if f.name not in self.shown_fields and is_number(f)]


def is_number(field: Field[Any]) -> bool:
    """Whether a field of settings is a whole number or a truth value, as the notation can write it."""
    return field.type in ("int", "bool")


def sorted_numbers(settings: WalkSettings, without: Collection[str] = ()) -> tuple[tuple[str, Any], ...]:
    """(name, value) of the fields of settings, sorted by name, but of those in `without`."""
    return tuple(sorted((f.name, getattr(settings, f.name)) for f in fields(settings) if f.name not in without))


def exchanged_to(level: Level, is_exchanged: bool, is_result: bool) -> tuple[Level, ...]:
    """Destinations where threads exchange values at `level`, and results go to global memory as well."""
    if not is_exchanged:
        return ()
    return (level, Level.GLOBAL) if is_result else (level,)


def num_kept_dims(node: Node, domain: Domain) -> int:
    """Dimensions of a node that are kept; the others run over the reduced axes."""
    return len(node.type.shape) - (0 if node.over else _num_trailing(node.type.shape, domain))


def _num_trailing(shape: tuple[int, ...], domain: Domain) -> int:
    """Trailing dimensions of a value that run over the reduced axes."""
    if not domain.reduced or prod(shape) <= domain.num_kept:
        return 0
    count, size = 0, 1
    while count < len(shape) and size < domain.num_reduced:
        count += 1
        size *= shape[-count]
    return count


def contradiction(schedule: Schedule, usual: Schedule, why: str) -> UserError:
    """The error for loops that no choice of a walk has; `usual`: the loops of the scheduler's own choice."""
    return UserError(f"schedule {schedule.name} does not fit its kernel: {why}", where=schedule.span, hint=f"as in: {usual}")
