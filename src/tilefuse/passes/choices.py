"""Sums whose terms are chosen by the position: the chosen terms are added, and the reduction is gone.

    s[i] = sum_k (k == 0 ? f(i) : g(i, k))  over k < 2      ->      s[i] = f(i) + g(i, 1)

Gradients by complex arrays are such sums over the two parts. Without the reduction, a kernel needs only one loop over all elements.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import number
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Call, Const, Expr, Guard, Index, call, substitute_axes, transform, walk
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass

# Largest expression that replaces a sum. Units: subexpressions.
MAX_SIZE = 400


@register_pass
@dataclass(frozen=True)
class WriteOutChoices(Pass):
    """Turn a sum over one axis whose terms are chosen by comparing the position with numbers into the sum of the chosen terms.

    Exact: up to the sign of a zero, because a sum begins with 0; the terms are added in order.
    """

    name: ClassVar[str] = "write-out-choices"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY})
    exact: ClassVar[bool] = False

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        map_by_name = {n.name: m for n in graph.nodes if n.kind == "reduce.sum" and len(n.over) == 1 and (m := _written_out(n)) is not None}
        if not map_by_name:
            return graph
        ctx.count("written out", len(map_by_name))
        return replace(graph, nodes=tuple(map_by_name.get(n.name, n) for n in graph.nodes))


def _written_out(node: Node) -> Node | None:
    """The map of the chosen terms; None where no term is chosen by the position alone, or the map would be too large."""
    (over, extent), = node.over
    assert node.body is not None
    if 0 in node.extents.values() or not any(_position_of(e) == over for e in walk(node.body)):
        return None
    body = _at(node.body, over, 0)
    size = sum(1 for _ in walk(body))
    for position in range(1, extent):
        term = _at(node.body, over, position)
        size += sum(1 for _ in walk(term))
        if size > MAX_SIZE:
            return None
        body = call("add", body, term)
    return replace(node, kind="map", over=(), body=body)


def _position_of(e: Expr) -> str | None:
    """The axis whose position chooses between two expressions; None for another expression."""
    match e:
        case Call("select", (Call("eq", (Index(place), Const())), _, _)) if len(place.axes()) == 1:
            return next(iter(place.axes()))
    return None


def _at(e: Expr, over: str, position: int) -> Expr:
    """The expression at one position of an axis, with the choices made that depend on that position alone."""

    def decided(x: Expr) -> Expr:
        match x:
            case Call("select", (Call("eq", (Index(place), Const() as constant)), then, otherwise)) if not place.terms:
                return then if place.const == constant.value else otherwise
            case Guard(bounds, then, otherwise) if all(not b.index.terms for b in bounds):
                return then if all(b.low <= b.index.const < b.high for b in bounds) else otherwise
        return x

    return transform(substitute_axes(e, {over: number(position)}), decided)
