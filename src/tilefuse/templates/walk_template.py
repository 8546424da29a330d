"""Templates and choices of one walk: the template that writes a kernel's choice, and the choice that a template and a pattern determine.

    Rows     m [GRID-CTA_4,WARP_16]W;        a block of 4 rows, each shared by 16 lanes
    Columns  s [GRID-CTA_16,GRID_8-CTA_32]S; 16 vectors of columns a block, 32 threads down each, 8 blocks down a column
    others   y [GRID,GRID-CTA_128];          a flat walk; y [GRID,GRID-CTA_128,THREAD]: each thread reduces its own elements

What the loops do not show are settings with the names of the choice's fields. Axis orders follow from the pattern.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, replace
from math import prod
from typing import Any

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import InternalError, NameLookupError, OptionError, UnsupportedError, UserError, nearest
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice, Level, TileProgram
from tilefuse.ir.graph import Graph, Node
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.notation import Attr, Schedule, Setting, Step, Template, Worker
from tilefuse.templates.rows.legality import row_steps_of, rows_from
from tilefuse.templates.rows.modes import Rows, RowSettings, settings_of_rows
from tilefuse.templates.transpose.record import Transpose
from tilefuse.templates.walk_legality import (
    column_steps_of,
    first_refusal,
    transpose_refusal,
    walk_refusal,
    written_columns_refusal,
)

# Choices of one walk in the flat words of the notation: fields are its settings, or numbers that loops show.
Settings = Pointwise | Transpose | RowSettings | Columns
# Fields that loops show, by class; the rest of a choice's numbers are settings.
SHOWN_FIELDS: Mapping[type, frozenset[str]] = {
    RowSettings: frozenset({"threads", "rows", "cluster", "split", "groups"}),
    Columns: frozenset({"threads_x", "threads_y", "split"}),
    Pointwise: frozenset({"threads"}),
    Transpose: frozenset({"threads"}),
}
KIND_NAMES: Mapping[type, str] = {RowSettings: "rows", Columns: "columns", Pointwise: "pointwise", Transpose: "transpose"}
LAUNCH_SETTINGS = ("cta_num", "cta_size")
VECTOR_SETTINGS = ("vector", "read_vector", "write_vector")


def notation_form(choice: Choice) -> Settings:
    """The choice in the flat words of the notation; the choice itself where these are its own."""
    if isinstance(choice, Rows):
        return settings_of_rows(choice)
    if isinstance(choice, Pointwise | Transpose | Columns):
        return choice
    raise InternalError(f"no walk has a choice of {choice.template}")


def parameters_of(choice: Choice) -> tuple[tuple[str, Any], ...]:
    """The numbers of a choice by the notation's names; `across` and `side` only where warps stand across two axes."""
    left_out = ("across", "side") if isinstance(choice, Pointwise) and choice.side == 1 else ()
    settings = notation_form(choice)
    return tuple(sorted((f.name, getattr(settings, f.name)) for f in fields(settings) if f.name not in left_out))


def template_of(choice: Choice, domain: Domain, graph: Graph, launch: Launch) -> Template:
    """The template of a choice: a schedule for every value that threads exchange or that goes to global memory."""
    shared = {i.node.name for i in domain.instances if i.shared and i.second_of is None}
    written = {name for name, _, _ in domain.outputs} | set(graph.results)
    schedules: list[Schedule] = []
    for node in graph.nodes:
        if node.name in shared or node.name in written:
            keep: tuple[Level, ...] = (exchange_level(choice),) if node.name in shared and _read_inside(graph, node.name) else ()
            if isinstance(choice, Transpose):
                keep = (Level.SHARED,)
            if keep and node.name in written and not isinstance(choice, Transpose):
                keep = (*keep, Level.GLOBAL)
            schedules.append(Schedule(node.name, _attrs(choice, domain, node), keep))
    sizes = (Setting("cta_num", launch.num_blocks), Setting("cta_size", launch.num_threads))
    return Template(tuple(schedules), (*settings_of(choice), *sizes))


def settings_of(choice: Choice) -> tuple[Setting, ...]:
    """The numbers of a choice that its loops do not show, where they are not what they are by default."""
    found, form = [], notation_form(choice)
    for f in _setting_fields(type(form)):
        value = getattr(form, f.name)
        if f.default is MISSING or value != f.default:
            found.append(Setting(f.name, value))
    return tuple(found)


def _setting_fields(kind: type) -> list[Field[Any]]:
    return [f for f in fields(kind) if f.name not in SHOWN_FIELDS[kind] and f.type in ("int", "bool")]


