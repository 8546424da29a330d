"""Kernels of stages in the notation: schedules printed from the tree, and written ones read back as numbers of a record.

    tree        loop inner in steps of 64 / product %h [128, 256] register      row GRID-CTA_128, column GRID-CTA_256, inner LOOP_64
    notation    h [GRID-CTA_128,GRID-CTA_256,LOOP_64]R; slots=4; warpgroups=2; cta_num=132; cta_size=384;

Each axis of a value is spread in one way, which the tree says (`TreeValue.spread`). A written number changes the field of the record that
the same place of the kernel's own schedule shows; numbers that follow from the record must then be as they are written.
"""
from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tilefuse.base.errors import NameLookupError, OptionError, UserError, nearest
from tilefuse.base.source import Span
from tilefuse.domain.tile import Choice, Level, TileProgram
from tilefuse.templates.notation import Schedule, Setting, Template, Worker, agree, keeps, parse_template
from tilefuse.templates.stage_tree import TreeValue

# Settings that no loop shows, and the names under which records have them.
BLOCKS, THREADS = "cta_num", "cta_size"
FIELD_BY_SETTING = {BLOCKS: "blocks", THREADS: "num_threads"}

# (axis of a value, worker) -> the number that a step of it is.
Places = Mapping[tuple[str, Worker], str]


@dataclass(frozen=True)
class Settings:
    """The settings of a kind of kernel.

    names   in the order in which they are printed
    flags   those that hold or do not; printed where they hold
    rare    those that are printed where they are not 1
    """

    names: tuple[str, ...]
    flags: tuple[str, ...] = ()
    rare: tuple[str, ...] = ()

    def of(self, choice: Choice, num_blocks: int, without: Container[str] = ()) -> tuple[Setting, ...]:
        """The settings that a choice has, but for some."""
        values = {name: num_blocks if name == BLOCKS else getattr(choice, FIELD_BY_SETTING.get(name, name)) for name in self.names}
        return tuple(Setting(name, value) for name, value in values.items()
                     if name not in without and not (name in self.flags and not value or name in self.rare and value == 1))

    def written(self, template: Template, noun: str) -> Iterator[tuple[str, int, Span | None]]:
        """(name, value, where it stands) of the settings of a template. Raises: OptionError for one that the kind does not have."""
        for setting in template.settings:
            if setting.name not in self.names or isinstance(setting.value, bool) != (setting.name in self.flags):
                raise OptionError(f"{noun} has no setting {setting}", where=setting.span,
                                  hint=nearest(setting.name, self.names) or f"settings: {', '.join(self.names)}")
            yield setting.name, setting.value, setting.span


def template_of(values: Iterable[TreeValue], settings: tuple[Setting, ...], named: Container[Level] = tuple(Level)) -> Template:
    """The schedules of a tree's values, those that have one, with settings. named: levels that schedules name as destinations."""
    return Template(tuple(_schedule(v, named) for v in values if v.spread), settings)


def _schedule(v: TreeValue, named: Container[Level]) -> Schedule:
    keep = (v.level,) if v.level in named else ()
    return Schedule(v.value, tuple(attr for _, attr in v.spread), (*keep, Level.GLOBAL) if keep and v.written else keep)


@dataclass
class Numbers:
    """Numbers that a template writes, by name, and where each stands. Raises: UserError for one that is written twice, differently."""

    by_name: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, value: int, where: Span | None) -> None:
        """One more number."""
        if self.by_name.setdefault(name, value) != value:
            raise UserError(f"{name} of {self.by_name[name]} and of {value} in one kernel", where=where, hint="all values share tiles")

    def get(self, name: str, otherwise: int) -> int:
        """The number, or the one that holds where none is written."""
        return self.by_name.get(name, otherwise)


def numbers_of(template: Template, own: Iterable[TreeValue], places: Places, settings: Settings, noun: str) -> Numbers:
    """Every number that a template writes for a kernel whose tree has the values `own`.

    Attributes are compared from the last one on. Raises: NameLookupError for a value without a schedule; as of `Settings.written`.
    """
    spread_by_value = {v.value: v.spread for v in own if v.spread}
    numbers = Numbers()
    for schedule in template.schedules:
        if schedule.name not in spread_by_value:
            raise NameLookupError(f"value %{schedule.name} has no schedule in {noun}", where=schedule.span,
                                  hint=nearest(schedule.name, spread_by_value) or f"schedules: {', '.join(spread_by_value)}")
        for (axis, _), attr in zip(reversed(spread_by_value[schedule.name]), reversed(schedule.attrs)):
            for step in attr:
                name = places.get((axis, step.worker))
                if name is not None and step.count is not None:
                    numbers.add(name.format(value=schedule.name), step.count, schedule.span)
    for name, value, where in settings.written(template, noun):
        numbers.add(name, value, where)
    return numbers


def check_schedules(template: Template, program: TileProgram, noun: str) -> None:
    """Raises: UserError for a written schedule that is not the kernel's."""
    own_by_name = {s.name: s for s in parse_template(program.notation).schedules}
    for schedule in template.schedules:
        own = own_by_name[schedule.name]
        if len(schedule.attrs) != len(own.attrs) or not all(map(agree, schedule.attrs, own.attrs)) \
                or not keeps(schedule.keep, own.keep, own.name in program.graph.results):
            raise UserError(f"schedule {schedule.name} is none that {noun} has", where=schedule.span,
                            hint=f"the kernel's loops then are: {own}")
