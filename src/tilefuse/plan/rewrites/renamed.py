"""Nodes of a definition with the names that they take in the graph around them."""
from __future__ import annotations

from collections.abc import Mapping

from tilefuse.base.construction import replace
from tilefuse.ir.graph import Node
from tilefuse.ir.scalar import Expr, Lookup, Read, transform


def with_names(n: Node, name_by_value: Mapping[str, str]) -> Node:
    """A node with other names of values."""
    return replace(n, name=name_by_value.get(n.name, n.name), operands=tuple(name_by_value.get(v, v) for v in n.operands),
                   body=None if n.body is None else _renamed(n.body, name_by_value))


def _renamed(body: Expr, name_by_value: Mapping[str, str]) -> Expr:
    def leaf(e: Expr) -> Expr:
        return replace(e, value=name_by_value.get(e.value, e.value)) if isinstance(e, Read | Lookup) else e

    return transform(body, leaf)
