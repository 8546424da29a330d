"""Scans along rows that no kernel holds: pieces are scanned, then their totals, and both are combined.

    y[i] = x[0] + ... + x[i]     ->     p[c, l] = x[c*L] + ... + x[c*L + l]      every piece of L elements
                                        t[c]    = p[0, L-1] + ... + p[c, L-1]    totals of the pieces, scanned
                                        y[i]    = t[i // L - 1] + p[i // L, i % L]

A kernel holds a scanned row in the registers of a cluster of blocks, which bounds its length. There are about as many pieces as a piece
has elements. Totals or pieces that are still too long are split again.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from math import isqrt
from typing import ClassVar

from tilefuse.ir.affine import Affine, axis, floordiv, mod, number
from tilefuse.ir.graph import Graph, Input, Node, Type
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.monoids import MONOIDS
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Bound, Expr, Guard, Read, substitute_axes
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec


@register_pass
@dataclass(frozen=True)
class SplitLongScans(DevicePass):
    """Split scans that no kernel holds: pieces are scanned, then their totals, and both are combined.

    Exact: for integers, maxima and minima; sums and products of floats are associated differently.
    """

    name: ClassVar[str] = "split-long-scans"
    preserves: ClassVar[Properties] = frozenset({
        Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE, Property.NO_DEAD_NODES})
    exact: ClassVar[bool] = False
    asks_prices: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with such scans in pieces; `graph` itself where there is none."""
        assert ctx.prices is not None
        return split_long_scans(graph, ctx.caller.given(graph), ctx.prices)


def split_long_scans(graph: Graph, layouts: Layouts, prices: Prices) -> Graph:
    """The graph with every scan that has no kernel of its own split in pieces; the same object if there is none."""
    types = dict(graph.type_by_name)
    nodes = tuple(part for n in graph.nodes for part in (_with_kernels(n, types, layouts, prices) if n.category == "scan" else (n,)))
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _with_kernels(node: Node, types: dict[str, Type], layouts: Layouts, prices: Prices) -> tuple[Node, ...]:
    """The scan, or nodes that compute it by scans that have kernels. `types`: of all values; types of new nodes are added."""
    length = 1 << isqrt(max(node.extents[node.along] - 1, 0)).bit_length()
    if length >= node.extents[node.along] or not node.type.num_elements or _has_kernel(node, types, layouts, prices):
        return (node,)
    names_in_use = set(types)
    inner, totals, whole = split_scan(node, length, names_in_use)
    types |= {inner.name: inner.type, totals.name: totals.type}
    return (*_with_kernels(inner, types, layouts, prices), *_with_kernels(totals, types, layouts, prices), whole)


def _has_kernel(node: Node, types: dict[str, Type], layouts: Layouts, prices: Prices) -> bool:
    alone = Graph(node.name, tuple(Input(v, types[v]) for v in node.reads()), (node,), (node.name,))
    return prices.has_kernel(alone, (node.name,), layouts)


def split_scan(node: Node, length: int, names_in_use: set[str]) -> tuple[Node, Node, Node]:
    """A scan as three nodes: scans of pieces of `length` elements, scans of their totals, and a map that combines them under its name.

    Requires: the axis is longer than one piece. `names_in_use`: names in use; new ones are added.
    """
    assert node.body is not None
    place = node.axes.index(node.along)
    extent = node.type.shape[place]
    pieces = -(-extent // length)
    shape = (*node.type.shape[:place], pieces, length, *node.type.shape[place + 1:])
    piece = next(name for n in count() if (name := f"c{n}") not in node.axes)
    axes = (*node.axes[:place], piece, *node.axes[place:])
    identity = MONOIDS[node.detail].identity(node.type.dtype)[0]
    whole = axis(piece) * length + axis(node.along)
    body: Expr = substitute_axes(node.body, {node.along: whole}, dict(zip(axes, shape, strict=True)))
    if extent % length:
        body = Guard((Bound(whole, 0, extent),), body, identity)
    inner = Node(free_name(f"{node.name}_pieces", names_in_use), Type(node.type.dtype, shape), node.kind, axes, along=node.along, body=body,
                 span=node.span)

    def at(c: Affine, within: Affine | None) -> tuple[Affine, ...]:
        """Subscripts of a piece's element, or of its total."""
        own = [number(0) if e == 1 else axis(a) for a, e in zip(node.axes, node.type.shape, strict=True)]
        return (*own[:place], c, *(() if within is None else (within,)), *own[place + 1:])

    outer_axes = (*node.axes[:place], piece, *node.axes[place + 1:])
    total_type = Type(node.type.dtype, (*shape[:place], pieces, *shape[place + 2:]))
    totals = Node(free_name(f"{node.name}_totals", names_in_use), total_type, node.kind,
                  outer_axes, along=piece, body=Read(inner.name, at(axis(piece), number(length - 1))), span=node.span)
    along = axis(node.along)
    number_of_piece, within = floordiv(along, length, node.extents), mod(along, length, node.extents)
    before = Guard((Bound(number_of_piece - 1, 0, pieces),), Read(totals.name, at(number_of_piece - 1, None)), identity)
    combined = MONOIDS[node.detail].combine((before,), (Read(inner.name, at(number_of_piece, within)),), node.type.dtype)[0]
    return inner, totals, Node(node.name, node.type, "map", node.axes, body=combined, span=node.span)
