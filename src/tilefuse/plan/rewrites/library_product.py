"""A contraction as one batched product of the library: its operands as views or copies, the product, and the result in the node's order.

    y[i, b, j] = sum_(k, l) x[b, k, i, l] * w[k, l, j]

    %left:  [b, i, k*l]   a view of x where strides allow it, else a copy
    %right: [k*l, j]      w, read as a matrix
    %product = library.matmul (%left, %right)        [b, i, j]
    %y: map [i, b, j] { %product[b, i, j] }
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from itertools import product as choices_of
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.sum_of_products import Axes, Factor, SumOfProducts
from tilefuse.ir.affine import Affine, axis, delinearise, linearise, row_major_strides
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.layouts import window_of
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Expr, Read, call, cast, substitute_axes

PRODUCT_DTYPES = ("f16", "bf16", "f32", "f64")


@dataclass(frozen=True, slots=True)
class LibraryProduct:
    """One way to compute a contraction by the library.

    nodes         maps of operands, the product, and a map of its result where that has another order, scale or type; the last one has the
                  contraction's name
    product       the call among them
    copied_bytes  bytes read and written by maps that are no views; `num_copies` of them

    Units: bytes.
    """

    nodes: tuple[Node, ...]
    product: Node
    copied_bytes: int
    num_copies: int


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand as a tensor of the product: a value, or the map that makes it. turned: the inner axis comes before rows or columns.

    Units: `copied_bytes` bytes.
    """

    value: str
    map: Node | None
    turned: bool
    copied_bytes: int


def library_products(contraction: SumOfProducts, graph: Graph, eager_rounding: bool) -> list[LibraryProduct] | Rejected:
    """The ways to compute a contraction by the library, with the same meaning; or why there is none.

    A product of 16-bit operands is offered in their own type and, from converted copies, in the type of the sum.
    eager_rounding: products that the definition rounds before it adds them stay rounded; they do too where another node reads them.
    """
    refused = _refusal(contraction, graph, eager_rounding)
    if refused is not None:
        return refused
    arithmetic = contraction.arithmetic
    ways: list[LibraryProduct] = []
    narrow = arithmetic.result.bits == 16 and arithmetic.left == arithmetic.right == arithmetic.result
    if narrow and contraction.left.is_plain and contraction.right.is_plain and contraction.scale is None:
        ways.append(_cheapest(contraction, graph, arithmetic.result))
    ways.append(_cheapest(contraction, graph, arithmetic.total))
    return ways


def _refusal(contraction: SumOfProducts, graph: Graph, eager_rounding: bool) -> Rejected | None:
    arithmetic, name = contraction.arithmetic, contraction.node
    if contraction.is_vector:
        return Rejected(Reason.REDUCTION_MISMATCH, f"%{name} is a {contraction.words()}: row kernels read it at the speed of memory")
    if 0 in contraction.sizes:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} has no elements, or no products")
    if contraction.bounds:
        return Rejected(Reason.LIBRARY_CALL, f"%{name} multiplies only where conditions hold, the library everywhere")
    if contraction.addend is not None or contraction.shared != contraction.inner:
        return Rejected(Reason.LIBRARY_CALL, f"%{name} adds a bias, or sums over axes that one factor does not read")
    if any(t.name not in PRODUCT_DTYPES for t in (arithmetic.left, arithmetic.right, arithmetic.total, arithmetic.result)):
        types = f"{arithmetic.left} and {arithmetic.right} in {arithmetic.total}"
        return Rejected(Reason.LIBRARY_CALL, f"the library has no product of {types}")
    seen = any(n in graph.escaping or not set(graph.users_by_name[n]) <= set(contraction.nodes) for n in contraction.nodes[:-1])
    if arithmetic.rounds_products and (eager_rounding or seen or arithmetic.products.bits != 16):
        return Rejected(Reason.LIBRARY_CALL, f"%{name} rounds products to {arithmetic.products}, and the library does not")
    return None


def _cheapest(contraction: SumOfProducts, graph: Graph, dtype: DType) -> LibraryProduct:
    """The order of flattened axes that copies least."""
    orders = choices_of(_orders(contraction.rows), _orders(contraction.columns), _orders(contraction.inner))
    return min((_product(contraction, graph, dtype, *order) for order in orders), key=lambda p: (p.copied_bytes, p.num_copies))


def _orders(axes: Axes) -> list[Axes]:
    return [axes] if len(axes) > SEARCH.generators.ordered_axes else list(permutations(axes))


