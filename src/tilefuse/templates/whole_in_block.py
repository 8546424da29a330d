"""FusionStitching 5.2's own forms, where whole dimensions lie in a block: as many steps of the kept dimensions as a block takes.

    [GRID,WARP,WARP] of [64, 8, 4]     ->     GRID-CTA_32: all 8 x 4 of one step of the first dimension
    [GRID_32-WARP_2,WARP,WARP]         ->     GRID-CTA_64

A block takes steps one after another, so a dimension of which it has several is followed by whole ones only. The templates' folders write
the rest in the words of their walks.
"""
from __future__ import annotations

from math import prod

from tilefuse.base.errors import UserError
from tilefuse.templates.notation import Attr, Schedule, Step, Worker

IN_BLOCK = (Worker.WARP, Worker.CTA, Worker.THREAD)


def block_of_whole_dims(schedule: Schedule, kept: tuple[int, ...]) -> Attr:
    """The attribute of the last kept dimension, with as many steps as a block takes of all kept dimensions together.

    kept: extents of the kept dimensions.
    Raises: UserError for blocks whose steps do not lie one after another, or counts that do not cover a dimension.
    """
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
