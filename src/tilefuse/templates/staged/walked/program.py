"""The tile program of a pipelined walk, its template as text, and a written template as tiles.

    scores [GRID,GRID-CTA_128,LOOP_128]R; top [GRID,GRID-CTA_128,LOOP_128]W; o [GRID,GRID-CTA_128,WARP,LOOP_128];
    left_slots=2; slots=4; warpgroups=2; in_turn; band=1; cta_num=132; cta_size=384;
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
from tilefuse.templates.staged.walked.choose import choose_walk
from tilefuse.templates.staged.walked.form import walk_form
from tilefuse.templates.staged.walked.plan import WalkPlan
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.tree import walk_tree

SETTINGS = ("left_slots", "slots", "bias_slots", "warpgroups", "in_turn", "band", "heads", "parts", "cta_num", "cta_size")
# Settings that hold or do not.
FLAGS = ("in_turn",)
WRITTEN = Written(SETTINGS, FLAGS, "a pipelined walk")
# Settings of few rows, which are 1 elsewhere.
SPLITS = ("heads", "parts")


def schedule_walk(graph: Graph, layouts: Layouts, device: DeviceSpec, fixed: PipelinedWalk | None = None) -> TileProgram | Rejected:
    """The tile program of a pattern given as a graph of its own, or why there is none. fixed: tiles made by hand or by a tuner.

    Units: bytes_read counts every boundary value once.
    """
    form = walk_form(graph, layouts)
    if isinstance(form, Rejected):
        return form
    plan = choose_walk(form, layouts, device, fixed)
    if isinstance(plan, Rejected):
        return plan
    choice = plan.choice
    return TileProgram(
        name=kernel_name(graph), graph=graph, choice=choice, notation=print_template(template_of_walk(plan)),
        layouts={v: layouts[v] for v in graph.type_by_name if v in layouts},
        parameters=(("band", choice.band), ("bias_slots", choice.bias_slots), ("blocks", choice.blocks), ("columns", choice.columns),
                    ("in_turn", int(choice.in_turn)), ("left_slots", choice.left_slots),
                    *((n, getattr(choice, n)) for n in SPLITS if getattr(choice, n) > 1), ("slots", choice.slots),
                    ("warpgroups", choice.warpgroups)),
        levels=edge_levels(graph, walk_tree(plan)), launch=Launch(choice.blocks, choice.num_threads, 1, plan.shared_bytes),
        bytes_read=sum(v.type.num_bytes for v in graph.inputs),
        bytes_written=sum(graph.type_of(r).num_bytes for r in graph.results), flops=plan.flops, internal=plan)


def template_of_walk(plan: WalkPlan) -> Template:
    """A schedule for every product and reduction of the walk: LOOP is the walked axis, a tile of so many columns a turn."""
    form, choice = plan.form.online, plan.choice
    lead: tuple[Attr, ...] = ((Step(Worker.GRID),),) if form.num_leads > 1 else ()
    rows, turns = (Step(Worker.GRID), Step(Worker.CTA, choice.rows)), (Step(Worker.LOOP, choice.columns),)
    schedules = [Schedule(s.value, (*lead, rows, turns), (Level.REGISTER,)) for s in form.scores]
    schedules += [Schedule(t.value, (*lead, rows, turns), (Level.WARP, *_kept(t.value, plan))) for t in form.totals]
    known = {s.name for s in schedules}
    for w in form.weighted:
        if w.total.value not in known and w.total.value in form.graph.node_by_name:
            known.add(w.total.value)
            schedules.append(Schedule(w.total.value, (*lead, rows, turns), (Level.REGISTER,)))
        schedules.append(Schedule(w.value, (*lead, rows, (Step(Worker.WARP),), turns), (Level.REGISTER, *_kept(w.value, plan))))
    biases = (Setting("bias_slots", choice.bias_slots),) if plan.form.biases else ()
    own = (Setting("left_slots", choice.left_slots), Setting("slots", choice.slots), *biases, Setting("warpgroups", choice.warpgroups),
           *(Setting(name, True) for name in FLAGS if getattr(choice, name)), Setting("band", choice.band),
           *(Setting(name, getattr(choice, name)) for name in SPLITS if getattr(choice, name) > 1))
    return Template(tuple(schedules), (*own, Setting("cta_num", choice.blocks), Setting("cta_size", choice.num_threads)))


def _kept(value: str, plan: WalkPlan) -> tuple[Level, ...]:
    return (Level.GLOBAL,) if value in plan.form.online.graph.results else ()


def walk_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
    """The program's walk with a template's columns a turn (LOOP), slots, warpgroups, band and blocks.

    Raises: NameLookupError for a value that has no schedule; OptionError for an unknown setting; UserError for tiles that contradict each
    other or do not fit.
    """
    base, plan = program.choice, program.internal
    if not isinstance(base, PipelinedWalk) or not isinstance(plan, WalkPlan):
        raise InternalError(f"kernel {program.name} ({program.template}) is no pipelined walk")
    numbers = WRITTEN.numbers(program, template)
    choice = PipelinedWalk(numbers.get("columns", base.columns), numbers.get("warpgroups", base.warpgroups),
                           numbers.get("left_slots", base.left_slots), numbers.get("slots", base.slots), numbers.get("band", base.band),
                           numbers.get("cta_num", base.blocks), bool(numbers.get("in_turn", base.in_turn)),
                           numbers.get("bias_slots", base.bias_slots), numbers.get("parts", base.parts),
                           numbers.get("heads", base.heads))
    where: Span | None = template.schedules[0].span if template.schedules else None
    for name, own in (("rows", choice.rows), ("cta_size", choice.num_threads)):
        if numbers.get(name, own) != own:
            raise UserError(f"{name} of {numbers[name]}, and {choice.warpgroups} warpgroups have {own}", where=where,
                            hint="each consumer warpgroup has 64 rows, and one more produces")
    result = schedule_walk(program.graph, program.layouts, device, choice)
    if isinstance(result, Rejected):
        raise UserError(f"the template cannot be met: {result}", where=where, hint="columns are a multiple of 16, slots two or more")
    WRITTEN.check(template, result)
    return result
