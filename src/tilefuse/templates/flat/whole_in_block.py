"""FusionStitching 5.2's blocks of whole dimensions as threads and steps of a flat walk.

    add [GRID,CTA,CTA]                       of [64, 8, 96] elements     ->    add [GRID,GRID,GRID-CTA_192]; with four elements a vector

A flat walk shares nothing between threads: blocks take as many elements as the form gives them, rounded up to whole vectors of all their
threads.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilefuse.base.search.limits import SEARCH
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.flat_loops import GRID
from tilefuse.templates.notation import Schedule, Setting, Step, Template, Worker
from tilefuse.templates.whole_in_block import block_of_whole_dims


def with_flat_blocks(template: Template, choice: Pointwise, extents_of: Mapping[str, tuple[int, ...]], device: DeviceSpec) -> Template:
    """The template with threads and steps in place of blocks of whole dimensions; the same object where it has none.

    extents_of: extents of the dimensions that the walk goes over, of each value with a schedule.
    Raises: UserError for blocks whose elements do not lie one after another, or counts that do not cover a dimension.
    """
    value_by_setting = {s.name: int(s.value) for s in template.settings}
    schedules: list[Schedule] = []
    steps = 0
    for schedule in template.schedules:
        extents = extents_of.get(schedule.name, ())
        if not _has_block(schedule, extents):
            schedules.append(schedule)
            continue
        block = block_of_whole_dims(schedule, extents)
        elements = (block[-1].count or 1) if len(block) > 1 else 1
        vectors = -(-elements // (value_by_setting.get("vector", 0) or choice.vector))
        least_steps = -(-vectors // device.max_threads_per_block)
        threads = value_by_setting.get("cta_size", 0) or -(-vectors // least_steps)
        steps = -(-vectors // threads)
        spread = (*GRID, Step(Worker.CTA, threads))
        schedules.append(replace(schedule, attrs=(*(GRID,) * (len(extents) - 1), spread, *schedule.attrs[len(extents):])))
    if not steps:
        return template
    settings = [] if "steps" in value_by_setting else [Setting("steps", steps)]
    if steps > SEARCH.walks.unrolled_steps and "unrolled" not in value_by_setting:
        settings.append(Setting("unrolled", False))
    return replace(template, schedules=tuple(schedules), settings=(*template.settings, *settings))


def _has_block(schedule: Schedule, extents: tuple[int, ...]) -> bool:
    """Whether a schedule gives a block whole dimensions, and not only threads along the last one."""
    attrs = schedule.attrs[:len(extents)]
    if not extents or len(attrs) < len(extents):
        return False
    return any(a != GRID for a in attrs[:-1]) or [s.worker for s in attrs[-1]] != [Worker.GRID, Worker.CTA]
