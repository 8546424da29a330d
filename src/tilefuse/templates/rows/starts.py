"""Where rows begin between vectors of memory: rows of odd lengths are walked in aligned vectors too, other ones in every row.

    results in rows of 4097      row r begins s = 4097 r mod 4 elements behind a vector of memory
    vector v of row r            elements 4 v - s .. 4 v - s + 3; those in front of the row and behind it are left out

The walk follows the vectors of one access. Accesses at the same distance from a vector in every row are read and written in vectors with
it; everything else element by element, neighbouring elements by one thread.
"""
from __future__ import annotations

from math import gcd

from tilefuse.domain.access import Access, accesses, stride_of
from tilefuse.domain.online import EXPSUM
from tilefuse.domain.resolved import Domain
from tilefuse.domain.stages import reduces_by_lanes
from tilefuse.ir.affine import Affine, number, substitute
from tilefuse.templates.rows.modes import Rows, RowSettings

# Reductions that take a vector at once: first something of the whole vector, then every element relative to it.
BY_VECTOR = ("m2", EXPSUM.name)


def between_vectors(domain: Domain, choice: Rows | RowSettings) -> Affine | None:
    """`row_start` of a kernel's rows; None where one thread has a row, or blocks walk rows in turns: elements that fill no vector then
    come behind the others."""
    return None if choice.threads == 1 or choice.groups else row_start(domain, choice.vector)


def row_start(domain: Domain, width: int) -> Affine | None:
    """Offset of a row's first element in the access whose vectors of `width` elements the walk follows; None where rows need no such walk.

    The access is the one in whose vectors most bytes move, a written one first. It is linear, and dense along the only reduced axis; loops
    inside of an element, as of a product that is recomputed, do not move it.
    Rows of scans, and rows that are reduced once, lane by lane: other walks pass over lanes outside of the row. Units: elements.
    """
    axes = [a for a in domain.reduced if domain.extents[a] > 1]
    if width == 1 or domain.num_reduced % width == 0 or len(axes) != 1 or not _by_lanes(domain):
        return None
    row = axes[0]
    dense = [a for a in accesses(domain) if not a.dynamic and not a.guarded and a.offset.is_linear and stride_of(a.offset, row) == 1
             and a.offset.axes() <= {row, *domain.kept}]
    if not dense:
        return None
    lead = max(dense, key=lambda a: (sum(b.elements * b.itemsize for b in dense if _in_step(a, b, row, width)), a.written))
    start = substitute(lead.offset, {row: number(0)})
    # Reductions of aligned rows leave what fills no vector to one thread; a scan's elements stay in order.
    return start if domain.has_scan or _common_distance(start, width) < width else None


def _by_lanes(domain: Domain) -> bool:
    shared = [i for i in domain.instances if i.shared]
    return all(i.node.category == "scan" for i in shared) if domain.has_scan else reduces_by_lanes(domain, BY_VECTOR)


def _in_step(lead: Access, other: Access, row: str, width: int) -> bool:
    """Whether both accesses lie at the same distance from a vector in every row."""
    apart = other.offset - lead.offset
    return apart.const % width == 0 and all(c % width == 0 for atom, c in apart.terms if atom != row)


def _common_distance(start: Affine, width: int) -> int:
    """Greatest divisor of `width` at whose multiples all rows begin."""
    return gcd(width, start.const, *(c for _, c in start.terms))


def widest_run(domain: Domain, width: int, limit: int) -> int:
    """Widest vector, up to `limit`, that a row holds wherever it begins, if the walk may follow rows; else `width`. Units: elements."""
    while limit > width:
        if domain.num_reduced >= 2 * limit - 1 and row_start(domain, limit) is not None:
            return limit
        limit //= 2
    return width


def num_vectors(domain: Domain, width: int) -> int:
    """Vectors of `width` elements that threads share of a row: as many as any row meets, partial ones among them."""
    start = row_start(domain, width)
    beyond = 0 if start is None else width - _common_distance(start, width)
    return -(-(domain.num_reduced + beyond) // width)


def vectors_of(domain: Domain, choice: Rows | RowSettings) -> int:
    """As `num_vectors`, for a kernel's choice."""
    return -(-domain.num_reduced // choice.vector) if between_vectors(domain, choice) is None else num_vectors(domain, choice.vector)
