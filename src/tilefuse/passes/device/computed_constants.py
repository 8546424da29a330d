"""Values that passes add and that follow from constants alone: computed once, by the interpreter, and constants themselves from then on.

    %w: constant    %w_filters = map { .. %w .. }    y = matmul(x, %w_filters)    ->    %w_filters: constant    y = matmul(x, %w_filters)
"""
from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilefuse.ir.graph import Graph, Input
from tilefuse.ir.interpret import interpret
from tilefuse.passes.manager import PassContext


def constants_at_hand(graph: Graph, ctx: PassContext) -> frozenset[str]:
    """Constants that nothing updates and whose contents are at hand."""
    updated = {target for target, _ in graph.updates}
    return frozenset(i.name for i in graph.inputs if i.constant and i.name not in updated and ctx.array_of(i.name) is not None)


def with_computed_constants(graph: Graph, before: Graph, at_hand: frozenset[str], ctx: PassContext) -> Graph:
    """The graph with maps that `before` does not have, of constants at hand, as constants; their contents are entered into the context.

    Exact: as the interpreter, which defines the maps.
    """
    known = set(at_hand)
    computed: dict[str, None] = {}
    for node in graph.nodes:
        if node.name not in before.type_by_name and node.category == "map" and known.issuperset(node.reads()) and node.reads():
            known.add(node.name)
            computed[node.name] = None
    if not computed:
        return graph
    left = tuple(n for n in graph.nodes if n.name not in computed)
    read = {v for n in left for v in n.reads()} | set(graph.escaping)
    names_read = tuple(name for name in computed if name in read)
    nodes = graph.in_order(computed)
    sources = tuple(Input(v, graph.type_of(v)) for v in dict.fromkeys(v for n in nodes for v in n.reads()) if v in at_hand)
    contents = interpret(Graph("constants", sources, nodes, names_read), {i.name: np.asarray(ctx.array_of(i.name)) for i in sources})
    ctx.constants.update(zip(names_read, map(np.asarray, contents), strict=True))
    inputs = (*graph.inputs, *(Input(name, graph.type_of(name), constant=True) for name in names_read))
    return replace(graph, nodes=left, inputs=tuple(i for i in inputs if not i.constant or i.name in read))
