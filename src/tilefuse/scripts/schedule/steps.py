"""Steps of a fused kernel of routines, in the order of the paper's algorithms 1 and 2, and the elements that each touches.

    before:  Load p, Clear s          group:  Load A, Load r, Compute s, Clear q, Compute q, Gather q, Barrier, Finish q
    after:   Gather s, Finish s       (BiCGK, algorithm 3: p is invariant, s is accumulated, q is stored in every iteration)

Names are those of elements (`scripts.schedule.elements.Element`). An `Accessor` identifies the thread-to-data mapping of an access to
shared memory: in two accesses with equal accessors the same thread touches a word.
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
    """Registers -> shared memory, on the way to another thread-to-data mapping."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Get:
    """Shared memory -> registers."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Mask:
    """Words outside the data become the padding of a call's parameter. Only tiles that reach over the edge have this step."""

    element: str
    call: int
    parameter: str


@dataclass(frozen=True, slots=True)
class Clear:
    """Partial values of a reduction become its neutral element."""

    element: str


@dataclass(frozen=True, slots=True)
class Compute:
    """The compute routine of a call.

    elements  of inputs, then outputs, in the order of the signature; None for scalars that it reads
    copy      number of the tile among those in flight
    """

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
    """Numbers into an element; `again`: one more than before, so that the next tile differs. In probes only."""

    element: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """Uses all words of an element and stores nothing; compilers cannot remove it. In probes only."""

    element: str


@dataclass(frozen=True, slots=True)
class BlockBarrier:
    """All threads of the block arrive."""


Step = Union[Load, Put, Get, Mask, Clear, Compute, Store, Gather, Finish, Fill, Keep, BlockBarrier]
Accessor = Hashable
Access = tuple[str, Accessor]


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
