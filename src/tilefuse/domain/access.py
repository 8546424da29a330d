"""Memory accesses of a kernel's walk over its domain: contiguous axes, vector widths, bytes moved."""
from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

from tilefuse.base.construction import quickly_built
from tilefuse.domain.resolved import Domain, Instance, Resolved, Touch, resolved_walk
from tilefuse.ir.affine import Affine, Extents, delinearise, simplify
from tilefuse.ir.ops import flops_of
from tilefuse.ir.scalar import Call, Guard
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.walks import FlatFigures


@quickly_built
@dataclass(frozen=True, slots=True)
class Access:
    """One access to a boundary value. `elements`: number of points of the root axes and loop variables that it depends on."""

    value: str
    itemsize: int
    offset: Affine
    dynamic: bool
    guarded: bool
    written: bool
    elements: int


def accesses(domain: Domain) -> list[Access]:
    """All distinct accesses of a domain: reads in evaluation order, then writes. Requires: the domain does not change afterwards."""
    if domain.found_accesses is None:
        domain.found_accesses = tuple(_accesses(domain))
    return list(domain.found_accesses)


def _accesses(domain: Domain) -> dict[Access, None]:
    ordered: dict[Access, None] = {}

    def visit(e: Resolved, guarded: bool) -> None:
        match e:
            case Touch(value, dtype, offset, dynamic):
                axes = set(offset.axes())
                for d, _, _ in dynamic:
                    for x in resolved_walk(d):
                        if isinstance(x, Touch):
                            axes |= x.offset.axes()
                    visit(d, guarded)
                points = prod(domain.extents[a] for a in axes)
                ordered.setdefault(Access(value, dtype.itemsize, offset, bool(dynamic), guarded, False, points))
            case Call(_, args):
                for a in args:
                    visit(a, guarded)
            case Guard(_, then, otherwise):
                visit(then, True)
                visit(otherwise, True)

    for instance in domain.instances:
        visit(instance.body, False)
    if domain.scatter is not None:
        visit(domain.scatter[1], False)
        for t, _, _ in domain.scatter[2]:
            visit(t, False)
    for name, key, offset in domain.outputs:
        node = domain.instances[key].node
        dtype = node.type.dtype
        points = node.type.num_elements if domain.instances[key].carried else prod(domain.extents[a] for a in offset.axes())
        ordered.setdefault(Access(name, dtype.itemsize, offset, False, False, True, points))
    return ordered


def num_places(access: Access, domain: Domain) -> int:
    """Upper bound on the elements that an access touches: neighbouring windows share theirs."""
    if access.dynamic or not access.offset.is_linear:
        return access.elements
    reach = sum(abs(access.offset.coefficient(a)) * (domain.extents[a] - 1) for a in access.offset.axes())
    return min(access.elements, reach + 1)


def stride_of(offset: Affine, name: str) -> int | None:
    """Change of the offset per step of the axis, in elements; None if the axis occurs inside a division or remainder."""
    if any(not isinstance(atom, str) and name in atom.of.axes() for atom, _ in offset.terms):
        return None
    return offset.coefficient(name)


def contiguous_axes(accessed: list[Access], names: tuple[str, ...], extents: Extents) -> dict[str, int]:
    """Bytes accessed at stride 1 along each axis: its weight in the choice of the fastest axis."""
    weight = dict.fromkeys(names, 0)
    for access in accessed:
        if access.dynamic:
            continue
        for a in names:
            if extents[a] > 1 and stride_of(access.offset, a) == 1:
                weight[a] += access.elements * access.itemsize
    return weight


def by_memory_order(names: tuple[str, ...], accessed: list[Access], extents: Extents) -> tuple[str, ...]:
    """The axes in the memory order of the largest usable access, slowest first (of equal accesses, a write)."""
    def key(access: Access) -> tuple[int, bool]:
        return (access.elements * access.itemsize, access.written)

    usable = [a for a in accessed if not a.dynamic and a.elements > 1]
    if not usable or len(names) < 2:
        return names
    for lead in sorted(usable, key=key, reverse=True):
        strides = {a: stride_of(lead.offset, a) for a in names}
        if all(s is not None and (s != 0 or extents[a] == 1) for a, s in strides.items()):
            return tuple(sorted(names, key=lambda a: (-abs(strides[a] or 0) if extents[a] > 1 else -sys.maxsize)))
    return names


