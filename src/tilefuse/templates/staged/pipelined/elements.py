"""Elements of products that results are computed from, and where results lie over the products' axes.

A node that is read at two places a constant number of columns apart is two products, whose right operands are slices of its own:

    y[i, j] = silu(p[i, j]) * p[i, j + 64]        p = x w, of 128 columns: x w[:, :64] and x w[:, 64:]
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import COLUMN, ROW, any_contraction_of
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Guard, Lookup, Read, walk

Point = Mapping[str, Affine]
# A product, by its node and the column of the node where the product begins.
Slice = tuple[str, int]


@dataclass(frozen=True)
class Elements:
    """Where results lie over the products' axes.

    slices   every product that results read, in the order of the graph's nodes, then of columns
    extents  of the products' axes; all products have the same
    windows  extents that the results have: fewer rows or columns where results are a window of a padded product
    points   for each result, its axes over those of the products; {} for a result that is a product itself
    """

    slices: tuple[Slice, ...]
    extents: Mapping[str, int]
    windows: Mapping[str, int]
    points: Mapping[str, Point]


def elements_of(graph: Graph, products: tuple[Node, ...], shape: Mapping[str, int]) -> Elements | Rejected:
    """The elements that results of `graph` read of its products, or why kernels cannot compute them from sums of one place.

    shape: extents of the first product's axes. Every way from a result to a product leads to the element at hand of one of its slices.
    """
    names = frozenset(n.name for n in products)
    for node in graph.nodes:
        for e in walk(node.body) if node.body is not None else ():
            if isinstance(e, Lookup) and e.value in graph.node_by_name:
                return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} reads %{e.value} at elements that data give")
    index_by_result: dict[str, tuple[Affine, ...]] = {}
    slices: set[Slice] = set()
    for name in graph.results:
        node = graph.node_by_name[name]
        reads = _reads(graph, names, node)
        if not reads:
            return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} does not depend on the product %{products[0].name}")
        if any(index[-1].const < 0 for _, index in reads):
            return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} reads %{products[0].name} at another element than the one at hand")
        first = reads[0][1]
        index_by_result[name] = (*first[:-1], first[-1] - first[-1].const)
        slices |= {(p, index[-1].const) for p, index in reads}
    order = tuple(sorted(slices, key=lambda s: ([n.name for n in products].index(s[0]), s[1])))
    extents = {**shape, COLUMN: min(graph.node_by_name[p].type.shape[-1] - first for p, first in order)}
    points: dict[str, Point] = {}
    windows: dict[str, int] = {}
    for name in graph.results:
        placed = _place(graph, names, name, index_by_result[name], extents)
        if isinstance(placed, Rejected):
            return placed
        if windows and windows != placed[1]:
            return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} has another part of the product %{products[0].name} than %{graph.results[0]}")
        points[name], windows = placed
    return Elements(order, extents, windows, points)


def _place(graph: Graph, products: frozenset[str], name: str, index: tuple[Affine, ...],
           extents: Mapping[str, int]) -> tuple[Point, dict[str, int]] | Rejected:
    """A result's axes over the products', and its extents of these axes. index: the element at hand over the result's axes."""
    node = graph.node_by_name[name]
    if name in products:
        return {}, {**extents, COLUMN: node.type.shape[-1]}
    place = inverse(index, node, extents)
    if place is None:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} does not have the elements of the product %{min(products)}")
    point, sizes = place
    at = tuple(substitute(axis(a), point, extents) for a in node.axes)
    for product, read in _reads(graph, products, node, at, extents):
        here = zip(extents, (*read[:-1], read[-1] - read[-1].const), strict=True)
        if any(e != (axis(a) if sizes[a] > 1 else number(0)) for a, e in here):
            return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} reads %{product} at another element than the one at hand")
    return point, sizes