def exchange_level(choice: Choice) -> Level:
    """Where the threads of a choice meet to share a reduction's result."""
    match choice:
        case Rows():
            return (Level.CLUSTER if choice.cluster > 1 else Level.SHARED if choice.threads > 32 else
                    Level.WARP if choice.threads > 1 else Level.REGISTER)
        case Columns():
            return Level.SHARED if choice.threads_y > 1 else Level.REGISTER
    return Level.REGISTER


def _read_inside(graph: Graph, name: str) -> bool:
    return bool(graph.users_by_name[name])


def _attrs(choice: Choice, domain: Domain, node: Node) -> tuple[Attr, ...]:
    """One attribute a dimension of the node: kept ones first, then reduced ones."""
    shape = (*node.type.shape, *(e for _, e in node.over))
    num_kept = _num_kept(node, domain)
    num_reduced = len(shape) - num_kept
    if isinstance(choice, Rows) and any(i.carried and i.node is node for i in domain.instances):
        # Groups of rows over the grid, columns as the row's elements, and the rows of a group one after another.
        inside = Step(Worker.CTA, choice.rows) if choice.rows > 1 else Step(Worker.THREAD)
        return ((Step(Worker.GRID, choice.groups or None),), *[reduced_attr(choice)] * (len(node.type.shape) - 1), (inside,))
    match choice:
        case Rows() | Columns():
            kept, reduced = kept_attr(choice), reduced_attr(choice)
            first: tuple[Attr, ...] = (*[(Step(Worker.GRID),)] * (num_kept - 1), kept) if num_kept else ()
            last: tuple[Attr, ...] = (reduced, *[(Step(reduced[-1].worker),)] * (num_reduced - 1)) if num_reduced else ()
            return (*first, *last) or ((Step(Worker.THREAD),),)
    flat: Attr = (Step(Worker.GRID), Step(Worker.CTA, choice.num_threads))
    alone = len(node.over) if node.category == "reduce" and node.type.shape else 0
    return (*[(Step(Worker.GRID),)] * (len(shape) - 1 - alone), flat, *[(Step(Worker.THREAD),)] * alone) if shape else (flat,)


def spread_at(usual: Schedule) -> int:
    """Which dimension of a flat walk's schedule is spread over threads: those before it go over the grid, those behind it are reduced."""
    return next(n for n, attr in enumerate(usual.attrs) if len(attr) > 1)


def _num_kept(node: Node, domain: Domain) -> int:
    """How many of a node's dimensions are kept; the others run over the reduced axes."""
    return len(node.type.shape) - (0 if node.over else _trailing(node.type.shape, domain))


def kept_extents(program: TileProgram) -> dict[str, tuple[int, ...]]:
    """The kept dimensions of every value whose loops a kernel of rows shows, but of those carried from row to row."""
    domain = program.internal
    assert isinstance(domain, Domain)
    carried = {i.node.name for i in domain.instances if i.carried}
    return {n.name: n.type.shape[:_num_kept(n, domain)] for n in program.graph.nodes if n.name not in carried}


def spread_extents(program: TileProgram) -> dict[str, tuple[int, ...]]:
    """The dimensions that a flat walk goes over, of every value whose loops it shows."""
    domain = program.internal
    assert isinstance(domain, Domain) and isinstance(program.choice, Pointwise)
    usual = template_of(program.choice, domain, program.graph, program.launch)
    node_by_name = program.graph.node_by_name
    return {s.name: (*node_by_name[s.name].type.shape, *(e for _, e in node_by_name[s.name].over))[:spread_at(s) + 1]
            for s in usual.schedules}


def _trailing(shape: tuple[int, ...], domain: Domain) -> int:
    """How many trailing dimensions of a value run over the reduced axes."""
    if not domain.reduced or prod(shape) <= domain.num_kept:
        return 0
    count, size = 0, 1
    while count < len(shape) and size < domain.num_reduced:
        count += 1
        size *= shape[-count]
    return count


def kept_attr(choice: Rows | Columns) -> Attr:
    """The attribute of the last kept dimension."""
    if isinstance(choice, Columns):
        return (Step(Worker.GRID), Step(Worker.CTA, choice.threads_x))
    grid = Step(Worker.GRID, choice.groups or None)
    return (grid, Step(Worker.CTA, choice.rows)) if choice.rows > 1 else (grid,)


def reduced_attr(choice: Rows | Columns) -> Attr:
    """The attribute of the first reduced dimension."""
    threads = choice.threads if isinstance(choice, Rows) else choice.threads_y
    own = Step(Worker.THREAD) if threads == 1 else Step(Worker.CTA, threads)
    if isinstance(choice, Rows) and 1 < threads <= 32:
        own = Step(Worker.WARP, threads)
    outer = [Step(Worker.GRID, choice.split)] if choice.split > 1 else []
    if isinstance(choice, Rows) and choice.cluster > 1:
        outer = [Step(Worker.CLUSTER, choice.cluster)]
    return (*outer, own)


