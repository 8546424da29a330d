"""The tile program of a chain of products, its template as text, and a written template as tiles.

    up [GRID-CTA_128,CTA_256,LOOP_64]R; down [GRID-CTA_128,CTA_64,LOOP_64]; left_slots=2; slots=5; warpgroups=2; cta_num=132; cta_size=384;
"""
from __future__ import annotations

from collections.abc import Iterator

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import InternalError, NameLookupError, OptionError, UserError, nearest
from tilefuse.base.source import Span
from tilefuse.domain.tile import Level, TileProgram, kernel_name
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.notation import Attr, Schedule, Setting, Step, Template, Worker, agree, keeps, parse_template, print_template
from tilefuse.templates.stage_tree import edge_levels
from tilefuse.templates.staged.chain.choose import choose_chain
from tilefuse.templates.staged.chain.form import chain_form
from tilefuse.templates.staged.chain.plan import DEPTH, ChainPlan
from tilefuse.templates.staged.chain.record import ProductChain
from tilefuse.templates.staged.chain.tree import chain_tree

SETTINGS = ("left_slots", "slots", "warpgroups", "cta_num", "cta_size")


def schedule_chain(graph: Graph, layouts: Layouts, device: DeviceSpec, fixed: ProductChain | None = None) -> TileProgram | Rejected:
    """The tile program of a pattern given as a graph of its own, or why there is none. fixed: tiles made by hand or by a tuner.

    Units: bytes_read counts every boundary value once.
    """
    form = chain_form(graph, layouts)
    if isinstance(form, Rejected):
        return form
    plan = choose_chain(form, device, fixed)
    if isinstance(plan, Rejected):
        return plan
    choice = plan.choice
    return TileProgram(
        name=kernel_name(graph), graph=graph, choice=choice, notation=print_template(template_of_chain(plan)),
        layouts={v: layouts[v] for v in graph.type_by_name if v in layouts},
        parameters=(("blocks", choice.blocks), ("left_slots", choice.left_slots), ("rows", choice.rows), ("slots", choice.slots),
                    ("warpgroups", choice.warpgroups)),
        levels=edge_levels(graph, chain_tree(plan)),
        launch=Launch(choice.blocks, choice.num_threads, 1, plan.shared_bytes), bytes_read=sum(v.type.num_bytes for v in graph.inputs),
        bytes_written=sum(graph.type_of(r).num_bytes for r in graph.results), flops=plan.flops, internal=plan)


def template_of_chain(plan: ChainPlan) -> Template:
    """Each product with its tile and its main loop; maps have the tile of the sums that they read, and no schedule."""
    choice, graph = plan.choice, plan.form.graph
    schedules: list[Schedule] = []
    for layer in plan.layers:
        product = layer.form.product.name
        tile: tuple[Attr, ...] = (*((Step(Worker.GRID),) for _ in layer.form.leads), (Step(Worker.GRID), Step(Worker.CTA, choice.rows)),
                                  (Step(Worker.CTA, layer.columns),), (Step(Worker.LOOP, DEPTH),))
        keep = (Level.REGISTER, Level.GLOBAL) if product in graph.results else (Level.REGISTER,)
        schedules.append(Schedule(product, tile, keep))
    values = (choice.left_slots, choice.slots, choice.warpgroups, choice.blocks, choice.num_threads)
    return Template(tuple(schedules), tuple(Setting(name, value) for name, value in zip(SETTINGS, values, strict=True)))


def chain_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
    """The program's chain with a template's rows and columns (CTA), slots, warpgroups and blocks.

    Raises: NameLookupError for a value that has no schedule; OptionError for an unknown setting; UserError for tiles that do not fit.
    """
    base, plan = program.choice, program.internal
    if not isinstance(base, ProductChain) or not isinstance(plan, ChainPlan):
        raise InternalError(f"kernel {program.name} ({program.template}) is no chain of products")
    numbers = dict(_numbers(plan, template))
    products = [layer.form.product.name for layer in plan.layers]
    columns = tuple(numbers.get(f"columns of {name}", c) for name, c in zip(products, base.columns, strict=True))
    choice = ProductChain(numbers.get("rows", base.rows), columns, numbers.get("left_slots", base.left_slots),
                          numbers.get("slots", base.slots), numbers.get("warpgroups", base.warpgroups), numbers.get("cta_num", base.blocks))
    where: Span | None = template.schedules[0].span if template.schedules else None
    if numbers.get("cta_size", choice.num_threads) != choice.num_threads:
        raise UserError(f"{numbers['cta_size']} threads a block, and {choice.warpgroups} warpgroups with one that produces are "
                        f"{choice.num_threads}", where=where, hint=f"cta_size={choice.num_threads}")
    result = schedule_chain(program.graph, program.layouts, device, choice)
    if isinstance(result, Rejected):
        raise UserError(f"the template cannot be met: {result}", where=where,
                        hint="rows are 64 or 128 for each warpgroup, columns those of the sums in whole instructions")
    own_by_name = {s.name: s for s in parse_template(result.notation).schedules}
    for schedule in template.schedules:
        own = own_by_name[schedule.name]
        if not all(map(agree, schedule.attrs, own.attrs)) or len(schedule.attrs) != len(own.attrs) \
                or not keeps(schedule.keep, own.keep, own.name in program.graph.results):
            raise UserError(f"schedule {schedule.name} is none that a chain of products has", where=schedule.span,
                            hint=f"the kernel's loops then are: {own}")
    return result


def _numbers(plan: ChainPlan, template: Template) -> Iterator[tuple[str, int]]:
    """(name, number) of every number that a template writes."""
    products = [layer.form.product.name for layer in plan.layers]
    for schedule in template.schedules:
        if schedule.name not in products:
            raise NameLookupError(f"value %{schedule.name} has no schedule in a chain of products", where=schedule.span,
                                  hint=f"schedules: {', '.join(products)}")
        steps = [next((s.count for s in attr if s.worker is Worker.CTA and s.count is not None), None) for attr in schedule.attrs[-3:-1]]
        for name, count in zip(("rows", f"columns of {schedule.name}"), steps, strict=False):
            if count is not None:
                yield name, count
    for setting in template.settings:
        if setting.name not in SETTINGS or isinstance(setting.value, bool):
            raise OptionError(f"a chain of products has no setting {setting}", where=setting.span,
                              hint=nearest(setting.name, SETTINGS) or f"settings: {', '.join(SETTINGS)}")
        yield setting.name, setting.value
