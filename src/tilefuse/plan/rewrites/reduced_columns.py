"""Sums down the columns behind a product whose rows are reduced, as of a norm's gradient, become partial sums that its kernel adds.

    product | a kernel of the rows, which carries the sums       ->       one kernel of the product, the rows and partial sums

Alone, each sum is cheaper in the kernel of the rows; only with all of them in the product's kernel does nothing read its elements again.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.ir.graph import Graph
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.plan.reduced_products import ReducedProduct, reduced_product
from tilefuse.plan.rewrites.column_sums import with_partial_sums
from tilefuse.target.device import DeviceSpec


@register_pass
@dataclass(frozen=True)
class SumReducedColumns(DevicePass):
    """Add columns of elements behind a product whose rows are reduced in one kernel with all of them, where that is predicted to be faster.

    Exact: no; sums are associated differently.
    """

    name: ClassVar[str] = "sum-reduced-columns"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    for_fusion: ClassVar[bool] = True
    asks_prices: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with partial sums; `graph` itself where none is faster."""
        assert ctx.prices is not None
        if not device.capabilities.warpgroup_products:
            return graph
        for name in [n.name for n in graph.nodes if n.kind == "library.matmul"]:
            reduced = reduced_product(graph, graph.node_by_name[name])
            if reduced is not None:
                graph = _cheaper(graph, reduced, ctx.prices)
        return graph


def _cheaper(graph: Graph, reduced: ReducedProduct, prices: Prices) -> Graph:
    """The graph with partial sums for all column sums behind reduced rows, or `graph` where the product and a kernel of the rows, which
    carries the sums, are as fast."""
    product, rewritten, partial = reduced.product, graph, list[str]()
    apart_us = prices.product_us(product, graph) + prices.kernel_us(graph, reduced.inside, False, 0)
    if any(len(graph.type_of(s).shape) != 1 for s in reduced.sums):
        return graph
    for name in reduced.sums:
        rewritten, part = with_partial_sums(rewritten, rewritten.node_by_name[name])
        partial.append(part)
    us = prices.own_product_us(rewritten, (product.name, *reduced.inside, *partial), {})
    if us is None:
        return graph
    read_us = prices.copy_us(sum(rewritten.type_of(p).num_bytes for p in partial), 1)
    return rewritten if us + read_us < apart_us else graph