def flat_axes(names: tuple[str, ...], flat: Affine, extents: Mapping[str, int], kernel_extents: Extents) -> dict[str, Affine]:
    """Each axis as a function of a flat row-major position over the axes in this order."""
    shape = tuple(extents[a] for a in names)
    return {a: simplify(c, kernel_extents) for a, c in zip(names, delinearise(flat, shape, kernel_extents), strict=True)}


def is_vector(offset: Affine, lane: str, width: int) -> bool:
    """Whether `width` consecutive lanes access `width` consecutive elements, aligned to the vector."""
    if stride_of(offset, lane) != 1:
        return False
    return all(atom == lane or c % width == 0 for atom, c in offset.terms) and offset.const % width == 0


def widest_vector(accessed: list[Access], names: tuple[str, ...], length: int, limit: int) -> int:
    """Widest vector, at most `limit`, that divides `length` and is aligned for at least half of the bytes accessed at stride 1.

    Units: elements.
    """
    width = limit
    while width > 1 and length % width:
        width //= 2
    weights = {width: 0}
    total = 0
    for access in accessed:
        if access.dynamic or access.guarded or not any(stride_of(access.offset, a) == 1 for a in names):
            continue
        best = gcd(width, access.offset.const)
        for atom, c in access.offset.terms:
            if not (isinstance(atom, str) and atom in names and c == 1):
                best = gcd(best, c)
        size = access.elements * access.itemsize
        total += size
        weights[best] = weights.get(best, 0) + size
    for candidate in sorted(weights, reverse=True):
        if sum(size for best, size in weights.items() if best >= candidate) * 2 >= total:
            return candidate
    return 1


def vector_limit(accessed: list[Access], device: DeviceSpec) -> int:
    """Widest vector that the smallest element allows. Units: elements."""
    if device.kind == "host":
        return 16
    smallest = min((a.itemsize for a in accessed if a.elements > 1), default=4)
    return min(8, max(1, device.vector_bytes // smallest))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Ideal traffic of a pattern: each boundary element moves once. Units: bytes; flops are operations."""

    bytes_read: int
    bytes_written: int
    flops: int


def _combine_flops(instance: Instance, fitted: FlatFigures) -> int:
    """Operations that combine one element into a reduction; 0 for a map."""
    if instance.serial:
        return fitted.squares_term_flops if instance.node.detail == "m2" else fitted.term_flops
    return 1 if instance.node.category != "map" else 0


def traffic(domain: Domain, sizes: Mapping[str, int], fitted: FlatFigures) -> Traffic:
    """Ideal traffic of a domain. `sizes`: size of every boundary value. Units: bytes."""
    read: dict[str, int] = {}
    written = 0
    for access in accesses(domain):
        points = access.elements * access.itemsize
        if access.written:
            written += points
        else:
            read[access.value] = max(read.get(access.value, 0), min(points, sizes[access.value]))
    if domain.scatter is not None:
        points = prod(domain.extents[a] for a in domain.reduced)
        item = sizes[domain.scatter[0]]
        written += min(item, points * 8)
    flops = 0
    alone = not any(i.shared for i in domain.instances)
    for instance in domain.instances:
        # In a flat walk, every thread that needs a single-thread reduction recomputes it.
        everywhere = {*domain.kept, *domain.reduced} if instance.serial and alone else {*domain.reduced} if instance.shared else set()
        axes = set(instance.depends) | everywhere | {a for a, _ in instance.serial}
        flops += (flops_of(instance.body) + _combine_flops(instance, fitted)) * prod(domain.extents[a] for a in axes)
    return Traffic(sum(read.values()), written, flops)
