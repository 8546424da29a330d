"""Results and updates that are inputs themselves are copied, so that writing an input in place does not change them."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import axis
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Read
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass


@register_pass
@dataclass(frozen=True)
class SeparateUpdates(Pass):
    """Copy updated inputs and constants that are a result or the value of another update.

        update %a = %b   update %b = %a     ->    %a_copy = map { %a }  %b_copy = map { %b }   update %a = %b_copy   update %b = %a_copy

    Exact: bit for bit.
    """

    name: ClassVar[str] = "separate-updates"
    establishes: ClassVar[Properties] = frozenset({Property.UPDATES_SEPARATE})
    preserves: ClassVar[Properties] = frozenset({Property.NO_DEAD_NODES, Property.PRIMITIVE_OPS_ONLY, Property.AFFINE_INDICES_NORMAL,
                                                 Property.VIEWS_INLINED, Property.FILLS_SEPARATE})

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph with copies; `graph` itself where every result and update is apart."""
        return separate_updates(graph)


def values_apart(graph: Graph) -> set[str]:
    """Inputs and constants that no result may be: updated inputs, and constants with elements to protect."""
    return {i for i, _ in graph.updates} | {i.name for i in graph.inputs if i.constant and i.type.num_elements}


def separate_updates(graph: Graph) -> Graph:
    """The graph with a copy wherever a result or an update is an input or constant that must stay apart; the same object if none is.

    A result that is an updated input has its old contents. A result that is a constant is a copy, because the caller may write into it.
    An update by another updated input takes that one's old contents.
    """
    updated = {i for i, _ in graph.updates}
    apart = values_apart(graph)
    nodes = list(graph.nodes)
    copies: dict[str, str] = {}
    names_in_use = set(graph.type_by_name)

    def copied(value: str) -> str:
        if value not in copies:
            name = free_name(f"{value}_copy", names_in_use)
            type_ = graph.type_of(value)
            axes = axis_names(len(type_.shape))
            nodes.append(Node(name, type_, "map", axes, body=Read(value, tuple(map(axis, axes)))))
            copies[value] = name
        return copies[value]

    results = tuple(copied(r) if r in apart else r for r in graph.results)
    updates = tuple((i, copied(v) if v in updated else v) for i, v in graph.updates if i != v)
    if not copies:
        return graph
    return replace(graph, nodes=tuple(nodes), results=results, updates=updates)
