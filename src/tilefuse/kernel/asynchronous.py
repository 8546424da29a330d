"""Statements of kernel IR about what goes on beside the threads: copies on their way, and the kernels ahead and behind in the stream.

They name memory and index expressions, never values. What all statements share is said in `kernel/ir.py`.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.ir.affine import Affine


@dataclass(frozen=True, slots=True)
class BulkCopy:
    """Starts an asynchronous copy of `num_elements` from global buffer[index] to shared[shared_index], completing on
    transaction barrier number `barrier`. Executed by one thread (the printer guards it with thread 0). 16-byte aligned.

    A phase of a barrier completes when the copies announced to it have arrived and one of them had `arrive` set: the last one
    of the phase has it, the others do not.
    team: if positive, the first of each `team` threads starts a copy of its own, on a barrier of its own. cache: "" or "last", as of
    `Load`.
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
    """All threads wait until the copies on transaction barrier `barrier` of this `phase` (0 or 1) have arrived; `team` as of `BulkCopy`."""

    barrier: Affine
    phase: Affine
    team: int = 0


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """This thread starts a copy of `num_elements` (4, 8 or 16 bytes, aligned) from global buffer[index] to shared[shared_index].

    Nobody reads or writes there before the thread has waited for the copy's group, and others not before a barrier after that.
    """

    shared: str
    shared_index: Affine
    buffer: str
    index: Affine
    num_elements: int


@dataclass(frozen=True, slots=True)
class AsyncGroup:
    """The copies that this thread has started since its last group are a group; there may be none."""


@dataclass(frozen=True, slots=True)
class AsyncWait:
    """This thread waits until all of its groups of copies but the last `pending` have arrived."""

    pending: int = 0


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Asks for the line of a global element to be brought into the device's second-level cache. Changes nothing. Units: elements."""

    buffer: str
    index: Affine


@dataclass(frozen=True, slots=True)
class AwaitEarlier:
    """From here on the kernels ahead in the stream have ended. A kernel that starts early (`Launch.early`) does what stands before it while
    the one ahead still runs; without this statement it waits where it begins.

    Stands once, at the top of the body. Before it the kernel reads in global memory only what no kernel of the program writes, past the
    first-level caches, and writes shared memory and registers only (`early.untimely` finds what does not).
    """


@dataclass(frozen=True, slots=True)
class LetNextStart:
    """The kernel behind in the stream, if it starts early, may come to stand ready in the places that blocks leave: it waits for this one's
    end itself. Stands where little work is left, in a kernel that has waited for those ahead of it."""
