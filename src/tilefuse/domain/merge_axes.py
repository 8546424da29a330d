"""Merges root axes that are contiguous with each other in every subscript: runs get longer, and subscripts need fewer divisions.

    sum over (n < 167, h < 28, w < 28) of x[401408 n + 784 c + 28 h + w]   ->   over (n < 167, h < 784) of x[401408 n + 784 c + h]

A vector's width must then divide 784 instead of 28, and the tiles of a transposition do not end at each row of an image.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

from tilefuse.domain.resolved import Domain, Instance, Touch, rebuilt, resolved_walk
from tilefuse.ir.affine import Affine, axis, floordiv, from_terms, mod, substitute
from tilefuse.ir.scalar import Guard, Index


def with_merged_axes(domain: Domain) -> Domain:
    """The domain with every mergeable pair of kept or of reduced axes merged; the same object if there is none.

    Exact: the same points with the same values; a sum may add its terms in another order.
    """
    if domain.has_scan or domain.scatter is not None:
        return domain
    if any(i.carried for i in domain.instances):
        # Carried sums identify their columns by the row's axes.
        return domain
    while True:
        subscripts = list(dict.fromkeys(_subscripts(domain)))
        pairs = (pair for axes in (domain.kept, domain.reduced)
                 for pair in permutations([a for a in axes if domain.extents[a] > 1], 2))
        pair = next((p for p in pairs if _run_on(subscripts, *p, domain.extents[p[1]])), None)
        if pair is None:
            return domain
        domain = _merged(domain, *pair)


def _subscripts(domain: Domain) -> Iterator[Affine]:
    """Every index expression that the kernel computes."""
    for i in domain.instances:
        if i.position is not None and i.node.detail in ("argmax", "argmin"):
            yield i.position
        for x in resolved_walk(i.body):
            match x:
                case Touch(_, _, offset, _):
                    yield offset
                case Index(affine):
                    yield affine
                case Guard(bounds, _, _):
                    yield from (b.index for b in bounds)
    yield from (offset for _, _, offset in domain.outputs)


def _run_on(subscripts: list[Affine], outer: str, inner: str, extent: int) -> bool:
    """Whether one step of `outer` equals `extent` steps of `inner` in every subscript."""
    return all(e.coefficient(outer) == extent * e.coefficient(inner)
               and not any(not isinstance(atom, str) and {outer, inner} & atom.of.axes() for atom, _ in e.terms) for e in subscripts)


def _merged(domain: Domain, outer: str, inner: str) -> Domain:
    """The domain with the two axes merged under the outer's name."""
    extents = {a: n for a, n in domain.extents.items() if a != inner}
    by = domain.extents[inner]
    extents[outer] *= by
    # Coordinates are only compared, never computed, so quotient and remainder are free there.
    names = {outer: floordiv(axis(outer), by, extents), inner: mod(axis(outer), by, extents)}

    def subscript(e: Affine) -> Affine:
        step = e.coefficient(inner)
        rest = [(atom, c) for atom, c in e.terms if atom not in (outer, inner)]
        return from_terms([*rest, (outer, step)] if step else rest, e.const)

    def instance(i: Instance) -> Instance:
        return replace(i, coordinate=tuple(substitute(c, names, extents) for c in i.coordinate), body=rebuilt(i.body, subscript=subscript),
                       depends=frozenset(outer if a == inner else a for a in i.depends),
                       position=None if i.position is None else substitute(i.position, names, extents))

    return Domain(tuple(a for a in domain.kept if a != inner), tuple(a for a in domain.reduced if a != inner), extents,
                  [instance(i) for i in domain.instances],
                  [(name, key, subscript(offset)) for name, key, offset in domain.outputs], None, False)
