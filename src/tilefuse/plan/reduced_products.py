"""The nodes behind a product that one kernel may compute with its whole rows, as the gradient of a norm.

    dy = gradient w                        the product
    a = sum j: dy scale,  b = sum j: dy scale n        reductions of its rows
    dx = past + rate (dy scale - a - n b)              maps on its elements; a product or the caller reads the last one
    sum i: dy n,  sum i: dx                            sums down its columns
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import prod

from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Read, walk
from tilefuse.passes.analyses import is_pure_view
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.columns.form import GROUP_ROWS


@dataclass(frozen=True)
class ReducedProduct:
    """A product, the maps and row reductions that one kernel computes from its elements, and the column sums.

    inside  maps and reductions of rows, in order of the graph; the maps that they read and that nothing stores are among them
    sums    sums down all rows, or down groups of rows
    """

    product: Node
    inside: tuple[str, ...]
    sums: tuple[str, ...]


def find_reduced_products(graph: Graph, device: DeviceSpec) -> tuple[tuple[str, ...], ...]:
    """Products with the maps, row reductions and sums of groups of rows that one kernel computes with each, in graph order."""
    if not device.capabilities.warpgroup_products:
        return ()
    behind = RowsBehind(graph)
    reduced = (behind.reduced(n) for n in graph.nodes if n.kind == "library.matmul")
    return tuple((f.product.name, *f.inside, *f.sums) for f in reduced
                 if f is not None and all(len(graph.type_of(s).shape) == 2 for s in f.sums))


class RowsBehind:
    """The rows behind the products of one graph. Facts of the graph that every product needs are computed once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def reduced(self, product: Node) -> ReducedProduct | None:
        """The rows behind a product of two matrices; None where no rows are reduced, no columns added, or nothing of it is stored."""
        graph = self._graph
        if product.kind != "library.matmul" or len(product.type.shape) != 2 or not product.type.dtype.is_float:
            return None
        rows, columns = product.type.shape
        if rows % GROUP_ROWS or rows == GROUP_ROWS or self._sums_down.isdisjoint(_shapes_of_sums(rows, columns)):
            return None
        near, sums = self._dependents(product, rows, columns)
        if not sums:
            return None
        stored = self._stored
        results = {v for v in near if v in stored and graph.node_by_name[v].type.num_elements == rows * columns}
        read = {v for s in sums for v in graph.node_by_name[s].reads()}
        inside = _ancestors(graph, results | read, near, stored) - {product.name}
        if not results or not any(graph.node_by_name[n].category == "reduce" for n in inside):
            return None
        return ReducedProduct(product, tuple(n.name for n in graph.in_order(inside)), sums)

    @cached_property
    def _sums_down(self) -> frozenset[tuple[int, tuple[int, ...]]]:
        """Number of added elements and shape of every sum of the graph."""
        return frozenset((prod(e for _, e in n.over), n.type.shape) for n in self._graph.nodes if n.kind == "reduce.sum")

    @cached_property
    def _stored(self) -> set[str]:
        return _stored(self._graph)

    @cached_property
    def _products_before(self) -> dict[str, int]:
        """Products that each value is computed from, itself among them: bit n is the n-th library operator of the graph."""
        bits: dict[str, int] = {}
        number = 0
        for node in self._graph.nodes:
            mask = 0
            for value in node.reads():
                mask |= bits.get(value, 0)
            if node.category == "library":
                mask |= 1 << number
                number += 1
            bits[node.name] = mask
        return bits

    @cached_property
    def _bit(self) -> dict[str, int]:
        """The bit of each library operator in `_products_before`."""
        return {name: 1 << n for n, name in enumerate(n.name for n in self._graph.nodes if n.category == "library")}

    def _dependents(self, product: Node, rows: int, columns: int) -> tuple[set[str], tuple[str, ...]]:
        """Maps and row reductions that need nothing else that is computed from the product, itself among them; and the sums down their
        rows. Cost: linear in the users of these values."""
        graph, before, bit = self._graph, self._products_before, self._bit[product.name]
        near, sums = {product.name}, list[str]()
        # In order of the graph, so that the values that a node reads are decided before it.
        position = graph.position_by_name
        waiting = [position[u] for u in dict.fromkeys(graph.users_by_name[product.name])]
        seen = set(waiting)
        heapify(waiting)
        while waiting:
            node = graph.nodes[heappop(waiting)]
            terms = node.type.num_elements * prod(e for _, e in node.over)
            if node.body is None or terms not in (rows * columns, rows):
                continue
            if any(before.get(v, 0) & bit and v not in near for v in node.reads()):
                continue
            if node.kind == "reduce.sum" and _is_down(node, rows, columns, near) and _adds_f32(node, graph):
                sums.append(node.name)
            elif node.category == "map" or node.category == "reduce" and node.type.num_elements == rows:
                near.add(node.name)
                for user in graph.users_by_name[node.name]:
                    if position[user] not in seen:
                        seen.add(position[user])
                        heappush(waiting, position[user])
        return near, tuple(sums)


def reduced_product(graph: Graph, product: Node) -> ReducedProduct | None:
    """The rows behind one product (`RowsBehind.reduced`)."""
    return RowsBehind(graph).reduced(product)


def _shapes_of_sums(rows: int, columns: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Number of added elements and shape of a sum of all rows, and of sums of groups of 16 rows."""
    return (rows, (columns,)), (GROUP_ROWS, (rows // GROUP_ROWS, columns))


def _is_down(node: Node, rows: int, columns: int, near: set[str]) -> bool:
    """Whether a sum adds all rows of each column, or the 16 rows of each group. near: values computed from the product."""
    over, shape, added = prod(e for _, e in node.over), node.type.shape, {a for a, _ in node.over}
    if (over, shape) not in _shapes_of_sums(rows, columns):
        return False
    # With as many rows as columns the subscripts tell: the last one is the column.
    assert node.body is not None
    return all(added.isdisjoint(e.index[-1].axes()) for e in walk(node.body) if isinstance(e, Read) and e.value in near)


def _adds_f32(node: Node, graph: Graph) -> bool:
    assert node.body is not None
    return node.type.dtype == F32 == dtype_of(node.body, lambda v: graph.type_of(v).dtype)


def _stored(graph: Graph) -> set[str]:
    """Values with memory of their own in every plan: results, and operands of library operators, through views of them."""
    stored = set(graph.escaping) | {v for n in graph.nodes for v in n.operands}
    for node in reversed(graph.nodes):
        if node.name in stored and is_pure_view(node):
            stored |= set(node.reads())
            stored.discard(node.name)
    return stored


def _ancestors(graph: Graph, values: Iterable[str], near: set[str], stored: set[str]) -> set[str]:
    """The values and the maps and near nodes that they are computed from, down to stored values and results of other products' kernels."""
    products = {n.name for n in graph.nodes if n.category == "library"}
    seen: set[str] = set()
    waiting = list(values)
    while waiting:
        node = graph.node_by_name.get(waiting.pop())
        if node is None or node.name in seen:
            continue
        if node.name not in near and (node.category != "map" or node.name in stored or not products.isdisjoint(node.reads())):
            continue
        seen.add(node.name)
        waiting += node.reads() if node.category != "library" else ()
    return seen
