"""Waits of walks whose threads exchange results of reductions: nothing of a kernel of one wave hides them."""
from __future__ import annotations

from math import ceil, log2

from tilefuse.domain.resolved import Domain, Touch, resolved_walk
from tilefuse.domain.stages import after_shared, stages
from tilefuse.domain.work import StageWork
from tilefuse.target.capabilities import WARP
from tilefuse.target.fitted.stages import StitchFigures


def exchange_by_lanes(domain: Domain, threads: int, fitted: StitchFigures) -> StageWork:
    """Reductions of rows over `threads` threads: shuffles within each warp, then over the warps of the row.

    Units: cycles. Source: `StitchFigures`.
    """
    steps = ceil(log2(max(min(threads, WARP), 1)))
    cycles = fitted.stage_cycles + steps * fitted.shuffle_cycles
    if threads > WARP:
        cycles += 2 * fitted.barrier_cycles + ceil(log2(threads / WARP)) * fitted.shuffle_cycles
    return StageWork(wait_cycles=_num_stages(domain) * cycles)


def exchange_by_halves(domain: Domain, threads: int, fitted: StitchFigures) -> StageWork:
    """Reductions of columns over `threads` rows of threads, through shared memory and a barrier for each halving; then operands of results
    that are loaded behind the last one.

    Units: cycles. Source: `StitchFigures`.
    """
    rounds = ceil(log2(max(threads, 1))) + 1
    cycles = _num_stages(domain) * (fitted.stage_cycles + rounds * (fitted.barrier_cycles + fitted.shuffle_cycles))
    return StageWork(wait_cycles=cycles + (fitted.global_cycles if _loads_late(domain) else 0.0))


def _num_stages(domain: Domain) -> int:
    """Reductions that wait for each other."""
    return max(stages(domain).values(), default=-1) + 1


def _loads_late(domain: Domain) -> bool:
    """Whether results need operands beside their reductions."""
    late = (i for i in domain.instances if not i.shared and after_shared(domain, i.key))
    return any(isinstance(leaf, Touch) for i in late for leaf in resolved_walk(i.body))
