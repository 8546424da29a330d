"""Results of a walk with its elements in another order: their axes over those of the weighted product, from the places that they read.

    y[b, r, h * 64 + j] = o[b, h, r, j]        y[i, j, k] reads o[i, k / 64, j, k % 64]:    i = b, j = r, k = 64 h + j
    y[b, h, r, j] = o[b, 4 r + h, j]           rows of four heads as one axis:              h = row % 4, r = row / 4
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from tilefuse.ir.affine import Affine, FloorDiv, Mod, number, substitute
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Lookup, Read, walk

# A digit of an axis: the axis, its stride, and the number of its values.
Digit = tuple[str, int, int]


def permuted_point(graph: Graph, node: Node, at_by_value: Mapping[str, tuple[Affine, ...]]) -> dict[str, Affine] | None:
    """The node's axes at the walk's element at hand; None where they are no rearrangement of it.

    at_by_value: subscripts of the walk's values at that element.
    """
    places = dict.fromkeys(_reads(graph, node, {}, frozenset(at_by_value)))
    if len(places) != 1:
        return None
    (value, index), = places
    shape, at = graph.type_of(value).shape, at_by_value[value]
    digits_by_axis: dict[str, list[tuple[int, int, Affine]]] = {a: [] for a, e in node.extents.items() if e > 1}
    for e, extent, here in zip(index, shape, at, strict=True):
        for digit, of in _digits(e, extent):
            if digit is None or digit[0] not in digits_by_axis and digit[2] > 1:
                return None
            if digit[2] > 1:
                place = here // of
                digits_by_axis[digit[0]].append((digit[1], digit[2], place if of * digit[2] == extent else place % digit[2]))
    point = {a: number(0) for a in node.axes}
    for a, digits in digits_by_axis.items():
        stride = 1
        for own, extent, here in sorted(digits, key=lambda d: d[0]):
            if own != stride:
                return None
            point[a] = point[a] + here * stride
            stride *= extent
        if stride != node.extents[a]:
            return None
    return point


def _digits(e: Affine, extent: int) -> list[tuple[Digit | None, int]]:
    """The digits that a subscript consists of, each with its stride in it; None in the place of one for any other subscript.

    y[h, i, r] = o[h, 4 r + i]      the subscript's digits: i of stride 1, r of stride 4
    """
    terms = sorted(e.terms, key=lambda t: t[1])
    strides = [stride for _, stride in terms]
    if len(terms) < 2 or e.const or strides[0] != 1 or any(b % a for a, b in pairwise((*strides, extent))):
        return [(_digit(e, extent), 1)]
    ends = (*strides[1:], extent)
    return [(_digit(Affine(((atom, 1),)), end // stride), stride) for (atom, stride), end in zip(terms, ends, strict=True)]


def _digit(e: Affine, extent: int) -> Digit | None:
    """A subscript that is a digit of one axis: all of it, a quotient, a remainder, or the remainder of a quotient."""
    if extent == 1:
        return "", 1, 1
    if e.const or len(e.terms) != 1 or e.terms[0][1] != 1:
        return None
    match e.terms[0][0]:
        case str() as name:
            return name, 1, extent
        case Mod(of, by) if by == extent:
            return _digit(of, extent)
        case FloorDiv(of, by):
            inner = _digit(of, extent)
            return inner and (inner[0], inner[1] * by, extent)
    return None


def _reads(graph: Graph, node: Node, at: Mapping[str, Affine], values: frozenset[str]) -> Iterator[tuple[str, tuple[Affine, ...]]]:
    """(value, subscripts over the first node's axes) of each read of the walk's values, through maps."""
    assert node.body is not None
    for e in walk(node.body):
        if isinstance(e, Lookup) and e.value in graph.node_by_name:
            yield e.value, ()
        if not isinstance(e, Read):
            continue
        index = tuple(substitute(i, at, node.extents) if at else i for i in e.index)
        inner = graph.node_by_name.get(e.value)
        if e.value in values:
            yield e.value, index
        elif inner is not None and inner.category == "map":
            yield from _reads(graph, inner, dict(zip(inner.axes, index, strict=True)), values)
