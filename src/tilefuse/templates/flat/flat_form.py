"""Flat form: a domain without reductions whose every access lies at the flat position, so that the number of elements alone tells sizes
apart.

    y[i, j] = x[i, j] * s     domain (i < 3, j < 5)      ->      y[f] = x[f] * s     domain (f < 15)

Patterns that are equal in flat form run one body, whatever their shapes are.
"""
from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from math import prod

from tilefuse.domain.resolved import Domain, Resolved, Touch, rebuilt
from tilefuse.ir.affine import Affine, axis, number, row_major_strides
from tilefuse.ir.graph import Graph

# The only axis of a domain in flat form.
FLAT = "flat"


def flat_form(domain: Domain, order: tuple[str, ...]) -> Domain | None:
    """The domain with the single axis `FLAT`, which runs through the axes in `order`, slowest first; None where a value depends on the
    position in another way."""
    if domain.scatter is not None or any(i.shared or i.serial for i in domain.instances):
        return None
    flatten = _Flattener(domain, order)
    try:
        return flatten.domain()
    except _NotFlatError:
        return None


class _NotFlatError(Exception):
    """Internal: an index expression is no function of the flat position."""


class _Flattener:
    """Rewrites index expressions over the axes of a domain to ones over the flat position."""

    def __init__(self, domain: Domain, order: tuple[str, ...]) -> None:
        self.old = domain
        self.total = prod(domain.extents[a] for a in order)
        self.strides = dict(zip(order, row_major_strides(tuple(domain.extents[a] for a in order)), strict=True))

    def domain(self) -> Domain:
        """The flat domain. Raises: _NotFlatError."""
        flat_domain = Domain((FLAT,), (), {FLAT: self.total})
        for i in self.old.instances:
            depends = frozenset((FLAT,)) if any(self.old.extents[a] > 1 for a in i.depends) else frozenset()
            flat_domain.instances.append(replace(i, coordinate=(), body=self.body(i.body), depends=depends))
        for name, key, offset in self.old.outputs:
            flat = self.index(offset)
            if flat != (axis(FLAT) if self.total > 1 else number(0)):
                raise _NotFlatError
            flat_domain.outputs.append((name, key, flat))
        return flat_domain

    def index(self, e: Affine) -> Affine:
        """factor * flat position + constant. Raises: _NotFlatError for anything else."""
        factors = set()
        for name, stride in self.strides.items():
            if self.old.extents[name] > 1:
                coefficient = e.coefficient(name)
                if coefficient % stride:
                    raise _NotFlatError
                factors.add(coefficient // stride)
        if not e.is_linear or len(factors) > 1 or not e.axes() <= self.strides.keys():
            raise _NotFlatError
        return axis(FLAT) * (factors.pop() if factors else 0) + e.const

    def body(self, e: Resolved) -> Resolved:
        """A resolved body over the flat position. Raises: _NotFlatError."""
        return rebuilt(e, subscript=self.index)


def flat_key(domain: Domain, graph: Graph) -> Hashable:
    """Equal for flat domains that run one body: the same instances up to the names of nodes and values, whatever the extent."""
    number_of = {v: n for n, v in enumerate((*(i.name for i in graph.inputs), *graph.results))}
    types = tuple(graph.type_of(v).dtype for v in number_of)
    steps = tuple((i.node.kind, i.node.type.dtype, renamed(i.body, number_of), bool(i.depends), i.uses) for i in domain.instances)
    outputs = tuple((number_of[name], key, offset) for name, key, offset in domain.outputs)
    return (types, steps, outputs)


def renamed(e: Resolved, number_of: Mapping[str, int]) -> Resolved:
    """A resolved body with values named by number."""
    return rebuilt(e, lambda x: replace(x, value=str(number_of[x.value])) if isinstance(x, Touch) else x)