def _reads(graph: Graph, products: frozenset[str], node: Node, at: tuple[Affine, ...] | None = None,
           extents: Mapping[str, int] | None = None) -> list[tuple[str, tuple[Affine, ...]]]:
    """(product, subscripts) of every element that `node`, at subscripts `at` (its own axes), needs of products; each once."""
    own = tuple(axis(a) for a in node.axes)
    if node.name in products:
        own = tuple(axis(a) for a in _axes_of(graph, node))
    sizes = extents if extents is not None else dict(zip((str(a) for a in own), node.type.shape, strict=True))
    found: dict[tuple[str, tuple[Affine, ...]], None] = {}
    seen: set[tuple[str, tuple[Affine, ...]]] = set()
    waiting = [(node.name, own if at is None else at)]
    while waiting:
        name, index = waiting.pop(0)
        if (name, index) in seen or name not in graph.node_by_name:
            continue
        seen.add((name, index))
        if name in products:
            found[name, index] = None
        waiting += [(value, tuple(substitute(e, point, sizes) for e in read))
                    for value, read, point in _operands(graph, graph.node_by_name[name], index)]
    return list(found)


def _operands(graph: Graph, node: Node, at: tuple[Affine, ...]) -> Iterator[tuple[str, tuple[Affine, ...], Point]]:
    """(value, subscripts, axes at hand) of every read of a map, and of a product's bias."""
    if node.body is None:
        contraction = any_contraction_of(node, graph)
        if contraction is not None and contraction.bias:
            yield contraction.bias, contraction.bias_index, dict(zip(contraction.axes, at, strict=True))
        return
    point = dict(zip(node.axes, at, strict=True))
    for e in walk(node.body):
        if isinstance(e, Read):
            yield e.value, e.index, point


def boundary_reads(graph: Graph, points: Mapping[str, Point], products: frozenset[str],
                   extents: Mapping[str, int]) -> dict[str, tuple[Affine, ...]]:
    """Boundary values that all maps on the sums read at one place, with their subscripts over the products' axes.

    Values that some map reads under a guard are left out: they may be smaller than the results. points: of results and of reductions, whose
    reduced axes are among them.
    """
    places: dict[str, set[tuple[Affine, ...]]] = {}
    guarded: set[str] = set()
    seen: set[tuple[str, tuple[Affine, ...]]] = set()
    waiting = [(name, tuple(substitute(axis(a), points[name], extents) for a in graph.node_by_name[name].axes))
               for name in points if name not in products]
    while waiting:
        name, at = waiting.pop()
        node = graph.node_by_name.get(name)
        if node is None:
            places.setdefault(name, set()).add(at)
        elif name not in products and (name, at) not in seen:
            seen.add((name, at))
            assert node.body is not None
            guarded |= {r.value for g in walk(node.body) if isinstance(g, Guard) for r in walk(g) if isinstance(r, Read)}
            here = points[name] if node.category == "reduce" else dict(zip(node.axes, at, strict=True))
            waiting += [(e.value, tuple(substitute(i, here, extents) for i in e.index)) for e in walk(node.body) if isinstance(e, Read)]
    return {value: next(iter(at)) for value, at in sorted(places.items()) if len(at) == 1 and value not in guarded}


def _axes_of(graph: Graph, product: Node) -> tuple[str, ...]:
    contraction = any_contraction_of(product, graph)
    assert contraction is not None
    return contraction.axes


def inverse(index: tuple[Affine, ...], node: Node, extents: Mapping[str, int],
            beyond: bool = False) -> tuple[Point, dict[str, int]] | None:
    """The node's axes over those of a value that it reads, and the extents of these that the node has, from the subscripts of the read;
    None where several elements share one.

    A subscript may join axes, as column = head * 64 + place does: head = column / 64, place = column % 64. Rows and columns may end before
    the product's. beyond: the last group of 64 may also reach beyond the product's columns.
    """
    point: dict[str, Affine] = {a: number(0) for a, e in node.extents.items() if e == 1}
    sizes: dict[str, int] = {}
    for name, e in zip(extents, index, strict=True):
        stride, parts = 1, sorted((s, str(a)) for a, s in e.terms if node.extents.get(str(a)) != 1)
        for s, a in parts:
            if s != stride or a in point or a not in node.extents:
                return None
            part = axis(name) // stride if stride > 1 else axis(name)
            stride *= node.extents[a]
            point[a] = part if (s, a) == parts[-1] else part % node.extents[a]
        over = beyond and name == COLUMN and len(parts) > 1 and stride - parts[-1][0] < extents[name]
        if e.const or stride > extents[name] and not over or stride < extents[name] and name not in (ROW, COLUMN):
            return None
        sizes[name] = min(stride, extents[name])
    return (point, sizes) if len(point) == len(node.extents) else None
