"""FusionStitching 5.2's own forms, where whole dimensions lie in a block, told in the words of the walks that kernels take.

    reduce_1 [GRID,WARP,WARP,CTA]S        of [64, 8, 4] sums over 256    ->    reduce_1 [GRID,GRID,GRID-CTA_32,WARP_32];
    reduce_1 [GRID_32-WARP_2,WARP,WARP,CTA]S                             ->    reduce_1 [GRID,GRID,GRID-CTA_64,WARP_16];
    reduce_1 [GRID,CTA,CTA,THREAD]                                       ->    reduce_1 [GRID,GRID,GRID-CTA_32,THREAD];
    reduce_1 [GRID,GRID,GRID,CTA]S                                       ->    reduce_1 [GRID,GRID,GRID,CTA_64];
    sum [GRID_64,CTA]                        of all of [512, 96]         ->    sum [GRID_64-CTA_256,CTA];
    add [GRID,CTA,CTA]                       of [64, 8, 96] elements     ->    add [GRID,GRID,GRID-CTA_192]; with four elements a vector

A block takes rows one after another, so a dimension of which it has several steps is followed by whole ones only. CTA on the reduced
dimension is all that is left of the block: a warp's lanes where warps take kept dimensions, else threads for each row. S says that the
result stays on chip; at which level follows from who meets, since a warp needs no shared memory. A flat walk shares nothing between
threads: blocks take as many elements as the form gives them, rounded up to whole vectors of all their threads.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tilefuse.base.errors import UserError
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.notation import Attr, Schedule, Setting, Step, Template, Worker
from tilefuse.templates.rows.modes import Rows
from tilefuse.templates.rows.starts import vectors_of
from tilefuse.templates.walk_template import kept_extents, spread_extents

WARP, MOST_THREADS = 32, 1024
# Steps of a flat walk whose loads a thread issues all before the first use, where a form gives a block many of them.
MOST_UNROLLED = 8
IN_BLOCK = (Worker.WARP, Worker.CTA, Worker.THREAD)


def in_own_words(template: Template, program: TileProgram, device: DeviceSpec) -> Template:
    """The template in the words of the program's walk; the same object where it is already. Raises: as `with_rows_of_blocks`."""
    match program.choice:
        case Rows() as choice if isinstance(program.internal, Domain):
            return with_rows_of_blocks(template, choice, program.internal, kept_extents(program))
        case Pointwise() as choice if isinstance(program.internal, Domain):
            return with_flat_blocks(template, choice, spread_extents(program), device)
    return template


