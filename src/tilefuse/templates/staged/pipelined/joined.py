"""Maps on the sums that one other map reads are written into it, so that short forms span what a program computes in several steps.

    e = erf(0.7 x)    s = 1 + e    y = g * s      ->      y = g * (1 + erf(0.7 x))

A gradient of GELU is a dozen such nodes; as one expression its 1 + erf is one function of ten instructions (`ir/short_forms.py`).
"""
from __future__ import annotations

from collections import Counter

from tilefuse.base.construction import replace
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Call, Expr, Lookup, Read, reads, substitute_axes, transform, walk


def joined_maps(graph: Graph) -> Graph:
    """The graph without the maps, beside those of operands, that a single map reads, once for each of their elements.

    Exact: yes, every element is computed by the same operations.
    """
    count: Counter[str] = Counter()
    reader_by_value: dict[str, Node] = {}
    for node in graph.nodes:
        # Values at places that data give, and operands of products, stay values.
        read = [e.value for e in walk(node.body) if isinstance(e, Read)] if node.body is not None else list(node.reads()) * 2
        kept = [e.value for e in walk(node.body) if isinstance(e, Lookup)] * 2 if node.body is not None else []
        count.update([*read, *kept])
        reader_by_value.update(dict.fromkeys(read, node))
    of_operands = needed_by_products(graph)
    body_by_name: dict[str, Expr] = {}

    def joins(node: Node) -> bool:
        reader = reader_by_value.get(node.name)
        return (node.name not in of_operands and node.category == "map" and node.name not in graph.results and count[node.name] == 1
                and reader is not None and reader.category == "map" and reader.type.num_elements == node.type.num_elements)

    nodes: list[Node] = []
    for node in graph.nodes:
        if node.body is not None and not body_by_name.keys().isdisjoint(reads(node.body)):
            node = replace(node, body=_with_bodies(graph, node, body_by_name))
        if joins(node) and node.body is not None:
            body_by_name[node.name] = node.body
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes)) if body_by_name else graph


def _with_bodies(graph: Graph, node: Node, body_by_name: dict[str, Expr]) -> Expr:
    """The body of a node with those of the values that it reads."""
    assert node.body is not None

    def one(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.value not in body_by_name:
            return e
        inner = graph.node_by_name[e.value]
        body = substitute_axes(body_by_name[e.value], dict(zip(inner.axes, e.index, strict=True)), node.extents)
        same = dtype_of(body, lambda v: graph.type_of(v).dtype) == inner.type.dtype
        return body if same else Call(inner.type.dtype.name, (body,))

    return transform(node.body, one)


def needed_by_products(graph: Graph) -> set[str]:
    """Names of the values that products need."""
    needed: set[str] = set()
    for node in reversed(graph.nodes):
        if node.category == "library" or node.name in needed:
            needed.update(node.reads())
    return needed
