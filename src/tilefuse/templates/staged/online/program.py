"""schedule_online: the tile program of a pattern that walks an axis between products; its template, and the one made by hand."""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import NameLookupError, OptionError, UserError, nearest
from tilefuse.base.source import Span
from tilefuse.domain.tile import EdgeLevel, Level, TileProgram, kernel_name
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.notation import Attr, Schedule, Setting, Step, Template, Worker, agree, keeps, parse_template, print_template
from tilefuse.templates.staged.online.choose import choose_online
from tilefuse.templates.staged.online.plan import OnlinePlan
from tilefuse.templates.staged.online.products import online_form
from tilefuse.templates.staged.online.record import Online


def schedule_online(graph: Graph, layouts: Layouts, device: DeviceSpec, wanted: Online | None = None) -> TileProgram | Rejected:
    """The tile program of a pattern given as a graph of its own, or why there is none. `wanted`: tiles made by hand or by a tuner.

    Units: bytes_read counts every boundary value once, however many blocks read it (the second-level cache serves the others).
    """
    form = online_form(graph)
    if isinstance(form, Rejected):
        return form
    plan = choose_online(form, device, wanted)
    if isinstance(plan, Rejected):
        return plan
    choice = plan.choice
    launch = Launch(plan.num_blocks, choice.threads, 1, plan.shared_bytes)
    return TileProgram(
        name=kernel_name(graph), graph=graph, choice=choice, notation=print_template(template_of_walk(plan, launch)),
        layouts={v: layouts[v] for v in graph.type_by_name if v in layouts},
        parameters=(("allocated_bytes", plan.shared_bytes), ("columns", choice.columns), ("resident", choice.resident),
                    ("rows", choice.rows), ("stages", choice.stages), ("threads", choice.threads), ("unit", plan.unit)),
        levels=_levels(plan), launch=launch, bytes_read=sum(v.type.num_bytes for v in graph.inputs),
        bytes_written=sum(graph.type_of(r).num_bytes for r in graph.results), flops=plan.flops, internal=plan)


def template_of_walk(plan: OnlinePlan, launch: Launch) -> Template:
    """A schedule for every product and reduction of the walk: LOOP is the walked axis, a tile of so many columns a turn."""
    form, choice = plan.form, plan.choice
    lead: tuple[Attr, ...] = ((Step(Worker.GRID),),) if form.num_leads > 1 else ()
    rows = (Step(Worker.GRID), Step(Worker.CTA, choice.rows)) if form.num_rows > choice.rows else (Step(Worker.CTA, choice.rows),)
    turns = (Step(Worker.LOOP, choice.columns), Step(Worker.WARP))
    powers = (Level.REGISTER,) if plan.unit == "mma" else (Level.SHARED,)
    schedules = [Schedule(s.value, (*lead, rows, turns), (Level.REGISTER,)) for s in form.scores]
    schedules += [Schedule(t.value, (*lead, rows, turns), (Level.WARP, *_kept(t.value, plan))) for t in form.totals]
    known = {s.name for s in schedules}
    for w in form.weighted:
        if w.total.value not in known and w.total.value in form.graph.node_by_name:
            known.add(w.total.value)
            schedules.append(Schedule(w.total.value, (*lead, rows, turns), powers))
        schedules.append(Schedule(w.value, (*lead, rows, (Step(Worker.WARP),), (Step(Worker.LOOP, choice.columns),)),
                                  (Level.REGISTER, *_kept(w.value, plan))))
    own = (*((Setting("resident", choice.resident),) if choice.resident > 1 else ()), Setting("stages", choice.stages))
    return Template(tuple(schedules), (*own, Setting("cta_num", launch.num_blocks), Setting("cta_size", launch.num_threads)))


def _kept(value: str, plan: OnlinePlan) -> tuple[Level, ...]:
    return (Level.GLOBAL,) if value in plan.form.graph.results else ()


def online_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
    """The walk of the program's pattern with a template's rows (CTA), columns a turn (LOOP), stages and threads.

    Raises: NameLookupError for a value that has no schedule; OptionError for an unknown setting; UserError for tiles that contradict each
    other or do not fit.
    """
    base = program.choice
    assert isinstance(base, Online)
    known = {s.name for s in parse_template(program.notation).schedules}
    found: dict[str, int] = {}

    def take(name: str, value: int, where: Span | None) -> None:
        if found.setdefault(name, value) != value:
            raise UserError(f"{name} of {found[name]} and of {value} in one kernel", where=where, hint="all values walk together")

    for schedule in template.schedules:
        if schedule.name not in known and schedule.name not in program.graph.node_by_name:
            raise NameLookupError(f"value %{schedule.name} has no schedule in kernel {program.name}", where=schedule.span,
                                  hint=nearest(schedule.name, known) or f"schedules: {', '.join(sorted(known))}")
        for step in (s for attr in schedule.attrs for s in attr if s.count is not None):
            if step.worker in (Worker.CTA, Worker.LOOP):
                take("rows" if step.worker is Worker.CTA else "columns", step.count or 0, schedule.span)
    names = ["resident", "stages", "cta_num", "cta_size"]
    for setting in template.settings:
        if setting.name not in names or isinstance(setting.value, bool):
            raise OptionError(f"a kernel that walks has no setting {setting}", where=setting.span,
                              hint=nearest(setting.name, names) or f"settings: {', '.join(names)}")
        take(setting.name, setting.value, setting.span)
    choice = Online(found.get("rows", base.rows), found.get("columns", base.columns), found.get("cta_size", base.threads),
                    found.get("stages", base.stages), found.get("resident", base.resident))
    made = schedule_online(program.graph, program.layouts, device, choice)
    if isinstance(made, Rejected):
        where = template.schedules[0].span if template.schedules else None
        raise UserError(f"the template cannot be met: {made}", where=where,
                        hint="rows are whole instructions a warp, columns a multiple of 16")
    meant = {s.name: s for s in parse_template(made.notation).schedules}
    for schedule in template.schedules:
        wanted = meant.get(schedule.name)
        if wanted is None:
            continue
        if len(wanted.attrs) != len(schedule.attrs) or not all(map(agree, schedule.attrs, wanted.attrs)) \
                or not keeps(schedule.keep, wanted.keep, schedule.name in made.graph.results):
            raise UserError(f"schedule {schedule.name} contradicts the others of its kernel, in which LOOP is where the block takes turns",
                            where=schedule.span, hint=f"the kernel's loops then are: {wanted}")
    return made


def _levels(plan: OnlinePlan) -> tuple[EdgeLevel, ...]:
    """Reductions are shared by the lanes of a row; powers lie in registers, or in shared memory where threads multiply."""
    graph = plan.form.graph
    inside = {n.name for n in graph.nodes}
    level = dict.fromkeys(inside, Level.REGISTER) | {t.value: Level.WARP for t in plan.form.totals}
    if plan.unit != "mma":
        level |= {w.total.value: Level.SHARED for w in plan.form.weighted if w.total.value in inside}
    return tuple(EdgeLevel(v, n.name, level[v]) for n in graph.nodes for v in n.reads() if v in inside)
