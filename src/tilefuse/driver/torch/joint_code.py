"""Nodes that rewritings add to a joint graph: each has its value, as tracing would have left it, and notes of its surroundings."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import map_arg


@dataclass
class JointCode:
    """Calls at a graph's insertion point. mode: torch's, in which values have no memory; notes: entries of new nodes' `meta`."""

    graph: Graph
    mode: Any = None
    notes: dict[str, Any] = field(default_factory=dict)

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """A node with its value."""
        node = self.graph.call_function(target, args, kwargs)
        node.meta |= self.notes
        values = map_arg(args, lambda n: n.meta["val"])
        with self.mode:
            node.meta["val"] = target(*values, **kwargs)
        return node


def readers(node: Node) -> Iterator[Node]:
    """Everything that depends on a node's results. Cost: linear in these."""
    stack, seen = [node], {node}
    while stack:
        for user in stack.pop().users:
            if user not in seen:
                seen.add(user)
                stack.append(user)
                yield user
