"""The form of a pattern with one product: its operands as strided tensors, and its results as expressions over the product's axes.

    y[b, h, w] = gelu(sum k: x[.., k] w[k, ..] + bias[..])      one product; everything else is computed element by element from its sums
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import COLUMN, INNER, ROW, Contraction, contraction_of
from tilefuse.ir.affine import Affine, axis, linearise, number, row_major_strides, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import Lookup, Read, walk

Point = Mapping[str, Affine]


@dataclass(frozen=True)
class Operand:
    """An operand of the product as a strided tensor over the lead axes, its line axis (rows or columns of the product) and INNER.

    inner_is_contiguous: elements of the inner axis follow each other in memory; else those of the line axis do. Units: elements.
    """

    value: str
    dtype: DType
    line: str
    lines: int
    stride_by_axis: Mapping[str, int]
    first: int
    inner_is_contiguous: bool


@dataclass(frozen=True)
class ProductForm:
    """The product, its operands, and where each result lies.

    extents  of the lead axes, ROW and COLUMN, in the order of the product's dimensions
    windows  extents of the product's axes that the results have: fewer rows or columns where results are a window of a padded product
    points   for each result, its axes over those of the product
    strides  for each result that is a strided tensor over the product's axes, its strides. Units: elements
    """

    graph: Graph
    product: Node
    contraction: Contraction
    extents: Mapping[str, int]
    windows: Mapping[str, int]
    left: Operand
    right: Operand
    points: Mapping[str, Point]
    strides: Mapping[str, Mapping[str, int]]

    @property
    def inner(self) -> int:
        """Extent of the contracted axis."""
        return self.contraction.inner

    @property
    def rows(self) -> int:
        """Rows of the results."""
        return self.windows[ROW]

    @property
    def columns(self) -> int:
        """Columns of the results."""
        return self.windows[COLUMN]

    @property
    def leads(self) -> tuple[str, ...]:
        """Lead (batch) axes."""
        return self.contraction.axes[:-2]

    @property
    def num_leads(self) -> int:
        """Lead places."""
        return prod(self.extents[a] for a in self.leads)


def product_form(graph: Graph, layouts: Layouts) -> ProductForm | Rejected:
    """The form of a pattern given as a graph of its own, or why it has none."""
    products = [n for n in graph.nodes if n.category == "library"]
    if len(products) != 1:
        return Rejected(Reason.OTHER_TEMPLATE, f"{len(products)} products, and a pipeline has one")
    product = products[0]
    contraction = contraction_of(product, graph)
    if contraction is None:
        return Rejected(Reason.LIBRARY_CALL, f"%{product.name} is a library call")
    others = [n for n in graph.nodes if n is not product and n.category not in ("map", "gather")]
    if others:
        return Rejected(Reason.OTHER_TEMPLATE, f"%{others[0].name} is a {others[0].kind}, and sums of a pipeline go to maps only")
    extents = dict(zip(contraction.axes, product.type.shape, strict=True))
    left = _operand(graph, layouts, contraction, "left", extents)
    right = _operand(graph, layouts, contraction, "right", extents)
    if isinstance(left, Rejected):
        return left
    if isinstance(right, Rejected):
        return right
    if left.dtype != right.dtype:
        return Rejected(Reason.UNSUPPORTED_OP, f"%{product.name} multiplies {left.dtype} by {right.dtype}")
    elements = _points(graph, product, extents)
    if isinstance(elements, Rejected):
        return elements
    points, windows = elements
    return ProductForm(graph, product, contraction, extents, windows, left, right, points, _strides(graph, layouts, windows, points))


def _operand(graph: Graph, layouts: Layouts, contraction: Contraction, side: str, extents: Mapping[str, int]) -> Operand | Rejected:
    """An operand of the product, or why it is none. Maps that only move elements are followed to the boundary value that they read."""
    value, index = (contraction.left, contraction.left_index) if side == "left" else (contraction.right, contraction.right_index)
    line = ROW if side == "left" else COLUMN
    sizes = {**extents, INNER: contraction.inner}
    dtype = graph.type_of(value).dtype
    while value in graph.node_by_name:
        node = graph.node_by_name[value]
        if node.category != "map" or not isinstance(node.body, Read):
            return Rejected(Reason.OTHER_TEMPLATE, f"%{value}, an operand of the product, is computed in the same kernel")
        at = dict(zip(node.axes, index, strict=True))
        value, index = node.body.value, tuple(substitute(e, at, sizes) for e in node.body.index)
    offset = linearise(index, tuple(layouts.get(value) or row_major_strides(graph.type_of(value).shape)))
    single = {a: number(0) for a, e in sizes.items() if e == 1}
    offset = substitute(offset, single, sizes)
    if not offset.is_linear:
        return Rejected(Reason.UNSUPPORTED_OP, f"%{value} is no strided tensor over the axes of the product")
    stride_by_axis = {a: offset.coefficient(a) for a in (*contraction.axes[:-2], line, INNER) if sizes[a] > 1}
    return Operand(value, dtype, line, extents[line], stride_by_axis, offset.const, stride_by_axis.get(INNER, 1) == 1)


# -- results ---------------------------------------------------------------------------------------------------------------


def _points(graph: Graph, product: Node, extents: Mapping[str, int]) -> tuple[dict[str, Point], dict[str, int]] | Rejected:
    """For each result its axes over the product's, and the extents of the product's axes that all results have.

    Every way from a result to the product leads to the element at hand.
    """
    points: dict[str, Point] = {}
    windows: dict[str, int] = {}
    axes = tuple(axis(a) for a in extents)
    for name in graph.results:
        node = graph.node_by_name[name]
        point: Point = {}
        sizes = dict(extents)
        if node is not product:
            own = tuple(axis(a) for a in node.axes)
            index = next(_product_reads(graph, product, node, own), None)
            if index is None:
                return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} does not depend on the product %{product.name}")
            inverse = _inverse(index, node, extents)
            if inverse is None:
                return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} does not have the elements of the product %{product.name}")
            point, sizes = inverse
            at = tuple(substitute(a, point, extents) for a in own)
            for read in _product_reads(graph, product, node, at, extents):
                if any(sizes[a] > 1 and e != axes[n] for n, (a, e) in enumerate(zip(extents, read, strict=True))):
                    return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} reads %{product.name} at another element than the one at hand")
        if windows and windows != sizes:
            return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} has another part of the product %{product.name} than %{graph.results[0]}")
        points[name], windows = point, sizes
    return points, windows


def _strides(graph: Graph, layouts: Layouts, extents: Mapping[str, int], points: Mapping[str, Point]) -> dict[str, dict[str, int]]:
    """Strides of the results that are strided tensors over the product's axes."""
    strides_by_result: dict[str, dict[str, int]] = {}
    single = {a: number(0) for a, e in extents.items() if e == 1}
    for name, point in points.items():
        own = tuple(axis(a) for a in extents) if not point else tuple(point[a] for a in graph.node_by_name[name].axes)
        offset = substitute(linearise(own, tuple(layouts.get(name) or row_major_strides(graph.type_of(name).shape))), single, extents)
        if offset.is_linear:
            strides_by_result[name] = {a: offset.coefficient(a) for a, e in extents.items() if e > 1}
    return strides_by_result


