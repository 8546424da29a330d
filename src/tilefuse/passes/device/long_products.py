"""Products of few rows and columns over a long inner axis: split into pieces along it, whose results are added up.

    w[i, j] = sum_k a[i, k] b[k, j]      ->      p[c, i, j] = sum_(k < L) a[i, c*L + k] b[c*L + k, j]      each of C pieces
                                                 w[i, j]    = sum_c p[c, i, j]

The gradient of a small weight over a large batch is such a product. It has few tiles of results, so a few multiprocessors add up the
whole inner axis, or the library splits it into two kernels that hold nothing else. A piece is short enough for a kernel to hold it beside
the nodes that compute its operands. The sum of the pieces is a reduction, which shares a kernel with the update that reads it. An operand
that lays parts of a tensor side by side is cut along its seams, so that it needs no copy.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import Affine, FloorDiv, Mod, axis
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.library.meaning import inner_extent
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Expr, Read, substitute_axes
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec


@register_pass
@dataclass(frozen=True)
class SplitLongProducts(DevicePass):
    """Split products of few rows and columns along their long inner axis; the pieces' results are added up.

    Exact: no; sums are associated differently.
    """

    name: ClassVar[str] = "split-long-products"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    for_fusion: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with such products in pieces; `graph` itself where there is none."""
        return split_long_products(graph, device)


def split_long_products(graph: Graph, device: DeviceSpec) -> Graph:
    """The graph with every long product of few results split along its inner axis; the same object if there is none."""
    pieces = {n.name: length for n in graph.nodes if (length := piece_length(graph, n, device))}
    if not pieces:
        return graph
    names_in_use = set(graph.type_by_name)
    nodes = tuple(part for n in graph.nodes for part in (_split(graph, n, pieces[n.name], names_in_use) if n.name in pieces else (n,)))
    return without_unused(replace(graph, nodes=nodes), {v for name in pieces for v in graph.node_by_name[name].operands})


def piece_length(graph: Graph, node: Node, device: DeviceSpec) -> int:
    """Length of the pieces of a product's inner axis; 0 for a product that stays whole. Units: elements."""
    if node.kind != "library.matmul" or len(node.operands) != 2 or len(node.type.shape) != 2 or not node.type.num_elements:
        return 0
    if node.type.dtype.name not in ("f32", "f64") or node.attribute("precision", "default") == "tf32":
        # On the matrix unit a library's own split is as fast.
        return 0
    fitted = device.fitted.long_products
    rows, columns = node.type.shape
    inner = inner_extent(node, graph)
    tiles = -(-rows // fitted.tile_side) * -(-columns // fitted.tile_side)
    if inner < fitted.inner or tiles > fitted.few_tiles * device.num_multiprocessors:
        return 0
    seams = list(dict.fromkeys(s for v in node.operands for s in _seams(graph.node_by_name.get(v))))
    if len(seams) == 1 and fitted.shortest_piece <= seams[0] <= fitted.longest_piece and inner % seams[0] == 0:
        length = seams[0]
    else:
        busy = inner * tiles // (fitted.busy_tiles * device.num_multiprocessors)
        most = min(fitted.longest_piece, max(fitted.shortest_piece, busy))
        length = next((n for n in range(most, fitted.shortest_piece - 1, -1) if inner % n == 0), 0)
    # Results of pieces are written and read again: no more than the operands themselves.
    return length if length and 2 * rows * columns <= length * (rows + columns) else 0


def _seams(node: Node | None) -> Iterator[int]:
    """Divisors in the subscripts of a view: at their multiples the inner axis steps from one part of the tensor to the next."""
    if node is None or node.kind != "map" or not isinstance(node.body, Read):
        return
    todo: list[Affine] = list(node.body.index)
    while todo:
        for atom, _ in todo.pop().terms:
            if isinstance(atom, FloorDiv | Mod):
                yield atom.by
                todo.append(atom.of)


def _split(graph: Graph, node: Node, length: int, names_in_use: set[str]) -> tuple[Node, ...]:
    """Pieces of both operands, their products, and the sum of these under the node's own name."""
    rows, columns = node.type.shape
    left, right = node.operands
    turned = bool(node.attribute("transpose_a")), bool(node.attribute("transpose_b"))
    count = inner_extent(node, graph) // length
    whole_inner = axis("c") * length + axis("k")
    a = _pieces(graph, left, (axis("i"), whole_inner), turned[0], ("c", "i", "k"), (count, rows, length), names_in_use)
    b = _pieces(graph, right, (whole_inner, axis("j")), turned[1], ("c", "k", "j"), (count, length, columns), names_in_use)
    attributes = tuple((k, False if k.startswith("transpose_") else v) for k, v in node.attributes)
    product = replace(node, name=free_name(f"{node.name}_pieces", names_in_use), type=Type(node.type.dtype, (count, rows, columns)),
                      operands=(a.name, b.name), attributes=attributes)
    piece = Read(product.name, (axis("c"), axis("i"), axis("j")))
    return a, b, product, Node(node.name, node.type, "reduce.sum", ("i", "j"), (("c", count),), body=piece, span=node.span)


def _pieces(graph: Graph, value: str, place: tuple[Affine, Affine], is_turned: bool, axes: tuple[str, ...], shape: tuple[int, ...],
            names_in_use: set[str]) -> Node:
    """An operand as [pieces, ...]; a view's pieces read the viewed value."""
    index = place[::-1] if is_turned else place
    extents = dict(zip(axes, shape))
    body: Expr = Read(value, index)
    inner = graph.node_by_name.get(value)
    if inner is not None and inner.kind == "map" and isinstance(inner.body, Read):
        body = substitute_axes(inner.body, dict(zip(inner.axes, index, strict=True)), extents)
    return Node(free_name(f"{value}_pieces", names_in_use), Type(graph.type_of(value).dtype, shape), "map", axes, body=body)


def without_unused(graph: Graph, names: set[str]) -> Graph:
    """The graph without those maps among `names` that have no users."""
    unused = {n for n in names if n in graph.node_by_name and graph.node_by_name[n].kind == "map" and not graph.users_by_name[n]
              and n not in graph.escaping}
    return replace(graph, nodes=tuple(n for n in graph.nodes if n.name not in unused)) if unused else graph
