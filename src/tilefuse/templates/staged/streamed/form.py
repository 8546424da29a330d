"""The form of a pattern of products with few rows: one left operand that is computed on chip, and weights that are streamed.

    scale = rsqrt(mean(x^2))      reductions of a row, by every block
    a = x * scale * gain          the left operand, [rows, inner]
    y = a @ w' + residual         one product, or several with the same left operand; then element by element
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import COLUMN, INNER, ROW, Contraction, contraction_of
from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, bounds, linearise, number, row_major_strides, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import Lookup, Read, walk
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.staged.pipelined.elements import Point, elements_of

# Rows of the left operand, at most: sums and rows of all blocks fit on chip, and the weights' bytes decide.
MOST_ROWS = 64
# Elements of the right operand that one access may bring, most first: packed ones are several in a byte.
TRIED_ELEMENTS = (32, 16, 8, 4)
# A boundary value, or the result of a reduction, and the subscripts at which an expression reads it; None: at places that data give.
Reached = tuple[str, tuple[Affine, ...] | None]


@dataclass(frozen=True)
class Stream:
    """A product, or a slice of one, and the boundary value that is streamed for it: the largest that its right operand is computed from.

    column    of the product's node where the slice begins
    index     subscripts of the right operand over the slice's axes
    along     axis of the product along which an access goes on: INNER or COLUMN
    elements  of the right operand that an access of 16 bytes, or a part of one, brings
    words     elements of the value in an access
    together  elements of the value that one copy may bring, by alignment
    """

    product: Node
    contraction: Contraction
    column: int
    index: tuple[Affine, ...]
    value: str
    dtype: DType
    along: str
    elements: int
    words: int
    together: int

    @property
    def key(self) -> tuple[str, int]:
        """The product and the column where the slice begins."""
        return self.product.name, self.column

    @property
    def access_bytes(self) -> int:
        """Bytes of an access."""
        return self.words * self.dtype.itemsize


@dataclass(frozen=True)
class StreamForm:
    """Products with one left operand, and everything computed before and after them.

    extents     of the lead axes, ROW and COLUMN that the results have, in the order of the products' dimensions
    unit        "mma" for 16-bit operands, "fma" for f32
    reductions  for each reduction of rows, in graph order, its axes over the lead axes and ROW
    points      for each result, its axes over those of the products
    """

    graph: Graph
    layouts: Layouts
    streams: tuple[Stream, ...]
    extents: Mapping[str, int]
    unit: str
    reductions: Mapping[str, Point]
    points: Mapping[str, Point]

    @property
    def contraction(self) -> Contraction:
        """The contraction of the first product: all have the same left operand and axes."""
        return self.streams[0].contraction

    @property
    def inner(self) -> int:
        """Extent of the contracted axis."""
        return self.contraction.inner

    @property
    def rows(self) -> int:
        """Rows of the left operand."""
        return self.extents[ROW]

    @property
    def columns(self) -> int:
        """Columns of each product."""
        return self.extents[COLUMN]

    @property
    def leads(self) -> tuple[str, ...]:
        """Lead (batch) axes."""
        return self.contraction.axes[:-2]

    @property
    def num_leads(self) -> int:
        """Lead places."""
        return prod(self.extents[a] for a in self.leads)

    @property
    def left_dtype(self) -> DType:
        """Type of the left operand."""
        return self.graph.type_of(self.contraction.left).dtype


def stream_form(graph: Graph, layouts: Layouts) -> StreamForm | Rejected:
    """The form of a pattern given as a graph of its own, or why it has none."""
    products = [n for n in graph.nodes if n.category == "library"]
    contractions = [contraction_of(n, graph) for n in products]
    first = contractions[0] if contractions else None
    refused = _refusal(graph, products, contractions)
    if refused is not None or first is None:
        return refused or Rejected(Reason.OTHER_TEMPLATE, "no product")
    extents = dict(zip(first.axes, products[0].type.shape, strict=True))
    sizes = {**extents, INNER: first.inner}
    unit = "fma" if graph.type_of(first.left).dtype.name == "f32" else "mma"
    elements = elements_of(graph, tuple(products), extents)
    if isinstance(elements, Rejected):
        return elements
    contraction_by_name = {n.name: c for n, c in zip(products, contractions, strict=True) if c is not None}
    streams = [_stream(graph, layouts, graph.node_by_name[n], contraction_by_name[n], column, {**sizes, **elements.extents})
               for n, column in elements.slices]
    legal = [s for s in streams if isinstance(s, Stream)]
    if len(legal) != len(streams):
        return next(s for s in streams if isinstance(s, Rejected))
    if len({(s.along, s.elements) for s in legal}) > 1:
        return Rejected(Reason.DOMAIN_MISMATCH, "weights of the products are read along different axes")
    reductions = _reductions(graph, first, sizes)
    if isinstance(reductions, Rejected):
        return reductions
    return StreamForm(graph, layouts, tuple(legal), elements.windows, unit, reductions, elements.points)


def _refusal(graph: Graph, products: list[Node], contractions: list[Contraction | None]) -> Rejected | None:
    """Why the products of a pattern are none of few rows with one left operand."""
    for node, contraction in zip(products, contractions, strict=True):
        if contraction is None:
            return Rejected(Reason.LIBRARY_CALL, f"%{node.name} is a library call")
        first = contractions[0]
        assert first is not None
        if (contraction.left, contraction.left_index, node.type.shape[:-1]) != (first.left, first.left_index, products[0].type.shape[:-1]):
            return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} and %{products[0].name} have different left operands or shapes")
        left, right = (graph.type_of(v).dtype for v in (contraction.left, contraction.right))
        if left != right or left.name not in ("f16", "bf16", "f32"):
            return Rejected(Reason.UNSUPPORTED_OP, f"%{node.name} multiplies {left} by {right}")
        if node.type.shape[-2] > MOST_ROWS:
            return Rejected(Reason.OTHER_TEMPLATE, f"%{node.name} has {node.type.shape[-2]} rows, and few are {MOST_ROWS}")
    others = [n for n in graph.nodes if n.category not in ("map", "gather", "reduce", "library")]
    if others:
        return Rejected(Reason.OTHER_TEMPLATE, f"%{others[0].name} is a {others[0].kind}")
    return None


# -- reads of expressions ---------------------------------------------------------------------------------------------------


def reached(graph: Graph, value: str, index: tuple[Affine, ...] | None, sizes: Mapping[str, int]) -> Iterator[Reached]:
    """Boundary values, reductions and products that an element of a value is computed from, through maps between them."""
    node = graph.node_by_name.get(value)
    if node is None or node.category not in ("map", "gather") or index is None:
        yield value, index
        return
    point = dict(zip(node.axes, index, strict=True))
    assert node.body is not None
    for e in walk(node.body):
        if isinstance(e, Lookup):
            yield e.value, None
        elif isinstance(e, Read):
            yield from reached(graph, e.value, tuple(substitute(i, point, sizes) for i in e.index), sizes)


def _reductions(graph: Graph, contraction: Contraction, sizes: Mapping[str, int]) -> dict[str, Point] | Rejected:
    """Every reduction that the left operand is computed from, each at one point of its axes for a row."""
    points: dict[str, Point] = {}
    pending = [(contraction.left, contraction.left_index, dict(sizes))]
    while pending:
        value, index, extents = pending.pop()
        for name, at in reached(graph, value, index, extents):
            node = graph.node_by_name.get(name)
            if node is None:
                continue
            if node.category != "reduce" or node.detail not in KERNEL_MONOIDS or at is None:
                return Rejected(Reason.OTHER_TEMPLATE, f"%{name}, which the left operand reads, is a {node.kind}")
            point = {a: substitute(e, {}, extents) for a, e in zip(node.axes, at, strict=True)}
            if any(e.axes() - set(contraction.axes[:-1]) for e in point.values()):
                return Rejected(Reason.REDUCTION_MISMATCH, f"%{name} is none of a row of the left operand")
            if points.setdefault(name, point) != point:
                return Rejected(Reason.REDUCTION_MISMATCH, f"%{name} is read at several rows")
            # The body's own axes are read like the operand's: those that are reduced take the place of the inner axis.
            assert node.body is not None
            for e in walk(node.body):
                if isinstance(e, Read):
                    pending.append((e.value, tuple(substitute(i, point, {**extents, **node.extents}) for i in e.index),
                                    {**extents, **node.extents}))
                elif isinstance(e, Lookup) and e.value in graph.node_by_name:
                    return Rejected(Reason.OTHER_TEMPLATE, f"%{name} reads %{e.value} at places that data give")
    reduced = {n.name for n in graph.nodes if n.category == "reduce"}
    if reduced - set(points):
        return Rejected(Reason.OTHER_TEMPLATE, f"%{min(reduced - set(points))} is a reduction that the left operand does not need")
    return {n.name: points[n.name] for n in graph.nodes if n.name in points}


# -- the streamed value ------------------------------------------------------------------------------------------------------


def _stream(graph: Graph, layouts: Layouts, node: Node, contraction: Contraction, column: int,
            sizes: Mapping[str, int]) -> Stream | Rejected:
    """The largest boundary value of the right operand, and how accesses go along it."""
    index = tuple(substitute(e, {COLUMN: axis(COLUMN) + column}, {**sizes, COLUMN: node.type.shape[-1]}) for e in contraction.right_index)
    read = list(reached(graph, contraction.right, index, sizes))
    inside = [v for v, _ in read if v in graph.node_by_name]
    if inside:
        return Rejected(Reason.OTHER_TEMPLATE, f"%{inside[0]}, which the right operand reads, is no map")
    value = max((v for v, at in read if at is not None), key=lambda v: graph.type_of(v).num_bytes, default="")
    if not value:
        return Rejected(Reason.OTHER_TEMPLATE, f"%{contraction.right} reads no tensor at places that are known")
    dtype = graph.type_of(value).dtype
    strides = tuple(layouts.get(value) or row_major_strides(graph.type_of(value).shape))
    offsets = [linearise(at, strides) for v, at in read if v == value and at is not None]
    extent = 1 + sum((e - 1) * s for e, s in zip(graph.type_of(value).shape, strides, strict=True))
    spans = [bounds(o, sizes) for o in offsets]
    if any(s is None or s[0] < 0 or s[1] >= extent for s in spans):
        return Rejected(Reason.UNSUPPORTED_OP, f"%{value} is read where conditions hold")
    for along in (INNER, COLUMN):
        for elements in TRIED_ELEMENTS if sizes[along] > 1 else ():
            words = _words(offsets, along, elements, sizes)
            if words and len(words) * dtype.itemsize <= ACCESS_BYTES:
                together = vector_parts(words[0] + axis(_WORD), _WORD, len(words), dtype)[0][1]
                return Stream(node, contraction, column, index, value, dtype, along, elements, len(words), together)
    return Rejected(Reason.UNSUPPORTED_OP, f"%{value} has no neighbours along the inner axis or the columns")


_ACCESS, _WORD = "access", "word"


def _words(offsets: list[Affine], along: str, elements: int, sizes: Mapping[str, int]) -> list[Affine]:
    """Places in memory of one access of `elements` elements along an axis, in order; empty where they are no neighbours."""
    extents = {**sizes, _ACCESS: -(-sizes[along] // elements)}
    places: dict[Affine, None] = {}
    for n in range(elements):
        for offset in offsets:
            places[substitute(offset, {along: axis(_ACCESS) * elements + n}, extents)] = None
    words = list(places)
    return words if all(p - words[0] == number(n) for n, p in enumerate(words)) else []
