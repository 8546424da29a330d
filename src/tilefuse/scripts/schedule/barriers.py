"""The barriers that a fused kernel needs, by the two conditions of the paper's algorithm 2.

    Load A (shared)   Compute q = A p       | reads words that another mapping wrote: barrier between
    Load A (shared)   of the next iteration | overwrites words that were read since the last barrier: barrier before

Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.3.3.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilefuse.scripts.schedule.steps import Access, Accessor, BlockBarrier, Step

# (element, accessor, whether it was written) since the last barrier.
State = frozenset[tuple[str, Accessor, bool]]


@dataclass(frozen=True)
class SharedAccesses:
    """Accesses of a step to shared memory."""

    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()


@dataclass(frozen=True)
class PlacedSections:
    """Sections of a kernel with their barriers."""

    before: tuple[Step, ...]
    bodies: tuple[tuple[Step, ...], ...]
    after: tuple[Step, ...]


def place_barriers(before: Sequence[Step], bodies: Sequence[Sequence[Step]], after: Sequence[Step],
                   accesses: Callable[[Step], SharedAccesses], overlap: Callable[[str, str], bool]) -> PlacedSections:
    """The sections with barriers: `before` once, then each of `bodies` any number of times in any order, then `after`.

    overlap: whether two elements share memory; an element does with itself.
    """
    first, state = _with_barriers(before, frozenset(), accesses, overlap)
    while True:
        ends = [_with_barriers(body, state, accesses, overlap)[1] for body in bodies]
        wider = state.union(*ends)
        if wider == state:
            break
        state = wider
    placed = tuple(_with_barriers(body, state, accesses, overlap)[0] for body in bodies)
    return PlacedSections(first, placed, _with_barriers(after, state, accesses, overlap)[0])


def _with_barriers(steps: Sequence[Step], state: State, accesses: Callable[[Step], SharedAccesses],
                   overlap: Callable[[str, str], bool]) -> tuple[tuple[Step, ...], State]:
    """(steps of a section with barriers, accesses since the last barrier at its end), from `state` at its start."""
    placed: list[Step] = []
    for step in steps:
        touched = accesses(step)
        if _first_condition(touched, state) or _second_condition(touched, state, overlap):
            placed.append(BlockBarrier())
            state = frozenset()
        placed.append(step)
        state |= {(e, accessor, False) for e, accessor in touched.reads} | {(e, accessor, True) for e, accessor in touched.writes}
    return tuple(placed), state


def _first_condition(touched: SharedAccesses, state: State) -> bool:
    """Whether other threads wrote an input since the last barrier."""
    return any(written and e == earlier and accessor != earlier_accessor
               for e, accessor in touched.reads for earlier, earlier_accessor, written in state)


def _second_condition(touched: SharedAccesses, state: State, overlap: Callable[[str, str], bool]) -> bool:
    """Whether a write overlaps words that other threads accessed since the last barrier."""
    return any(overlap(e, earlier) and (e != earlier or accessor != earlier_accessor)
               for e, accessor in touched.writes for earlier, earlier_accessor, _ in state)
