"""Removes checks of subscripts that cannot fail, because the range follows from the subscript's expression.

    in_range(index(i), 8), i < 8    ->  index(i)          in_range(%best[i], 50), %best = argmax over 50    ->  %best[i]
    in_range(mod(x, 8), 8)          ->  mod(x, 8)         in_range(minimum(maximum(x, 0), 7), 8)            ->  minimum(maximum(x, 0), 7)
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tilefuse.ir.dtype import DTYPES, DType
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ranges import Facts, Interval, assume, bounds_given, deny
from tilefuse.ir.scalar import Call, Const, Expr, Guard, Index, Lookup, Read, checked_extent, transform, walk
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass

# Facts about expressions that hold under a condition.
Known = Mapping[Expr, Interval]


@register_pass
@dataclass(frozen=True)
class ProveIndices(Pass):
    """Remove checks of subscripts that are in range for all inputs.

    Exact: bit for bit.
    """

    name: ClassVar[str] = "prove-indices"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.VIEWS_INLINED})

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if not any(_has_check(n) for n in graph.nodes):
            return graph
        ranges = Ranges(graph)
        nodes: list[Node] = []
        for node in graph.nodes:
            new = _proven(node, ranges) if _has_check(node) else node
            if new is not node:
                ctx.count("dropped")
            nodes.append(new)
            ranges.note(new)
        return graph if all(a is b for a, b in zip(nodes, graph.nodes, strict=True)) else replace(graph, nodes=tuple(nodes))


def _has_check(node: Node) -> bool:
    bodies = () if node.body is None else (node.body,)
    return any(checked_extent(x) is not None for e in (*bodies, *node.target) for x in walk(e))


def _proven(node: Node, ranges: Ranges) -> Node:
    """The node without checks that cannot fail."""
    extents = node.extents

    def one(e: Expr) -> Expr:
        extent = checked_extent(e)
        if extent is None or not isinstance(e, Call):
            return e
        span = ranges.of(e.args[0], extents)
        return e.args[0] if span is not None and span[0] >= 0 and span[1] < extent else e

    body = None if node.body is None else transform(node.body, one)
    target = tuple(transform(e, one) for e in node.target)
    if body is node.body and all(a is b for a, b in zip(target, node.target, strict=True)):
        return node
    return replace(node, body=body, target=target)


class Ranges:
    """Intervals (both ends included) of integer values of a graph, for the nodes noted so far."""

    def __init__(self, graph: Graph) -> None:
        self.types = graph.type_by_name
        self.by_name: dict[str, Interval | None] = {}

    def note(self, node: Node) -> None:
        """Notes the range of an integer node's elements."""
        if node.type.dtype.is_float:
            return
        self.by_name[node.name] = _within(self._of_node(node), node.type.dtype)

    def _of_node(self, node: Node) -> Interval | None:
        if node.detail in ("argmax", "argmin"):
            count = prod(e for _, e in node.over)
            return (0, count - 1) if count else None
        if node.body is None or node.category not in ("map", "gather", "reduce", "scatter"):
            return None
        body = self.of(node.body, node.extents)
        if node.category in ("map", "gather") or body is None:
            return body
        if node.kind == "scatter.set":
            return _hull(body, self.of_value(node.operands[0]))
        count = prod(e for _, e in node.over)
        if node.kind in ("reduce.max", "reduce.min") and count:
            return body
        return (min(count * body[0], 0), max(count * body[1], 0)) if node.kind == "reduce.sum" else None

    def of_value(self, name: str) -> Interval | None:
        """Range of a value's elements: the noted one, or the range of its dtype if that is small."""
        noted = self.by_name.get(name)
        return noted if noted is not None else _of_dtype(self.types[name].dtype)

    def of(self, e: Expr, extents: Mapping[str, int], facts: Facts = (), known: Known = {}) -> Interval | None:  # noqa: B006
        """Range of an integer or boolean expression; None where it is unknown."""
        span = self._of(e, extents, facts, known)
        if e not in known:
            return span
        low, high = known[e]
        return (low, high) if span is None else (max(low, span[0]), min(high, span[1]))

    def _of(self, e: Expr, extents: Mapping[str, int], facts: Facts, known: Known) -> Interval | None:
        match e:
            case Const(_, dtype):
                return None if dtype.is_float else (int(e.value), int(e.value))
            case Index(affine):
                return bounds_given(affine, extents, facts)
            case Read(value) | Lookup(value):
                return self.of_value(value)
            case Guard(bounds, then, otherwise):
                first = self.of(then, extents, assume(bounds, facts), known)
                return _hull(first, self.of(otherwise, extents, deny(bounds, extents, facts), known))
            case Call("select", (condition, then, otherwise)):
                inside, outside = _told(condition)
                return _hull(self.of(then, extents, facts, {**known, **inside}), self.of(otherwise, extents, facts, {**known, **outside}))
            case Call("in_range", (_, Const() as limit)):
                return 0, int(limit.value) - 1
            case Call(fn, args):
                return _of_call(fn, [self.of(a, extents, facts, known) for a in args])
        return None


