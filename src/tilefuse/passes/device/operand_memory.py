"""Where the operands of matrix products lie in memory: the value behind views, strides, alignment.

    %t = map [i, j] { %x[j, i + 1] }      %t is a view of %x: the same memory, from its second column on, turned
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilefuse.base.construction import quickly_built
from tilefuse.base.memo import remembered
from tilefuse.ir.affine import Affine, Extents, axis, linearise, simplify, substitute
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts, strides_of
from tilefuse.ir.scalar import Expr, Read, substitute_axes
from tilefuse.target.memory import ACCESS_BYTES


@quickly_built
@dataclass(frozen=True, slots=True)
class OperandMemory:
    """The memory of an operand: offset of its first element in the value behind views, and the stride of every dimension.

    Units: elements; `itemsize` bytes. The stride of a dimension of one element is 0.
    """

    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]
    itemsize: int

    @property
    def along(self) -> int | None:
        """The one of the last two dimensions whose elements are neighbours, as -1 or -2; None where neither's are."""
        return next((d for d in (-1, -2) if self.strides[d] == 1), None)

    def is_multiple_of(self, num_bytes: int) -> bool:
        """Whether every line of neighbours begins at a multiple of so many bytes."""
        steps = (self.offset, *(s for s in self.strides if s != 1))
        return all(step * self.itemsize % num_bytes == 0 for step in steps)

    @property
    def is_matrix(self) -> bool:
        """Whether the library reads the operand as it lies: neighbours along one of the last two dimensions, the other one not repeated."""
        along = self.along
        return along is not None and (self.strides[-3 - along] != 0 or self.shape[-3 - along] == 1)

    @property
    def is_aligned(self) -> bool:
        """Whether a tensor map describes the operand, and the library reads it in whole accesses."""
        return self.is_matrix and self.is_multiple_of(ACCESS_BYTES)


def operand_memory(graph: Graph, value: str, input_strides: Layouts) -> OperandMemory | None:
    """The memory of an operand of two or more dimensions; None where no strides describe it. Units: elements."""
    type_ = graph.type_of(value)
    if 0 in type_.shape:
        return None
    views = tuple((node.axes, read.index) for node, read in views_between(graph, value))
    place = _place(type_.shape, views, strides_of(graph, input_strides, behind_views(graph, value)))
    return None if place is None else OperandMemory(type_.shape, *place, type_.dtype.itemsize)


def views_between(graph: Graph, value: str) -> Iterator[tuple[Node, Read]]:
    """Views between a value and the one that has memory, from the value on, each with its body: the read of the next one."""
    while (maker := graph.node_by_name.get(value)) is not None and maker.kind == "map" and isinstance(maker.body, Read):
        yield maker, maker.body
        value = maker.body.value


def behind_views(graph: Graph, value: str) -> str:
    """The value that has memory, behind views."""
    for _, read in views_between(graph, value):
        value = read.value
    return value


# Axes of a view, and the subscripts at which it reads.
View = tuple[tuple[str, ...], tuple[Affine, ...]]


@remembered
def _place(shape: tuple[int, ...], views: tuple[View, ...], strides: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """Offset and strides of a value of `shape` behind views of memory with `strides`. Layers of a model have the same ones again."""
    names = tuple(f"d{n}" for n in range(len(shape)))
    extents = dict(zip(names, shape, strict=True))
    index = tuple(map(axis, names))
    for axes, inner in views:
        by_axis = dict(zip(axes, index, strict=True))
        index = tuple(substitute(e, by_axis, extents) for e in inner)
    single: dict[str, Affine] = {a: Affine() for a, e in extents.items() if e == 1}
    flat = simplify(substitute(linearise(index, strides), single, extents), extents)
    return (flat.const, tuple(flat.coefficient(a) for a in names)) if flat.is_linear else None


def looked_through(graph: Graph, read: Read, extents: Extents) -> Expr:
    """A read through views, replaced by a read of the value that has memory."""
    for node, body in views_between(graph, read.value):
        viewed = substitute_axes(body, dict(zip(node.axes, read.index, strict=True)), extents)
        assert isinstance(viewed, Read)
        read = viewed
    return read
