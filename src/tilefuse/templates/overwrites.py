"""Parts of the answers of walks about updates in place: which reads of an input end before the result that overwrites it is stored.

    s = sum of g over rows;  n[i] = p[i] - rate * s[i]      the thread that stores n[i] has loaded p[i], and no other thread ever does

Each template spreads elements over threads in its own way, so each gives its own answers; these are the facts of domains that they need.
"""
from __future__ import annotations

from collections.abc import Set

from tilefuse.domain.resolved import Domain, Touch, resolved_walk
from tilefuse.domain.tile import TileProgram


def has_one_value_a_row(program: TileProgram, value: str) -> bool:
    """Whether a result has one value for each row (or column) of several elements, which one thread stores when it has the whole sum."""
    domain = program.domain
    return domain.num_reduced > 1 and program.graph.type_of(value).num_elements == domain.num_kept


def reads_lie_at_results(domain: Domain, value: str, target: str) -> bool:
    """Whether each read of `target` lies at the offset at which the same point of the domain stores `value`."""
    stored_at = next((offset for output, _, offset in domain.outputs if output == value), None)
    touches = [t for i in domain.instances for t in resolved_walk(i.body) if isinstance(t, Touch) and t.value == target]
    return stored_at is not None and all(t.offset == stored_at and not t.dynamic for t in touches)


def reads_end_at_sums(domain: Domain, value: str, target: str, tile: int, held: bool) -> bool:
    """Whether a walk reads `target` only for the elements of the row (or column) whose sum decides the value that overwrites it: a bias
    that is added to each element, and updated by the sum of the gradients of these elements.

        read p[i]  for all k   ->   barrier, last block   ->   p[i] = p[i] - rate * s[i]

    tile: rows (or columns) a block; held: whether elements of the row stay on chip until the sum is complete.
    Requires: all threads that share a row meet before its sum is used.
    """
    # A thread without a row of its own reads a row of another block.
    whole_tiles = domain.num_kept <= tile or domain.num_kept % tile == 0
    # Elements that stay on chip are stored after the sum is complete.
    if held and any(offset.axes() & set(domain.reduced) for _, _, offset in domain.outputs):
        return False
    if not (target and whole_tiles) or domain.has_scan or domain.scatter is not None or any(i.carried for i in domain.instances):
        return False
    return not _elements_follow_sums(domain, set(domain.reduced)) and reads_lie_at_results(domain, value, target)


def _elements_follow_sums(domain: Domain, reduced: Set[str]) -> bool:
    """Whether elements are walked again after a sum over them."""
    after_sums = {i.key for i in domain.instances if i.shared}
    for i in domain.instances:  # in evaluation order: users follow what they use
        if not after_sums.isdisjoint(i.uses):
            after_sums.add(i.key)
            if i.depends & reduced or i.shared:
                return True
    return False


