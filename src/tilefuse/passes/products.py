"""Small matrix products as reductions, so that they can share a kernel with their neighbours."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import axis, number
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.dtype import compute_dtype
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.library.meaning import inner_extent
from tilefuse.ir.scalar import Expr, Read, call
from tilefuse.passes.decompose import Rewriter
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass


@register_pass
@dataclass(frozen=True)
class ExpandProducts(Pass):
    """Write small library matrix products as a sum of products over an axis of their own.

    max_flops: products with more operations stay library calls. Units: floating-point operations (2 * M * N * K).
    Exact: no; the sum is taken in the compute dtype in another order than the library's.
    """

    name: ClassVar[str] = "expand-products"
    preserves: ClassVar[Properties] = frozenset({Property.NO_DEAD_NODES, Property.PRIMITIVE_OPS_ONLY, Property.AFFINE_INDICES_NORMAL})
    exact: ClassVar[bool] = False

    max_flops: int = 65536

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if not any(self._small(n, graph) for n in graph.nodes):
            return graph
        b = Rewriter(graph)
        for node in graph.nodes:
            if self._small(node, graph):
                b.prefix, b.span = f"{node.name}_", node.span
                b.rename_last(_product(b, node), node.name)
                b.prefix = ""
                ctx.count("expanded")
            else:
                b.add(node)
        return replace(graph, nodes=tuple(b.nodes))

    def _small(self, node: Node, graph: Graph) -> bool:
        return node.kind == "library.matmul" and 2 * node.type.num_elements * inner_extent(node, graph) <= self.max_flops


def _product(b: Rewriter, node: Node) -> str:
    """reduce.sum [.., i, j] over [k] { a[.., i, k] * b[.., k, j] }, rounded to the node's dtype."""
    left, right = node.operands
    work = compute_dtype(node.type.dtype)
    *lead, row, column, inner = axis_names(len(node.type.shape) + 1)
    extent = b.shape_of(left)[-2 if node.attribute("transpose_a") else -1]

    def element(value: str, last: tuple[str, str]) -> Expr:
        shape = b.shape_of(value)
        names = (*lead[len(lead) - (len(shape) - 2) :], *last)
        index = tuple(number(0) if s == 1 else axis(n) for s, n in zip(shape, names, strict=True))
        return converted(Read(value, index), b.dtype_of(value), work)

    a = element(left, (inner, row) if node.attribute("transpose_a") else (row, inner))
    c = element(right, (column, inner) if node.attribute("transpose_b") else (inner, column))
    total = b.reduce_node("sum", work, node.type.shape, (*lead, row, column), [(inner, extent)], call("mul", a, c), name="sum")
    return b.cast(total, node.type.dtype)
