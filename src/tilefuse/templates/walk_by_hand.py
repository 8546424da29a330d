"""Templates of one walk read back: the choice that a template and a pattern determine, and whether its kernel is as the template says.

    s [GRID-CTA_2,CTA_64]S; vector=4;     ->     Rows(threads=64, rows=2, vector=4, chunks=as many as cover a row, ...)
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import NameLookupError, OptionError, UserError, nearest
from tilefuse.base.source import Span
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.notation import Schedule, Setting, Template, agree, keeps
from tilefuse.templates.template import C
from tilefuse.templates.walk_legality import first_refusal
from tilefuse.templates.walk_notation import S, WalkNotation, is_number, num_kept_dims

LAUNCH_SETTINGS = ("cta_num", "cta_size")
VECTOR_SETTINGS = ("vector", "read_vector", "write_vector")


def choice_by_hand(notation: WalkNotation[C, S], choice: C, program: TileProgram, template: Template, device: DeviceSpec) -> C:
    """The choice that a template asks for of the program's pattern; `choice` is the program's own.

    A template with every setting that has no default determines the kernel; what a shorter one leaves out is as the scheduler chose.

    Raises: NameLookupError for a value without a schedule; OptionError for a setting that the kernel does not have; UserError for
    attributes that contradict the pattern, each other or the device.
    """
    domain, usual = program.domain, notation.settings_of(choice)
    setting_names = {s.name for s in template.settings}
    is_whole = setting_names >= {f.name for f in notation.setting_fields(usual) if f.default is MISSING}
    settings = _with_defaults(usual) if is_whole else usual
    for setting in template.settings:
        settings = _with_setting(notation, settings, setting)
    settings = _with_schedules(notation, settings, choice, program, template)
    if "chunks" not in setting_names and settings != usual:
        settings = notation.with_covering_steps(settings, domain)
    refused = _numbers_refusal(notation, settings, device)
    result = notation.choice_from(settings, usual, domain, device) if refused is None else refused
    if isinstance(result, Rejected):
        name = template.schedules[0].name if template.schedules else "the kernel"
        raise UserError(f"schedule {name}: {result.detail}", where=_start(template), hint=result.remedy)
    return result


def check_program(notation: WalkNotation[C, S], choice: C, program: TileProgram | Rejected, template: Template) -> TileProgram:
    """The program that was scheduled with a template's choice. Raises: UserError where it was rejected or is not as the template says."""
    if isinstance(program, Rejected):
        raise UserError(f"the template cannot be met: {program}", where=_start(template))
    full = notation.template_of(choice, program.domain, program.graph, program.launch)
    schedule_by_name = {s.name: s for s in full.schedules}
    for schedule in template.schedules:
        own = schedule_by_name[schedule.name]
        if not all(agree(a, b) for a, b in zip(schedule.attrs, own.attrs, strict=True)):
            raise UserError(f"schedule {schedule.name} contradicts the others of its kernel", where=schedule.span,
                            hint=f"the kernel's loops then are: {own}")
        if not keeps(schedule.keep, own.keep, schedule.name in program.graph.results):
            raise UserError(f"schedule {schedule.name} cannot keep its result there", where=schedule.span,
                            hint=f"these loops exchange it as in: {own}")
    value_by_name = {s.name: s.value for s in full.settings}
    for setting in template.settings:
        if setting.name in LAUNCH_SETTINGS and value_by_name[setting.name] != setting.value:
            raise UserError(f"{setting.name}={setting.value}, but the schedules give {value_by_name[setting.name]}", where=setting.span,
                            hint="leave it out, or change GRID and CTA")
    return program


def _start(template: Template) -> Span | None:
    return template.schedules[0].span if template.schedules else None


def _with_defaults(settings: S) -> S:
    """The settings for a template that names every one without a default: those that it leaves out have theirs, not the scheduler's."""
    defaults: dict[str, Any] = {f.name: f.default for f in fields(settings) if is_number(f) and f.default is not MISSING}
    return replace(settings, **defaults)


def _with_schedules(notation: WalkNotation[C, S], settings: S, choice: C, program: TileProgram, template: Template) -> S:
    """The settings with the loops of the value that leads the template. The loops of the others must agree in the end."""
    usual_by_name = {s.name: s for s in notation.template_of(choice, program.domain, program.graph, program.launch).schedules}
    for schedule in template.schedules:
        usual = usual_by_name.get(schedule.name)
        if usual is None:
            raise NameLookupError(f"value %{schedule.name} has no schedule in kernel {program.name}", where=schedule.span,
                                  hint=nearest(schedule.name, usual_by_name) or f"values with schedules: {', '.join(usual_by_name)}")
        if len(schedule.attrs) != len(usual.attrs):
            raise UserError(f"schedule {schedule.name} has {len(schedule.attrs)} attributes, and the value {len(usual.attrs)} dimensions",
                            where=schedule.span, hint=f"as in: {usual}")
    leading = next(_leading(program.domain, template), None)
    if leading is None:
        return settings
    num_kept = num_kept_dims(program.graph.node_by_name[leading.name], program.domain)
    return notation.with_loops(settings, leading, usual_by_name[leading.name], num_kept)


def _leading(domain: Domain, template: Template) -> Iterator[Schedule]:
    """Schedules whose loops may decide, the best first: of values that threads compute together; of others, but of carried sums."""
    carried = {i.node.name for i in domain.instances if i.carried}
    shared = {i.node.name for i in domain.instances if i.shared} - carried
    yield from (s for s in template.schedules if s.name in shared)
    yield from (s for s in template.schedules if s.name not in carried)


def _with_setting(notation: WalkNotation[C, S], settings: S, setting: Setting) -> S:
    if setting.name in LAUNCH_SETTINGS:
        return settings
    names = [f.name for f in notation.setting_fields(settings)]
    if setting.name not in names:
        raise OptionError(f"a {notation.kind} kernel has no setting {setting.name!r}", where=setting.span,
                          hint=nearest(setting.name, names) or f"settings: {', '.join([*names, *LAUNCH_SETTINGS])}")
    kind = type(getattr(settings, setting.name))
    if kind is not type(setting.value):
        raise OptionError(f"setting {setting.name} is {'true or false' if kind is bool else 'a whole number'}, not {setting.value}",
                          where=setting.span)
    if setting.name in VECTOR_SETTINGS and not setting.value:
        raise UserError(f"{setting.name}=0 is no vector width", where=setting.span, hint="1, 2, 4 or 8 elements")
    changed: dict[str, Any] = {setting.name: setting.value}
    return replace(settings, **changed)


def _numbers_refusal(notation: WalkNotation[C, S], settings: S, device: DeviceSpec) -> Rejected | None:
    """Rules for every walk: threads a block, vector widths, settings that count something."""
    threads = settings.num_threads
    widths = [(name, getattr(settings, name, 1)) for name in VECTOR_SETTINGS]
    counts = [(f, getattr(settings, f.name)) for f in notation.setting_fields(settings)]
    return first_refusal(
        (1 <= threads <= device.max_threads_per_block, f"{threads} threads a block, and {device.name} has at most "
         f"{device.max_threads_per_block}", "smaller CTA or WARP counts"),
        *((width >= 1 and width & (width - 1) == 0 and width <= 16, f"{name}={width} is no vector width", "1, 2, 4 or 8 elements")
          for name, width in widths),
        *((isinstance(value, bool) or value > 0 or value == f.default or f.name == "depth" and value == 0,
           f"setting {f.name}={value} is too small", "at least 1") for f, value in counts))
