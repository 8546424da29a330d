"""Walked operands in pages: blocks of a cache whose numbers lie in a table, so that rows which follow each other lie anywhere in memory.

    k[b, c]  =  pages[table[b, c // 16], c % 16]        keys of a batch: pages of 16 rows, found by the numbers of its table

    tensor map     axes: page, row of a page, head, inner       box: as many rows as both a page and a turn are made of
    a turn         page numbers of its columns from memory, then a copy for each of them; pages behind the end of the axis are zeros

Nothing is gathered in memory. Numbers of pages that no turn reaches are not read, so that a table may hold anything behind the end of a
length that bounds the walk.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

from tilefuse.domain.contraction import INNER
from tilefuse.ir.affine import Affine, Atom, FloorDiv, Mod, axes_of, axis, is_within, linearise, number, substitute
from tilefuse.ir.dtype import DTYPES
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts, strides_of
from tilefuse.ir.scalar import Call, Const, Expr, Guard, Index, Lookup, Read, cast, index_maps, substitute_axes, transform, walk
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.templates.staged.pipelined.operand import Operand
from tilefuse.templates.staged.pipelined.plan import OperandMap, OperandTile, map_of_tile
from tilefuse.templates.staged.walked.leads import axes_by_stride

# Axis of a paged operand that counts the pages in memory.
PAGE = "page"


@dataclass(frozen=True)
class Pages:
    """Pages along the walked axis of an operand.

    along      the walked axis in the operand's product, of `length` elements
    size       rows of a page along it
    element    of the operand, over the lead axes of the product, its line axis and INNER
    dimension  of the looked-up value that counts pages
    """

    along: str
    length: int
    size: int
    element: Lookup
    dimension: int

    @property
    def number(self) -> Expr:
        """The number of a page, from the lead axes and `along`: an integer of memory."""
        return self.element.subscripts[self.dimension]

    def rows_of_copy(self, columns: int) -> int:
        """Rows along the walked axis that a copy of a turn of `columns` columns brings, all in one page, all or none within the axis."""
        return gcd(self.size, self.length, columns)


def with_pages(graph: Graph, layouts: Layouts, operand: Operand, sizes: Mapping[str, int], along: str
               ) -> tuple[Operand, Mapping[str, Affine], Pages] | str:
    """An operand whose elements lie in pages as a strided tensor over PAGE, INNER, its line axis and digits of the lead axes, each digit by
    its name, and the pages; the reason where it is no such operand.

    sizes: extents of the product's axes. along: the walked one.
    """
    element = None if operand.element is None else _lookup(graph, _written_out(graph, operand.element, sizes))
    if element is None or graph.type_of(element.value).dtype != operand.dtype:
        return f"%{operand.value} is computed, and tensor copies bring operands from memory"
    single = {a: number(0) for a, e in sizes.items() if e == 1}
    subscripts = tuple(_index(substitute_axes(s, single, sizes)) for s in element.subscripts)
    data = [n for n, s in enumerate(subscripts) if not isinstance(s, Index)]
    if len(data) != 1:
        return f"%{element.value} is looked up by {len(data)} subscripts, and pages have one"
    if not all(_is_within(s, extent, sizes) for s, extent in zip(subscripts, graph.type_of(element.value).shape, strict=True)):
        return f"%{element.value} is looked up beyond its end"
    strides = strides_of(graph, layouts, element.value)
    offset = linearise(tuple(s.affine if isinstance(s, Index) else number(0) for s in subscripts), tuple(strides))
    page = subscripts[data[0]]
    size = _page_size(page, offset, along, sizes[along])
    if size is None or any(isinstance(x, Read) and x.value in graph.node_by_name for x in walk(page)):
        return f"%{element.value} has no pages of rows that follow each other along the walked axis"
    pages = Pages(along, sizes[along], size, Lookup(element.value, subscripts), data[0])
    if pages.rows_of_copy(0) % MMA_COLUMNS:
        return f"pages of {size} rows of %{element.value}, and tensor copies bring groups of {MMA_COLUMNS}"
    axes = axes_by_stride(substitute(offset, {along: number(0)}, sizes), operand.line)
    if axes is None:
        return f"%{element.value} lies at no one distance along the axes of its product"
    stride_by_axis, digits = axes
    step = next(stride for atom, stride in offset.terms if atom in (along, Mod(axis(along), size)))
    stride_by_axis |= {PAGE: strides[data[0]], along: step}
    paged = replace(operand, value=element.value, element=None, stride_by_axis=stride_by_axis, first=offset.const, lone_reads=0,
                    read_bytes=operand.dtype.itemsize, inner_is_contiguous=stride_by_axis.get(INNER, 1) == 1)
    if paged.inner_is_contiguous == (along == INNER):
        return f"rows of the pages of %{element.value} lie next to each other"
    return paged, digits, pages


def _written_out(graph: Graph, e: Expr, sizes: Mapping[str, int]) -> Expr:
    """An expression with the bodies of maps of the kernel in the place of their elements."""
    def body(x: Expr) -> Expr:
        node = graph.node_by_name.get(x.value) if isinstance(x, Read) else None
        if not isinstance(x, Read) or node is None or node.category not in ("map", "gather") or node.body is None:
            return x
        own = substitute_axes(node.body, dict(zip(node.axes, x.index, strict=True)), sizes)
        return _written_out(graph, own if isinstance(own, Read) else cast(own, node.type.dtype), sizes)

    return transform(e, body)


def _lookup(graph: Graph, e: Expr) -> Lookup | None:
    """The element that an expression looks up in memory, with conversions to its own type around it; None for any other."""
    types = set()
    while isinstance(e, Call) and e.fn in DTYPES:
        types.add(e.fn)
        e = e.args[0]
    is_own = isinstance(e, Lookup) and e.value not in graph.node_by_name and types <= {graph.type_of(e.value).dtype.name}
    return e if isinstance(e, Lookup) and is_own else None


def _index(e: Expr) -> Expr:
    """A subscript without conversions, where it is an index expression."""
    inner = e
    while isinstance(inner, Call) and inner.fn in DTYPES:
        inner = inner.args[0]
    if isinstance(inner, Const):
        return Index(number(int(inner.value)))
    return inner if isinstance(inner, Index) else e


def _is_within(subscript: Expr, extent: int, sizes: Mapping[str, int]) -> bool:
    """Whether a subscript that is an index expression lies in its dimension, where no lookup moves it there."""
    return not isinstance(subscript, Index) or is_within(subscript.affine, extent, sizes)


def _page_size(page: Expr, offset: Affine, along: str, length: int) -> int | None:
    """Rows of a page along the walked axis: it counts pages by a quotient, and rows of a page by the remainder; None for any other."""
    by_row = _atoms(offset, along)
    if any(isinstance(x, Guard) and any(along in b.index.axes() for b in x.bounds) for x in walk(page)) or len(by_row) != 1:
        return None
    by_page = {atom for x in walk(page) for i in index_maps(x) for atom in _atoms(i, along)}
    row = by_row.pop()
    if row == along:
        return None if by_page else length
    is_remainder = isinstance(row, Mod) and row.of == axis(along) and by_page <= {FloorDiv(axis(along), row.by)}
    return row.by if isinstance(row, Mod) and is_remainder else None


def _atoms(e: Affine, along: str) -> set[Atom]:
    """Atoms of an index expression that depend on an axis."""
    return {atom for atom, _ in e.terms if along in axes_of(atom)}


def map_of_pages(sizes: Mapping[str, int], tile: OperandTile, pages: Pages, columns: int) -> OperandMap:
    """The tensor map of a paged operand, whose box has the rows that one copy of a turn brings. sizes: extents of the operand's axes."""
    m = map_of_tile({**sizes, pages.along: pages.size}, tile)
    return replace(m, box=(*m.box[:-2], pages.rows_of_copy(columns), m.box[-1]))
