"""The tile program of a walk between several products, its template as text, and a written template as tiles.

    s [GRID,GRID-CTA_128,LOOP_64]R; d [GRID,GRID-CTA_128,LOOP_64]R; dk [GRID,GRID-CTA_128,WARP,LOOP_64]R; dv [..]R;
    kept_slots=1; slots=3; warpgroups=2; band=1; cta_num=132; cta_size=384;
"""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import InternalError, UserError
from tilefuse.base.source import Span
from tilefuse.domain.tile import Level, TileProgram, kernel_name
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.notation import Attr, Schedule, Setting, Step, Template, Worker, print_template
from tilefuse.templates.stage_tree import edge_levels
from tilefuse.templates.staged.online.written import Written
from tilefuse.templates.staged.recomputed.choose import choose_back
from tilefuse.templates.staged.recomputed.form import back_form
from tilefuse.templates.staged.recomputed.plan import BackPlan
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.recomputed.tree import back_tree

OWN_SETTINGS = ("kept_slots", "slots", "warpgroups", "band")
WRITTEN = Written((*OWN_SETTINGS, "cta_num", "cta_size"), (), "a walk between several products")


def schedule_back(graph: Graph, layouts: Layouts, device: DeviceSpec, fixed: WalkedBack | None = None) -> TileProgram | Rejected:
    """The tile program of a pattern given as a graph of its own, or why there is none. fixed: tiles made by hand or by a tuner.

    Units: bytes_read counts every boundary value once.
    """
    form = back_form(graph, layouts)
    if isinstance(form, Rejected):
        return form
    plan = choose_back(form, layouts, device, fixed)
    if isinstance(plan, Rejected):
        return plan
    choice = plan.choice
    return TileProgram(
        name=kernel_name(graph), graph=graph, choice=choice, notation=print_template(template_of_back(plan)),
        layouts={v: layouts[v] for v in graph.type_by_name if v in layouts},
        parameters=tuple((name, getattr(choice, name)) for name in ("band", "blocks", "columns", "kept_slots", "slots", "warpgroups")),
        levels=edge_levels(graph, back_tree(plan)), launch=Launch(choice.blocks, choice.num_threads, 1, plan.shared_bytes),
        bytes_read=sum(v.type.num_bytes for v in graph.inputs),
        bytes_written=sum(graph.type_of(r).num_bytes for r in graph.results), flops=plan.flops, internal=plan)


def template_of_back(plan: BackPlan) -> Template:
    """A schedule for every product of the walk and for the elements between: LOOP is the walked axis, a tile of so many columns a turn."""
    form, choice = plan.form.online, plan.choice
    lead: tuple[Attr, ...] = ((Step(Worker.GRID),),) if form.num_leads > 1 else ()
    rows, turns = (Step(Worker.GRID), Step(Worker.CTA, choice.rows)), (Step(Worker.LOOP, choice.columns),)
    between = dict.fromkeys((*(s.value for s in form.scores), *(w.total.value for w in form.weighted)))
    schedules = [Schedule(name, (*lead, rows, turns), (Level.REGISTER,)) for name in between]
    for w in form.weighted:
        written = (Level.GLOBAL,) if w.value in form.graph.results else ()
        schedules.append(Schedule(w.value, (*lead, rows, (Step(Worker.WARP),), turns), (Level.REGISTER, *written)))
    own = tuple(Setting(name, getattr(choice, name)) for name in OWN_SETTINGS)
    return Template(tuple(schedules), (*own, Setting("cta_num", choice.blocks), Setting("cta_size", choice.num_threads)))


def back_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
    """The program's walk with a template's columns a turn (LOOP), slots, warpgroups, band and blocks.

    Raises: NameLookupError for a value that has no schedule; OptionError for an unknown setting; UserError for tiles that contradict each
    other or do not fit.
    """
    base = program.choice
    if not isinstance(base, WalkedBack):
        raise InternalError(f"kernel {program.name} ({program.template}) is no walk between several products")
    numbers = WRITTEN.numbers(program, template)
    choice = WalkedBack(numbers.get("columns", base.columns), numbers.get("warpgroups", base.warpgroups),
                        numbers.get("kept_slots", base.kept_slots), numbers.get("slots", base.slots), numbers.get("band", base.band),
                        numbers.get("cta_num", base.blocks))
    where: Span | None = template.schedules[0].span if template.schedules else None
    for name, own in (("rows", choice.rows), ("cta_size", choice.num_threads)):
        if numbers.get(name, own) != own:
            raise UserError(f"{name} of {numbers[name]}, and {choice.warpgroups} warpgroups have {own}", where=where,
                            hint="each consumer warpgroup has 64 rows, and one more produces")
    result = schedule_back(program.graph, program.layouts, device, choice)
    if isinstance(result, Rejected):
        raise UserError(f"the template cannot be met: {result}", where=where, hint="columns are a multiple of 16")
    WRITTEN.check(template, result)
    return result
