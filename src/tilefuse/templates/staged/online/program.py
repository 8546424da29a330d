"""schedule_online: the tile program of a pattern that walks an axis between products, and its template."""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import Level, TileProgram, kernel_name
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.notation import Attr, Schedule, Setting, Step, Template, Worker, print_template
from tilefuse.templates.stage_tree import edge_levels
from tilefuse.templates.staged.online.choose import choose_online
from tilefuse.templates.staged.online.plan import OnlinePlan
from tilefuse.templates.staged.online.products import online_form
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.online.tree import online_tree


def schedule_online(graph: Graph, layouts: Layouts, device: DeviceSpec, by_hand: Online | None = None) -> TileProgram | Rejected:
    """The tile program of a pattern given as a graph of its own, or why there is none. `by_hand`: tiles made by hand or by a tuner.

    Units: bytes_read counts every boundary value once, however many blocks read it (the second-level cache serves the others).
    """
    form = online_form(graph)
    if isinstance(form, Rejected):
        return form
    plan = choose_online(form, device, by_hand)
    if isinstance(plan, Rejected):
        return plan
    choice = plan.choice
    launch = Launch(plan.num_blocks, choice.threads, 1, plan.shared_bytes)
    return TileProgram(
        name=kernel_name(graph), graph=graph, choice=choice, notation=print_template(template_of_walk(plan, launch)),
        layouts={v: layouts[v] for v in graph.type_by_name if v in layouts},
        parameters=(("allocated_bytes", plan.shared_bytes), ("columns", choice.columns), ("resident", choice.resident),
                    ("rows", choice.rows), ("stages", choice.stages), ("threads", choice.threads), ("unit", plan.unit)),
        levels=edge_levels(graph, online_tree(plan)), launch=launch, bytes_read=sum(v.type.num_bytes for v in graph.inputs),
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
