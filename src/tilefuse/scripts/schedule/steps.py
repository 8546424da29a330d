"""Steps of a fused kernel of routines, in the order of the paper's algorithms 1 and 2, and what each does to shared memory.

    before:  Load p, Clear s          group:  Load A, Load r, Compute s, Clear q, Compute q, Gather q, Barrier, Finish q
    after:   Gather s, Finish s       (BiCGK, algorithm 3: p is invariant, s is accumulated, q is stored in every iteration)

Names are those of elements (`scripts.schedule.routines.Element`). `who` tells accesses to shared memory apart by thread-to-data mapping:
two accesses with equal `who` touch each word by the same thread.
"""
from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True, slots=True)
class Load:
    """Global memory -> element, by the load routine of the call and parameter that own it."""

    element: str


@dataclass(frozen=True, slots=True)
class Put:
    """Registers -> shared memory: the element of another thread-to-data mapping is on its way."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Get:
    """Shared memory -> registers."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Mask:
    """Words outside the data become the padding that a parameter of a call wants. Only where a tile reaches over the edge."""

    element: str
    call: int
    parameter: str


@dataclass(frozen=True, slots=True)
class Clear:
    """Partial values of a reduction become its neutral element."""

    element: str


@dataclass(frozen=True, slots=True)
class Compute:
    """The compute routine of a call. elements: those of inputs, then outputs, in signature order; None for scalars that it reads.
    copy: which of the tiles in flight."""

    call: int
    elements: tuple[str | None, ...]
    num_outputs: int
    copy: int = 0

    @property
    def outputs(self) -> tuple[str, ...]:
        """Elements that the routine writes."""
        return tuple(e for e in self.elements[len(self.elements) - self.num_outputs:] if e is not None)


@dataclass(frozen=True, slots=True)
class Store:
    """Element of a map -> global memory, by its store routine."""

    element: str


@dataclass(frozen=True, slots=True)
class Gather:
    """Partial values are combined within warps; copies that several warps hold go to `slab` ("" where there are none)."""

    element: str
    slab: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Copies in `slab` are combined; the block's partial values go to global memory."""

    element: str
    slab: str


@dataclass(frozen=True, slots=True)
class Fill:
    """Some numbers into an element; `again`: every word one more, so that the next tile's differ. In probes only."""

    element: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """Uses all words of an element and stores nothing, in a way that no compiler sees. In probes only."""

    element: str


@dataclass(frozen=True, slots=True)
class BlockBarrier:
    """All threads of the block arrive."""


Step = Union[Load, Put, Get, Mask, Clear, Compute, Store, Gather, Finish, Fill, Keep, BlockBarrier]
Who = Hashable
Access = tuple[str, Who]


def elements_of(step: Step) -> tuple[str, ...]:
    """Names of the elements and slabs that a step touches."""
    match step:
        case Load(e) | Mask(e) | Clear(e) | Store(e) | Fill(e) | Keep(e):
            return (e,)
        case Put(source, target) | Get(source, target):
            return (source, target)
        case Compute(_, elements):
            return tuple(dict.fromkeys(e for e in elements if e is not None))
        case Gather(e, slab) | Finish(e, slab):
            return (e, slab) if slab else (e,)
    return ()
