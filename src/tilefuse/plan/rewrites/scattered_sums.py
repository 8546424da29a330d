"""Scatters whose updates crowd on few places become reductions, one for each place.

    s[i[r], c] += x[r, c]  for all r        ->        s[w, c] = s[w, c] + sum_r (i[r] == w ? x[r, c] : 0)

    gradient of a table of 32 x 12 relative positions, added by 512 x 512 positions: 262,144 updates a line of 128 bytes, one after another

Atomic updates of one line of L2 follow each other, however many threads make them. The reduction compares every update with every place,
and its result does not depend on the order of atomics. It is one reduction with an axis of places, which reads the updates for each, or
several without one, which a kernel computes together from updates that it reads once.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import ClassVar

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.roofline import price_work
from tilefuse.domain.work import Operations, Work
from tilefuse.ir.affine import Affine, axis, single_axis
from tilefuse.ir.building.tensor_reduce import identity_of
from tilefuse.ir.dtype import I32, I64
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.monoids import MONOIDS
from tilefuse.ir.names import free_name
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Const, Expr, Index, Lookup, Read, axes_in, call, checked_extent, choice_of_range, const, walk
from tilefuse.kernel.expression import INT32_MAX
from tilefuse.passes.analyses import without_newly_dead
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.pattern import pattern_graph


@register_pass
@dataclass(frozen=True)
class ReduceScatters(DevicePass):
    """Reduce updates by place where a scatter's updates meet on so few places that their atomics are predicted to take longer.

    Exact: no; sums and products are associated differently, as two runs of the atomics are. Scatters stay that look up elements in
    their updates or subscripts, and those of the monoid "set".
    """

    name: ClassVar[str] = "reduce-scatters"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    asks_prices: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with reductions; `graph` itself where atomics are faster."""
        assert ctx.prices is not None
        first = graph
        for name in [n.name for n in graph.nodes if n.category == "scatter"]:
            places = _places(graph, graph.node_by_name[name])
            if places is None:
                continue
            least_us = ctx.prices.kernel_us(graph, (name,), ctx.eager_rounding, 0)
            # Large tables end here: to compare all updates with all places takes longer by itself.
            if price_work(Work(operations=(Operations(places.compared),)), device).us > least_us:
                continue
            best = graph
            for changed in places.forms(graph):
                nodes = tuple(n.name for n in changed.nodes if n.name == name or n.name not in graph.type_by_name)
                us = ctx.prices.plan_us(pattern_graph(changed, nodes), {}, ctx.options)
                if us < least_us:
                    best, least_us = changed, us
            if best is not graph:
                ctx.count("reduced")
                graph = best
        return graph if graph is first else without_newly_dead(graph, first)