def _product_reads(graph: Graph, product: Node, node: Node, at: tuple[Affine, ...],
                   extents: Mapping[str, int] | None = None) -> Iterator[tuple[Affine, ...]]:
    """Subscripts at which `node`, at subscripts `at`, reads the product, through maps between them as well."""
    point = dict(zip(node.axes, at, strict=True))
    sizes = extents if extents is not None else node.extents
    assert node.body is not None
    for e in walk(node.body):
        if isinstance(e, Lookup) and e.value in graph.node_by_name:
            # Elements at places that data give: none of them is the one at hand.
            yield tuple(number(-1) for _ in graph.type_of(e.value).shape)
        if not isinstance(e, Read) or e.value not in graph.node_by_name:
            continue
        index = tuple(substitute(i, point, sizes) for i in e.index)
        if e.value == product.name:
            yield index
        else:
            yield from _product_reads(graph, product, graph.node_by_name[e.value], index, extents if extents is not None else node.extents)


def _inverse(index: tuple[Affine, ...], node: Node, extents: Mapping[str, int]) -> tuple[Point, dict[str, int]] | None:
    """The node's axes over the product's, and the extents of the product's axes that the node has, from the product's subscripts over the
    node's axes; None where several elements share one.

    A subscript may join axes, as column = head * 64 + place does: head = column / 64, place = column % 64. Rows and columns may end before
    the product's.
    """
    point: dict[str, Affine] = {a: number(0) for a, e in node.extents.items() if e == 1}
    sizes: dict[str, int] = {}
    for name, e in zip(extents, index, strict=True):
        stride, parts = 1, sorted((s, str(a)) for a, s in e.terms)
        for s, a in parts:
            if s != stride or a in point or a not in node.extents:
                return None
            place = axis(name) // stride if stride > 1 else axis(name)
            stride *= node.extents[a]
            point[a] = place if (s, a) == parts[-1] else place % node.extents[a]
        if e.const or stride > extents[name] or stride < extents[name] and name not in (ROW, COLUMN):
            return None
        sizes[name] = stride
    return (point, sizes) if len(point) == len(node.axes) else None
