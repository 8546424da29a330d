"""Numbers that a template of a walk writes, and the check that a kernel's own template keeps its words."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilefuse.base.errors import NameLookupError, OptionError, UserError, nearest
from tilefuse.base.source import Span
from tilefuse.domain.tile import TileProgram
from tilefuse.templates.notation import Template, Worker, agree, keeps, parse_template


@dataclass(frozen=True)
class Written:
    """The words of a kind of walk. settings: their names; flags: those that hold or do not; kind: the walk, with its article."""

    settings: Sequence[str]
    flags: Sequence[str]
    kind: str

    def numbers(self, program: TileProgram, template: Template) -> dict[str, int]:
        """Numbers by name. Raises: NameLookupError, OptionError; UserError for numbers that contradict each other."""
        numbers: dict[str, int] = {}
        for name, count, span in self._numbers(program, template):
            if numbers.setdefault(name, count) != count:
                raise UserError(f"{name} of {numbers[name]} and of {count} in one kernel", where=span, hint="all values walk together")
        return numbers

    def check(self, template: Template, result: TileProgram) -> None:
        """Raises: UserError where the kernel has other loops than the template writes."""
        own_by_name = {s.name: s for s in parse_template(result.notation).schedules}
        for schedule in template.schedules:
            mine = own_by_name[schedule.name]
            if len(mine.attrs) != len(schedule.attrs) or not all(map(agree, schedule.attrs, mine.attrs)) \
                    or not keeps(schedule.keep, mine.keep, schedule.name in result.graph.results):
                raise UserError(f"schedule {schedule.name} is none that {self.kind} has", where=schedule.span,
                                hint=f"the kernel's loops then are: {mine}")

    def _numbers(self, program: TileProgram, template: Template) -> Iterator[tuple[str, int, Span | None]]:
        """(name, number, where it stands) of every number that a template writes."""
        names = {s.name for s in parse_template(program.notation).schedules}
        for schedule in template.schedules:
            if schedule.name not in names:
                raise NameLookupError(f"value %{schedule.name} has no schedule in kernel {program.name}", where=schedule.span,
                                      hint=nearest(schedule.name, names) or f"schedules: {', '.join(sorted(names))}")
            for step in (s for attr in schedule.attrs for s in attr if s.count is not None):
                if step.worker in (Worker.CTA, Worker.LOOP):
                    yield "rows" if step.worker is Worker.CTA else "columns", step.count or 0, schedule.span
        for setting in template.settings:
            if setting.name not in self.settings or isinstance(setting.value, bool) != (setting.name in self.flags):
                raise OptionError(f"{self.kind} has no setting {setting}", where=setting.span,
                                  hint=nearest(setting.name, self.settings) or f"settings: {', '.join(self.settings)}")
            yield setting.name, setting.value, setting.span
