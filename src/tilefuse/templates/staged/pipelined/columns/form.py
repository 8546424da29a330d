"""Sums down the columns of a product's results, by groups of rows: those of a tile that a warp of a consumer warpgroup holds.

    p[g, j] = sum t < 16: f(16 g + t, j)      f: an expression of the element at hand, as a gradient whose column sums are a bias's

A later kernel adds the groups. Each warp adds its own rows in registers and stores one row of partial sums, always in the same order, so
that results are equal from run to run.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import ROW
from tilefuse.ir.affine import axis
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ops import dtype_of
from tilefuse.target.capabilities import MMA_ROWS
from tilefuse.templates.staged.pipelined.elements import Elements, Point
from tilefuse.templates.staged.pipelined.points import RowPoints, point_of

# Rows whose sums a warp has.
GROUP_ROWS = MMA_ROWS


def column_sums(graph: Graph) -> tuple[Node, ...]:
    """Results that may be such sums, as far as their own axes tell: f32, of 16 elements each, which no other node reads."""
    return tuple(n for n in graph.nodes if n.kind == "reduce.sum" and n.name in graph.results and [e for _, e in n.over] == [GROUP_ROWS]
                 and not graph.users_by_name[n.name] and _adds_f32(n, graph))


def _adds_f32(node: Node, graph: Graph) -> bool:
    return node.body is not None and node.type.dtype == F32 == dtype_of(node.body, lambda v: graph.type_of(v).dtype)


def without_sums(graph: Graph, sums: tuple[Node, ...]) -> Graph:
    """The pattern without such sums; elements remain as results."""
    names = {n.name for n in sums}
    nodes, results = (n for n in graph.nodes if n.name not in names), (r for r in graph.results if r not in names)
    return replace(graph, nodes=tuple(nodes), results=tuple(results))


@dataclass(frozen=True)
class ColumnForm:
    """Column sums of one kernel. points: for each its axes, the added one too, over the products' axes."""

    points: Mapping[str, Point]


def column_form(graph: Graph, sums: tuple[Node, ...], products: tuple[str, ...], elements: Elements,
                reduced: RowPoints) -> ColumnForm | Rejected:
    """Where column sums lie, or why a kernel does not add them beside `elements`. reduced: reductions of whole rows, for them to read."""
    points: dict[str, Point] = {}
    for node in sums:
        place = point_of(graph, products, node, elements.extents, reduced)
        if isinstance(place, Rejected):
            return place
        point, sizes = place
        within, rows = node.over[0][0], elements.windows[ROW]
        outside = [point[a] for a in node.axes if ROW in point[a].axes()]
        # A single group has no axis of its own.
        expected = (axis(ROW), []) if rows == GROUP_ROWS else (axis(ROW) % GROUP_ROWS, [axis(ROW) // GROUP_ROWS])
        if (point[within], outside) != expected or rows % GROUP_ROWS:
            return Rejected(Reason.OTHER_TEMPLATE, f"%{node.name} does not add groups of {GROUP_ROWS} rows of %{products[0]}")
        if sizes != dict(elements.windows):
            return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} has another part of the product %{products[0]} than the other results")
        points[node.name] = point
    return ColumnForm(points)
