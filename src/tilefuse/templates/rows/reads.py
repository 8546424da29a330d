"""Operands of a row kernel: with an element for each of a row, shared by all rows, and the bulk copies that bring them to shared memory."""
from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from tilefuse.domain.access import stride_of
from tilefuse.domain.resolved import Domain, Touch, direct_touches
from tilefuse.domain.stages import is_row_element


def are_wide(touches: Iterable[Touch]) -> bool:
    """Whether all elements that are read have 32 bits or more."""
    return all(t.dtype.itemsize >= 4 for t in touches)


def column_touches(domain: Domain) -> list[Touch]:
    """Reads of every element of the row that are the same for all rows: weights, a bias."""
    touches: dict[Touch, None] = {}
    for i in domain.instances:
        for t in direct_touches(i.body):
            if domain.num_kept > 1 and t.offset.axes() and t.offset.axes() <= set(domain.reduced):
                touches.setdefault(t)
    return list(touches)


def fetched_touches(domain: Domain) -> list[Touch]:
    """Direct reads of every element of the row: what a pipelined kernel fetches ahead."""
    known = set(domain.reduced) | set(domain.kept)
    touches: dict[Touch, None] = {}
    for i in domain.instances:
        for t in direct_touches(i.body):
            if is_row_element(domain, t.offset) and t.offset.axes() <= known:
                touches.setdefault(t)
    return list(touches)


def copies_of(t: Touch, domain: Domain, reduced: tuple[str, ...], share: int) -> int | None:
    """Elements of each contiguous piece of a share of the row, if all pieces are whole and 16-byte aligned; else None."""
    piece = 1
    for a in reversed(reduced):
        stride = stride_of(t.offset, a)
        if stride is None or (domain.extents[a] > 1 and stride != piece):
            if stride is None:
                return None
            break
        piece *= domain.extents[a]
    piece = gcd(piece, share)
    aligned = 16 // min(t.dtype.itemsize, 16)
    strides = [c for atom, c in t.offset.terms if not (isinstance(atom, str) and c == 1)]
    if piece % aligned or t.offset.const % aligned or any(c % aligned for c in strides) or share // piece > 64:
        return None
    return piece
