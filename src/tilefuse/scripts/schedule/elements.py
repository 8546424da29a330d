"""Decision of a search about a fused kernel of routines, and its elements: sub-vectors and tiles on chip."""
from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilefuse.ir.dtype import DType
from tilefuse.scripts.language.elementary import CallGraph, ElementaryFunction, Implementation, Place, ThreadMapping
from tilefuse.scripts.schedule.grid import Axes

SINGLE, ATOMICS, LAST_BLOCK, SECOND_KERNEL = "single", "atomics", "last block", "second kernel"


@dataclass(frozen=True)
class Decision:
    """Decision of a search about a fused kernel.

    calls            numbers in the script, in calling order
    implementations  number of each call's implementation
    instances        instances of each call in a block (1 for nested calls)
    iterations       tiles that a block takes, one after the other
    direction        direction of the walk over them: "x" (also for calls that are not nested) or "y"
    unroll           tiles that are loaded together, before the first is computed
    finish           combination of partial values that several blocks hold
    """

    calls: tuple[int, ...]
    implementations: tuple[int, ...]
    instances: int = 1
    iterations: int = 1
    direction: str = "x"
    unroll: int = 1
    finish: str = LAST_BLOCK

    def __str__(self) -> str:
        walk = f"{self.iterations} along {self.direction}, {self.unroll} at once"
        return f"calls {list(self.calls)} as {list(self.implementations)}, {self.instances} a block, {walk}, {self.finish}"


@dataclass(frozen=True)
class Element:
    """A sub-vector or tile on chip.

    axes         directions of its dimensions; extents: words along them
    place        registers by a thread-to-data mapping, or shared memory; threads: (x, y) of an instance
    owner        (position in `Decision.calls`, parameter) of the call whose routines load and store it
    partial      it holds partial values of a reduction
    copy         number of its tile among those in flight
    unit, units  a word in kernel IR: one value, or several 32-bit words of a struct
    """

    name: str
    variable: str
    axes: Axes
    extents: tuple[int, ...]
    place: Place
    threads: tuple[int, int]
    owner: tuple[int, str]
    unit: DType
    units: int = 1
    partial: bool = False
    copy: int = 0

    @property
    def words(self) -> int:
        """Words of the element, without padding."""
        return prod(self.extents)

    @property
    def pitch(self) -> int:
        """Words from row to row in shared memory."""
        return self.extents[-1] + self.place.pad if len(self.extents) == 2 and not isinstance(self.place, ThreadMapping) else \
            self.extents[-1] if self.extents else 1

    @property
    def shared_words(self) -> int:
        """Words of one instance in shared memory, padding included."""
        return self.extents[0] * self.pitch if len(self.extents) == 2 else self.words

    @property
    def in_registers(self) -> bool:
        """Whether threads hold its words."""
        return isinstance(self.place, ThreadMapping)

    @property
    def held(self) -> int:
        """Words that one thread holds; 0 in shared memory."""
        return max(self.place.words, 1) if isinstance(self.place, ThreadMapping) else 0


def function_of(graph: CallGraph, decision: Decision, k: int) -> tuple[ElementaryFunction, Implementation]:
    """Function and implementation at position k of the calling order."""
    function = graph.calls[decision.calls[k]].function
    return function, function.implementations[decision.implementations[k]]
