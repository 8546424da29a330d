"""Operands of pipelined products: strided tensors in memory, or elements that maps of the kernel compute.

    x[.., k]                                 a tensor: tensor copies or loads bring its tiles
    f16(i8 q[j, k]) * s[j],  table[id[i], k]  an element over row (or column) and inner axis: producing threads compute it
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.construction import quickly_built
from tilefuse.domain.contraction import COLUMN, GROUP, INNER, ROW, Contraction
from tilefuse.domain.flat_product import axes_of
from tilefuse.ir.affine import Affine, axis, linearise, number, row_major_strides, substitute
from tilefuse.ir.dtype import F32, DType
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts, strides_of
from tilefuse.ir.scalar import Expr, Index, Lookup, Read, cast, substitute_axes, walk
from tilefuse.kernel.pipeline import SWIZZLE_CHUNK_BYTES
from tilefuse.target.capabilities import REGISTER_BYTES
from tilefuse.target.memory import LINE_BYTES, SECTOR_BYTES
from tilefuse.templates.staged.pipelined.swapped.stored import Stored, stored_of


@quickly_built
@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of the product over the lead axes, its line axis (rows or columns of the product) and INNER.

    inner_is_contiguous: elements of the inner axis follow each other in memory; else those of the line axis do. Units: elements.
    element: over these axes, where maps of the kernel compute the operand: `value` is then their last node, and has no strides. None for a
             strided tensor
    stored: the narrow tensor that such maps read an element of for each of the operand's, if there is one
    read_bytes: bytes that each element reads of values with both axes
    lone_reads: reads of values with both axes whose neighbours along the panels are no words in memory: each is loaded by itself
    reads_along_line: most of these bytes follow each other along the line axis, also where panels run along the inner axis
    """

    value: str
    dtype: DType
    line: str
    lines: int
    stride_by_axis: Mapping[str, int]
    first: int
    inner_is_contiguous: bool
    read_bytes: int
    element: Expr | None = None
    stored: Stored | None = None
    reads_along_line: bool = False
    lone_reads: int = 0

    @property
    def lanes_cross_lines(self) -> bool:
        """Whether neighbouring producing threads take neighbouring lines, along which memory is read although panels run across them."""
        return self.reads_along_line and self.inner_is_contiguous

    @property
    def port_bytes(self) -> float:
        """Bytes that come through the port to L2 for an element. Slots leave the first cache little room: where lanes do not read
        neighbours, each element that is loaded by itself brings a sector, also one that a neighbour has brought."""
        if self.lanes_cross_lines:
            return self.read_bytes
        if self.element is None:
            return self.read_bytes * self.lines_a_run
        return max(self.read_bytes, self.lone_reads * SECTOR_BYTES)

    @property
    def lines_a_run(self) -> float:
        """Lines of the caches that a run of an operand touches, for each line that it fills: 1 where runs begin with lines, almost 2 where
        they begin anywhere. Each line is a request of its own. Tensor copies begin at 16 bytes.

        Source: one H200, 4095 x 4099 by 4097 in bf16, tiles of 256 x 128: rows of both operands at lines 194 us, of the right one 222, of
        none 257; tiles of 128 x 128 in turn 210, 277, 325. By the rate of the port to L2 166, 242, 263 and 166, 266, 307.
        """
        steps = (s for a, s in self.stride_by_axis.items() if s != 1)
        begins = gcd(LINE_BYTES, *(n * self.dtype.itemsize for n in (self.first, *steps)))
        return 2 - max(begins, SWIZZLE_CHUNK_BYTES) / LINE_BYTES


def operand_of(graph: Graph, layouts: Layouts, contraction: Contraction, side: str, extents: Mapping[str, int],
               first: int = 0) -> Operand | Rejected:
    """An operand of the product, or why it is none. Maps that only move elements are followed to the boundary value that they read.

    first: line of the whole operand where the slice of it begins that the kernel reads.
    """
    value, index = (contraction.left, contraction.left_index) if side == "left" else (contraction.right, contraction.right_index)
    line = ROW if side == "left" else COLUMN
    sizes = {**extents, INNER: contraction.inner, **({GROUP: contraction.num_groups} if contraction.num_groups else {})}
    index = tuple(substitute(e, {line: axis(line) + first}, sizes) for e in index) if first else index
    dtype = graph.type_of(value).dtype
    while value in graph.node_by_name:
        node = graph.node_by_name[value]
        if not isinstance(node.body, Read) or node.category != "map":
            return _computed(graph, layouts, node, index, line, sizes)
        at = dict(zip(node.axes, index, strict=True))
        value, index = node.body.value, tuple(substitute(e, at, sizes) for e in node.body.index)
    offset = linearise(index, tuple(layouts.get(value) or row_major_strides(graph.type_of(value).shape)))
    single = {a: number(0) for a, e in sizes.items() if e == 1}
    offset = substitute(offset, single, sizes)
    if not offset.is_linear:
        element = Read(value, index)
        ways = _ways(graph, layouts, element, line, dtype, sizes)
        return Operand(value, dtype, line, extents[line], {}, 0, ways.inner_first, dtype.itemsize, element, None, ways.along_line,
                       ways.lone_reads)
    stride_by_axis = {a: offset.coefficient(a) for a in (*contraction.axes[:-2], GROUP, line, INNER) if sizes.get(a, 1) > 1}
    return Operand(value, dtype, line, extents[line], stride_by_axis, offset.const, stride_by_axis.get(INNER, 1) == 1, dtype.itemsize)


