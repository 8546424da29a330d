"""Padded products as nodes: copies of operands that lie in whole 16 bytes, the product of them, a window of its result."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilefuse.base.construction import quickly_built
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.library.meaning import inner_extent
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Bound, Expr, Guard, Read, cast, const
from tilefuse.passes.device.operand_memory import OperandMemory, looked_through, operand_memory
from tilefuse.target.memory import ACCESS_BYTES

# An attribute of padded products: of our kernels, those hold them whose operands come by tensor copies.
PADDED = "padded"
# Rows, inner axis and columns of a product, and their places there.
Sizes = tuple[int, int, int]
ROW, INNER, COLUMN = 0, 1, 2


@quickly_built
@dataclass(frozen=True, slots=True)
class ProductOperand:
    """An operand of a product. place: the product's sizes that its last two dimensions are. memory: None where no strides describe it.

    inner_first: kernels take operands of its type only where memory runs along the inner axis.
    """

    value: str
    place: tuple[int, int]
    memory: OperandMemory | None
    inner_first: bool = False

    @property
    def is_aligned(self) -> bool:
        """Whether it lies in lines that begin at multiples of 16 bytes, and as kernels take it."""
        return self.memory is not None and self.memory.is_aligned and (not self.inner_first or self.memory.along == self.along)

    @property
    def along(self) -> int:
        """The one of its last two dimensions along which memory runs, or would in a copy: -1 or -2."""
        if self.inner_first:
            return -1 if self.place[-1] == INNER else -2
        return -1 if self.memory is None or self.memory.along is None else self.memory.along

    def lies_in(self, sizes: Sizes, padded: Sizes) -> bool:
        """Whether the padded product reads it as it is."""
        return self.is_aligned and all(sizes[p] == padded[p] for p in self.place)


def product_sizes(graph: Graph, node: Node) -> Sizes:
    """Rows, inner axis and columns of a product, its lead axes aside."""
    return node.type.shape[-2], inner_extent(node, graph), node.type.shape[-1]


def product_operands(graph: Graph, node: Node, input_strides: Layouts) -> tuple[ProductOperand, ProductOperand]:
    """Left and right operand. input_strides: those of inputs. Units: elements."""
    left, right = node.operands[:2]
    places = ((INNER, ROW) if node.attribute("transpose_a") else (ROW, INNER),
              (COLUMN, INNER) if node.attribute("transpose_b") else (INNER, COLUMN))
    inner_first = takes_inner_first(graph, node)
    return (ProductOperand(left, places[0], operand_memory(graph, left, input_strides), inner_first),
            ProductOperand(right, places[1], operand_memory(graph, right, input_strides), inner_first))


def takes_inner_first(graph: Graph, node: Node) -> bool:
    """Whether warpgroup instructions take the operands' types only where both have the inner axis in order of memory: 8-bit operands with
    wider results, and f32 as high and low parts. Source: PTX ISA, wgmma."""
    left, right = (graph.type_of(v).dtype for v in node.operands[:2])
    parts = left == right == F32 and node.attribute("precision", "default") == "default"
    return parts or left.bits == right.bits == 8 and bool(node.attribute("dtype"))


def may_keep_left(operands: tuple[ProductOperand, ProductOperand]) -> bool:
    """Whether kernels may read a left operand as it lies, wherever its rows begin: along the inner axis, which runs across the memory of
    the right operand. Source: `templates/staged/pipelined/shifted/rows.py`."""
    left, right = operands
    along_inner = left.memory is not None and left.memory.is_matrix and left.memory.along == left.along and left.place[left.along] == INNER
    return along_inner and not left.inner_first and right.place[right.along] == COLUMN


@dataclass(frozen=True, slots=True)
class Way:
    """How a product is padded. unit_bytes: of which its rows in memory become multiples, of 16 or of a line of the caches.

    keeps_left: kernels read the left operand as it lies.
    """

    unit_bytes: int = ACCESS_BYTES
    keeps_left: bool = False


def padded_sizes(graph: Graph, node: Node, operands: tuple[ProductOperand, ...], way: Way = Way()) -> Sizes:
    """The product's sizes; those along which memory of copies runs, and are no whole 16 bytes, are rounded up to whole units."""
    itemsize = graph.type_of(node.operands[0]).dtype.itemsize
    each, unit = ACCESS_BYTES // itemsize, way.unit_bytes // itemsize
    along = {COLUMN} | {o.place[o.along] for o in operands[way.keeps_left:]}
    rows, inner, columns = (-(-n // unit) * unit if place in along and n % each else n
                            for place, n in enumerate(product_sizes(graph, node)))
    return rows, inner, columns


@dataclass(slots=True)
class Copies:
    """Copies of the operands of one graph. Products that read the same matrix, as the two of a gradient do, share one copy, turned or not.

    input_strides: those of inputs. Units: elements.
    """

    graph: Graph
    input_strides: Layouts
    names_in_use: set[str] = field(init=False)
    name_by_copy: dict[tuple[Expr, tuple[int, ...]], str] = field(default_factory=dict)
    type_by_name: dict[str, Type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names_in_use = set(self.graph.type_by_name)

    def copy(self, operand: ProductOperand, sizes: Mapping[int, int]) -> tuple[str, Node | None]:
        """The copy's name, and its node where the copy is new. It lies in memory as the operand does, so that both are accessed in order.

        sizes: those of the padded product by place.
        """
        shape = self.graph.type_of(operand.value).shape
        lead = tuple(axis(f"l{n}") if e > 1 and not self._repeats(operand, n) else number(0) for n, e in enumerate(shape[:-2]))
        order = (-2, -1) if operand.along == -1 else (-1, -2)
        # Subscripts of the operand over the axes of the copy, and what they may reach.
        index = (*lead, axis("i" if order[0] == -2 else "j"), axis("j" if order[0] == -2 else "i"))
        extents = {f"l{n}": e for n, e in enumerate(shape[:-2])} | {"i": shape[order[0]], "j": shape[order[1]]}
        type_ = Type(self.graph.type_of(operand.value).dtype, (*(e if a.terms else 1 for e, a in zip(shape[:-2], lead)),
                                                               *(sizes[operand.place[d]] for d in order)))
        read = looked_through(self.graph, Read(operand.value, index), extents)
        name = self.name_by_copy.get((read, type_.shape))
        if name is not None:
            return name, None
        name = self.name_by_copy[read, type_.shape] = free_name(f"{operand.value}_padded", self.names_in_use)
        self.type_by_name[name] = type_
        bounds = tuple(Bound(axis(a), 0, extents[a]) for a, padded in zip("ij", type_.shape[-2:]) if extents[a] != padded)
        # A plain read would be a view. A conversion to the same type is a copy like any other kernel's.
        body: Expr = Guard(bounds, read, const(0, type_.dtype)) if bounds else cast(read, type_.dtype)
        return name, Node(name, type_, "map", (*(f"l{n}" for n in range(len(lead))), "i", "j"), body=body)

    def _repeats(self, operand: ProductOperand, dimension: int) -> bool:
        return operand.memory is not None and operand.memory.strides[dimension] == 0


@dataclass(frozen=True, slots=True)
class PaddedProduct:
    """A padded product: copies of operands that are new, by operand; the product; a window of it under the old name where it is larger."""

    copies: Mapping[str, Node]
    product: Node
    window: Node | None

    @property
    def nodes(self) -> list[Node]:
        """All nodes in order."""
        return [*self.copies.values(), *self.behind]

    @property
    def behind(self) -> list[Node]:
        """The product and the window."""
        return [self.product] if self.window is None else [self.product, self.window]


def padded_product(copies: Copies, node: Node, way: Way = Way()) -> PaddedProduct:
    """A product with copies of the operands that do not lie in whole 16 bytes."""
    graph = copies.graph
    both = product_operands(graph, node, copies.input_strides)
    sizes, padded = product_sizes(graph, node), padded_sizes(graph, node, both, way)
    new: dict[str, Node] = {}
    names: list[str] = []
    turned = {"transpose_a": bool(node.attribute("transpose_a")), "transpose_b": bool(node.attribute("transpose_b"))}
    for operand, turn in zip(both, turned):
        if operand.lies_in(sizes, padded) or way.keeps_left and operand is both[0]:
            names.append(operand.value)
            continue
        name, copy = copies.copy(operand, dict(enumerate(padded)))
        if copy is not None:
            new[operand.value] = copy
        names.append(name)
        turned[turn] ^= operand.along == -2
    attributes = tuple(sorted((dict(node.attributes) | turned | {PADDED: True}).items()))
    product = replace(node, operands=tuple(names), attributes=attributes)
    if (sizes[ROW], sizes[COLUMN]) == (padded[ROW], padded[COLUMN]):
        return PaddedProduct(new, product, None)
    type_ = Type(node.type.dtype, (*node.type.shape[:-2], padded[ROW], padded[COLUMN]))
    product = replace(product, name=free_name(f"{node.name}_padded", copies.names_in_use), type=type_)
    axes = (*(f"l{n}" for n in range(len(type_.shape) - 2)), "i", "j")
    index: tuple[Affine, ...] = tuple(map(axis, axes))
    return PaddedProduct(new, product, Node(node.name, node.type, "map", axes, body=Read(product.name, index), span=node.span))
