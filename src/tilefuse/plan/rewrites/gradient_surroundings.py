"""The part of a graph around a call of gradients of attention, which is planned both ways: with the call and with the definition.

    product -> heads apart -> gradients -> side by side -> sums of the bias         from the library's call before to those behind
                                                        -> products

The choice changes more than the gradients' own kernels. A kernel holds the product that gives the incoming gradient together with the row
sums, where the library multiplies faster; operands may need copies; the kernels behind read other layouts.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tilefuse.ir.graph import Graph, Node, library_call_key
from tilefuse.ir.library.attention_gradient_call import AttentionGradientCall
from tilefuse.ir.scalar import Read
from tilefuse.plan.pattern import Pattern


def surroundings(graph: Graph, of: AttentionGradientCall) -> Graph:
    """The call as a graph of its own with the maps before its gradient and the library's call before these, the maps that only move its
    operands, those that its mask is computed by, the maps and reductions of its results, and the calls that read these. Cost: linear in
    these nodes and their users.
    """
    inside = dict.fromkeys(n for n in of.gradients if n)
    _add_before(inside, graph, (of.gradient,), lambda node: node.category == "map", last="library")
    _add_before(inside, graph, (v for v in of.operands.values() if v not in (of.gradient, of.mask)), _moves)
    _add_before(inside, graph, (of.mask,), lambda node: node.category == "map")
    stack = [n for n in of.gradients if n]
    while stack:
        for user in graph.users_by_name[stack.pop()]:
            category = graph.node_by_name[user].category
            if user not in inside and category in ("map", "reduce", "library"):
                inside[user] = None
                stack += [user] if category != "library" else []
    nodes = graph.in_order(_whole_calls(inside, graph))
    names = {n.name for n in nodes}
    written = tuple(n.name for n in nodes if n.name in graph.escaping or not names.issuperset(graph.users_by_name[n.name]))
    return Pattern(tuple(n.name for n in nodes), written).graph(graph, "surroundings")


def _add_before(inside: dict[str, None], graph: Graph, values: Iterable[str], follows: Callable[[Node], bool], last: str = "") -> None:
    """Adds the nodes that `values` are computed by, as far as `follows` holds, and the nodes of the category `last` before these."""
    stack = list(values)
    while stack:
        node = graph.node_by_name.get(stack.pop())
        if node is not None and node.name not in inside and (node.category == last or follows(node)):
            inside[node.name] = None
            stack += node.reads() if node.category != last else ()


def _moves(node: Node) -> bool:
    return node.category == "map" and isinstance(node.body, Read)


def _whole_calls(names: Iterable[str], graph: Graph) -> Iterator[str]:
    """The nodes, with every result of a call of which one result is among them."""
    keys = {library_call_key(graph.node_by_name[n]) for n in names if graph.node_by_name[n].category == "library"}
    inside = set(names)
    return (n.name for n in graph.nodes if n.name in inside or n.category == "library" and library_call_key(n) in keys)