@dataclass(frozen=True, slots=True)
class _Places:
    """A scatter by places.

    axes: one for each dimension of the result. An axis of places has a map in `subscripts`: the place
    of each update, -1 outside the result.
    over: axes of the updates that are no axis of the result.
    """

    node: Node
    axes: tuple[str, ...]
    subscripts: dict[str, Node]
    over: tuple[tuple[str, int], ...]

    @property
    def compared(self) -> int:
        """Comparisons of an update with a place."""
        return self.node.type.num_elements * prod(e for _, e in self.over)

    def forms(self, graph: Graph) -> Iterator[Graph]:
        """The graph with one reduction of all places, and with one for each place where these are few."""
        node = self.node
        read = {a: Read(s.name, tuple(map(axis, s.axes))) for a, s in self.subscripts.items()}
        maps = tuple(self.subscripts.values())
        tests = [call("eq", r, call("i32", Index(axis(a)))) for a, r in read.items()]
        name, names = node.name, set(graph.type_by_name)
        first = _first_value(graph, node.operands[0], tuple(map(axis, self.axes)))
        if first == self.identity:
            yield _with(graph, node, (*maps, self.reduction(name, node.type.shape, self.axes, tests)))
        else:
            reduction = self.reduction(free_name(f"{name}_places", names), node.type.shape, self.axes, tests)
            yield _with(graph, node, (*maps, reduction, self.combined(first, Read(reduction.name, tuple(map(axis, self.axes))))))
        extents = dict(zip(self.axes, node.type.shape, strict=True))
        num_places = prod(extents[a] for a in self.subscripts)
        if num_places > SEARCH.generators.places_apart:
            return
        others = tuple(a for a in self.axes if a not in self.subscripts)
        shape = tuple(extents[a] for a in others)
        parts = []
        for place in product(*(range(extents[a]) for a in self.subscripts)):
            tests = [call("eq", r, const(p, I32)) for p, r in zip(place, read.values(), strict=True)]
            parts.append(self.reduction(free_name(f"{name}_place", names), shape, others, tests))
        position = Affine()
        for a in self.subscripts:
            position = position * extents[a] + axis(a)
        joined = choice_of_range([(n, n + 1, Read(p.name, tuple(map(axis, others)))) for n, p in enumerate(parts)], position)
        yield _with(graph, node, (*maps, *parts, self.combined(first, joined)))

    @property
    def identity(self) -> Const:
        """The constant that changes no result of the monoid."""
        return identity_of(self.node.detail, self.node.type.dtype)

    def reduction(self, name: str, shape: tuple[int, ...], axes: tuple[str, ...], tests: Sequence[Expr]) -> Node:
        """The updates for which all tests hold, combined."""
        assert self.node.body is not None
        body = self.node.body
        for test in tests:
            body = call("select", test, body, self.identity)
        return Node(name, Type(self.node.type.dtype, shape), f"reduce.{self.node.detail}", axes, over=self.over, body=body,
                    span=self.node.span)

    def combined(self, first: Expr, updates: Expr) -> Node:
        """The map that combines initial contents and updates, under the scatter's name."""
        (body,) = MONOIDS[self.node.detail].combine((first,), (updates,), self.node.type.dtype)
        return Node(self.node.name, self.node.type, "map", self.axes, body=updates if first == self.identity else body, span=self.node.span)


def _places(graph: Graph, node: Node) -> _Places | None:
    """A scatter by places, or None where it has no such form.

    A dimension whose subscript is an axis of the updates has this axis. The others have an axis of places.
    """
    if node.body is None or node.detail == "set" or any(isinstance(e, Lookup) for x in (node.body, *node.target) for e in walk(x)):
        return None
    if not node.type.num_elements or max(node.type.shape, default=1) > INT32_MAX:
        return None
    extent_by_axis, names = dict(node.over), {a for a, _ in node.over}
    axes, subscripts, taken = list[str](), dict[str, Node](), set(graph.type_by_name)
    for subscript, extent in zip(node.target, node.type.shape, strict=True):
        name = single_axis(subscript.affine) if isinstance(subscript, Index) else None
        if name is not None and name not in axes and extent_by_axis[name] == extent:
            axes.append(name)
        else:
            axes.append(free_name("place", names))
            subscripts[axes[-1]] = _place_map(graph, node, subscript, extent, free_name(f"{node.name}_at", taken))
    over = tuple((a, e) for a, e in node.over if a not in axes)
    return _Places(node, tuple(axes), subscripts, over) if subscripts and over else None


def _place_map(graph: Graph, node: Node, subscript: Expr, extent: int, name: str) -> Node:
    """Each update's place along a dimension, -1 for one outside."""
    at = subscript if dtype_of(subscript, lambda v: graph.type_of(v).dtype) == I64 else call("i64", subscript)
    place: Expr = call("i32", at)
    if checked_extent(subscript) is None:
        inside = call("logical_and", call("ge", at, const(0, I64)), call("lt", at, const(extent, I64)))
        place = call("select", inside, place, const(-1, I32))
    axes = axes_in(subscript)
    over = tuple((a, e) for a, e in node.over if a in axes)
    return Node(name, Type(I32, tuple(e for _, e in over)), "map", tuple(a for a, _ in over), body=place, span=node.span)


def _first_value(graph: Graph, base: str, place: tuple[Affine, ...]) -> Expr:
    """The initial contents at a place: an element, or the constant of a fill."""
    fill = graph.node_by_name.get(base)
    if fill is not None and fill.category == "map" and isinstance(fill.body, Const):
        return fill.body
    return Read(base, place)


def _with(graph: Graph, node: Node, new: tuple[Node, ...]) -> Graph:
    return replace(graph, nodes=tuple(part for n in graph.nodes for part in (new if n is node else (n,))))
