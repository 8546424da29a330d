"""Fills that several scatters start from: each scatter gets one of its own, so that none is copied."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.graph import Graph, Node
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass


@register_pass
@dataclass(frozen=True)
class SeparateFills(Pass):
    """Give every scatter that starts from a fill a fill of its own.

        %z = map { 0 }  %a = scatter into %z  %b = scatter into %z    ->    %z = map { 0 }  %a = scatter into %z
                                                                            %y = map { 0 }  %b = scatter into %y

    A fill that only one scatter needs is written straight to the memory of the scatter's result. A shared one is copied for each scatter,
    and the copy is one more read.
    Exact: bit for bit.
    """

    name: ClassVar[str] = "separate-fills"
    establishes: ClassVar[Properties] = frozenset({Property.FILLS_SEPARATE})
    preserves: ClassVar[Properties] = frozenset({Property.NO_DEAD_NODES, Property.PRIMITIVE_OPS_ONLY, Property.AFFINE_INDICES_NORMAL,
                                                 Property.VIEWS_INLINED, Property.UPDATES_SEPARATE})

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph with more fills; `graph` itself where each scatter has its own."""
        return separate_fills(graph)


def shared_fills(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Pairs (scatter, initial fill) where an earlier scatter, a result or an update needs the fill as well."""
    taken: set[str] = set(graph.results) | {value for pair in graph.updates for value in pair}
    for node in graph.nodes:
        base = graph.node_by_name.get(node.operands[0]) if node.category == "scatter" else None
        if base is not None and base.category == "map" and not base.reads():
            if base.name in taken:
                yield node, base
            taken.add(base.name)


def separate_fills(graph: Graph) -> Graph:
    """The graph in which every scatter that starts from a fill has a fill of its own; the same object if each has."""
    shared = {node.name: base for node, base in shared_fills(graph)}
    if not shared:
        return graph
    names = set(graph.type_by_name)
    nodes: list[Node] = []
    for node in graph.nodes:
        base = shared.get(node.name)
        if base is not None:
            name = f"{base.name}_of_{node.name}"
            while name in names:
                name += "_"
            names.add(name)
            nodes.append(replace(base, name=name))
            node = replace(node, operands=(name, *node.operands[1:]))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))
