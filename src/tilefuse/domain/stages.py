"""Order of dependent reductions over a row or column, and the bytes that stay on chip between them."""
from __future__ import annotations

from collections.abc import Collection
from math import prod

from tilefuse.domain.access import Access
from tilefuse.domain.resolved import Domain, direct_touches
from tilefuse.ir.affine import Affine


def kept_bytes_of(domain: Domain, accessed: list[Access]) -> int:
    """Bytes per row element that must stay on chip between reductions: each distinct access to all elements counts once."""
    full = [a for a in accessed if not a.written and not a.dynamic and is_row_element(domain, a.offset)]
    return sum(a.itemsize for a in full)


def is_row_element(domain: Domain, offset: Affine) -> bool:
    """Whether the access at `offset` differs for every element of a row and for every row. Such an element is read once and kept.

        x[n, g, c, i]   over c, i      one per element of the row (n, g): kept
        w[g, c]         over c, i      one for all i of a channel: repeated reads hit L1
        w[c, i]         over c, i      the same for all rows
    """
    along = offset.axes() & set(domain.reduced)
    of_rows = not domain.kept or domain.num_kept == 1 or bool(offset.axes() & set(domain.kept))
    return of_rows and bool(along) and 2 * prod(domain.extents[a] for a in along) > domain.num_reduced


def has_channel_values(domain: Domain) -> bool:
    """Whether an operand has one value for many elements of a row and another for the next ones: w[g, c] of `is_row_element`."""
    return any(t.offset.axes() & set(domain.reduced) and t.offset.axes() & set(domain.kept) and not is_row_element(domain, t.offset)
               for i in domain.instances for t in direct_touches(i.body))


def stages(domain: Domain) -> dict[int, int]:
    """Number of shared reductions that precede each shared instance, by instance key."""
    depth: dict[int, int] = {}
    below: dict[int, int] = {}
    for instance in domain.instances:
        needed = max((below[u] for u in instance.uses), default=0)
        if instance.shared and not instance.carried and instance.second_of is None:
            depth[instance.key] = needed
            below[instance.key] = needed + 1
        else:
            below[instance.key] = needed
    return depth


def is_multi_stage(domain: Domain) -> bool:
    """Whether elements are needed again after a reduction over them."""
    depth = stages(domain)
    if max(depth.values(), default=0) > 0 or domain.has_scan:
        return True
    return any(offset.axes() & set(domain.reduced) for _, key,
               offset in domain.outputs if domain.num_reduced > 1 and after_shared(domain, key))


def reduces_by_lanes(domain: Domain, by_vector: Collection[str]) -> bool:
    """Whether all that threads compute together is reductions of elements that are read once, each lane of a vector by itself.

    by_vector: reductions that a template computes from whole vectors.
    """
    return not is_multi_stage(domain) and not any(i.carried for i in domain.instances) and all(
        i.node.category == "reduce" and i.node.detail not in by_vector and i.second_of is None and i.squares_of is None
        for i in domain.instances if i.shared)


def after_shared(domain: Domain, key: int) -> bool:
    """Whether a value is a shared reduction or depends on one. Other values can be stored while the first reductions read the row."""
    instance = domain.instances[key]
    return instance.shared or any(after_shared(domain, u) for u in instance.uses)


def writes_rows(domain: Domain) -> bool:
    """Whether a result has one value per element of the row."""
    return any(offset.axes() & set(domain.reduced) for _, _, offset in domain.outputs)
