"""Windows whose taps lie side by side for neighbouring results: then a thread reads each tap of all its results as one vector.

    pooling, channels last: result (n, y, x, c .. c + 3), tap (ky, kx)   ->   one vector at (n, 2 y + ky, 2 x + kx, c)
"""
from __future__ import annotations

from math import prod

from tilefuse.ir.scalar import Guard
from tilefuse.schedule.access import stride_of
from tilefuse.schedule.resolved import Domain, Instance, Touch, resolved_walk

# Taps that are read without a loop around them. A window of 3 x 3 fits; longer sums keep one result a thread.
MAX_TAPS = 16


def taps_of(domain: Domain, instance: Instance) -> list[Instance]:
    """The instance and all that it computes anew at each of its taps, in evaluation order."""
    loops = {loop for loop, _ in instance.serial}
    found = {instance.key}
    todo = [instance.key]
    while todo:
        for used in domain.instances[todo.pop()].uses:
            if used not in found and domain.instances[used].depends & loops:
                found.add(used)
                todo.append(used)
    return [domain.instances[k] for k in sorted(found)]


def windows_fit(domain: Domain, axis: str, width: int) -> bool:
    """Whether every reduction by one thread is over a short window, each tap of which is a vector along `axis`, or one element for all."""
    return all(_fits(domain, i, axis, width) for i in domain.instances if i.serial)


def _fits(domain: Domain, window: Instance, axis: str, width: int) -> bool:
    loops = {loop for loop, _ in window.serial}
    if prod(extent for _, extent in window.serial) > MAX_TAPS:
        return False
    for instance in taps_of(domain, window):
        if instance is not window and (instance.serial or instance.shared):
            return False
        for e in resolved_walk(instance.body):
            match e:
                case Touch(_, _, offset, dynamic):
                    if dynamic or offset.axes() & loops and not _is_vector_or_same(e, axis, width):
                        return False
                case Guard(bounds):
                    if any(axis in b.index.axes() for b in bounds):
                        return False
    return True


def _is_vector_or_same(touch: Touch, axis: str, width: int) -> bool:
    stride = stride_of(touch.offset, axis)
    if stride == 0:
        return True
    rest = all(atom == axis or c % width == 0 for atom, c in touch.offset.terms)
    return stride == 1 and rest and touch.offset.const % width == 0