def runs_along_inner(graph: Graph, contraction: Contraction, side: str) -> bool:
    """Whether neighbours along the inner axis are neighbours in memory, where the value that is read has its axes in order.

    Maps that only move elements are followed, as in `operand_of`: the transpose of a weight is a view of it.
    """
    value, index = (contraction.left, contraction.left_index) if side == "left" else (contraction.right, contraction.right_index)
    sizes = {INNER: contraction.inner}
    while (node := graph.node_by_name.get(value)) is not None and node.category == "map" and isinstance(node.body, Read):
        at = dict(zip(node.axes, index, strict=True))
        value, index = node.body.value, tuple(substitute(e, at, sizes) for e in node.body.index)
    offset = linearise(index, row_major_strides(graph.type_of(value).shape))
    return contraction.inner == 1 or offset.is_linear and offset.coefficient(INNER) == 1


# -- computed operands -----------------------------------------------------------------------------------------------------


def _computed(graph: Graph, layouts: Layouts, node: Node, index: tuple[Affine, ...], line: str,
              sizes: Mapping[str, int]) -> Operand | Rejected:
    """The operand that a node of the kernel computes, or why producing threads do not compute it."""
    for name in _above(graph, node):
        above = graph.node_by_name[name]
        if above.category == "library":
            return Rejected(Reason.OTHER_TEMPLATE, f"the product %{name} leads to %{node.name}, an operand of another in the same kernel")
        for e in walk(above.body) if above.body is not None else ():
            if isinstance(e, Lookup) and e.value in graph.node_by_name:
                return Rejected(Reason.UNSUPPORTED_OP, f"%{name} looks up elements of %{e.value}, which the same kernel computes")
    assert node.body is not None
    element = cast(substitute_axes(node.body, dict(zip(node.axes, index, strict=True)), sizes), node.type.dtype)
    read_bytes = sum(leaf.itemsize for leaf in _leaves(graph, layouts, element, sizes) if {line, INNER} <= leaf.axes)
    ways = _ways(graph, layouts, element, line, node.type.dtype, sizes)
    stored = stored_of(graph, layouts, element, line, sizes)
    return Operand(node.name, node.type.dtype, line, sizes[line], {}, 0, ways.inner_first, read_bytes, element, stored, ways.along_line,
                   ways.lone_reads)


def _above(graph: Graph, node: Node) -> dict[str, None]:
    """The node and all nodes that it is computed from."""
    seen: dict[str, None] = {}
    stack = [node.name]
    while stack:
        name = stack.pop()
        if name not in seen and name in graph.node_by_name:
            seen[name] = None
            stack.extend(graph.node_by_name[name].reads())
    return seen


@dataclass(frozen=True, slots=True)
class _Leaf:
    """An access of an element: the axes it depends on, its stride in memory by axis, and its place where these are 0. Units: elements."""

    axes: frozenset[str]
    stride_by_axis: Mapping[str, int]
    first: int
    itemsize: int

    def is_in_words(self, step: str) -> bool:
        """Whether neighbours along `step` are words in memory, which one load brings."""
        pitches = (self.first, *(s for a, s in self.stride_by_axis.items() if a != step))
        return self.stride_by_axis.get(step) == 1 and all(p * self.itemsize % REGISTER_BYTES == 0 for p in pitches)


def _leaves(graph: Graph, layouts: Layouts, e: Expr, sizes: Mapping[str, int]) -> Iterator[_Leaf]:
    """Accesses to boundary values, through maps of the kernel as well."""
    for x in walk(e):
        if isinstance(x, Read) and (node := graph.node_by_name.get(x.value)) is not None:
            assert node.body is not None
            yield from _leaves(graph, layouts, substitute_axes(node.body, dict(zip(node.axes, x.index, strict=True)), sizes), sizes)
        elif isinstance(x, Read):
            offset = linearise(x.index, strides_of(graph, layouts, x.value))
            yield _Leaf(frozenset(offset.axes()), {a: offset.coefficient(a) for a in offset.axes()}, offset.const,
                        graph.type_of(x.value).dtype.itemsize)
        elif isinstance(x, Lookup):
            known = [(s.affine, n) for s, n in zip(x.subscripts, strides_of(graph, layouts, x.value), strict=True) if isinstance(s, Index)]
            offset = linearise(tuple(a for a, _ in known), tuple(n for _, n in known))
            yield _Leaf(axes_of(x), {a: offset.coefficient(a) for a in offset.axes()}, offset.const, graph.type_of(x.value).dtype.itemsize)


@dataclass(frozen=True, slots=True)
class _Ways:
    """Directions of an element's reads of values with both axes, as in `Operand`. inner_first: panels run along the inner axis."""

    inner_first: bool
    along_line: bool
    lone_reads: int


def _ways(graph: Graph, layouts: Layouts, element: Expr, line: str, dtype: DType, sizes: Mapping[str, int]) -> _Ways:
    """Panels run as most bytes of values with both axes do, and always along the inner axis in f32."""
    leaves = [leaf for leaf in _leaves(graph, layouts, element, sizes) if {line, INNER} <= leaf.axes]
    along = {a: sum(leaf.itemsize for leaf in leaves if leaf.stride_by_axis.get(a) == 1) for a in (line, INNER)}
    along_line = along[line] > along[INNER]
    inner_first = dtype == F32 or not along_line
    step = INNER if inner_first else line
    return _Ways(inner_first, along_line, sum(not leaf.is_in_words(step) for leaf in leaves))
