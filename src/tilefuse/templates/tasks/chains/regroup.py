"""Patterns over groups of tiles: an axis of a value is cut in groups of equal length, which become its first axis.

    %v [p, t, c], t < 1000      ->      %v [g, p, t, c], g < 8, t < 128      element (g, p, t, c) was (p, g * 128 + t, c)

Each group of a value then lies in one piece of memory. Elements behind the end of the old axis are computed from zeros, and nothing reads
them.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.graph import Graph, Input, Node, Type
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Bound, Expr, Guard, Index, Read, const, transform


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups of `length` places of an axis of `extent` places."""

    extent: int
    length: int

    @property
    def count(self) -> int:
        """Groups."""
        return -(-self.extent // self.length)

    def type_of(self, old: Type, place: int) -> Type:
        """The type of a value whose axis number `place` is cut."""
        shape = (*old.shape[:place], self.length, *old.shape[place + 1:])
        return Type(old.dtype, (self.count, *shape))


def regrouped(graph: Graph, place_by_value: Mapping[str, int], grouping: Grouping) -> Graph | None:
    """The pattern with the axes of some values cut; None where a node is no map, or no product of which the axis is a row or a column.

    place_by_value: numbers of the axes that are cut, of inputs and of nodes. Nodes inside that nodes with a cut axis read at each of its
    places are cut as well. Exact: the same operations on the same elements.
    """
    places = dict(place_by_value)
    for node in reversed(graph.nodes):
        if node.name in places and node.kind == "map":
            _spread(node, graph, places)
    inputs = tuple(Input(i.name, grouping.type_of(i.type, places[i.name]), i.constant) if i.name in places else i for i in graph.inputs)
    types = {i.name: i.type for i in graph.inputs} | {n.name: n.type for n in graph.nodes}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.kind == "map":
            nodes.append(_map(node, places, types, grouping))
        elif node.kind == "library.matmul" and node.name in places:
            nodes.append(replace(node, type=grouping.type_of(node.type, places[node.name])))
        elif places.keys().isdisjoint((node.name, *node.reads())):
            nodes.append(node)
        else:
            return None
    return replace(graph, inputs=inputs, nodes=tuple(nodes))


def _spread(node: Node, graph: Graph, places: dict[str, int]) -> None:
    """Adds the inner nodes that a node reads at each place of its cut axis."""
    name = node.axes[places[node.name]]
    places_by_value: dict[str, set[int]] = {}

    def look(e: Expr) -> Expr:
        if isinstance(e, Read) and e.value in graph.node_by_name and e.value not in graph.results:
            at = [n for n, i in enumerate(e.index) if name in i.axes()]
            places_by_value.setdefault(e.value, set()).add(at[0] if len(at) == 1 and e.index[at[0]] == axis(name) else -1)
        return e

    assert node.body is not None
    transform(node.body, look)
    for value, at in places_by_value.items():
        if len(at) == 1 and -1 not in at and value not in places:
            places[value] = at.pop()


def _map(node: Node, places: Mapping[str, int], types: Mapping[str, Type], grouping: Grouping) -> Node:
    """A map that reads cut values by group and place in it, over groups if its own axis is cut."""
    assert node.body is not None
    own = places.get(node.name)
    cut = node.axes[own] if own is not None else ""
    group = free_name("g", set(node.axes))
    extents = dict(node.extents) | ({group: grouping.count, cut: grouping.length} if cut else {})
    whole = axis(group) * grouping.length + axis(cut) if cut else number(0)
    at = {cut: whole} if cut else {}
    padded = grouping.extent % grouping.length > 0

    def moved(e: Affine) -> Affine:
        return substitute(e, at, extents) if at else e

    def one(e: Expr) -> Expr:
        match e:
            case Read(value, index) if value in places:
                if cut and index[places[value]] == axis(cut):
                    return Read(value, (axis(group), *(axis(cut) if n == places[value] else moved(i) for n, i in enumerate(index))))
                place = moved(index[places[value]])
                first = place // grouping.length, place % grouping.length
                return Read(value, (first[0], *(first[1] if n == places[value] else moved(i) for n, i in enumerate(index))))
            case Read(value, index):
                read = Read(value, tuple(map(moved, index)))
                is_inside = not (padded and cut and any(cut in i.axes() for i in index))
                return read if is_inside else Guard((Bound(whole, 0, grouping.extent),), read, const(0, types[value].dtype))
            case Index(place):
                return Index(moved(place))
            case Guard(bounds, Guard(inner, then, zero), otherwise) if zero == otherwise:
                return Guard((*(replace(b, index=moved(b.index)) for b in bounds), *inner), then, otherwise)
            case Guard(bounds, then, otherwise):
                return Guard(tuple(replace(b, index=moved(b.index)) for b in bounds), then, otherwise)
        return e

    body = transform(node.body, one)
    if not cut:
        return replace(node, body=body)
    assert own is not None
    return replace(node, type=grouping.type_of(node.type, own), axes=(group, *node.axes), body=body)
