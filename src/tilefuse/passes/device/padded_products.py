"""Products on the matrix unit whose rows in memory are no multiples of 16 bytes: padded with zeros to the next multiple.

    w[i, j] = sum_(k < 197) a[i, k] b[k, j]  (j < 197)    ->    p = a' b'  with  a'[i, k] = a[i, k] if k < 197 else 0  (k < 200)
                                                                w[i, j] = p[i, j]                                    (j < 197)

The library's fast kernels need rows of whole 16 bytes. The kernel that computes an operand stores it padded; any other operand is copied.
Readers of the result read a window of it. A product is padded where the library gains more than the copies cost. It is left alone where
one of our kernels holds it together with another product, and where it has few rows.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import Extents, axis, row_major_strides
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.layouts import window_of
from tilefuse.ir.library.meaning import inner_extent
from tilefuse.ir.names import free_name
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Bound, Expr, Guard, Index, Lookup, Read, call, const, substitute_axes, transform
from tilefuse.passes.device.long_products import without_unused
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import ACCESS_BYTES

# An attribute of padded products: of our kernels, those hold them whose operands come by tensor copies.
PADDED = "padded"
# Places in the sizes (rows, inner, columns) of a product.
ROW, INNER, COLUMN = 0, 1, 2


@register_pass
@dataclass(frozen=True)
class PadProducts(DevicePass):
    """Pad products on the matrix unit with zeros where their rows in memory are no multiples of 16 bytes.

    Exact: sums take zeros in; a library may associate them differently.
    """

    name: ClassVar[str] = "pad-products"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    for_fusion: ClassVar[bool] = True
    asks_prices: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with padded products; `graph` itself where none gains by it."""
        assert ctx.prices is not None
        return pad_products(graph, device, ctx.prices)


def pad_products(graph: Graph, device: DeviceSpec, prices: Prices) -> Graph:
    """The graph with every product padded that gains by it; the same object if there is none."""
    names = {n.name for n in graph.nodes if _may_be_padded(graph, n, device.fitted.products.few_rows)}
    names -= prices.held_products(graph, names) if names else set()
    padded = {n: sizes for n in names if (sizes := _gaining(graph, graph.node_by_name[n], device, prices))}
    if not padded:
        return graph
    names_in_use = set(graph.type_by_name)
    copy_names: dict[tuple[Expr, tuple[int, ...]], str] = {}
    nodes: list[Node] = []
    windows: dict[str, str] = {}
    for node in graph.nodes:
        if node.name in padded:
            nodes.extend(_padded(graph, node, padded[node.name], names_in_use, copy_names))
            if nodes[-1].category == "map":
                windows[node.name] = nodes[-2].name
        else:
            nodes.append(_reading(graph, node, windows))
    return without_unused(replace(graph, nodes=tuple(nodes)), set(windows))


def _reading(graph: Graph, node: Node, windows: Mapping[str, str]) -> Node:
    """The node with its reads and lookups of windows turned to the padded products, so that no kernel stores a window.

    Exact: a lookup beyond a window's end still gives the element at that end.
    """
    if node.body is None or node.category not in ("map", "reduce", "scan", "gather") or not windows.keys() & set(node.reads()):
        return node

    def inside(subscript: Expr, extent: int) -> Expr:
        dtype = dtype_of(subscript, lambda v: graph.type_of(v).dtype)
        return subscript if isinstance(subscript, Index) else call("minimum", subscript, const(extent - 1, dtype))

    def taken(e: Expr) -> Expr:
        match e:
            case Read(value, index) if value in windows:
                return Read(windows[value], index)
            case Lookup(value, subscripts) if value in windows:
                return Lookup(windows[value], tuple(inside(s, n) for s, n in zip(subscripts, graph.type_of(value).shape)))
        return e

    return replace(node, body=transform(node.body, taken))


def _may_be_padded(graph: Graph, node: Node, few_rows: int) -> bool:
    """Whether a product is one of matrices of more than `few_rows` rows on the matrix unit, with unaligned rows."""
    if node.kind != "library.matmul" or len(node.operands) != 2 or not node.type.num_elements or node.type.shape[0] <= few_rows:
        return False
    if any(len(graph.type_of(v).shape) != 2 for v in node.operands) or not all(graph.type_of(v).num_elements for v in node.operands):
        return False
    on_matrix_unit = node.type.dtype.name in ("f16", "bf16") or node.attribute("precision", "default") == "tf32"
    return on_matrix_unit and _sizes(graph, node) != _wanted(graph, node)


def _sizes(graph: Graph, node: Node) -> tuple[int, int, int]:
    rows, columns = node.type.shape
    return rows, inner_extent(node, graph), columns


# For each operand, the sizes of the product that its dimensions are, where it is not transposed.
DIMENSIONS = ((ROW, INNER), (INNER, COLUMN))


def _operands(graph: Graph, node: Node) -> list[tuple[str, tuple[int, int]]]:
    """Both operands with the sizes that their dimensions are; a transposed view is replaced by the matrix that it views."""
    operands = []
    for value, place, turn in zip(node.operands, DIMENSIONS, ("transpose_a", "transpose_b")):
        is_turned = bool(node.attribute(turn))
        maker = graph.node_by_name.get(value)
        if maker is not None and maker.kind == "map" and isinstance(maker.body, Read) and maker.body.index == tuple(
                axis(a) for a in reversed(maker.axes)) and graph.type_of(maker.body.value).shape == maker.type.shape[::-1]:
            value, is_turned = maker.body.value, not is_turned
        operands.append((value, place[::-1] if is_turned else place))
    return operands


