"""Arithmetic of f32 products and convolutions, stated in the nodes, so that everything behind reads it there."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Node
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass

PRODUCTS = ("library.matmul", "library.grouped_matmul")
CONVOLUTIONS = ("library.convolution", "library.convolution_backward")


@register_pass
@dataclass(frozen=True)
class StatePrecision(Pass):
    """State the precision of f32 products and convolutions that state none.

    products      the attribute `precision` of matrix products: "default", "f32" (multiply-adds) or "tf32" (one product of 11 bits)
    convolutions  the same of convolutions and of their gradients
    Exact: the definition of a product stays; kernels and libraries compute it as exactly as it states.
    """

    name: ClassVar[str] = "state-precision"
    preserves: ClassVar[Properties] = frozenset(Property) - {Property.NO_EQUAL_NODES}
    products: str = "default"
    convolutions: str = "default"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph with stated precisions; `graph` itself where each product states its own or both options are the default."""
        by_kind = dict.fromkeys(PRODUCTS, self.products) | dict.fromkeys(CONVOLUTIONS, self.convolutions)
        if set(by_kind.values()) == {"default"}:
            return graph
        nodes = tuple(_precise(n, graph, by_kind.get(n.kind, "default")) for n in graph.nodes)
        return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _precise(node: Node, graph: Graph, precision: str) -> Node:
    if precision == "default" or node.attribute("precision", "default") != "default":
        return node
    if graph.type_of(node.operands[0]).dtype != F32:
        return node
    attributes = dict(node.attributes) | {"precision": precision}
    return replace(node, attributes=tuple(sorted(attributes.items())))
