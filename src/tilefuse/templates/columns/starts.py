"""Columns of odd rows in vectors of memory: all rows of a thread begin at one distance from a vector, so that its columns stay the same.

    x[k, c] in rows of 4095       row k begins 4095 k mod 4 elements behind a vector: rows 0, 4, 8, ... at the same place, rows 1, 5, 9, ...
    thread (y, x), 8 threads down        rows y, y + 8, y + 16, ...      columns 4 x - s .. 4 x - s + 3 with s = 4095 y mod 4

What the threads of one distance have added up is joined first; then each column is joined from the distances. Neighbouring tiles of several
in a row have one vector in common, since the last columns of a tile lie in its last vector at some distances only.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tilefuse.domain.access import accesses, stride_of
from tilefuse.domain.online import EXPSUM
from tilefuse.domain.resolved import Domain
from tilefuse.domain.stages import reduces_by_lanes, writes_rows
from tilefuse.ir.affine import Affine, number, substitute
from tilefuse.templates.columns.record import Columns


@dataclass(frozen=True, slots=True)
class ColumnStart:
    """Where the first column of a row lies in the access whose vectors the walk follows, as a function of the other axes.

    inner: the axis along memory; outer: the other kept ones. period: rows from one that begins at a distance from a vector to the next.
    vectors: of an image (a point of the outer axes), as many as any of its rows meets. Units: elements, rows, vectors.
    """

    offset: Affine
    inner: str
    outer: tuple[str, ...]
    period: int
    vectors: int


def column_start(domain: Domain, kept: tuple[str, ...], width: int) -> ColumnStart | None:
    """How rows begin between vectors of `width` elements; None where all are whole vectors, or the kernel needs another walk.

    kept: in the order of memory. The access is the largest linear read that is dense along the last one. Kernels that reduce columns once,
    lane by lane, and write nothing else.
    """
    reduced = [a for a in domain.reduced if domain.extents[a] > 1]
    inner = next((a for a in reversed(kept) if domain.extents[a] > 1), None)
    if width == 1 or len(reduced) != 1 or inner is None or writes_rows(domain) or not reduces_by_lanes(domain, (EXPSUM.name,)):
        return None
    dense = [a for a in accesses(domain) if not a.written and not a.dynamic and not a.guarded and a.offset.is_linear
             and stride_of(a.offset, inner) == 1 and a.offset.axes() <= {inner, *domain.kept, *domain.reduced}]
    if not dense:
        return None
    lead = max(dense, key=lambda a: a.elements * a.itemsize)
    start = substitute(lead.offset, {inner: number(0)})
    common = gcd(width, start.const, *(c for _, c in start.terms))
    length = domain.extents[inner]
    if length % width == 0 and common == width or length < 2 * width - 1:
        return None
    period = width // gcd(width, lead.offset.coefficient(reduced[0]))
    return ColumnStart(start, inner, tuple(a for a in kept if a != inner), period, -(-(length + width - common) // width))


def between_columns(domain: Domain, choice: Columns) -> ColumnStart | None:
    """`column_start` of a kernel's columns; None where its threads do not keep to rows of one distance."""
    if choice.on_chip or choice.threads_x == 1:
        return None
    start = column_start(domain, choice.kept_order, choice.vector)
    return start if start is not None and choice.threads_y % start.period == 0 else None


def columns_of_tile(domain: Domain, choice: Columns, start: ColumnStart) -> int:
    """Columns that a tile has for itself. Units: elements."""
    return domain.extents[start.inner] if start.vectors <= choice.threads_x else choice.vector * (choice.threads_x - 1)


def num_tiles(domain: Domain, choice: Columns) -> int:
    """Tiles of columns, each of which `choice.split` blocks walk."""
    start = between_columns(domain, choice)
    if start is None:
        return -(-(-(-domain.num_kept // choice.vector)) // choice.threads_x)
    return prod(domain.extents[a] for a in start.outer) * -(-domain.extents[start.inner] // columns_of_tile(domain, choice, start))
