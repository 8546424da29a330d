"""Constant folding: nodes that depend on constants only are computed now."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tilefuse.ir.building.tensor_elementwise import INLINE_CONSTANT_ELEMENTS
from tilefuse.ir.graph import Graph, Input, Node
from tilefuse.ir.interpret import interpret
from tilefuse.passes.analyses import is_computed_view, is_pure_view
from tilefuse.passes.decompose import Rewriter
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass


@register_pass
@dataclass(frozen=True)
class FoldConstants(Pass):
    """Compute with the interpreter every node that depends only on constant inputs whose data is at hand.

    limit: nodes whose result or whose operands have more elements stay. Units: elements.
    A result of up to 64 elements becomes a map of constants, a larger one a constant input whose data goes to the context's
    `constants`. Views of constants stay views (they cost nothing), and so do library calls.
    Exact: as the interpreter, which defines the operators; functions that it rounds correctly may differ from a device's
        by that device's error.
    """

    name: ClassVar[str] = "fold-constants"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY})
    exact: ClassVar[bool] = False

    limit: int = 65536

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        known = self._known_inputs(graph, ctx)
        computed: dict[str, np.ndarray] = {}
        for node in graph.nodes:
            if self._foldable(node, known):
                value = _compute(graph, node, known)
                known[node.name] = computed[node.name] = value
        frontier = _frontier(graph, computed)
        if not frontier:
            return graph
        return self._rewritten(graph, {name: computed[name] for name in frontier}, ctx)

    def _known_inputs(self, graph: Graph, ctx: PassContext) -> dict[str, np.ndarray]:
        updated = {name for name, _ in graph.updates}
        known: dict[str, np.ndarray] = {}
        for item in graph.inputs:
            data = ctx.array_of(item.name) if item.constant and item.name not in updated else None
            if data is not None and data.size <= self.limit:
                known[item.name] = data
        return known

    def _foldable(self, node: Node, known: dict[str, np.ndarray]) -> bool:
        if node.category == "library" or node.type.num_elements > self.limit or is_computed_view(node):
            return False
        reads = node.reads()
        if not reads or not all(v in known for v in reads):
            return False
        return not is_pure_view(node) or node.type.num_elements <= INLINE_CONSTANT_ELEMENTS

    def _rewritten(self, graph: Graph, values: dict[str, np.ndarray], ctx: PassContext) -> Graph:
        b = Rewriter(graph)
        new_inputs: list[Input] = []
        nodes: list[Node] = []
        for node in graph.nodes:
            if node.name not in values:
                nodes.append(node)
                continue
            data = values[node.name]
            if data.size > INLINE_CONSTANT_ELEMENTS and node.name not in graph.escaping:
                new_inputs.append(Input(node.name, node.type, constant=True))
                ctx.constants[node.name] = data
            elif data.size > INLINE_CONSTANT_ELEMENTS:
                nodes.append(node)
                continue
            else:
                b.hint, b.span = node.name, node.span
                b.reserved.discard(node.name)
                b.nodes.clear()
                b.constant_array(data, node.type.dtype)
                nodes.extend(b.nodes)
            ctx.count("folded")
        if len(nodes) == len(graph.nodes) and all(a is c for a, c in zip(nodes, graph.nodes, strict=True)):
            return graph
        return replace(graph, inputs=(*graph.inputs, *new_inputs), nodes=tuple(nodes))


def _compute(graph: Graph, node: Node, known: dict[str, np.ndarray]) -> np.ndarray:
    """The node's value, computed by a graph of its own."""
    inputs = tuple(Input(v, graph.type_of(v)) for v in node.reads())
    alone = Graph(node.name, inputs, (node,), (node.name,))
    results = interpret(alone, {i.name: known[i.name] for i in inputs})
    return np.asarray(results[0])


def _frontier(graph: Graph, computed: dict[str, np.ndarray]) -> tuple[str, ...]:
    """Folded values that escape or that a node which is not folded uses; in graph order."""
    needed = {v for v in graph.escaping if v in computed}
    for node in graph.nodes:
        if node.name not in computed:
            needed.update(v for v in node.reads() if v in computed)
    return tuple(n.name for n in graph.nodes if n.name in needed)
