"""Splits a root axis that hides a transposition: a kernel then walks a transposed and reshaped tensor by the transposed tensor's axes.

    y[r, j] = x[r // 384, j, r % 384]  (r < 6144)      ->      y[384 b + k, j] = x[b, j, k]  (b < 16, k < 384)

The subscripts then show the contiguous axis, and tiles or warps over two axes fit.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.domain.access import accesses
from tilefuse.domain.resolved import Domain, Instance, Touch, rebuilt, resolved_walk
from tilefuse.ir.affine import Affine, Atom, axis, substitute


def with_split_axes(domain: Domain) -> Domain:
    """The domain with each axis split that a large access has contiguous in pieces only, unless all have; the same object if there is none.

    Exact: the same points with the same values.
    """
    if domain.has_scan or domain.scatter is not None or any(i.shared or i.serial or i.carried for i in domain.instances):
        return domain
    for name in domain.kept + domain.reduced:
        by = _pieces(domain, name)
        if by and _hides_a_turn(domain, name, by):
            domain = _split(domain, name, by)
    return domain


def _offsets(domain: Domain) -> Iterator[Affine]:
    for i in domain.instances:
        for x in resolved_walk(i.body):
            if isinstance(x, Touch):
                yield x.offset
    yield from (offset for _, _, offset in domain.outputs)


def _pieces(domain: Domain, name: str) -> int:
    """The only divisor of the axis in any offset, if it divides the extent; 0 for any other axis."""
    divisors: set[int] = set()
    for atom in (atom for offset in _offsets(domain) for atom, _ in offset.terms):
        if not isinstance(atom, str) and name in atom.of.axes():
            if atom.of != axis(name):
                return 0
            divisors.add(atom.by)
    by = divisors.pop() if len(divisors) == 1 else 0
    return by if by and domain.extents[name] % by == 0 and 1 < by < domain.extents[name] else 0


def _hides_a_turn(domain: Domain, name: str, by: int) -> bool:
    """Whether one large access is contiguous along pieces of the axis, and another one along another axis.

    If only small accesses divide the axis (the mean of a channel's group), the whole axis stays the side of a tile.
    """
    total = domain.num_kept * domain.num_reduced
    along, elsewhere, divided = False, False, False
    for access in accesses(domain):
        if access.dynamic or access.elements * 2 < total:
            continue
        fastest: set[Atom] = {atom for atom, c in access.offset.terms if c == 1}
        here = any(atom == name or not isinstance(atom, str) and atom.of == axis(name) and atom.by == by for atom in fastest)
        along |= here
        divided |= any(not isinstance(atom, str) and name in atom.of.axes() for atom, _ in access.offset.terms)
        elsewhere |= not here and any(isinstance(atom, str) and domain.extents[atom] > 1 for atom in fastest)
    return along and elsewhere and divided


def _split(domain: Domain, name: str, by: int) -> Domain:
    low = f"{name}_in"
    extents = {**domain.extents, name: domain.extents[name] // by, low: by}
    names = {name: axis(name) * by + axis(low)}

    def subscript(e: Affine) -> Affine:
        return substitute(e, names, extents)

    def instance(i: Instance) -> Instance:
        return replace(i, coordinate=tuple(subscript(c) for c in i.coordinate), body=rebuilt(i.body, subscript=subscript),
                       depends=i.depends | {low} if name in i.depends else i.depends)

    def parts(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for a in axes for part in ((a, low) if a == name else (a,)))

    return Domain(parts(domain.kept), parts(domain.reduced), extents, [instance(i) for i in domain.instances],
                  [(value, key, subscript(offset)) for value, key, offset in domain.outputs])
