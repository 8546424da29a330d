"""Stitched kernels by hand: the tile, threads and groups that a template writes, and whether the kernel is what it says.

    divide [GRID,GRID-CTA_25,CTA];     the tile of 25 rows; anything that the stages then have otherwise is refused
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice, product

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import NameLookupError, OptionError, UserError, nearest
from tilefuse.base.search.limits import SEARCH
from tilefuse.base.source import Span
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.notation import Attr, Schedule, Step, Template, Worker, parse_template
from tilefuse.templates.staged.stitched.connect import may_be_given, with_levels
from tilefuse.templates.staged.stitched.pattern import anchor_of
from tilefuse.templates.staged.stitched.plan import Stage, StitchPlan
from tilefuse.templates.staged.stitched.record import Stitched

# The program of a pattern with a choice, as of `StagedTemplate.schedule`.
Scheduler = Callable[[Graph, Layouts, DeviceSpec, Stitched], TileProgram | Rejected]


def stitched_by_hand(program: TileProgram, template: Template, device: DeviceSpec, schedule: Scheduler) -> TileProgram:
    """The stitched kernel of the program's pattern with a template's tile, threads and groups.

    Schedules of maps inside give them a level: R, every reader computes its elements, else a stage computes the tile once.
    The tile is the part of the largest result that its schedule leaves in a block (GRID-CTA_8: 8; GRID_8: an eighth; CTA: all of it), where
    no `tile_n` says it. Where neither does, it is one that the schedules of other values agree with. A schedule or setting that contradicts
    the kernel is refused: steps, blocks, who computes an element, and where the result stays.
    Raises: NameLookupError for a value that has no stage; OptionError for an unknown setting; UserError for tiles that do not fit, or that
    contradict each other.
    """
    base = program.choice
    assert isinstance(base, Stitched)
    _check_names(program, template)
    choice = _written_choice(base, program, template)
    choice = with_levels(program.graph, device, choice, {**dict(base.levels), **_written_levels(program.graph, template, device)})
    _check_numbers(choice, program, template, device)
    result = schedule(program.graph, program.layouts, device, choice)
    if isinstance(result, Rejected):
        raise UserError(f"the template cannot be met: {result}", where=_start(template), hint="smaller tiles take less shared memory")
    error = _contradiction(template, result, anchor_of(program.graph))
    if error is None:
        return result
    if _has_tiles(template):
        raise error
    # Without a schedule of the largest result the schedules of other values determine its tile, through the index maps.
    agreeing = _tiled_by_others(program, template, choice, device, schedule)
    if agreeing is None:
        raise error
    return agreeing


def _start(template: Template) -> Span | None:
    return template.schedules[0].span if template.schedules else None


def _has_tiles(template: Template) -> bool:
    return any(s.name.startswith("tile_") for s in template.settings)


def _check_names(program: TileProgram, template: Template) -> None:
    """Raises: NameLookupError for a schedule of a value that the kernel does not compute."""
    stages = {s.name for s in parse_template(program.notation).schedules}
    for schedule in template.schedules:
        if schedule.name not in stages and schedule.name not in program.graph.node_by_name:
            raise NameLookupError(f"value %{schedule.name} has no stage in kernel {program.name}", where=schedule.span,
                                  hint=nearest(schedule.name, stages) or f"stages: {', '.join(sorted(stages))}")


def _written_choice(base: Stitched, program: TileProgram, template: Template) -> Stitched:
    """The tile, threads and groups that a template writes; those that it leaves out are of `base`.

    Raises: OptionError for an unknown setting.
    """
    anchor = anchor_of(program.graph)
    shape = program.graph.type_of(anchor).shape
    tiles, threads, groups = list(base.tiles), base.threads, base.groups
    if not _has_tiles(template):
        for attrs in (s.attrs for s in template.schedules if s.name == anchor and len(s.attrs) >= len(shape) == len(tiles)):
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
    return replace(base, tiles=tuple(tiles), threads=threads, groups=groups)


def _written_levels(graph: Graph, template: Template, device: DeviceSpec) -> dict[str, Level]:
    """Levels that a template gives maps inside: in registers of their readers (R), or by a stage whose loops it writes."""
    free, levels = may_be_given(graph, device), dict[str, Level]()
    for s in template.schedules:
        if s.name in free and (Level.REGISTER in s.keep or Level.SHARED in s.keep or len(s.attrs) >= len(graph.type_of(s.name).shape)):
            levels[s.name] = Level.REGISTER if Level.REGISTER in s.keep else Level.SHARED
    return levels


def _check_numbers(choice: Stitched, program: TileProgram, template: Template, device: DeviceSpec) -> None:
    """Raises: UserError for threads that are no whole warps of a block, or a tile that is larger than the result."""
    tiles, threads = choice.tiles, choice.threads
    shape = program.graph.type_of(anchor_of(program.graph)).shape
    if threads % 32 or not 32 <= threads <= device.max_threads_per_block:
        raise UserError(f"cta_size={threads} is no number of threads for a stitched kernel", where=_start(template),
                        hint=f"a multiple of 32, at most {device.max_threads_per_block}")
    if len(tiles) == len(shape) and any(not 1 <= t <= n for t, n in zip(tiles, shape, strict=True)):
        raise UserError(f"a tile of {list(tiles)} does not fit a result of {list(shape)}", where=_start(template),
                        hint="tile_n from 1 to the extent")


def _tiled_by_others(program: TileProgram, template: Template, base: Stitched, device: DeviceSpec,
                     schedule: Scheduler) -> TileProgram | None:
    """The first program that contradicts no schedule, with a tile made of numbers that schedules name; None where there is none."""
    anchor = anchor_of(program.graph)
    shape = program.graph.type_of(anchor).shape
    if len(shape) != len(base.tiles) or any(s.name == anchor for s in template.schedules):
        return None
    counts = sorted({s.count for t in template.schedules for a in t.attrs for s in a if s.worker is Worker.CTA and s.count is not None})
    extents = [dict.fromkeys((tile, extent, 1, *(c for c in counts if c < extent))) for tile, extent in zip(base.tiles, shape, strict=True)]
    for tiles in islice(product(*extents), SEARCH.stages.tiles_by_hand):
        near = schedule(program.graph, program.layouts, device, replace(base, tiles=tiles))
        if isinstance(near, TileProgram) and _contradiction(template, near, anchor) is None:
            return near
    return None


def _in_block(attr: Attr, extent: int) -> int | None:
    """How many steps of a dimension lie in a block; None where the schedule leaves it open."""
    outer, inner = (attr[0], attr[1:]) if attr[0].worker is Worker.GRID else (None, attr)
    blocks = outer.count if outer is not None else None
    if inner and inner[0].count is not None:
        return inner[0].count
    if blocks is not None:
        return -(-extent // blocks)
    return 1 if not inner else None if outer is not None else extent


def _contradiction(template: Template, program: TileProgram, anchor: str) -> UserError | None:
    """Difference between a template's loops and blocks and its kernel's, as an error; None where they agree."""
    full, plan = parse_template(program.notation), program.internal
    assert isinstance(plan, StitchPlan)
    settings = {s.name: s for s in full.settings}
    # Tiles of one value in several stages have a schedule each.
    staged = list(zip(full.schedules, (s for s in plan.stages for _ in s.pieces)))
    for schedule in template.schedules:
        own: list[tuple[Schedule | None, Stage | None]] = [(s, stage) for s, stage in staged if s.name == schedule.name]
        own = own or [(None, s) for s in plan.stages if any(plan.pieces[k].value == schedule.name for k in s.products)] or [(None, None)]
        differences = [_otherwise(schedule, usual, stage, program) for usual, stage in own]
        if all(differences):
            usual = own[0][0]
            hint = f"the kernel's loops then are: {usual} (tiles follow from those of %{anchor})" if usual is not None else \
                f"%{schedule.name} is computed in registers, on the way to: {', '.join(s.name for s in full.schedules)}"
            return UserError(f"schedule {schedule.name} contradicts the others of its kernel: {differences[0]}", where=schedule.span,
                             hint=hint)
    for setting in template.settings:
        if setting.name == "cta_num" and settings["cta_num"].value != setting.value:
            return UserError(f"cta_num={setting.value}, but the schedules give {settings['cta_num'].value}", where=setting.span,
                             hint="leave it out, or change GRID and CTA")
    return None


def _otherwise(schedule: Schedule, usual: Schedule | None, stage: Stage | None, program: TileProgram) -> str:
    """Difference between the kernel and the schedule of a value.

    usual: the value's own, None where it is computed in registers; stage: the one that computes it, if one does.
    """
    shape = program.graph.type_of(schedule.name).shape
    if len(schedule.attrs) > len(shape) + 1 and shape:
        return f"{len(schedule.attrs)} attributes for {len(shape)} dimensions and one more"
    if usual is not None and len(schedule.attrs) >= len(shape):
        # A template that leaves dimensions out only names the value.
        for attr, own, extent in zip(schedule.attrs, usual.attrs, shape):
            why = _other_steps(attr, own, extent, stage, attr is schedule.attrs[len(shape) - 1])
            if why:
                return why
    behind = schedule.attrs[len(shape):] if shape else ()
    worker = _computing(program, stage, schedule.name)
    if behind and (len(behind[0]) > 1 or worker is None or not _is_worker(behind[0][0], worker)):
        return f"{'-'.join(map(str, behind[0]))} computes an element" + (f", and {worker} does" if worker else "; nothing shares its work")
    return _other_place(schedule, usual, program)


def _other_steps(attr: Attr, own: Attr, extent: int, stage: Stage | None, is_last: bool) -> str:
    """The difference of one kept dimension."""
    written, has = _in_block(attr, extent), _in_block(own, extent)
    if written is not None and written != has:
        return f"{'-'.join(map(str, attr))} is {written} of {extent} in a block, which has {has}"
    if any(s.worker is Worker.GRID for s in attr[1:]) or len(attr) > 2:
        return f"{'-'.join(map(str, attr))} is no way to spread a dimension"
    if attr[0].worker is Worker.GRID and attr[0].count is not None and attr[0].count != -(-extent // (has or extent)):
        return f"{attr[0]} of {extent}, and tiles of {has} make {-(-extent // (has or extent))} blocks"
    if attr[0].worker is not Worker.GRID and own[0].worker is Worker.GRID and extent > 1:
        return f"{attr[0]} has all {extent} in a block, which has {has}"
    inner = attr[-1] if attr[-1].worker is not Worker.GRID else None
    by_lanes = is_last and stage is not None and stage.kind == "rows" and stage.lanes > 1
    if inner is None or has == 1 or inner.worker is Worker.CTA or inner.worker is Worker.WARP and by_lanes:
        return ""
    return f"{inner} shares the {has} steps of a block, and its threads do (CTA)"


def _computing(program: TileProgram, stage: Stage | None, name: str) -> Step | None:
    """Who computes an element of a product or reduction: one thread, or lanes of a warp; None for a value of one step."""
    node = program.graph.node_by_name.get(name)
    if stage is None or node is None or node.category not in ("reduce", "library") and stage.tiling is None:
        return None
    if stage.tiling is not None and node.category != "reduce":
        t = stage.tiling
        return Step(Worker.WARP) if t.unit == "mma" else Step(Worker.WARP, t.split) if t.split > 1 else Step(Worker.THREAD)
    # Rows of a product's sums are four lanes' in the matrix unit's own order.
    lanes = 4 if stage.tiling is not None else stage.lanes
    return Step(Worker.THREAD) if lanes == 1 else Step(Worker.WARP, lanes)


def _is_worker(written: Step, own: Step) -> bool:
    return written.worker is own.worker and written.count in (None, own.count or written.count, 1 if own.worker is Worker.THREAD else None)


def _other_place(schedule: Schedule, usual: Schedule | None, program: TileProgram) -> str:
    """The difference of where a result stays. S, as the paper has it: on chip, in shared memory where another stage reads it."""
    is_stored = usual is not None and Level.SHARED in usual.keep
    is_read = any(schedule.name in n.reads() for n in program.graph.nodes)
    for level in schedule.keep:
        match level:
            case Level.SHARED if not is_read:
                return "S keeps it on chip, where nothing reads it"
            case Level.REGISTER if is_stored:
                return "R keeps it in registers, and another stage reads it in shared memory (S)"
            case Level.WARP | Level.CLUSTER:
                return "its stages keep values in shared memory (S) or in registers (R)"
            case Level.GLOBAL if schedule.name not in program.graph.results:
                return "G writes it, and it is no result"
    return ""