def _product(contraction: SumOfProducts, graph: Graph, dtype: DType, rows: Axes, columns: Axes, inner: Axes) -> LibraryProduct:
    """The call for one order of the axes that are flattened into rows, columns and the inner axis."""
    names = set(graph.type_by_name)
    left = _operand(contraction.left, contraction.batch, rows, inner, dtype, graph, free_name(f"{contraction.node}_left", names))
    right = _operand(contraction.right, contraction.batch, columns, inner, dtype, graph, free_name(f"{contraction.node}_right", names))
    shape = (*(e for _, e in contraction.batch), prod(e for _, e in rows), prod(e for _, e in columns))
    attributes = (("precision", "default"), ("transpose_a", left.turned), ("transpose_b", not right.turned))
    call_name = free_name(f"{contraction.node}_product", names)
    call_node = Node(call_name, Type(dtype, shape), "library.matmul", operands=(left.value, right.value), attributes=attributes)
    result = _result(contraction, graph, call_node, rows, columns)
    maps = tuple(o.map for o in (left, right) if o.map is not None)
    copies = [o.copied_bytes for o in (left, right) if o.copied_bytes]
    if result is None:
        call_node = replace(call_node, name=contraction.node)
        return LibraryProduct((*maps, call_node), call_node, sum(copies), len(copies))
    if not isinstance(result.body, Read) or contraction.node in graph.escaping:
        copies.append(call_node.type.num_bytes + result.type.num_bytes)
    return LibraryProduct((*maps, call_node, result), call_node, sum(copies), len(copies))


def _operand(factor: Factor, batch: Axes, outer: Axes, inner: Axes, dtype: DType, graph: Graph, name: str) -> _Operand:
    """A factor as [batch.., outer, inner] or [batch.., inner, outer]: the tensor itself, a view that the library reads, or a copy."""
    element = factor.element
    if factor.is_plain and factor.read is not None and factor.stored == dtype:
        element = factor.read
    elif factor.dtype != dtype:
        element = cast(element, dtype)
    copy: _Operand | None = None
    for turned in (False, True):
        node = _flattened(element, dtype, batch, (inner, outer) if turned else (outer, inner), name)
        if _is_whole(node, graph):
            assert isinstance(node.body, Read)
            return _Operand(node.body.value, None, turned, 0)
        if _is_readable(node, graph):
            return _Operand(name, node, turned, 0)
        copy = copy or _Operand(name, node, turned, _read_bytes(factor, graph) + node.type.num_bytes)
    assert copy is not None
    return copy


def _read_bytes(factor: Factor, graph: Graph) -> int:
    return graph.type_of(factor.read.value).num_bytes if factor.read is not None else 0


def _flattened(element: Expr, dtype: DType, batch: Axes, groups: Sequence[Axes], name: str) -> Node:
    """The map of an element whose last two dimensions are groups of axes, flattened."""
    taken = {a for a, _ in (*batch, *(pair for group in groups for pair in group))}
    flat = [free_name(n, taken) for n in ("m", "n")]
    extents = dict(batch) | {a: prod(e for _, e in group) for a, group in zip(flat, groups, strict=True)}
    by_axis: dict[str, Affine] = {}
    for a, group in zip(flat, groups, strict=True):
        by_axis |= dict(zip((n for n, _ in group), delinearise(axis(a), tuple(e for _, e in group), extents), strict=True))
    body = substitute_axes(element, by_axis, extents)
    return Node(name, Type(dtype, tuple(extents.values())), "map", tuple(extents), body=body)


def _is_whole(node: Node, graph: Graph) -> bool:
    """Whether a map is a copy of a whole tensor."""
    return isinstance(node.body, Read) and node.body.index == tuple(map(axis, node.axes)) and graph.type_of(node.body.value) == node.type


def _is_readable(node: Node, graph: Graph) -> bool:
    """Whether a map is a view that the library reads without a copy of its own: elements of one row are neighbours, rows do not overlap."""
    if not isinstance(node.body, Read):
        return False
    window = window_of(graph, node, row_major_strides(graph.type_of(node.body.value).shape))
    if window is None:
        return False
    *_, outer, last = window[1]
    return last == 1 and outer >= node.type.shape[-1]


def _result(contraction: SumOfProducts, graph: Graph, product: Node, rows: Axes, columns: Axes) -> Node | None:
    """The map from the product to the contraction's node; None where the product is the node."""
    node = graph.node_by_name[contraction.node]
    places = [linearise(tuple(axis(a) for a, _ in group), row_major_strides(tuple(e for _, e in group))) for group in (rows, columns)]
    index = (*(axis(a) for a, _ in contraction.batch), *places)
    if index == tuple(map(axis, contraction.axes)) and contraction.scale is None and product.type == node.type:
        return None
    body: Expr = Read(product.name, index)
    if contraction.scale is not None:
        body = call("mul", body, contraction.scale)
    if product.type.dtype != node.type.dtype:
        body = cast(body, node.type.dtype)
    return Node(node.name, node.type, "map", contraction.axes, body=body, span=node.span)
