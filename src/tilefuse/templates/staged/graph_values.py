"""Values of kernels whose statements read the graph's own expressions: stitched kernels, and those that walk an axis between products.

Here are the buffers of boundary values, offsets in memory, and data-dependent subscripts; where an element is, each kind of kernel says.
"""
from __future__ import annotations

import abc
from math import prod

from tilefuse.base.errors import InternalError
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.boundary import boundary_buffer
from tilefuse.emit.statements import Statements
from tilefuse.emit.subscripts import clamped
from tilefuse.ir.affine import Affine, number, row_major_strides, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.resolver import Resolver
from tilefuse.ir.scalar import Bound, Call, Expr, GraphLeaf, Index, Lookup, Read, checked_extent, walk
from tilefuse.kernel.checked_index import counts_from_end
from tilefuse.kernel.ir import InRange, KernelLeaf, KExpr, Load
from tilefuse.target.device import DeviceSpec


class GraphStatements(Statements):
    """Statements of one kernel over `graph`, whose boundary values lie in buffers of their own."""

    def __init__(self, program: TileProgram, graph: Graph, device: DeviceSpec) -> None:
        super().__init__()
        self.program, self.graph, self.device = program, graph, device
        self.unroll = device.kind == "cuda"

    def add_boundary(self) -> None:
        """Makes the buffers of the graph's inputs and results."""
        for value in self.graph.inputs:
            self._add(value.name, value.type.dtype, "in")
        for name in self.graph.results:
            self._add(name, self.graph.type_of(name).dtype, "out")

    def _add(self, value: str, dtype: DType, role: str) -> None:
        shape, strides = self.graph.type_of(value).shape, self.program.layouts.get(value)
        extent = prod(shape) if strides is None else 1 + sum((e - 1) * s for e, s in zip(shape, strides, strict=True))
        self.buffers[value] = boundary_buffer(self.fresh(value), dtype, extent, role, value, shape)

    def strides(self, value: str) -> tuple[int, ...]:
        """Strides of a boundary value. Units: elements."""
        return tuple(self.program.layouts.get(value) or row_major_strides(self.graph.type_of(value).shape))

    def simplified(self, e: Affine) -> Affine:
        """An index expression over kernel names in its simplest form."""
        return substitute(e, {}, self.extents)


class GraphResolver(Resolver[GraphLeaf, KernelLeaf]):
    """The graph's expressions as kernel expressions, at one point of its axes."""

    def __init__(self, writer: GraphStatements) -> None:
        self.writer = writer

    def always(self, bound: Bound) -> bool:
        return self.writer.always(bound)

    @abc.abstractmethod
    def read(self, e: Read, guarded: bool) -> KExpr:
        """The element that is read."""

    @abc.abstractmethod
    def offset(self, e: Read) -> Affine:
        """Offset in global memory of an element of a boundary value. Units: elements."""

    def leaf(self, e: GraphLeaf, guarded: bool) -> KExpr:
        match e:
            case Read():
                return self.read(e, guarded)
            case Lookup():
                return self._lookup(e, guarded)
        raise InternalError(f"not a scalar expression: {e!r}")

    def call(self, e: Call[Expr], guarded: bool) -> KExpr:
        return super().call(e, guarded) if checked_extent(e) is None else self._in_range(e, guarded)

    def _lookup(self, e: Lookup, guarded: bool) -> KExpr:
        """An element at data-dependent subscripts, each within its extent."""
        buffer = self.writer.buffers[e.value]
        return Load(buffer.name, buffer.dtype, *self.looked_up(e, guarded))

    def looked_up(self, e: Lookup, guarded: bool) -> tuple[Affine, tuple[tuple[KExpr, int], ...]]:
        """Place of an element: the offset by subscripts that do not depend on data, and the others with their strides. Units: elements."""
        offset = number(0)
        dynamic: list[tuple[KExpr, int]] = []
        shape = self.writer.graph.type_of(e.value).shape
        for n, (s, extent, stride) in enumerate(zip(e.subscripts, shape, self.writer.strides(e.value), strict=True)):
            if isinstance(s, Index) and self.is_inside(s.affine, extent):
                offset = offset + self.index(s.affine) * stride
            else:
                dynamic.append((self.subscript(e, n, guarded), stride))
        return self.writer.simplified(offset), tuple(dynamic)

    def is_inside(self, e: Affine, extent: int) -> bool:
        """Whether a subscript lies in an extent wherever it is evaluated."""
        return self.writer.always(Bound(self.index(e), 0, extent))

    def subscript(self, e: Lookup, dimension: int, guarded: bool) -> KExpr:
        """A data-dependent subscript, within its extent."""
        s, extent = e.subscripts[dimension], self.writer.graph.type_of(e.value).shape[dimension]
        checked = checked_extent(s)
        if isinstance(s, Call) and checked is not None and checked <= extent:
            return self._in_range(s, guarded, e.value, dimension)
        return clamped(self.expression(s, guarded), extent)

    def _in_range(self, e: Call[Expr], guarded: bool, value: str = "", dimension: int = 0) -> InRange:
        """A checked subscript, of dimension `dimension` of `value` where it is one."""
        writer = self.writer
        extent = checked_extent(e)
        assert extent is not None
        source, place = "", Affine()
        for read in walk(e):
            if isinstance(read, Read) and read.value in writer.buffers and writer.graph.type_of(read.value).dtype.is_integer:
                source, place = writer.buffers[read.value].name, self.offset(read)
                break
        buffer = writer.buffers[value].name if value else ""
        return InRange(self.expression(e.args[0], guarded), extent, buffer, dimension, source, place, counts_from_end(e.args[0]))
