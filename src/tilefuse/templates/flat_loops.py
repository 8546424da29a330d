"""Loops of walks without threads that meet: the last dimension over blocks and their threads, the others over blocks alone.

    y [GRID,GRID-CTA_128];            128 threads a block along the last dimension
    y [GRID,GRID-CTA_128,THREAD];     a thread reduces the last dimension of its own elements
"""
from __future__ import annotations

from tilefuse.ir.graph import Node
from tilefuse.templates.notation import Attr, Schedule, Step, Worker
from tilefuse.templates.walk_notation import contradiction

GRID: Attr = (Step(Worker.GRID),)


def flat_attrs(node: Node, threads: int) -> tuple[Attr, ...]:
    """One attribute a dimension of a node that blocks of `threads` threads compute element by element."""
    num_dims = len(node.type.shape) + len(node.over)
    num_own = len(node.over) if node.category == "reduce" and node.type.shape else 0
    spread: Attr = (*GRID, Step(Worker.CTA, threads))
    return ((GRID,) * (num_dims - 1 - num_own) + (spread,) + ((Step(Worker.THREAD),),) * num_own) if num_dims else (spread,)


def spread_at(usual: Schedule) -> int:
    """Number of the dimension that is spread over threads: those before it go over the grid, those behind it are reduced."""
    return next(n for n, attr in enumerate(usual.attrs) if len(attr) > 1)


def read_flat_loops(schedule: Schedule, usual: Schedule) -> int | None:
    """Threads a block of a written schedule; None where it does not say. Raises: UserError for loops that no flat walk has."""
    place = spread_at(usual)
    last = schedule.attrs[place]
    if any(a != GRID for a in schedule.attrs[:place]) or len(last) != 2 or last[0] != Step(Worker.GRID) \
            or last[1].worker is not Worker.CTA or schedule.attrs[place + 1:] != usual.attrs[place + 1:]:
        raise contradiction(schedule, usual, "a flat walk spreads its last dimension over GRID-CTA_n and the others over GRID")
    return last[1].count
