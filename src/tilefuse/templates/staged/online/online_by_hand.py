"""Walks between products by hand: rows, columns a turn, stages and threads that a template writes.

    o [GRID,GRID-CTA_128,WARP,LOOP_64]; stages=2;     128 rows a block, 64 columns a turn, the next turn's operands fetched ahead
"""
from __future__ import annotations

from collections.abc import Iterator

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import NameLookupError, OptionError, UserError, nearest
from tilefuse.base.source import Span
from tilefuse.domain.tile import TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.notation import Template, Worker, agree, keeps, parse_template
from tilefuse.templates.staged.online.program import schedule_online
from tilefuse.templates.staged.online.record import Online

SETTINGS = ("resident", "stages", "cta_num", "cta_size")


def online_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
    """The walk of the program's pattern with a template's rows (CTA), columns a turn (LOOP), stages and threads.

    Raises: NameLookupError for a value that has no schedule; OptionError for an unknown setting; UserError for tiles that contradict each
    other or do not fit.
    """
    base = program.choice
    assert isinstance(base, Online)
    number_by_name: dict[str, int] = {}
    for name, number, where in _numbers(program, template):
        if number_by_name.setdefault(name, number) != number:
            raise UserError(f"{name} of {number_by_name[name]} and of {number} in one kernel", where=where, hint="all values walk together")
    choice = Online(number_by_name.get("rows", base.rows), number_by_name.get("columns", base.columns),
                    number_by_name.get("cta_size", base.threads), number_by_name.get("stages", base.stages),
                    number_by_name.get("resident", base.resident))
    result = schedule_online(program.graph, program.layouts, device, choice)
    if isinstance(result, Rejected):
        where = template.schedules[0].span if template.schedules else None
        raise UserError(f"the template cannot be met: {result}", where=where,
                        hint="rows are whole instructions a warp, columns a multiple of 16")
    _check_schedules(template, result)
    return result


def _numbers(program: TileProgram, template: Template) -> Iterator[tuple[str, int, Span | None]]:
    """(name, number, where it stands) of every number that a template writes. Raises: NameLookupError, OptionError."""
    names = {s.name for s in parse_template(program.notation).schedules}
    for schedule in template.schedules:
        if schedule.name not in names and schedule.name not in program.graph.node_by_name:
            raise NameLookupError(f"value %{schedule.name} has no schedule in kernel {program.name}", where=schedule.span,
                                  hint=nearest(schedule.name, names) or f"schedules: {', '.join(sorted(names))}")
        for step in (s for attr in schedule.attrs for s in attr if s.count is not None):
            if step.worker in (Worker.CTA, Worker.LOOP):
                yield "rows" if step.worker is Worker.CTA else "columns", step.count or 0, schedule.span
    for setting in template.settings:
        if setting.name not in SETTINGS or isinstance(setting.value, bool):
            raise OptionError(f"a kernel that walks has no setting {setting}", where=setting.span,
                              hint=nearest(setting.name, SETTINGS) or f"settings: {', '.join(SETTINGS)}")
        yield setting.name, setting.value, setting.span


def _check_schedules(template: Template, program: TileProgram) -> None:
    """Raises: UserError where a written schedule is not as its kernel's."""
    own_by_name = {s.name: s for s in parse_template(program.notation).schedules}
    for schedule in template.schedules:
        own = own_by_name.get(schedule.name)
        if own is None:
            continue
        if len(own.attrs) != len(schedule.attrs) or not all(map(agree, schedule.attrs, own.attrs)) \
                or not keeps(schedule.keep, own.keep, schedule.name in program.graph.results):
            raise UserError(f"schedule {schedule.name} contradicts the others of its kernel, in which LOOP is where the block takes turns",
                            where=schedule.span, hint=f"the kernel's loops then are: {own}")
