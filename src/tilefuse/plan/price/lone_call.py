"""A single library call: the unit of timing, and the key of its stored time."""
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.plan.pattern import Pattern


@dataclass(frozen=True, slots=True)
class LoneCall:
    """A single library operator: a graph of its own, and the strides of its values that are not dense.

    library: name and version of the library, as "torch 2.11.0"; another version may have other kernels.
    predicted_us: predicted time of the call; 0 where nothing predicts it. Units: microseconds.
    """

    graph: Graph
    layouts: Layouts
    library: str = ""
    predicted_us: float = 0.0

    @property
    def node(self) -> Node:
        """The operator."""
        return self.graph.nodes[0]

    @property
    def key(self) -> str:
        """Key of everything that decides the call's time on one device: library, operator, attributes, types and strides."""
        node = self.node
        number = {v: n for n, v in enumerate((*node.operands, node.name))}
        text = repr((self.library, node.kind, node.attributes, [self.graph.type_of(v) for v in number], [number[v] for v in node.operands],
                     sorted((number[v], strides) for v, strides in self.layouts.items() if v in number)))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def lone_call_of(name: str, graph: Graph, strides: Mapping[str, tuple[int, ...]], library: str, predicted_us: float = 0.0) -> LoneCall:
    """The call that computes a node of a graph.

    strides: of values that are not dense, views among them. A value whose elements share memory is timed as a dense one, because its memory
    cannot be filled. Units: `predicted_us` in microseconds.
    """
    inner = Pattern((name,), (name,)).graph(graph)
    return LoneCall(inner, {v: strides[v] for v in inner.type_by_name if v in strides and 0 not in strides[v]}, library, predicted_us)
