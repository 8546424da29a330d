"""Statements by which tasks of one kernel wait for each other: a counter in global memory that producers raise and users read."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.ir.affine import Affine


@dataclass(frozen=True, slots=True)
class Await:
    """The block waits until each of the counters counter[index] .. counter[index + count - 1] has reached `value`.

    All accesses before the `Publish` statements that raised them are visible to every thread of the block behind it. It contains a barrier.

    most  upper bound on `count`, for the proof and the printers
    """

    counter: str
    index: Affine
    value: Affine
    count: Affine = Affine((), 1)
    most: int = 1


@dataclass(frozen=True, slots=True)
class Publish:
    """Adds one to counter[index], behind a barrier of the block: a block that awaits the new value sees all that this one has written."""

    counter: str
    index: Affine
