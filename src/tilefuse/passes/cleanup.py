"""Passes that remove superfluous nodes: equal nodes and dead nodes."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.base.construction import replace
from tilefuse.ir.affine import Affine, axis
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.rewrite import rename_operands
from tilefuse.ir.scalar import substitute_axes
from tilefuse.passes.analyses import live_values
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass


def merge_key(node: Node) -> object:
    """Equal for nodes that compute the same tensor: the node without its name, its axes named by position."""
    axes = (*node.axes, *(name for name, _ in node.over))
    canonical = tuple(f"#{n}" for n in range(len(axes)))
    renamed: dict[str, Affine] = {a: axis(c) for a, c in zip(axes, canonical, strict=True)}
    return replace(
        node,
        name="",
        axes=canonical[: len(node.axes)],
        over=tuple((c, extent) for c, (_, extent) in zip(canonical[len(node.axes) :], node.over, strict=True)),
        along=canonical[axes.index(node.along)] if node.along else "",
        body=None if node.body is None else substitute_axes(node.body, renamed),
        target=tuple(substitute_axes(e, renamed) for e in node.target),
    )


@register_pass
@dataclass(frozen=True)
class MergeEqualNodes(Pass):
    """Keep the first of any nodes that compute the same tensor, and point all users at it.

    Names of axes do not matter. Impure library calls carry a `call` attribute of their own, so they never merge.
    Exact: bit for bit (the same expression is evaluated once).
    Cost: linear; one visit, because operands are renamed before a node is compared.
    """

    name: ClassVar[str] = "merge-equal-nodes"
    establishes: ClassVar[Properties] = frozenset({Property.NO_EQUAL_NODES})
    preserves: ClassVar[Properties] = frozenset({Property.NO_DEAD_NODES, Property.PRIMITIVE_OPS_ONLY, Property.AFFINE_INDICES_NORMAL})

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        first: dict[object, str] = {}
        renamed: dict[str, str] = {}
        nodes: list[Node] = []
        for old in graph.nodes:
            node = rename_operands(old, renamed)
            equal_node = first.setdefault(merge_key(node), node.name)
            if equal_node == node.name:
                nodes.append(node)
            else:
                renamed[node.name] = equal_node
        if not renamed:
            return graph
        ctx.count("merged", len(renamed))
        return replace(
            graph,
            nodes=tuple(nodes),
            results=tuple(renamed.get(r, r) for r in graph.results),
            updates=tuple((i, renamed.get(v, v)) for i, v in graph.updates),
        )


@register_pass
@dataclass(frozen=True)
class RemoveDeadNodes(Pass):
    """Drop nodes that no result and no update depends on, and constant inputs that nothing uses.

    Other inputs stay, because they are the program's signature.
    Exact: bit for bit.
    """

    name: ClassVar[str] = "remove-dead-nodes"
    establishes: ClassVar[Properties] = frozenset({Property.NO_DEAD_NODES})
    preserves: ClassVar[Properties] = frozenset({Property.NO_EQUAL_NODES, Property.PRIMITIVE_OPS_ONLY, Property.AFFINE_INDICES_NORMAL})

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        live = live_values(graph)
        nodes = tuple(n for n in graph.nodes if n.name in live)
        updated = {name for name, _ in graph.updates}
        inputs = tuple(i for i in graph.inputs if not i.constant or i.name in live or i.name in updated)
        if len(nodes) == len(graph.nodes) and len(inputs) == len(graph.inputs):
            return graph
        ctx.count("removed", len(graph.nodes) - len(nodes))
        return replace(graph, nodes=nodes, inputs=inputs)
