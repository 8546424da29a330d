"""Where the elements of values behind reduced products lie: each value's axes as functions of the products' axes.

    s[b, i] = sum j: y[b * 64 + i, j]          b = row / 64, i = row % 64, j = column

A value is computed beside the sums only if every way from it to the product, or to a reduction of it, leads to the element at hand.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.monoids import MONOIDS
from tilefuse.ir.scalar import Const, Guard, Lookup, Read, walk
from tilefuse.templates.staged.pipelined.elements import Point, inverse

# Values whose place is known: their subscripts at the element at hand, over the products' axes.
Anchors = Mapping[str, tuple[Affine, ...]]


@dataclass(frozen=True)
class RowPoints:
    """Where the reductions behind products lie: their axes, the reduced ones too, over the products'.

    windows  extents of the product's axes that all of them have; empty without reductions
    width    columns that each of them reduces together, from a multiple of it on; 0: whole rows
    """

    points: Mapping[str, Point]
    windows: Mapping[str, int]
    width: int = 0


def point_of(graph: Graph, products: tuple[str, ...], node: Node, extents: Mapping[str, int],
             rows: RowPoints) -> tuple[Point, dict[str, int]] | Rejected:
    """A value's axes (of a reduction also the reduced ones) over the product's, and the extents of the product's axes that it has.

    They follow from its reads. The reason where it has no such place. rows: the reductions before this node.
    """
    of_rows = {name: tuple(p[a] for a in graph.node_by_name[name].axes) for name, p in rows.points.items()}
    anchors: Anchors = {**{p: tuple(axis(a) for a in extents) for p in products}, **of_rows}
    own = {a: axis(a) for a in node.extents}
    reads = list(anchor_reads(graph, anchors, node, own, node.extents))
    if not reads:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} does not depend on the product %{products[0]}")
    # A read of a product tells more axes than one of a reduction.
    name, index = next((r for r in reads if r[0] in products), reads[0])
    if name in products:
        place = inverse(index, node, extents, ends_in_identity(node))
    else:
        place = _of_reduction(graph, name, index, node, rows, extents)
    if place is None:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} does not have the elements of the product %{products[0]}")
    point, sizes = place
    for name, index in anchor_reads(graph, anchors, node, point, extents):
        shape = tuple(sizes.values()) if name in products else graph.type_of(name).shape
        if any(extent > 1 and e != own_place for e, own_place, extent in zip(index, anchors[name], shape, strict=True)):
            return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} reads %{name} at another element than the one at hand")
    return point, sizes


def ends_in_identity(node: Node) -> bool:
    """Whether a reduction combines nothing where its guard does not hold."""
    if node.category != "reduce" or not isinstance(node.body, Guard) or not isinstance(node.body.otherwise, Const):
        return False
    identity = MONOIDS[node.detail].identity(node.body.otherwise.dtype)
    return len(identity) == 1 and identity[0] == node.body.otherwise


def _of_reduction(graph: Graph, name: str, index: tuple[Affine, ...], node: Node, rows: RowPoints,
                  extents: Mapping[str, int]) -> tuple[Point, dict[str, int]] | None:
    """The place of a value of rows, from the subscripts at which it reads a reduction: it has every element of that."""
    shape = dict(zip(graph.node_by_name[name].axes, graph.type_of(name).shape, strict=True))
    place = inverse(index, node, shape)
    if place is None or place[1] != shape:
        return None
    return {a: substitute(e, rows.points[name], extents) for a, e in place[0].items()}, dict(rows.windows)


def anchor_reads(graph: Graph, anchors: Anchors, node: Node, point: Point,
                 extents: Mapping[str, int]) -> Iterator[tuple[str, tuple[Affine, ...]]]:
    """(anchor, subscripts) of every read by which `node`, at `point` of its axes, reads anchors, through maps between them as well."""
    assert node.body is not None
    for e in walk(node.body):
        if isinstance(e, Lookup) and e.value in graph.node_by_name:
            # Elements at places that data give: none of them is the one at hand.
            yield from ((name, tuple(number(-1) for _ in anchors[name])) for name in anchors)
        if not isinstance(e, Read) or e.value not in graph.node_by_name:
            continue
        index = tuple(substitute(i, point, extents) for i in e.index)
        if e.value in anchors:
            yield e.value, index
        elif graph.node_by_name[e.value].body is not None:
            inner = graph.node_by_name[e.value]
            yield from anchor_reads(graph, anchors, inner, dict(zip(inner.axes, index, strict=True)), extents)