def _runs_along_first(graph: Graph, value: str) -> bool:
    """Whether a matrix is stored column by column: a view of one stored row by row."""
    maker = graph.node_by_name.get(value)
    if maker is None or maker.kind != "map" or not isinstance(maker.body, Read):
        return False
    window = window_of(graph, maker, row_major_strides(graph.type_of(maker.body.value).shape))
    return window is not None and window[1][0] == 1 and window[1][1] > 1


def _wanted(graph: Graph, node: Node) -> tuple[int, int, int]:
    """The product's sizes; those along which memory runs are rounded up to whole 16 bytes."""
    each = ACCESS_BYTES // node.type.dtype.itemsize
    along = {COLUMN} | {place[0 if _runs_along_first(graph, v) else 1] for v, place in _operands(graph, node)}
    rows, inner, columns = (-(-n // each) * each if place in along else n for place, n in enumerate(_sizes(graph, node)))
    return rows, inner, columns


def _gaining(graph: Graph, node: Node, device: DeviceSpec, prices: Prices) -> tuple[int, int, int] | None:
    """The padded sizes of a product; None where padding costs more than it gains."""
    sizes, padded_sizes = _sizes(graph, node), _wanted(graph, node)
    item = node.type.dtype.itemsize
    eight = all(n * item % 8 == 0 for n, w in zip(sizes, padded_sizes) if n != w)
    gained = prices.unaligned_product_us(sizes, eight) - prices.product_us(node, graph)
    copied = 2 * node.type.num_bytes if node.name in graph.escaping else 0
    calls = int(copied > 0)
    for value, place in _operands(graph, node):
        if any(sizes[p] != padded_sizes[p] for p in place) and not _is_stored_for(graph, value):
            copied, calls = copied + 2 * graph.type_of(value).num_bytes, calls + 1
    return padded_sizes if gained - prices.copy_us(copied, calls) > device.fitted.unaligned.least_gain_us else None


def _is_stored_for(graph: Graph, value: str) -> bool:
    """Whether a kernel computes the value, or the value that it views, for one product alone."""
    while value not in graph.escaping and len(set(graph.users_by_name[value])) == 1:
        maker = graph.node_by_name.get(value)
        if maker is None or maker.kind != "map":
            return False
        if not isinstance(maker.body, Read):
            return True
        value = maker.body.value
    return False


def _padded(graph: Graph, node: Node, padded_sizes: tuple[int, int, int], names_in_use: set[str],
            copy_names: dict[tuple[Expr, tuple[int, ...]], str]) -> Iterator[Node]:
    """The zero-padded operands, their product, and a window of it under the node's own name."""
    sizes = _sizes(graph, node)
    operands: list[str] = []
    turned: list[bool] = []
    for operand, (value, place), usual, turn in zip(node.operands, _operands(graph, node), DIMENSIONS, ("transpose_a", "transpose_b")):
        if all(sizes[p] == padded_sizes[p] for p in place):
            operands.append(operand)
            turned.append(bool(node.attribute(turn)))
            continue
        # The copy has the operand's layout, so that it reads and writes contiguously.
        across = _runs_along_first(graph, value)
        shape = tuple(padded_sizes[p] for p in (place[::-1] if across else place))
        # Both products of a gradient read one copy of it, transposed or not.
        copied = _looked_through(graph, Read(value, (axis("j"), axis("i")) if across else (axis("i"), axis("j"))),
                                 dict(zip("ij", (sizes[p] for p in (place[::-1] if across else place)), strict=True))), shape
        name = copy_names.get(copied)
        if name is None:
            name = copy_names[copied] = free_name(f"{value}_padded", names_in_use)
            yield _with_zeros(graph, name, value, shape, across)
        operands.append(name)
        turned.append((place != usual) != across)
    attributes = tuple(sorted((dict(node.attributes) | {"transpose_a": turned[0], "transpose_b": turned[1], PADDED: True}).items()))
    if (sizes[ROW], sizes[COLUMN]) == (padded_sizes[ROW], padded_sizes[COLUMN]):
        yield replace(node, operands=tuple(operands), attributes=attributes)
        return
    product = replace(node, name=free_name(f"{node.name}_padded", names_in_use),
                      type=Type(node.type.dtype, (padded_sizes[ROW], padded_sizes[COLUMN])),
                      operands=tuple(operands), attributes=attributes)
    yield product
    yield Node(node.name, node.type, "map", ("i", "j"), body=Read(product.name, (axis("i"), axis("j"))), span=node.span)


def _looked_through(graph: Graph, read: Read, extents: Extents) -> Expr:
    """A read through views, replaced by a read of the value that has memory."""
    while (maker := graph.node_by_name.get(read.value)) is not None and maker.kind == "map" and isinstance(maker.body, Read):
        viewed = substitute_axes(maker.body, dict(zip(maker.axes, read.index, strict=True)), extents)
        assert isinstance(viewed, Read)
        read = viewed
    return read


def _with_zeros(graph: Graph, name: str, value: str, shape: tuple[int, ...], across: bool) -> Node:
    type_ = graph.type_of(value)
    index = (axis("j"), axis("i")) if across else (axis("i"), axis("j"))
    ends = type_.shape[::-1] if across else type_.shape
    bounds = tuple(Bound(axis(a), 0, end) for a, end, padded in zip("ij", ends, shape) if end != padded)
    body: Expr = Guard(bounds, Read(value, index), const(0, type_.dtype))
    return Node(name, Type(type_.dtype, shape), "map", ("i", "j"), body=body)
