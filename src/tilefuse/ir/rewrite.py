"""Rewriting aids on whole nodes and graphs: renaming, canonical names. Scalar trees have theirs in `scalar.py`."""
from __future__ import annotations

from collections.abc import Mapping

from tilefuse.base.construction import replace
from tilefuse.ir.affine import axis
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import rename_reads, substitute_axes


def rename_operands(node: Node, names: Mapping[str, str]) -> Node:
    """`node` reading `names[v]` for every key v of `names` that it reads; `node` itself if it reads none."""
    body = None if node.body is None else rename_reads(node.body, names)
    target = tuple(rename_reads(t, names) for t in node.target)
    operands = tuple(names.get(v, v) for v in node.operands)
    if body is node.body and operands == node.operands and all(a is b for a, b in zip(target, node.target, strict=True)):
        return node
    return replace(node, body=body, target=target, operands=operands)


def rename_values(graph: Graph, names: Mapping[str, str]) -> Graph:
    """`graph` with inputs, nodes and all uses renamed; `graph` itself if no key of `names` occurs in it.

    Requires: the new names clash neither with each other nor with the remaining names.
    """
    if not any(name in names for name in graph.type_by_name):
        return graph

    def new(name: str) -> str:
        return names.get(name, name)

    return Graph(
        graph.name,
        tuple(replace(i, name=new(i.name)) for i in graph.inputs),
        tuple(replace(rename_operands(n, names), name=new(n.name)) for n in graph.nodes),
        tuple(new(r) for r in graph.results),
        tuple((new(target), new(value)) for target, value in graph.updates),
    )


def rename_axes(node: Node, names: Mapping[str, str]) -> Node:
    """`node` with its axes renamed everywhere. Requires: the new names differ from the remaining axes."""
    by_axis = {old: axis(new) for old, new in names.items()}
    return replace(
        node,
        axes=tuple(names.get(a, a) for a in node.axes),
        over=tuple((names.get(a, a), extent) for a, extent in node.over),
        along=names.get(node.along, node.along),
        body=None if node.body is None else substitute_axes(node.body, by_axis),
        target=tuple(substitute_axes(t, by_axis) for t in node.target),
    )


def canonical(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The graph with values and axes renamed by their position, and the new name of every value.

    Two graphs that are equal up to names have the same canonical graph, so it serves as a key of their derived data.
    """
    names = {i.name: f"x{n}" for n, i in enumerate(graph.inputs)} | {node.name: f"v{n}" for n, node in enumerate(graph.nodes)}
    renamed = rename_values(replace(graph, name="g"), names)
    nodes = []
    for node in renamed.nodes:
        axes = {name: f"a{n}" for n, name in enumerate(node.extents)}
        nodes.append(replace(rename_axes(node, axes), span=None) if axes else replace(node, span=None))
    return replace(renamed, nodes=tuple(nodes)), names
