"""Statements of kernel IR that order work outside the block's threads: asynchronous copies, and the previous and next kernel of the stream.

They name memory and index expressions, never values. `kernel/ir.py` states the rules that all statements share.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.ir.affine import Affine


@dataclass(frozen=True, slots=True)
class BulkCopy:
    """Starts an asynchronous copy of `num_elements` from global buffer[index] to shared[shared_index], completing on
    transaction barrier number `barrier`. Executed by one thread (the printer guards it with thread 0). 16-byte aligned.

    A phase of a barrier completes when all copies announced to it have arrived. Only the last copy of a phase sets `arrive`.

    team    if positive, the first of every `team` threads starts its own copy on its own barrier
    cache   "" or "last", as in `Load`
    """

    shared: str
    shared_index: Affine
    buffer: str
    index: Affine
    num_elements: int
    barrier: Affine
    arrive: bool = True
    team: int = 0
    cache: str = ""


@dataclass(frozen=True, slots=True)
class BulkWait:
    """All threads wait until the copies of this `phase` (0 or 1) of transaction barrier `barrier` have arrived; `team` as in `BulkCopy`."""

    barrier: Affine
    phase: Affine
    team: int = 0


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """This thread starts a copy of `num_elements` (4, 8 or 16 bytes, aligned) from global buffer[index] to shared[shared_index].

    This thread may access the destination after it has waited for the copy's group. Other threads may access it after a later barrier.
    """

    shared: str
    shared_index: Affine
    buffer: str
    index: Affine
    num_elements: int


@dataclass(frozen=True, slots=True)
class AsyncGroup:
    """Closes a group of asynchronous copies: all that this thread has started since its previous group, possibly none."""


@dataclass(frozen=True, slots=True)
class AsyncWait:
    """This thread waits until at most its last `pending` groups of copies are in flight."""

    pending: int = 0


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Prefetches the cache line of a global element into L2. Changes no value. Units: elements."""

    buffer: str
    index: Affine


@dataclass(frozen=True, slots=True)
class AwaitEarlier:
    """Waits until all earlier kernels of the stream have ended.

    A kernel that starts early (`Launch.early`) runs the statements before this one while the previous kernel still runs. Without this
    statement it waits at its first instruction.

    The statement occurs at most once, at the top level of the body; in a kernel with groups, once in each of them or in none. Statements
    before it write only shared memory and registers. They read only global memory that no kernel of the program writes, and they bypass L1.
    `early.untimely` reports every violation.
    """


@dataclass(frozen=True, slots=True)
class LetNextStart:
    """Lets the next kernel of the stream start as blocks of this one end. That kernel waits for this kernel's results itself.

    The statement follows `AwaitEarlier` and stands where little work is left."""
