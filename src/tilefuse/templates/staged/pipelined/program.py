"""The tile program of pipelined products, its template as text, and a written template as tiles.

    linear [GRID-CTA_128,GRID-CTA_256,LOOP_64]R; slots=4; warpgroups=2; band=8; cta_num=132; cta_size=384;
    linear [GRID-CTA_128,GRID-CLUSTER_4-CTA_256,LOOP_64]R; ...       the blocks of a cluster hold whole rows and reduce them together
    linear [GRID-CTA_128,GRID-CLUSTER_6-CTA_128,LOOP_64]R; scattered=true; ...     the same, on any multiprocessors
    linear [GRID-CTA_16,GRID-CTA_128,LOOP_64]R; swapped; ...         128 columns are the rows of instructions
    linear [GRID-CTA_64,GRID-CTA_64,CLUSTER_4-LOOP_64]R; ...         the blocks of a cluster have a part each of the inner axis
    linear [GRID-CTA_64,GRID-CTA_64,GRID_3-CLUSTER_4-LOOP_64]R; ...  three clusters with four parts each: twelve parts of the inner axis
"""
from __future__ import annotations

from collections.abc import Iterator

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import InternalError, NameLookupError, OptionError, UserError, nearest
from tilefuse.base.source import Span
from tilefuse.domain.tile import Level, TileProgram, kernel_name
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.pipeline import WARPGROUP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.notation import Attr, Schedule, Setting, Step, Template, Worker, agree, keeps, parse_template, print_template
from tilefuse.templates.stage_tree import edge_levels
from tilefuse.templates.staged.pipelined.choose import choose_product
from tilefuse.templates.staged.pipelined.form import product_form
from tilefuse.templates.staged.pipelined.plan import ProductPlan
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.tree import product_tree

SETTINGS = ("slots", "warpgroups", "pingpong", "swapped", "multicast", "scattered", "by_warps", "resident", "band", "cta_num", "cta_size")
# Settings that hold or do not.
FLAGS = ("pingpong", "swapped", "multicast", "scattered", "by_warps")


def schedule_product(graph: Graph, layouts: Layouts, device: DeviceSpec, wanted: Pipelined | None = None) -> TileProgram | Rejected:
    """The tile program of a pattern given as a graph of its own, or why there is none. wanted: tiles made by hand or by a tuner.

    Units: bytes_read counts every boundary value once.
    """
    form = product_form(graph, layouts)
    if isinstance(form, Rejected):
        return form
    plan = choose_product(form, device, wanted)
    if isinstance(plan, Rejected):
        return plan
    choice = plan.choice
    return TileProgram(
        name=kernel_name(graph), graph=graph, choice=choice, notation=print_template(template_of_product(plan)),
        layouts={v: layouts[v] for v in graph.type_by_name if v in layouts},
        parameters=(("band", choice.band), ("blocks", choice.blocks), *((("by_warps", 1),) if choice.by_warps else ()),
                    ("cluster", choice.cluster), *((("resident", choice.resident),) if choice.resident > 1 else ()),
                    ("columns", choice.columns), ("depth", choice.depth), ("multicast", int(choice.multicast)),
                    ("pingpong", int(choice.pingpong)), ("rows", choice.rows),
                    ("scattered", int(choice.scattered)), ("slots", choice.slots), ("split", choice.split),
                    ("swapped", int(choice.swapped)),
                    ("warpgroups", choice.warpgroups)),
        levels=edge_levels(graph, product_tree(plan)),
        launch=Launch(choice.blocks, choice.num_threads, choice.cluster, plan.shared_bytes, scattered=choice.scattered),
        bytes_read=sum(v.type.num_bytes for v in graph.inputs),
        bytes_written=sum(graph.type_of(r).num_bytes for r in graph.results), flops=plan.flops, internal=plan)


def template_of_product(plan: ProductPlan) -> Template:
    """The products with their tile and their main loop; maps on the sums have the same tile and no schedule."""
    choice, form = plan.choice, plan.form
    rows: Attr = (Step(Worker.GRID), Step(Worker.CTA, choice.rows))
    columns: Attr = (Step(Worker.GRID), *_shared(Worker.CLUSTER, choice.cluster_columns), Step(Worker.CTA, choice.columns))
    inner: Attr = (*_shared(Worker.GRID, choice.memory_parts), *_shared(Worker.CLUSTER, choice.cluster_parts),
                   Step(Worker.LOOP, choice.depth))
    tile: tuple[Attr, ...] = (*((Step(Worker.GRID),) for _ in form.leads), *((columns, rows) if choice.swapped else (rows, columns)), inner)
    products = tuple(Schedule(n.name, tile,
                              (Level.REGISTER, Level.GLOBAL) if n.name in form.graph.results else (Level.REGISTER,)) for n in form.nodes)
    turns = tuple(Setting(name, True) for name in FLAGS if getattr(choice, name))
    return Template(products, (Setting("slots", choice.slots), Setting("warpgroups", choice.warpgroups), *turns,
                               *((Setting("resident", choice.resident),) if choice.resident > 1 else ()),
                               Setting("band", choice.band), Setting("cta_num", choice.blocks), Setting("cta_size", choice.num_threads)))


