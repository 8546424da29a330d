"""Where a fused kernel needs local barriers, and only there: the two conditions of the paper's algorithm 2.

    Load A (shared)   Compute q = A p      | reads what another mapping wrote: barrier between
    Load A (shared)   of the next iteration | overwrites what has been read since the last barrier: barrier before

Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.3.3.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilefuse.scripts.schedule.steps import Access, BlockBarrier, Step, Who

# (element, who, whether it was written) since the last barrier.
State = frozenset[tuple[str, Who, bool]]


@dataclass(frozen=True)
class SharedAccesses:
    """Accesses of a step to shared memory."""

    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()


@dataclass(frozen=True)
class Placed:
    """Stages of a kernel with their barriers."""

    before: tuple[Step, ...]
    bodies: tuple[tuple[Step, ...], ...]
    after: tuple[Step, ...]


def place_barriers(before: Sequence[Step], bodies: Sequence[Sequence[Step]], after: Sequence[Step],
                   accesses: Callable[[Step], SharedAccesses], overlap: Callable[[str, str], bool]) -> Placed:
    """The stages with barriers: `before` once, then each of `bodies` any number of times in any order, then `after`.

    overlap: whether two elements share memory (an element does with itself).
    """
    first, state = _stage(before, frozenset(), accesses, overlap)
    while True:
        ends = [_stage(body, state, accesses, overlap)[1] for body in bodies]
        wider = state.union(*ends)
        if wider == state:
            break
        state = wider
    placed = tuple(_stage(body, state, accesses, overlap)[0] for body in bodies)
    return Placed(first, placed, _stage(after, state, accesses, overlap)[0])


def _stage(steps: Sequence[Step], state: State, accesses: Callable[[Step], SharedAccesses],
           overlap: Callable[[str, str], bool]) -> tuple[tuple[Step, ...], State]:
    placed: list[Step] = []
    for step in steps:
        touched = accesses(step)
        if _first_condition(touched, state) or _second_condition(touched, state, overlap):
            placed.append(BlockBarrier())
            state = frozenset()
        placed.append(step)
        state |= {(e, who, False) for e, who in touched.reads} | {(e, who, True) for e, who in touched.writes}
    return tuple(placed), state


def _first_condition(touched: SharedAccesses, state: State) -> bool:
    """An input was modified by other threads than those that read it now."""
    return any(e == other and written and who != by for e, who in touched.reads for other, by, written in state)


def _second_condition(touched: SharedAccesses, state: State, overlap: Callable[[str, str], bool]) -> bool:
    """Whether a write lies where other threads accessed something."""
    return any(overlap(e, other) and (e != other or who != by) for e, who in touched.writes for other, by, _ in state)
