"""Nodes that rewritings add to a joint graph: each has its value, as tracing would have left it, and notes of its surroundings."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tilefuse.base.errors import InternalError


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

    def extents(self, shape: Iterable[int | torch.SymInt]) -> list[int | Node]:
        """Extents as arguments."""
        return [self._extent(e) for e in shape]

    def _extent(self, extent: int | torch.SymInt) -> int | Node:
        """An extent as an argument: of a symbol, the first value that is the symbol or has a dimension of it."""
        if isinstance(extent, int):
            return extent
        for source in self.graph.nodes:
            value = source.meta.get("val")
            if isinstance(value, torch.SymInt) and value.node.expr == extent.node.expr:
                return source
            for d, e in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if isinstance(e, torch.SymInt) and e.node.expr == extent.node.expr:
                    return self.call(torch.ops.aten.sym_size.int, source, d)
        raise InternalError(f"no value of the joint graph has the extent {extent}")


def known_size(size: int | torch.SymInt) -> int:
    """A size; for a symbol, its value in the traced call."""
    return size if isinstance(size, int) else int(size.node.hint or 1)


def shape_of(node: Node) -> tuple[Any, ...]:
    """Extents of a node's value: numbers, or expressions of symbols, which compare by their text and so add no condition to the graph."""
    return tuple(e if isinstance(e, int) else e.node.expr for e in node.meta["val"].shape)


def readers(node: Node) -> Iterator[Node]:
    """Everything that depends on a node's results. Cost: linear in these."""
    stack, seen = [node], {node}
    while stack:
        for user in stack.pop().users:
            if user not in seen:
                seen.add(user)
                stack.append(user)
                yield user
