"""schedule_stitched: the tile program of a pattern that only stages can hold (products, reductions of different shapes)."""
from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from itertools import islice, product
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import NameLookupError, OptionError, UserError, nearest
from tilefuse.ir.graph import Graph
from tilefuse.schedule.choose_stitch import choose_stitch
from tilefuse.schedule.notation import Attr, Schedule, Setting, Step, Template, Worker, parse_template, print_template
from tilefuse.schedule.parts import structure_but_starts
from tilefuse.schedule.stitch_pattern import anchor_of
from tilefuse.schedule.stitch_plan import Piece, Stage, StitchPlan
from tilefuse.schedule.template import Stitched
from tilefuse.schedule.tile import EdgeLevel, Layouts, Level, TileProgram, kernel_name
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch

# Tiles by structure, in one search for a plan.
Tiles = dict[Hashable, Stitched]

# Tiles that are tried for a template that names the largest result in no schedule.
MOST_TILES = 48


def schedule_stitched(graph: Graph, layouts: Layouts, device: DeviceSpec, wanted: Stitched | None = None) -> TileProgram | Rejected:
    """The stitched tile program of a pattern given as a graph of its own, or why there is none. `wanted`: tiles made by hand.

    Units: bytes_read counts every boundary value once, however many blocks read it (the second-level cache serves the others).
    """
    if device.kind != "cuda" and wanted is None:
        return Rejected(Reason.LIBRARY_CALL, "the host's library multiplies matrices faster")
    found = choose_stitch(graph, device, wanted)
    if isinstance(found, Rejected):
        return found
    choice, plan = found.choice, found.plan
    own = {v: layouts[v] for v in graph.type_by_name if v in layouts}
    launch = Launch(choice.groups or prod(n for _, n in plan.grid), choice.threads, 1, plan.shared_bytes)
    return TileProgram(
        name=kernel_name(graph), graph=graph, template="stitched", notation=print_template(template_of_stages(choice, plan, launch)),
        layouts=own,
        parameters=(("allocated_bytes", plan.shared_bytes), ("groups", choice.groups), ("requested_bytes", plan.requested_bytes),
                    ("threads", choice.threads), ("tiles", choice.tiles)),
        levels=_levels(graph, plan), launch=launch,
        bytes_read=sum(v.type.num_bytes for v in graph.inputs), bytes_written=sum(graph.type_of(r).num_bytes for r in graph.results),
        flops=plan.flops, work_us=found.us, choice=choice, internal=plan)


def schedule_like(known: Tiles, graph: Graph, layouts: Layouts, device: DeviceSpec) -> TileProgram | Rejected:
    """As `schedule_stitched`; a pattern that differs from one in `known` in where it begins to read takes that one's tiles."""
    form = structure_but_starts(graph, {v: layouts[v] for v in graph.type_by_name if v in layouts})
    again = schedule_stitched(graph, layouts, device, known[form]) if form in known else None
    if isinstance(again, TileProgram):
        return again
    found = schedule_stitched(graph, layouts, device)
    if isinstance(found, TileProgram) and isinstance(found.choice, Stitched):
        known[form] = found.choice
    return found


def computed_by_several(program: TileProgram) -> frozenset[str]:
    """Results that several blocks compute, of which one writes: none of them lies where the kernel reads."""
    plan = program.internal
    if not isinstance(plan, StitchPlan):
        return frozenset()
    return frozenset(p.value for p in plan.pieces if p.written and p.grid_axes != {name for name, _ in plan.grid})


def template_of_stages(choice: Stitched, plan: StitchPlan, launch: Launch) -> Template:
    """One schedule a stage; the tile of the largest result, the blocks that walk several tiles, and the launch are settings."""
    schedules = tuple(_schedule(plan.pieces[key], stage, plan, launch) for stage in plan.stages for key in stage.pieces)
    tiles = tuple(Setting(f"tile_{n}", extent) for n, extent in enumerate(choice.tiles))
    groups = (Setting("groups", choice.groups),) if choice.groups else ()
    return Template(schedules, (*tiles, *groups, Setting("cta_num", launch.num_blocks), Setting("cta_size", launch.num_threads)))


def _schedule(piece: Piece, stage: Stage, plan: StitchPlan, launch: Launch) -> Schedule:
    attrs: list[Attr] = []
    for span in piece.region:
        inside = (Step(Worker.CTA, span.extent),) if span.extent > 1 else ()
        attrs.append((Step(Worker.GRID), *inside) if span.offset.terms else inside or (Step(Worker.THREAD),))
    if stage.kind == "reduce":
        attrs.append((Step(Worker.THREAD if stage.lanes == 1 else Worker.WARP),))
    elif stage.tiling is not None:
        attrs.append((Step(Worker.WARP if stage.tiling.unit == "mma" or stage.tiling.split > 1 else Worker.THREAD),))
    keep = (Level.SHARED,) if piece.stored else ()
    return Schedule(piece.value, tuple(attrs) or ((Step(Worker.THREAD),),), (*keep, Level.GLOBAL) if keep and piece.written else keep)