def choice_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> Choice:
    """The choice that a template asks for of the program's pattern.

    A template with every setting that has no default determines the kernel; what a shorter one leaves out is as the scheduler chose.

    Raises: NameLookupError for a value without a schedule; OptionError for a setting that the kernel does not have; UserError for
    attributes that contradict the pattern, each other or the device; UnsupportedError for kernels without a single walk.
    """
    base, domain = program.choice, program.internal
    if not isinstance(base, Pointwise | Transpose | Rows | Columns) or not isinstance(domain, Domain):
        raise UnsupportedError(f"kernel {program.name} ({program.template}) takes no template by hand",
                               hint="kernels of one walk do (pointwise, transpose, rows, columns), stitched and packed ones")
    usual = template_of(base, domain, program.graph, program.launch)
    known = {s.name: s for s in usual.schedules}
    # The loops are read off one of the values that threads compute together; the others must agree in the end.
    carried = {i.node.name for i in domain.instances if i.carried}
    shared = {i.node.name for i in domain.instances if i.shared} - carried
    given = {s.name for s in template.settings}
    form = notation_form(base)
    asked: Settings = _complete(form) if given >= {f.name for f in _setting_fields(type(form)) if f.default is MISSING} else form
    for setting in template.settings:
        asked = _with_setting(asked, setting)
    leading = next((s.name for s in template.schedules if s.name in shared), None)
    shown = False
    for schedule in template.schedules:
        if schedule.name not in known:
            raise NameLookupError(f"value %{schedule.name} has no schedule in kernel {program.name}", where=schedule.span,
                                  hint=nearest(schedule.name, known) or f"values with schedules: {', '.join(known)}")
        if len(schedule.attrs) != len(known[schedule.name].attrs):
            raise UserError(f"schedule {schedule.name} has {len(schedule.attrs)} attributes, and the value "
                            f"{len(known[schedule.name].attrs)} dimensions", where=schedule.span, hint=f"as in: {known[schedule.name]}")
        if not shown and (schedule.name == leading or leading is None and schedule.name not in carried):
            num_kept = _num_kept(program.graph.node_by_name[schedule.name], domain)
            asked, shown = _from_loops(asked, schedule, known[schedule.name], num_kept), True
    if "chunks" not in given and asked != form and isinstance(asked, RowSettings | Columns):
        asked = replace(asked, chunks=row_steps_of(asked, domain) if isinstance(asked, RowSettings) else column_steps_of(asked, domain))
    return _checked(asked, form, domain, device, template)


def _complete(base: Settings) -> Settings:
    """The settings for a template that names every one without a default: what it leaves out is as by default, not as chosen."""
    changed: dict[str, Any] = {f.name: f.default for f in _setting_fields(type(base)) if f.default is not MISSING}
    if isinstance(base, RowSettings):
        changed["groups"] = 0
    return replace(base, **changed)


def _from_loops(choice: Settings, schedule: Schedule, usual: Schedule, num_kept: int) -> Settings:
    """The settings with the numbers of a schedule's loops."""
    if isinstance(choice, Pointwise | Transpose):
        place = spread_at(usual)
        last = schedule.attrs[place]
        if any(a != (Step(Worker.GRID),) for a in schedule.attrs[:place]) or len(last) != 2 or last[0] != Step(Worker.GRID) \
                or last[1].worker is not Worker.CTA or schedule.attrs[place + 1:] != usual.attrs[place + 1:]:
            raise _contradiction(schedule, usual, "a flat walk spreads its last dimension over GRID-CTA_n and the others over GRID")
        return replace(choice, threads=last[1].count or choice.threads)
    if num_kept:
        choice = _with_kept(choice, schedule.attrs[num_kept - 1], schedule, usual)
    return _with_reduced(choice, schedule.attrs[num_kept], schedule, usual) if num_kept < len(schedule.attrs) else choice


def _with_kept(choice: RowSettings | Columns, attr: Attr, schedule: Schedule, usual: Schedule) -> RowSettings | Columns:
    if attr[0].worker is not Worker.GRID or len(attr) > 2 or len(attr) == 2 and attr[1].worker not in (Worker.CTA, Worker.WARP):
        raise _contradiction(schedule, usual, "the last kept dimension goes over GRID, or GRID-CTA_n with n of its steps in a block")
    inside = attr[1].count if len(attr) == 2 else 1
    if isinstance(choice, Columns):
        return replace(choice, threads_x=inside or choice.threads_x)
    groups = attr[0].count
    if groups is not None and not choice.stages and not choice.span and groups != choice.groups:
        # GRID_n without a queue of rows would only say what follows from the extent.
        return replace(choice, rows=inside or choice.rows)
    return replace(choice, rows=inside or choice.rows, groups=choice.groups if groups is None else groups)


