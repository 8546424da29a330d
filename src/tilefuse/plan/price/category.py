"""Kind of work of a kernel, in the three classes by which fusion patterns are counted."""
from __future__ import annotations

from collections.abc import Iterable

from tilefuse.ir.graph import Node
from tilefuse.ir.scalar import Call, Expr, Index, Read, walk

ELEMENTWISE, REDUCTION, PRODUCT = "elementwise", "reduction", "product"


def category_of(nodes: Iterable[Node]) -> str:
    """The class of a pattern: product if it holds a matrix product, else reduction if it holds a reduction or scan, else elementwise.

    Source: FusionStitching 6.4, where products are called gemm.
    """
    category = ELEMENTWISE
    for node in nodes:
        if is_product(node):
            return PRODUCT
        if node.category in ("reduce", "scan"):
            category = REDUCTION
    return category


def is_product(node: Node) -> bool:
    """Whether the node multiplies matrices: a library call that does, or a sum of factors that each have a result axis of their own.

    A product of a matrix with a vector is not one: it reads as much as it computes.
    """
    if node.category == "library":
        return node.detail in ("matmul", "grouped_matmul")
    if node.kind != "reduce.sum" or node.body is None:
        return False
    summed = {name for name, _ in node.over}
    for e in walk(node.body):
        if isinstance(e, Call) and e.fn == "mul":
            left, right = (_axes(a) for a in e.args)
            if left & right & summed and left - right - summed and right - left - summed:
                return True
    return False


def _axes(e: Expr) -> frozenset[str]:
    """Axes that the subscripts of values in `e` depend on."""
    axes: set[str] = set()
    for part in walk(e):
        if isinstance(part, Read):
            axes.update(a for i in part.index for a in i.axes())
        elif isinstance(part, Index):
            axes.update(part.affine.axes())
    return frozenset(axes)