def stitched_by_hand(program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
    """The stitched kernel of the program's pattern with a template's tile, threads and groups.

    The tile is what the largest result's schedule has in a block (GRID-CTA_8: 8; CTA or WARP: all of it), where no `tile_n` says otherwise.
    With `tile_n` schedules only name the kernel; without, those that say other loops than the kernel's are refused. Where the largest
    result has no schedule, the tile is one that those of other values agree with.
    Raises: NameLookupError for a value that has no stage; OptionError for an unknown setting; UserError for tiles that do not fit, or that
    contradict each other.
    """
    base = program.choice
    assert isinstance(base, Stitched)
    known = {s.name for s in parse_template(program.notation).schedules}
    for schedule in template.schedules:
        if schedule.name not in known and schedule.name not in program.graph.node_by_name:
            raise NameLookupError(f"value %{schedule.name} has no stage in kernel {program.name}", where=schedule.span,
                                  hint=nearest(schedule.name, known) or f"stages: {', '.join(sorted(known))}")
    anchor = anchor_of(program.graph)
    shape = program.graph.type_of(anchor).shape
    tiles, threads, groups = list(base.tiles), base.threads, base.groups
    has_tiles = any(s.name.startswith("tile_") for s in template.settings)
    for attrs in (s.attrs for s in template.schedules if s.name == anchor and not has_tiles and len(s.attrs) >= len(shape) == len(tiles)):
        tiles = [_in_block(a, extent) or tile for a, extent, tile in zip(attrs, shape, tiles)]
    names = [*(f"tile_{n}" for n in range(len(tiles))), "groups", "cta_num", "cta_size"]
    for setting in template.settings:
        if setting.name not in names or isinstance(setting.value, bool):
            raise OptionError(f"a stitched kernel has no setting {setting}", where=setting.span,
                              hint=nearest(setting.name, names) or f"settings: {', '.join(names)}")
        if setting.name == "cta_size":
            threads = setting.value
        elif setting.name == "groups":
            groups = setting.value
        elif setting.name != "cta_num":
            tiles[int(setting.name.removeprefix("tile_"))] = setting.value
    where = template.schedules[0].span if template.schedules else None
    if threads % 32 or not 32 <= threads <= device.max_threads_per_block:
        raise UserError(f"cta_size={threads} is no number of threads for a stitched kernel", where=where,
                        hint=f"a multiple of 32, at most {device.max_threads_per_block}")
    if len(tiles) == len(shape) and any(not 1 <= t <= n for t, n in zip(tiles, shape, strict=True)):
        raise UserError(f"a tile of {tiles} does not fit a result of {list(shape)}", where=where, hint="tile_n from 1 to the extent")
    made = schedule_stitched(program.graph, program.layouts, device, Stitched(tuple(tiles), threads, groups))
    if isinstance(made, Rejected):
        raise UserError(f"the template cannot be met: {made}", where=where, hint="smaller tiles take less shared memory")
    if has_tiles or (wrong := _contradiction(template, made, anchor)) is None:
        return made
    # Without a schedule of the largest result the others tell its tile, through the index maps.
    found = _tiled_as_told(program, template, Stitched(tuple(tiles), threads, groups), device)
    if found is None:
        raise wrong
    return found


def _tiled_as_told(program: TileProgram, template: Template, base: Stitched, device: DeviceSpec) -> TileProgram | None:
    """The program whose tile is the first, of those made of the numbers that schedules name, that contradicts none of them."""
    anchor = anchor_of(program.graph)
    shape = program.graph.type_of(anchor).shape
    if len(shape) != len(base.tiles) or any(s.name == anchor for s in template.schedules):
        return None
    counts = sorted({s.count for t in template.schedules for a in t.attrs for s in a if s.worker is Worker.CTA and s.count is not None})
    named = [dict.fromkeys((tile, extent, 1, *(c for c in counts if c < extent))) for tile, extent in zip(base.tiles, shape, strict=True)]
    for tiles in islice(product(*named), MOST_TILES):
        made = schedule_stitched(program.graph, program.layouts, device, replace(base, tiles=tiles))
        if isinstance(made, TileProgram) and _contradiction(template, made, anchor) is None:
            return made
    return None


def _in_block(attr: Attr, extent: int) -> int | None:
    """How many steps of a dimension lie in a block; None where the schedule leaves it open."""
    inner = attr[1:] if attr[0].worker is Worker.GRID else attr
    if not inner:
        return 1
    return inner[0].count if inner[0].count is not None or len(inner) < len(attr) else extent


def _contradiction(template: Template, made: TileProgram, anchor: str) -> UserError | None:
    """What a template says of loops and blocks that its kernel has otherwise; None where they agree."""
    meant = parse_template(made.notation)
    schedules, settings = {s.name: s for s in meant.schedules}, {s.name: s for s in meant.settings}
    for schedule in template.schedules:
        wanted = schedules.get(schedule.name)
        if wanted is None or len(schedule.attrs) < len(wanted.attrs):
            continue
        shape = made.graph.type_of(schedule.name).shape
        pairs = [(_in_block(a, e), _in_block(b, e)) for a, b, e in zip(schedule.attrs, wanted.attrs, shape)]
        if any(a is not None and a != b for a, b in pairs):
            return UserError(f"schedule {schedule.name} contradicts the others of its kernel", where=schedule.span,
                             hint=f"the kernel's loops then are: {wanted} (tiles follow from those of %{anchor})")
    for setting in template.settings:
        if setting.name == "cta_num" and settings["cta_num"].value != setting.value:
            return UserError(f"cta_num={setting.value}, but the schedules give {settings['cta_num'].value}", where=setting.span,
                             hint="leave it out, or change GRID and CTA")
    return None


def _levels(graph: Graph, plan: StitchPlan) -> tuple[EdgeLevel, ...]:
    """Shared memory for what has a tile there, registers for the rest."""
    stored = {p.value for p in plan.pieces if p.stored}
    inside = {n.name for n in graph.nodes}
    level = {v: Level.SHARED if v in stored else Level.REGISTER for v in inside}
    return tuple(EdgeLevel(v, n.name, level[v]) for n in graph.nodes for v in n.reads() if v in inside)
