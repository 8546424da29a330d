"""Tensors of narrow elements that operands are computed from, as weights of 8 or 4 bits: tensor copies bring these, consumers expand them.

    f16(i8 q[j, k]) * s[j]                                     q, an element for each of the operand's
    f16((u8 q[j, k / 2] >> 4 * (k % 2) & 15) - 8) * s[j, k / 64]   q, two of the operand's elements in one
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilefuse.base.construction import quickly_built
from tilefuse.domain.contraction import INNER
from tilefuse.ir.affine import Affine, FloorDiv, axis, bounds, linearise, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts, strides_of
from tilefuse.ir.scalar import Expr, Read, substitute_axes, walk


@quickly_built
@dataclass(frozen=True)
class Stored:
    """A boundary value of which an operand's elements read one element each, neighbours in memory along the inner axis.

    packing  elements of the operand, neighbours along the inner axis, that read one element
    Units: strides and `first`, of the elements of the value.
    """

    value: str
    dtype: DType
    stride_by_axis: Mapping[str, int]
    first: int
    packing: int


def stored_of(graph: Graph, layouts: Layouts, element: Expr, line: str, sizes: Mapping[str, int]) -> Stored | None:
    """The value that has most elements of those that `element` reads; None where it is read at several places, or lies otherwise.

    sizes: extents of the axes of `element`. Lines are the operand's rows or columns.
    """
    offsets: dict[str, set[Affine]] = {}
    for value, offset in _reads(graph, layouts, element, sizes):
        if {line, INNER} <= offset.axes():
            offsets.setdefault(value, set()).add(offset)
    stored = [s for value, at in offsets.items() if (s := _stored(graph, layouts, value, at, sizes)) is not None]
    most = min(stored, key=lambda s: s.packing, default=None)
    # Another value with as many elements would be loaded element by element.
    return most if most is not None and all(s.packing > most.packing for s in stored if s is not most) else None


def _stored(graph: Graph, layouts: Layouts, value: str, offsets: set[Affine], sizes: Mapping[str, int]) -> Stored | None:
    """The value, where all reads are at one place, which lies in memory wherever guards of the operand lead."""
    offset = next(iter(offsets))
    reached = bounds(offset, sizes)
    last = sum((e - 1) * s for e, s in zip(graph.type_of(value).shape, strides_of(graph, layouts, value), strict=True))
    if len(offsets) != 1 or reached is None or reached[0] < 0 or reached[1] > last:
        return None
    strides: dict[str, int] = {}
    packing = 0
    for atom, stride in offset.terms:
        if isinstance(atom, str):
            strides[atom] = stride
            packing = 1 if atom == INNER else packing
        elif isinstance(atom, FloorDiv) and atom.of == axis(INNER):
            strides[INNER], packing = stride, atom.by
        else:
            return None
    if strides.get(INNER) != 1 or sizes[INNER] % packing:
        return None
    return Stored(value, graph.type_of(value).dtype, strides, offset.const, packing)


def _reads(graph: Graph, layouts: Layouts, e: Expr, sizes: Mapping[str, int]) -> Iterator[tuple[str, Affine]]:
    """(boundary value, offset) of every read of an element, through maps of the kernel as well."""
    for x in walk(e):
        if not isinstance(x, Read):
            continue
        node = graph.node_by_name.get(x.value)
        if node is None:
            yield x.value, substitute(linearise(x.index, strides_of(graph, layouts, x.value)), {}, sizes)
        elif node.body is not None:
            yield from _reads(graph, layouts, substitute_axes(node.body, dict(zip(node.axes, x.index, strict=True)), sizes), sizes)
