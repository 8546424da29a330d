"""Loops of walks whose threads share reductions: kept dimensions over blocks, the last one also inside them; reduced ones over threads.

    m [GRID,GRID-CTA_4,WARP_16];      4 steps of the last kept dimension a block, 16 lanes along the reduced one
    s [GRID-CTA_16,GRID_8-CTA_32];    8 blocks of 32 threads along the reduced one
"""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tilefuse.ir.graph import Node
from tilefuse.templates.notation import Attr, Schedule, Step, Worker
from tilefuse.templates.walk_notation import contradiction


@dataclass(frozen=True, slots=True)
class ReducedLoop:
    """The workers that share a reduced dimension: `cluster` blocks of a cluster, `split` blocks of the grid, `threads` of a block."""

    cluster: int
    split: int
    threads: int


def reduced_attrs(node: Node, num_kept: int, kept: Attr, reduced: Attr) -> tuple[Attr, ...]:
    """One attribute a dimension of a node: `kept` for the last of `num_kept` kept ones, `reduced` for the first reduced one."""
    num_reduced = len(node.type.shape) + len(node.over) - num_kept
    first: tuple[Attr, ...] = (*[(Step(Worker.GRID),)] * (num_kept - 1), kept) if num_kept else ()
    last: tuple[Attr, ...] = (reduced, *[(Step(reduced[-1].worker),)] * (num_reduced - 1)) if num_reduced else ()
    return (*first, *last) or ((Step(Worker.THREAD),),)


def read_kept(attr: Attr, schedule: Schedule, usual: Schedule) -> tuple[int | None, int | None]:
    """Counts of the last kept dimension: blocks, and steps in each; None for one that it does not say.

    Raises: UserError for an attribute that no kept dimension has.
    """
    if attr[0].worker is not Worker.GRID or len(attr) > 2 or len(attr) == 2 and attr[1].worker not in (Worker.CTA, Worker.WARP):
        raise contradiction(schedule, usual, "the last kept dimension goes over GRID, or GRID-CTA_n with n of its steps in a block")
    return attr[0].count, attr[1].count if len(attr) == 2 else 1


def read_reduced(attr: Attr, own: ReducedLoop, workers: Collection[Worker], schedule: Schedule, usual: Schedule) -> ReducedLoop:
    """The workers of the first reduced dimension; counts that it does not say are those of `own`.

    workers: those that the template can write there. Raises: UserError for an attribute that no reduced dimension has.
    """
    cluster, split, threads = 1, 1, 0
    for place, step in enumerate(attr):
        match step.worker if step.worker in workers else None:
            case Worker.CLUSTER if place == 0:
                cluster = step.count or own.cluster
            case Worker.GRID if place == 0:
                split = step.count or own.split
            case Worker.CTA:
                threads = step.count or own.threads
            case Worker.WARP:
                threads = step.count or 32
                if threads > 32:
                    raise contradiction(schedule, usual, f"a warp has 32 lanes, not {threads}; write CTA_{threads}")
            case Worker.THREAD:
                threads = 1
            case _:
                raise contradiction(schedule, usual, f"{step} cannot stand there in the attribute of a reduced dimension")
    if not threads:
        raise contradiction(schedule, usual, "the reduced dimension names no threads: CTA_n, WARP_n or THREAD")
    return ReducedLoop(cluster, split, threads)
