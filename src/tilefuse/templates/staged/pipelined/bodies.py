"""Bodies of the maps of a pipelined product, behind its sums or before its operands, and the operations that they take."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilefuse.ir.graph import Graph
from tilefuse.ir.ops import flops_of
from tilefuse.ir.scalar import Expr, Lookup, reads, walk
from tilefuse.ir.short_forms import short_flops


def bodies(graph: Graph, values: Iterable[str]) -> list[Expr]:
    """Bodies of the maps that values are computed from, down to products and boundary values, each once."""
    body_by_name: dict[str, Expr] = {}
    stack = list(values)
    while stack:
        node = graph.node_by_name.get(stack.pop())
        if node is not None and node.body is not None and node.name not in body_by_name:
            body_by_name[node.name] = node.body
            stack.extend(node.reads())
    return list(body_by_name.values())


def operations(expressions: Sequence[Expr], narrow: bool) -> int:
    """Operations of some expressions. narrow: their results have 16 bits."""
    return sum(short_flops(e) if narrow else flops_of(e) for e in expressions)


@dataclass(frozen=True, slots=True)
class Producing:
    """Computation of one element of an operand: operations, and loads that wait for each other: where data give the place of an element,
    the place is loaded first."""

    operations: int
    loads_in_a_row: int

    @classmethod
    def of(cls, element: Expr, graph: Graph, narrow: bool) -> Producing:
        """Of an element, written over boundary values and maps of the kernel. narrow: it has 16 bits."""
        computed = [element, *bodies(graph, reads(element))]
        looked_up = any(isinstance(e, Lookup) for x in computed for e in walk(x))
        return cls(operations(computed, narrow), 2 if looked_up else 1)
