"""Single-thread reductions in vectorised kernels: windows whose taps are contiguous for adjacent results read one vector per tap, and a
reduction that is equal for all lanes of a vector is computed once.

    pooling, channels last: result (n, y, x, c .. c + 3), tap (ky, kx)   ->   one vector at (n, 2 y + ky, 2 x + kx, c)
"""
from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.access import stride_of
from tilefuse.domain.resolved import Domain, Instance, Touch, resolved_walk
from tilefuse.ir.affine import Affine, Extents, substitute
from tilefuse.ir.affine import axis as name
from tilefuse.ir.scalar import Guard, Index


def taps_of(domain: Domain, instance: Instance) -> list[Instance]:
    """The instance and all instances that it recomputes at each of its taps, in evaluation order."""
    loops = {loop for loop, _ in instance.serial}
    keys = {instance.key}
    todo = [instance.key]
    while todo:
        for used in domain.instances[todo.pop()].uses:
            if used not in keys and domain.instances[used].depends & loops:
                keys.add(used)
                todo.append(used)
    return [domain.instances[k] for k in sorted(keys)]


def windows_fit(domain: Domain, axis: str, width: int) -> bool:
    """Whether every single-thread reduction is over a short window whose taps are each a vector along `axis` or equal for all lanes."""
    return all(_fits(domain, i, axis, width) for i in domain.instances if i.serial)


def _fits(domain: Domain, window: Instance, axis: str, width: int) -> bool:
    loops = {loop for loop, _ in window.serial}
    if prod(extent for _, extent in window.serial) > SEARCH.domain.unrolled_taps:
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


def sums_fit(domain: Domain, axis: str, width: int) -> bool:
    """Whether every single-thread reduction is equal for all lanes of a vector along `axis`: a thread then reduces once per vector.

        norm of groups of four channels, channels last: result (i, c .. c + 3)   ->   the sum of squares of group c // 4
    """
    lane = "lane_"
    extents = domain.extents | {lane: width, axis: -(-domain.extents[axis] // width)}
    at = {axis: name(axis) * width + name(lane)}
    return all(is_same_along(domain, i, at, lane, extents) for i in domain.instances if i.serial)


def is_same_along(domain: Domain, instance: Instance, at: Mapping[str, Affine], lane: str, extents: Extents) -> bool:
    """Whether an instance, with the root axes at `at`, is equal for all values of `lane`."""
    seen, todo = {instance.key}, [instance.key]
    while todo:
        one = domain.instances[todo.pop()]
        if one.shared:
            return False
        for e in resolved_walk(one.body):
            match e:
                case Touch(_, _, index, _) | Index(index):
                    indices: tuple[Affine, ...] = (index,)
                case Guard(bounds):
                    indices = tuple(b.index for b in bounds)
                case _:
                    indices = ()
            if any(lane in substitute(index, at, extents).axes() for index in indices):
                return False
        todo.extend(u for u in one.uses if u not in seen)
        seen.update(one.uses)
    return True