def with_flat_blocks(template: Template, choice: Pointwise, spread_of: Mapping[str, tuple[int, ...]], device: DeviceSpec) -> Template:
    """The template with blocks of whole dimensions as threads and steps of a flat walk; the same object where it has none.

    spread_of: extents of the dimensions that the walk goes over, of each value with a schedule.
    Raises: UserError for blocks whose elements do not lie one after another, or counts that do not cover a dimension.
    """
    made: list[Schedule] = []
    given = {s.name: s.value for s in template.settings}
    steps = 0
    for schedule in template.schedules:
        extents = spread_of.get(schedule.name, ())
        attrs = schedule.attrs[:len(extents)]
        flat = all(a == (Step(Worker.GRID),) for a in attrs[:-1]) and attrs and [s.worker for s in attrs[-1]] == [Worker.GRID, Worker.CTA]
        if flat or len(attrs) < len(extents) or not extents:
            made.append(schedule)
            continue
        block = _kept(schedule, extents)
        elements = (block[-1].count or 1) if len(block) > 1 else 1
        vectors = -(-elements // (int(given.get("vector", 0)) or choice.vector))
        turns = -(-vectors // device.max_threads_per_block)
        threads = int(given.get("cta_size", 0)) or -(-vectors // turns)
        steps = -(-vectors // threads)
        grid = Step(Worker.GRID)
        walked = (*((grid,),) * (len(extents) - 1), (grid, Step(Worker.CTA, threads)))
        made.append(replace(schedule, attrs=(*walked, *schedule.attrs[len(extents):])))
    if not steps:
        return template
    added = [] if "steps" in given else [Setting("steps", steps)]
    if steps > MOST_UNROLLED and "unrolled" not in given:
        added.append(Setting("unrolled", False))
    return replace(template, schedules=tuple(made), settings=(*template.settings, *added))


def with_rows_of_blocks(template: Template, choice: Rows, domain: Domain, kept_of: Mapping[str, tuple[int, ...]]) -> Template:
    """The template with the schedules of its values in the words of the rows template; the same object where all are already.

    kept_of: extents of the kept dimensions of each value with a schedule; schedules of other values stay as they are.
    Raises: UserError for blocks whose rows do not lie one after another, or counts that do not cover a dimension.
    """
    cta_size = next((s.value for s in template.settings if s.name == "cta_size"), 0)
    made = tuple(_translated(s, choice, domain, kept_of[s.name], int(cta_size)) if s.name in kept_of else s for s in template.schedules)
    return template if made == template.schedules else replace(template, schedules=made)


def _translated(schedule: Schedule, choice: Rows, domain: Domain, kept: tuple[int, ...], cta_size: int) -> Schedule:
    attrs = schedule.attrs
    if not kept:
        return _over_grid(schedule, choice, cta_size)
    if len(attrs) < len(kept):
        return schedule
    usual = all(a == (Step(Worker.GRID),) for a in attrs[:len(kept) - 1]) and attrs[len(kept) - 1][0].worker is Worker.GRID
    last = attrs[len(kept) - 1]
    uncounted = usual and len(last) == 2 and last[1].count is None
    if usual and not uncounted and attrs[len(kept):len(kept) + 1] != ((Step(Worker.CTA),),):
        return schedule
    rows = last if usual else _kept(schedule, kept)
    if uncounted:
        rows = _as_many_rows(rows, attrs[len(kept):], choice, cta_size)
    inside = rows[1].count or 1 if len(rows) == 2 else 1
    warps = any(s.worker is Worker.WARP for a in attrs[:len(kept)] for s in a)
    given = (cta_size or MOST_THREADS * warps) // inside
    reduced = tuple(_reduced(a, warps, given, choice, domain) if n == 0 else a for n, a in enumerate(attrs[len(kept):]))
    is_shared = bool(reduced) and reduced[0][-1].worker is Worker.CTA
    keep = tuple(level for level in schedule.keep if level is not Level.SHARED or is_shared)
    return replace(schedule, attrs=(*((Step(Worker.GRID),),) * (len(kept) - 1), rows, *reduced), keep=keep)


def _over_grid(schedule: Schedule, choice: Rows, cta_size: int) -> Schedule:
    """s [GRID_64,CTA]: a sum of everything, blocks along its first dimension and threads along the others -> s [GRID_64-CTA_256,CTA]."""
    first, *others = schedule.attrs
    inner = [s for a in others for s in a]
    if len(first) > 1 or first[0].worker is not Worker.GRID or not inner or any(s.worker not in (Worker.CTA, Worker.WARP) for s in inner):
        return schedule
    counts = [s.count for s in inner if s.count is not None]
    threads = prod(counts) if len(counts) == len(inner) else cta_size or choice.threads
    blocks = first[0].count or choice.split
    spread = (*([Step(Worker.GRID, blocks)] if blocks > 1 else []), Step(Worker.CTA, threads))
    return replace(schedule, attrs=(spread, *((Step(Worker.CTA),),) * len(others)))


def _as_many_rows(rows: Attr, reduced: Sequence[Attr], choice: Rows, cta_size: int) -> Attr:
    """GRID-WARP or GRID-CTA without a number: as many rows as a block of `cta_size` threads has, or as the scheduler chose."""
    inner = reduced[0][-1] if reduced else Step(Worker.THREAD)
    lanes = inner.count or {Worker.THREAD: 1, Worker.WARP: WARP}.get(inner.worker, choice.threads)
    count = max(1, cta_size // lanes) if cta_size else choice.rows
    return (rows[0], replace(rows[1], count=count)) if count > 1 else rows[:1]


def _kept(schedule: Schedule, kept: tuple[int, ...]) -> Attr:
    """The attribute of the last kept dimension for as many rows as a block takes of all of them."""
    counts: list[int] = []
    for place, (attr, extent) in enumerate(zip(schedule.attrs, kept)):
        outer, inner = (attr[0], attr[1:]) if attr[0].worker is Worker.GRID else (None, attr)
        if len(inner) > 1 or inner and inner[0].worker not in IN_BLOCK:
            raise UserError(f"schedule {schedule.name}: {'-'.join(map(str, attr))} is no way to take a kept dimension", where=schedule.span,
                            hint="GRID, GRID_n-WARP_m, WARP or CTA")
        blocks = outer.count if outer is not None else 1
        count = inner[0].count if inner else 1
        if count is None:
            count = -(-extent // blocks) if blocks else extent
        if blocks is not None and inner and blocks * count < extent:
            raise UserError(f"schedule {schedule.name}: {blocks} x {count} steps do not cover dimension {place} of {extent}",
                            where=schedule.span, hint=f"as in: GRID-{inner[0].worker.value}_{count}")
        counts.append(min(count, extent))
    first = next((n for n, c in enumerate(counts) if c > 1), len(counts))
    if any(c < e for c, e in zip(counts[first + 1:], kept[first + 1:])):
        taken, whole = " x ".join(map(str, counts)), " x ".join(map(str, kept))
        raise UserError(f"schedule {schedule.name}: a block takes {taken} of {whole}, which do not lie one after another",
                        where=schedule.span, hint="whole dimensions (WARP or CTA) behind the first with several")
    rows = prod(counts)
    return (Step(Worker.GRID), Step(Worker.CTA, rows)) if rows > 1 else (Step(Worker.GRID),)


def _reduced(attr: Attr, warps: bool, threads: int, choice: Rows, domain: Domain) -> Attr:
    """The attribute of the reduced dimension with threads counted."""
    if attr != (Step(Worker.CTA),):
        return attr
    if warps:
        # More rows than a block has warps: rows share a warp's lanes.
        return (Step(Worker.WARP, min(WARP, 1 << max(threads, 1).bit_length() - 1)),)
    vectors = vectors_of(domain, choice)
    count = threads or max(choice.threads, min(MOST_THREADS, max(2 * WARP, -(-vectors // WARP) * WARP)))
    return (Step(Worker.CTA, count),)
