"""Sums down the columns of elements computed from a product become partial sums of groups of rows, which the product's kernel adds.

    b[j] = sum_i f(y[i, j])      ->      p[g, j] = sum_(t < 16) f(y[16 g + t, j])      b[j] = sum_g p[g, j]

A bias's gradient is such a sum: of the gradient that comes out of one product and goes into the next one. The product's kernel has its
elements in registers; a kernel of the sum alone would read them all again, and keep them in memory until then.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tilefuse.ir.affine import axis, delinearise
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.names import free_name
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Read, substitute_axes
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.columns.form import GROUP_ROWS

GROUP, WITHIN = "g", "t"


@register_pass
@dataclass(frozen=True)
class SumProductColumns(DevicePass):
    """Add columns of elements computed from a product in the product's own kernel, where that is predicted to be faster.

    Exact: no; sums are associated differently.
    """

    name: ClassVar[str] = "sum-product-columns"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    for_fusion: ClassVar[bool] = True
    asks_prices: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with partial sums; `graph` itself where none is faster."""
        assert ctx.prices is not None
        if not device.capabilities.warpgroup_products:
            return graph
        for name in [n.name for n in graph.nodes if n.kind == "reduce.sum"]:
            graph = _cheaper(graph, graph.node_by_name[name], ctx.prices)
        return graph


def _cheaper(graph: Graph, node: Node, prices: Prices) -> Graph:
    """The graph with partial sums for a node, or `graph` where another kernel reads the elements as fast."""
    behind = maps_of_sum(graph, node)
    if behind is None:
        return graph
    product, maps = behind
    alone_us = prices.own_product_us(graph, (product.name, *maps), {}) if maps else None
    if maps and alone_us is None:
        return graph
    rewritten, partial = with_partial_sums(graph, node)
    us = prices.own_product_us(rewritten, (product.name, *maps, partial), {})
    if us is None:
        return graph
    last = graph.type_of(maps[-1] if maps else product.name)
    apart_us = (alone_us if alone_us is not None else prices.product_us(product, graph)) + prices.copy_us(last.num_bytes, 1)
    return rewritten if us + prices.copy_us(rewritten.type_of(partial).num_bytes, 1) < apart_us else graph


def maps_of_sum(graph: Graph, node: Node) -> tuple[Node, tuple[str, ...]] | None:
    """The product whose elements a column sum is computed from, and the maps between them in order; None for other sums.

    The sum has one element a column and adds all rows, in f32; rows are whole groups. Other values that maps read are no products.
    """
    if node.body is None or len(node.axes) != 1 or node.type.dtype != F32 or dtype_of(node.body, lambda v: graph.type_of(v).dtype) != F32:
        return None
    rows, (columns,) = prod(e for _, e in node.over), node.type.shape
    maps, products = _between(graph, node.reads(), rows * columns)
    if len(products) != 1 or rows % GROUP_ROWS or rows == GROUP_ROWS:
        return None
    (product,) = products
    if product.kind != "library.matmul" or product.type.shape != (rows, columns) or not product.type.dtype.is_float:
        return None
    return product, maps


def _between(graph: Graph, values: Iterable[str], num_elements: int) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """Maps that values are computed from, down to boundary values, products and reductions; and the products of as many elements."""
    maps: set[str] = set()
    products: dict[str, Node] = {}
    waiting = list(values)
    while waiting:
        node = graph.node_by_name.get(waiting.pop())
        if node is None or node.name in maps:
            continue
        if node.category == "library" and node.type.num_elements == num_elements:
            products[node.name] = node
        elif node.category == "map" and node.type.num_elements == num_elements:
            maps.add(node.name)
            waiting += node.reads()
    return tuple(n.name for n in graph.nodes if n.name in maps), tuple(products.values())


def with_partial_sums(graph: Graph, node: Node) -> tuple[Graph, str]:
    """The graph with a column sum by groups of rows, and the name of the partial sums."""
    assert node.body is not None
    shape = tuple(e for _, e in node.over)
    groups = prod(shape) // GROUP_ROWS
    names = {*node.axes, *(a for a, _ in node.over)}
    group, within = free_name(GROUP, names), free_name(WITHIN, names)
    extents = dict(zip(node.axes, node.type.shape, strict=True)) | {group: groups, within: GROUP_ROWS}
    where = delinearise(axis(group) * GROUP_ROWS + axis(within), shape, extents)
    body = substitute_axes(node.body, dict(zip((a for a, _ in node.over), where, strict=True)), extents)
    name = free_name(f"{node.name}_groups", set(graph.type_by_name))
    partial = replace(node, name=name, type=Type(F32, (groups, *node.type.shape)), axes=(group, *node.axes), over=((within, GROUP_ROWS),),
                      body=body)
    whole = replace(node, over=((group, groups),), body=Read(name, (axis(group), *(axis(a) for a in node.axes))))
    nodes = tuple(part for n in graph.nodes for part in ((partial, whole) if n is node else (n,)))
    return replace(graph, nodes=nodes), name
