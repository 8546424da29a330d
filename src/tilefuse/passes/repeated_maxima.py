"""Maxima of rows from which their maximum is subtracted already: a softmax of x - max(x) is a softmax of x.

    m = max x   d = x - m   n = max d   exp(d - n)        ->        exp(x - m)

Users subtract a row's maximum before a softmax that does so itself. With one maximum the row is reduced once less, and attention written
so has the form that kernels walk.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import Affine, axis, substitute
from tilefuse.ir.dtype import DTYPES
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Call, Expr, Read, is_cast, substitute_axes, transform, walk
from tilefuse.passes.analyses import live_values
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass

# Maximum number of maps and views through which a maximum is followed.
MAX_DEPTH = 4


@register_pass
@dataclass(frozen=True)
class ReuseMaxima(Pass):
    """Subtract the maximum of a row once: a row less its maximum has no maximum of its own to subtract.

    Exact: in exact arithmetic, NaN and infinities included: a row whose maximum is infinite or NaN is NaN either way. The difference x - m
    is not rounded to its own type. Changes nothing with `eager_rounding`.
    """

    name: ClassVar[str] = "reuse-maxima"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY})
    exact: ClassVar[bool] = False

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph with the first maximum of each such row."""
        if ctx.eager_rounding:
            return graph
        repeated = {n.name: r for n in graph.nodes if n.kind == "reduce.max" and (r := _repeated(graph, n)) is not None}
        new_by_name: dict[str, Node] = {}
        live = live_values(graph) if repeated else set()
        for name, maximum in repeated.items():
            nodes = [new_by_name.get(u, graph.node_by_name[u]) for u in graph.users_by_name[name] if u in live]
            users = {n.name: _with_first(n, name, maximum) for n in nodes}
            if name not in graph.results and all(u is not None for u in users.values()):
                new_by_name.update({u: node for u, node in users.items() if node is not None})
                ctx.count("reused")
        return replace(graph, nodes=tuple(new_by_name.get(n.name, n) for n in graph.nodes)) if new_by_name else graph


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A maximum of rows of `difference`, a map whose elements are `element` less the maximum `first`, over its axes.

    index: where the maximum reads the map, over the maximum's axes and the reduced one, which is place `along`.
    """

    difference: Node
    element: Expr
    first: Read
    axes: tuple[str, ...]
    index: tuple[Affine, ...]
    along: int


def _repeated(graph: Graph, node: Node) -> _Repeated | None:
    """The maximum of rows from which their maximum is subtracted; None for others."""
    assert node.body is not None
    read = _without_casts(node.body)
    if len(node.over) != 1 or not isinstance(read, Read):
        return None
    (over, extent), = node.over
    places = [n for n, e in enumerate(read.index) if over in e.axes()]
    difference = graph.node_by_name.get(read.value)
    if len(places) != 1 or read.index[places[0]] != axis(over) or difference is None or difference.kind != "map" or difference.body is None:
        return None
    match _without_casts(difference.body):
        case Call("sub", (element, shift)):
            first = _maximum(graph, shift)
        case _:
            return None
    if first is None:
        return None
    reduction = graph.node_by_name[first.value]
    (reduced, other), = reduction.over
    assert reduction.body is not None
    along = difference.axes[places[0]]
    row = dict(zip(reduction.axes, first.index, strict=True)) | {reduced: axis(along)}
    types = {dtype_of(element, lambda v: graph.type_of(v).dtype), reduction.type.dtype, node.type.dtype}
    if other != extent or len(types) > 1 or any(along in e.axes() for e in first.index):
        return None
    if _without_widening(graph, substitute_axes(reduction.body, row, difference.extents)) != _without_widening(graph, element):
        return None
    return _Repeated(difference, element, first, node.axes, read.index, places[0])


def _with_first(node: Node, name: str, maximum: _Repeated) -> Node | None:
    """A user of the repeated maximum that subtracts the first one instead; None where it uses it in another way."""
    if node.body is None or node.target:
        return None

    def less(e: Expr) -> Expr:
        match e:
            case Call("sub", (left, Read(value, row))) if value == name:
                read = _without_casts(left)
                if isinstance(read, Read) and read.value == maximum.difference.name and _is_in_row(read.index, row, maximum):
                    at = dict(zip(maximum.difference.axes, read.index, strict=True))
                    return Call("sub", tuple(substitute_axes(x, at, node.extents) for x in (maximum.element, maximum.first)))
        return e

    body = transform(node.body, less)
    return None if any(isinstance(e, Read) and e.value == name for e in walk(body)) else replace(node, body=body)


def _is_in_row(index: tuple[Affine, ...], row: tuple[Affine, ...], maximum: _Repeated) -> bool:
    """Whether an element of the difference lies in the row whose maximum is read."""
    at: Mapping[str, Affine] = dict(zip(maximum.axes, row, strict=True))
    return all(n == maximum.along or substitute(e, at) == here for n, (e, here) in enumerate(zip(maximum.index, index, strict=True)))


def _maximum(graph: Graph, e: Expr) -> Read | None:
    """The read of a maximum over one axis behind casts and maps that only hand it on; None for other expressions."""
    for _ in range(MAX_DEPTH):
        e = _without_casts(e)
        if not isinstance(e, Read):
            return None
        node = graph.node_by_name.get(e.value)
        if node is None or node.body is None:
            return None
        if node.kind == "reduce.max":
            return e if len(node.over) == 1 else None
        if node.kind != "map":
            return None
        e = substitute_axes(node.body, dict(zip(node.axes, e.index, strict=True)))
    return None


def _without_casts(e: Expr) -> Expr:
    """The expression behind conversions to floats."""
    while isinstance(e, Call) and is_cast(e) and DTYPES[e.fn].is_float:
        e = e.args[0]
    return e


def _without_widening(graph: Graph, e: Expr) -> Expr:
    """The expression behind conversions from floats to wider floats, which change no value."""
    while isinstance(e, Call) and is_cast(e):
        inner = dtype_of(e.args[0], lambda v: graph.type_of(v).dtype)
        if not inner.is_float or inner.bits > DTYPES[e.fn].bits or inner != DTYPES[e.fn] and inner.bits == DTYPES[e.fn].bits:
            return e
        e = e.args[0]
    return e
