"""The tile program of a streamed product, its template as text, and a written template as tiles.

    linear [CTA_1,GRID-CTA_16,LOOP_256]R; wide=1; across=1; along=8; cluster=1; slots=8; cta_num=256; cta_size=256;
"""
from __future__ import annotations

from collections.abc import Iterator

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import InternalError, NameLookupError, OptionError, UserError, nearest
from tilefuse.domain.tile import Level, TileProgram, kernel_name
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.notation import Attr, Schedule, Setting, Step, Template, Worker, agree, keeps, parse_template, print_template
from tilefuse.templates.stage_tree import edge_levels
from tilefuse.templates.staged.streamed.choose import choose_stream
from tilefuse.templates.staged.streamed.form import stream_form
from tilefuse.templates.staged.streamed.plan import StreamPlan
from tilefuse.templates.staged.streamed.record import Streamed
from tilefuse.templates.staged.streamed.stream_work import launch_of
from tilefuse.templates.staged.streamed.tree import stream_tree

FIELDS = ("wide", "across", "along", "cluster", "slots")
SETTINGS = (*FIELDS, "cta_num", "cta_size")


def schedule_stream(graph: Graph, layouts: Layouts, device: DeviceSpec, by_hand: Streamed | None = None) -> TileProgram | Rejected:
    """The tile program of a pattern given as a graph of its own, or why there is none. by_hand: tiles of a person or of a tuner.

    Units: bytes_read counts every boundary value once.
    """
    form = stream_form(graph, layouts)
    if isinstance(form, Rejected):
        return form
    plan = choose_stream(form, device, by_hand)
    if isinstance(plan, Rejected):
        return plan
    choice = plan.choice
    return TileProgram(
        name=kernel_name(graph), graph=graph, choice=choice, notation=print_template(template_of_stream(plan)),
        layouts={v: layouts[v] for v in graph.type_by_name if v in layouts},
        parameters=tuple(sorted((f, getattr(choice, f)) for f in FIELDS)), levels=edge_levels(graph, stream_tree(plan)),
        launch=launch_of(plan), bytes_read=sum(v.type.num_bytes for v in graph.inputs),
        bytes_written=sum(graph.type_of(r).num_bytes for r in graph.results),
        flops=plan.flops, internal=plan)


def template_of_stream(plan: StreamPlan) -> Template:
    """The products with their tile and their loop; maps around them have no schedule of their own."""
    choice, form = plan.choice, plan.form
    tile: tuple[Attr, ...] = (*((Step(Worker.GRID),) for _ in form.leads), (Step(Worker.CTA, form.rows),),
                              (Step(Worker.GRID), Step(Worker.CTA, plan.columns)))
    # The walk along the inner axis: a step of all warps.
    products = []
    for name in dict.fromkeys(s.product.name for s in form.streams):
        levels = (Level.REGISTER, Level.GLOBAL) if name in form.graph.results else (Level.REGISTER,)
        products.append(Schedule(name, (*tile, (Step(Worker.LOOP, plan.step),)), levels))
    return Template(tuple(products), (*(Setting(f, getattr(choice, f)) for f in FIELDS), Setting("cta_num", plan.num_blocks),
                                      Setting("cta_size", choice.num_threads)))


def stream_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
    """The program's products with the settings of a template; its tiles and launch follow from them.

    Raises: NameLookupError for a value that has no schedule; OptionError for an unknown setting; UserError for tiles that do not fit, or
    that the settings contradict.
    """
    base, plan = program.choice, program.internal
    if not isinstance(base, Streamed) or not isinstance(plan, StreamPlan):
        raise InternalError(f"kernel {program.name} ({program.template}) is no streamed product")
    numbers = dict(_numbers(plan, template))
    choice = Streamed(**{f: numbers.get(f, getattr(base, f)) for f in FIELDS})
    result = schedule_stream(program.graph, program.layouts, device, choice)
    if isinstance(result, Rejected):
        raise UserError(f"the template cannot be met: {result}", where=template.schedules[0].span if template.schedules else None,
                        hint="fewer slots or warps need less shared memory, larger clusters hold longer rows")
    for name, own in (("cta_num", result.launch.num_blocks), ("cta_size", result.launch.num_threads)):
        if numbers.get(name, own) != own:
            raise UserError(f"{name}={numbers[name]}, and the other settings give {own}", hint=f"{name}={own}, or none")
    own_schedules = {s.name: s for s in parse_template(result.notation).schedules}
    for schedule in template.schedules:
        own_schedule = own_schedules[schedule.name]
        if not all(map(agree, schedule.attrs, own_schedule.attrs)) or len(schedule.attrs) != len(own_schedule.attrs) \
                or not keeps(schedule.keep, own_schedule.keep, schedule.name in program.graph.results):
            raise UserError(f"schedule {schedule.name} is none that a streamed product has", where=schedule.span,
                            hint=f"with these settings the kernel's loops are: {own_schedule}")
    return result


def _numbers(plan: StreamPlan, template: Template) -> Iterator[tuple[str, int]]:
    """(name, number) of every setting of a template."""
    products = tuple(dict.fromkeys(s.product.name for s in plan.form.streams))
    for schedule in template.schedules:
        if schedule.name not in products:
            raise NameLookupError(f"value %{schedule.name} has no schedule in a streamed product", where=schedule.span,
                                  hint=f"schedules: {', '.join(products)}")
    for setting in template.settings:
        if setting.name not in SETTINGS or isinstance(setting.value, bool):
            raise OptionError(f"a streamed product has no setting {setting}", where=setting.span,
                              hint=nearest(setting.name, SETTINGS) or f"settings: {', '.join(SETTINGS)}")
        yield setting.name, setting.value