def _shared(worker: Worker, count: int) -> tuple[Step, ...]:
    """A step that several workers share; none for a single one."""
    return (Step(worker, count),) if count > 1 else ()


def product_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
    """The program's product with a template's tile (CTA), depth (LOOP), slots, warpgroups, band and blocks.

    Raises: NameLookupError for a value that has no schedule; OptionError for an unknown setting; UserError for tiles that do not fit.
    """
    base, plan = program.choice, program.internal
    if not isinstance(base, Pipelined) or not isinstance(plan, ProductPlan):
        raise InternalError(f"kernel {program.name} ({program.template}) is no pipelined product")
    numbers = dict(_numbers(plan, template))
    warpgroups = numbers.get("warpgroups", base.warpgroups)
    choice = Pipelined(numbers.get("rows", base.rows), numbers.get("columns", base.columns), numbers.get("depth", base.depth),
                       numbers.get("slots", base.slots), warpgroups, numbers.get("band", base.band), numbers.get("cta_num", base.blocks),
                       bool(numbers.get("pingpong", base.pingpong)), numbers.get("cluster", base.cluster),
                       bool(numbers.get("swapped", base.swapped)), numbers.get("split", base.split),
                       bool(numbers.get("multicast", base.multicast)), bool(numbers.get("scattered", base.scattered)),
                       bool(numbers.get("by_warps", base.by_warps)), numbers.get("resident", base.resident))
    where: Span | None = template.schedules[0].span if template.schedules else None
    if numbers.get("cta_size", choice.num_threads) != choice.num_threads:
        raise UserError(f"{numbers['cta_size']} threads a block, and {warpgroups} warpgroups with one that produces are "
                        f"{choice.num_threads}", where=where, hint=f"cta_size={choice.num_threads}, or warpgroups="
                        f"{max(numbers['cta_size'] // WARPGROUP - 1, 1)}")
    result = schedule_product(program.graph, program.layouts, device, choice)
    if isinstance(result, Rejected):
        raise UserError(f"the template cannot be met: {result}", where=where,
                        hint="rows are 64 for each warpgroup or a multiple, columns and inner elements multiples of 128 bytes")
    own_by_name = {s.name: s for s in parse_template(result.notation).schedules}
    for schedule in template.schedules:
        own = own_by_name[schedule.name]
        if not all(map(agree, schedule.attrs, own.attrs)) or len(schedule.attrs) != len(own.attrs) \
                or not keeps(schedule.keep, own.keep, own.name in program.graph.results):
            raise UserError(f"schedule {schedule.name} is none that a pipelined product has", where=schedule.span,
                            hint=f"the kernel's loops then are: {own}")
    return result


def _numbers(plan: ProductPlan, template: Template) -> Iterator[tuple[str, int]]:
    """(name, number) of every number that a template writes."""
    products = [n.name for n in plan.form.nodes]
    swapped = any(s.name == "swapped" and s.value for s in template.settings)
    names = ("columns", "rows", "depth") if swapped else ("rows", "columns", "depth")
    for schedule in template.schedules:
        if schedule.name not in products:
            raise NameLookupError(f"value %{schedule.name} has no schedule in a pipelined product", where=schedule.span,
                                  hint=f"schedules: {', '.join(products)}")
        steps = [next((s.count for s in attr if s.worker in (Worker.CTA, Worker.LOOP) and s.count is not None), None)
                 for attr in schedule.attrs[-3:]]
        if len(steps) == 3:
            yield from ((name, count) for name, count in zip(names, steps, strict=True) if count is not None)
            yield from _parts(schedule.attrs[-3 + names.index("columns")], schedule.attrs[-1], plan.choice)
    for setting in template.settings:
        if setting.name not in SETTINGS or isinstance(setting.value, bool) != (setting.name in FLAGS):
            raise OptionError(f"a pipelined product has no setting {setting}", where=setting.span,
                              hint=nearest(setting.name, SETTINGS) or f"settings: {', '.join(SETTINGS)}")
        yield setting.name, setting.value


def _parts(columns: Attr, inner: Attr, base: Pipelined) -> Iterator[tuple[str, int]]:
    """(name, number) of clusters and of parts of the inner axis, from the attributes of the columns and of the inner axis."""
    in_cluster = _count(inner, Worker.CLUSTER, base.cluster)
    yield "cluster", max(_count(columns, Worker.CLUSTER, base.cluster), in_cluster)
    yield "split", in_cluster * _count(inner, Worker.GRID, base.memory_parts)


def _count(attr: Attr, worker: Worker, otherwise: int) -> int:
    """Workers of a kind that share a loop; `otherwise` where the template writes no number."""
    return next((otherwise if s.count is None else s.count for s in attr if s.worker is worker), 1)
