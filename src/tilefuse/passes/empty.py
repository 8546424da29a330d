"""Values without elements: no computation is needed, so no kernel should be planned for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tilefuse.ir.graph import Graph, Input
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass


@register_pass
@dataclass(frozen=True)
class BindEmptyValues(Pass):
    """Turn every node whose result has no elements into a constant input with (no) data.

    Exact: there is nothing to compute. Values that update an input stay.
    """

    name: ClassVar[str] = "bind-empty-values"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY})

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        updating = {value for _, value in graph.updates}
        empty = [n for n in graph.nodes if n.type.num_elements == 0 and n.name not in updating]
        if not empty:
            return graph
        for node in empty:
            ctx.constants[node.name] = np.zeros(node.type.shape, NUMPY_DTYPES[node.type.dtype.name])
        ctx.count("bound", len(empty))
        empty_names = {n.name for n in empty}
        constants = tuple(Input(n.name, n.type, constant=True) for n in empty)
        return replace(graph, inputs=(*graph.inputs, *constants), nodes=tuple(n for n in graph.nodes if n.name not in empty_names))