def _with_reduced(choice: RowSettings | Columns, attr: Attr, schedule: Schedule, usual: Schedule) -> RowSettings | Columns:
    cluster, split, threads = 1, 1, 0
    for place, step in enumerate(attr):
        match step.worker:
            case Worker.CLUSTER if place == 0 and isinstance(choice, RowSettings):
                cluster = step.count or choice.cluster
            case Worker.GRID if place == 0:
                split = step.count or choice.split
            case Worker.CTA:
                threads = step.count or (choice.threads if isinstance(choice, RowSettings) else choice.threads_y)
            case Worker.WARP if isinstance(choice, RowSettings):
                threads = step.count or 32
                if threads > 32:
                    raise _contradiction(schedule, usual, f"a warp has 32 lanes, not {threads}; write CTA_{threads}")
            case Worker.THREAD:
                threads = 1
            case _:
                raise _contradiction(schedule, usual, f"{step} cannot stand there in the attribute of a reduced dimension")
    if not threads:
        raise _contradiction(schedule, usual, "the reduced dimension names no threads: CTA_n, WARP_n or THREAD")
    if isinstance(choice, RowSettings):
        return replace(choice, threads=threads, cluster=cluster, split=split)
    return replace(choice, threads_y=threads, split=split)


def _contradiction(schedule: Schedule, usual: Schedule, why: str) -> UserError:
    return UserError(f"schedule {schedule.name} does not fit its kernel: {why}", where=schedule.span, hint=f"as in: {usual}")


def _with_setting(choice: Settings, setting: Setting) -> Settings:
    if setting.name in LAUNCH_SETTINGS:
        return choice
    known = {f.name: f for f in _setting_fields(type(choice))}
    if setting.name not in known:
        raise OptionError(f"a {KIND_NAMES[type(choice)]} kernel has no setting {setting.name!r}", where=setting.span,
                          hint=nearest(setting.name, known) or f"settings: {', '.join([*known, *LAUNCH_SETTINGS])}")
    wanted = type(getattr(choice, setting.name))
    if wanted is not type(setting.value):
        raise OptionError(f"setting {setting.name} is {'true or false' if wanted is bool else 'a whole number'}, not {setting.value}",
                          where=setting.span)
    if setting.name in VECTOR_SETTINGS and not setting.value:
        raise UserError(f"{setting.name}=0 is no vector width", where=setting.span, hint="1, 2, 4 or 8 elements")
    changed: dict[str, Any] = {setting.name: setting.value}
    return replace(choice, **changed)


def _checked(asked: Settings, base: Settings, domain: Domain, device: DeviceSpec, template: Template) -> Choice:
    """The choice that settings ask for. Raises: UserError naming schedule or setting, its value and the remedy, where there is none."""
    where = template.schedules[0].span if template.schedules else None
    name = template.schedules[0].name if template.schedules else "the kernel"
    made = _numbers_refusal(asked, device) or _choice_of(asked, base, domain, device)
    if isinstance(made, Rejected):
        raise UserError(f"schedule {name}: {made.detail}", where=where, hint=made.remedy)
    return made


def _choice_of(asked: Settings, base: Settings, domain: Domain, device: DeviceSpec) -> Choice | Rejected:
    """The choice that settings write, or why the pattern and the device have none."""
    match asked:
        case RowSettings():
            return rows_from(asked, domain, device)
        case Transpose():
            assert isinstance(base, Transpose)
            return transpose_refusal(asked, base, domain) or asked
        case Columns():
            return written_columns_refusal(asked) or walk_refusal(asked, domain, device) or asked
        case Pointwise():
            return walk_refusal(asked, domain, device) or asked


def _numbers_refusal(asked: Settings, device: DeviceSpec) -> Rejected | None:
    """Rules for every walk: threads a block, vector widths, settings that count something."""
    match asked:
        case RowSettings():
            threads = asked.threads * asked.rows
        case Columns():
            threads = asked.threads_x * asked.threads_y
        case _:
            threads = asked.threads
    widths = [(name, getattr(asked, name, 1)) for name in VECTOR_SETTINGS]
    counts = [(f, getattr(asked, f.name)) for f in _setting_fields(type(asked))]
    return first_refusal(
        (1 <= threads <= device.max_threads_per_block, f"{threads} threads a block, and {device.name} has at most "
         f"{device.max_threads_per_block}", "smaller CTA or WARP counts"),
        *((width >= 1 and width & (width - 1) == 0 and width <= 16, f"{name}={width} is no vector width", "1, 2, 4 or 8 elements")
          for name, width in widths),
        *((isinstance(value, bool) or value > 0 or value == f.default or f.name == "depth" and value == 0,
           f"setting {f.name}={value} is too small", "at least 1") for f, value in counts))
