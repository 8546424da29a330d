"""FusionStitching 5.2's blocks of whole dimensions in the words of the rows template.

    reduce_1 [GRID,WARP,WARP,CTA]S        of [64, 8, 4] sums over 256    ->    reduce_1 [GRID,GRID,GRID-CTA_32,WARP_32];
    reduce_1 [GRID_32-WARP_2,WARP,WARP,CTA]S                             ->    reduce_1 [GRID,GRID,GRID-CTA_64,WARP_16];
    reduce_1 [GRID,CTA,CTA,THREAD]                                       ->    reduce_1 [GRID,GRID,GRID-CTA_32,THREAD];
    reduce_1 [GRID,GRID,GRID,CTA]S                                       ->    reduce_1 [GRID,GRID,GRID,CTA_64];
    sum [GRID_64,CTA]                        of all of [512, 96]         ->    sum [GRID_64-CTA_256,CTA];

CTA on the reduced dimension stands for the rest of the block: a warp's lanes where warps take kept dimensions, else threads for each row.
S says that the result stays on chip; at which level follows from who meets, since a warp needs no shared memory.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Level
from tilefuse.target.capabilities import BLOCK_THREADS, WARP
from tilefuse.templates.notation import Attr, Schedule, Step, Template, Worker
from tilefuse.templates.rows.modes import Rows
from tilefuse.templates.rows.starts import vectors_of
from tilefuse.templates.whole_in_block import block_of_whole_dims


def with_rows_of_blocks(template: Template, choice: Rows, domain: Domain, kept_of: Mapping[str, tuple[int, ...]]) -> Template:
    """The template with the schedules of its values in the words of the rows template; the same object where all are already.

    kept_of: extents of the kept dimensions of each value with a schedule; schedules of other values stay as they are.
    Raises: UserError for blocks whose rows do not lie one after another, or counts that do not cover a dimension.
    """
    cta_size = int(next((s.value for s in template.settings if s.name == "cta_size"), 0))
    schedules = tuple(_in_rows(s, choice, domain, kept_of[s.name], cta_size) if s.name in kept_of else s for s in template.schedules)
    return template if schedules == template.schedules else replace(template, schedules=schedules)


def _in_rows(schedule: Schedule, choice: Rows, domain: Domain, kept: tuple[int, ...], cta_size: int) -> Schedule:
    """The schedule in the words of the rows template. cta_size: threads a block that the template asks for, or 0."""
    attrs, num_kept = schedule.attrs, len(kept)
    if not kept:
        return _over_grid(schedule, choice, cta_size)
    if len(attrs) < num_kept:
        return schedule
    last = attrs[num_kept - 1]
    over_grid = all(a == (Step(Worker.GRID),) for a in attrs[:num_kept - 1]) and last[0].worker is Worker.GRID
    is_uncounted = over_grid and len(last) == 2 and last[1].count is None
    if over_grid and not is_uncounted and attrs[num_kept:num_kept + 1] != ((Step(Worker.CTA),),):
        return schedule
    rows = last if over_grid else block_of_whole_dims(schedule, kept)
    if is_uncounted:
        rows = _as_many_rows(rows, attrs[num_kept:], choice, cta_size)
    num_rows = rows[1].count or 1 if len(rows) == 2 else 1
    takes_warps = any(s.worker is Worker.WARP for a in attrs[:num_kept] for s in a)
    threads = (cta_size or BLOCK_THREADS * takes_warps) // num_rows
    reduced = tuple(_counted(a, takes_warps, threads, choice, domain) if n == 0 else a for n, a in enumerate(attrs[num_kept:]))
    is_shared = bool(reduced) and reduced[0][-1].worker is Worker.CTA
    keep = tuple(level for level in schedule.keep if level is not Level.SHARED or is_shared)
    return replace(schedule, attrs=(*((Step(Worker.GRID),),) * (num_kept - 1), rows, *reduced), keep=keep)


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


def _counted(attr: Attr, takes_warps: bool, threads: int, choice: Rows, domain: Domain) -> Attr:
    """The attribute of the reduced dimension with its threads counted.

    takes_warps: kept dimensions go over warps. threads: as many as a block leaves each row; 0 where the template does not say.
    """
    if attr != (Step(Worker.CTA),):
        return attr
    if takes_warps:
        # A block with more rows than warps gives each row a part of a warp's lanes: the largest power of two that fits.
        return (Step(Worker.WARP, min(WARP, 1 << max(threads, 1).bit_length() - 1)),)
    vectors = vectors_of(domain, choice)
    return (Step(Worker.CTA, threads or max(choice.threads, min(BLOCK_THREADS, max(2 * WARP, -(-vectors // WARP) * WARP)))),)
