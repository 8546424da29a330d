"""Sums that pick one element: a loss written as a sum over classes against a label becomes a lookup of the label's element.

    s[i] = sum_k (t[i] == k ? f(i, k) : 0)      ->      s[i] = 0 <= t[i] < K ? f(i, t[i]) : 0

The element keeps every condition of the term that does not depend on the class.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import Affine, axis
from tilefuse.ir.dtype import I64
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Call, Const, Expr, Index, Lookup, Read, const, substitute_axes, walk
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass

# Maximum number of maps through which the picked element is followed.
MAX_DEPTH = 8
# Largest expression that replaces the sum. Units: subexpressions.
MAX_SIZE = 200


@register_pass
@dataclass(frozen=True)
class SelectByLookup(Pass):
    """Turn a sum over one axis of terms that are zero except where the axis equals a label into a lookup.

    Exact: up to the sign of a zero; a NaN or infinity elsewhere in the row never reached the sum.
    """

    name: ClassVar[str] = "select-by-lookup"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY})
    exact: ClassVar[bool] = False

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        lookup_by_name: dict[str, Node] = {}
        for node in graph.nodes:
            if node.kind == "reduce.sum" and len(node.over) == 1:
                lookup = _as_lookup(graph, node)
                if lookup is not None:
                    lookup_by_name[node.name] = lookup
        if not lookup_by_name:
            return graph
        ctx.count("looked up", len(lookup_by_name))
        return replace(graph, nodes=tuple(lookup_by_name.get(n.name, n) for n in graph.nodes))


def _as_lookup(graph: Graph, node: Node) -> Node | None:
    (over, extent), = node.over
    assert node.body is not None
    match _written_out(graph, node.body):
        case Call("select", (condition, picked, Const() as nothing)) if nothing.value == 0:
            label, others = _label_of(graph, condition, over)
        case _:
            return None
    if label is None or any(_mentions(e, over) for e in (label, *others)):
        return None
    body = _at_label(graph, picked, over, label, MAX_DEPTH)
    if body is None or sum(1 for _ in walk(body)) > MAX_SIZE:
        return None
    legal: Expr = Call("logical_and", (Call("ge", (label, const(0, I64))), Call("lt", (label, const(extent, I64)))))
    for condition in others:
        legal = Call("logical_and", (legal, condition))
    has_lookup = any(isinstance(e, Lookup) for e in walk(body))
    return replace(node, kind="gather" if has_lookup else "map", over=(), body=Call("select", (legal, body, nothing)))


def _label_of(graph: Graph, condition: Expr, over: str) -> tuple[Expr | None, list[Expr]]:
    """The only value of the axis `over` for which a condition can hold, None where there is none; and the rest of the condition."""
    here = Index(axis(over))
    match _written_out(graph, condition):
        case Call("logical_and" | "bit_and", (a, b)):
            (first, besides_a), (second, besides_b) = _label_of(graph, a, over), _label_of(graph, b, over)
            if first is not None and second is not None:
                return None, []
            return first or second, [*besides_a, *besides_b]
        case Call("eq", (a, b)) if here in (a, b):
            return (b if a == here else a), []
    return None, [condition]


def _written_out(graph: Graph, e: Expr) -> Expr:
    """The body of a map behind a read, repeated while the expression is only a read."""
    while isinstance(e, Read):
        inner = graph.node_by_name.get(e.value)
        if inner is None or inner.kind != "map" or inner.body is None:
            return e
        e = substitute_axes(inner.body, dict(zip(inner.axes, e.index, strict=True)))
    return e


def _mentions(e: Expr, name: str) -> bool:
    """Whether an axis occurs in an expression."""
    for x in walk(e):
        match x:
            case Read(_, index) if any(name in i.axes() for i in index):
                return True
            case Index(affine) if name in affine.axes():
                return True
    return False


def _at_label(graph: Graph, e: Expr, over: str, label: Expr, depth: int) -> Expr | None:
    """`e` with the axis `over` replaced by a data-dependent position; None where the axis does not stand alone in a subscript."""
    match e:
        case Const():
            return e
        case Index(affine):
            return label if affine == axis(over) else None if over in affine.axes() else e
        case Call(fn, args):
            new = [_at_label(graph, a, over, label, depth) for a in args]
            return None if any(a is None for a in new) else Call(fn, tuple(a for a in new if a is not None))
        case Read(value, index):
            if not any(over in i.axes() for i in index):
                return e
            if any(over in i.axes() and i != axis(over) for i in index):
                return None
            inner = graph.node_by_name.get(value)
            if inner is not None and inner.kind == "map" and inner.body is not None:
                return None if depth == 0 else _inner_at_label(graph, inner, index, over, label, depth - 1)
            return Lookup(value, tuple(label if i == axis(over) else Index(i) for i in index))
    return None


def _inner_at_label(graph: Graph, inner: Node, index: tuple[Affine, ...], over: str, label: Expr, depth: int) -> Expr | None:
    """The body of a map at `index`, where exactly one subscript is the axis `over`."""
    places = [own for own, i in zip(inner.axes, index, strict=True) if i == axis(over)]
    if len(places) != 1:
        return None
    assert inner.body is not None
    names: Mapping[str, Affine] = dict(zip(inner.axes, index, strict=True))
    return _at_label(graph, substitute_axes(inner.body, names), over, label, depth)