FAR = 1 << 62


def _told(condition: Expr) -> tuple[Known, Known]:
    """Intervals of an expression that is compared with a constant: where the condition holds, and where it does not."""
    match condition:
        case Call("lt", (e, Const() as limit)) if not limit.dtype.is_float:
            return {e: (-FAR, int(limit.value) - 1)}, {e: (int(limit.value), FAR)}
        case Call("ge", (e, Const() as limit)) if not limit.dtype.is_float:
            return {e: (int(limit.value), FAR)}, {e: (-FAR, int(limit.value) - 1)}
    return {}, {}


def _of_call(fn: str, args: list[Interval | None]) -> Interval | None:
    """Range of a function of operands with known ranges. A sum, difference or product beyond i64 would wrap, so it is unknown."""
    match fn, args:
        case ("mod" | "floordiv", [x, (low, high)]) if low == high > 0:
            if fn == "mod":
                return x if x is not None and x[0] >= 0 and x[1] < low else (0, low - 1)
            return None if x is None else (x[0] // low, x[1] // low)
        case ("bit_and", [x, (low, high)]) | ("bit_and", [(low, high), x]) if low >= 0:
            return 0, high
        case ("minimum", [x, y]) if x is not None or y is not None:
            lows, highs = [r[0] for r in (x, y) if r is not None], [r[1] for r in (x, y) if r is not None]
            return (min(lows) if len(lows) == 2 else -FAR), min(highs)
        case ("maximum", [x, y]) if x is not None or y is not None:
            lows, highs = [r[0] for r in (x, y) if r is not None], [r[1] for r in (x, y) if r is not None]
            return max(lows), (max(highs) if len(highs) == 2 else FAR)
    if any(a is None for a in args):
        return None
    spans = [a for a in args if a is not None]
    if fn in DTYPES:
        return _within(spans[0], DTYPES[fn])
    if fn in ("add", "sub", "mul"):
        (a, b), (c, d) = spans
        ends = {"add": (a + c, b + d), "sub": (a - d, b - c), "mul": (min(a * c, a * d, b * c, b * d), max(a * c, a * d, b * c, b * d))}[fn]
        # Narrow integers compute in i32; a result that fits there fits every wider type.
        return ends if ends[0] >= -(1 << 31) and ends[1] < 1 << 31 else None
    return None


def _within(span: Interval | None, dtype: DType) -> Interval | None:
    """The interval where the dtype holds all of it; else the range of the dtype if that is small; else None."""
    if span is None or not dtype.is_integer:
        return _of_dtype(dtype)
    low, high = _limits(dtype)
    return span if low <= span[0] and span[1] <= high else _of_dtype(dtype)


def _of_dtype(dtype: DType) -> Interval | None:
    if dtype.kind == "bool":
        return 0, 1
    return _limits(dtype) if dtype.is_integer and dtype.bits <= 32 else None


def _limits(dtype: DType) -> Interval:
    return (0, (1 << dtype.bits) - 1) if dtype.kind == "uint" else (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)


def _hull(a: Interval | None, b: Interval | None) -> Interval | None:
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
