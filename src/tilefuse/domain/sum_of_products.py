"""Contractions recognised by structure: sums of products of two factors over any number of axes, in whichever way they are written.

    y[b, i, j] = sum_(k, l) a[b, i, k, l] * w[k, l, j]      batch b (read by both), rows i (left), columns j (right), inner k and l

`library.matmul` is one form. `reduce.sum` over a product, a convolution written as a sum over guarded windows, and scaled products are
others. Views, conversions and maps that multiply are read through (`flat_product`).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.flat_product import FlatProduct, axes_of, flat_product, through_views
from tilefuse.ir.affine import axis, linearise, number, single_axis
from tilefuse.ir.dtype import DType, compute_dtype
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Bound, Const, Expr, Guard, Index, Read, call, cast, children, const, is_cast, substitute_axes, walk
from tilefuse.ir.verify import verify_node

# Axes with their extents, as in `Node.over`.
Axes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """One operand of the products, as an expression over the axes that it reads.

    element  the operand's element in the type of the products: conversions, elementwise functions and guards included
    dtype    type of `element`
    axes     the axes that it reads, in the order of the iteration domain
    read     the only element of memory in `element`; None for numbers, functions of positions, and functions of several tensors
    stored   type of the tensor read; `dtype` where `read` is None
    bounds   conditions outside which the operand is zero
    is_plain whether `element` is the tensor's element, converted at most
    """

    element: Expr
    dtype: DType
    axes: Axes
    read: Read | None
    stored: DType
    bounds: tuple[Bound, ...]
    is_plain: bool

    def strides(self, value_strides: tuple[int, ...]) -> dict[str, int] | None:
        """Step in memory of each axis for a tensor with these strides; None without a tensor, or where a subscript divides.

        Units: elements.
        """
        if self.read is None:
            return None
        flat = linearise(self.read.index, value_strides)
        return {a: flat.coefficient(a) for a, _ in self.axes} if flat.is_linear else None

    def node(self, name: str) -> Node:
        """The operand as a map over its axes."""
        return Node(name, Type(self.dtype, tuple(e for _, e in self.axes)), "map", tuple(a for a, _ in self.axes), body=self.element)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Types of one contraction.

    left, right  types of the operands in memory
    products     narrowest type that a product has before it is added: of fewer bits than `total` where the definition rounds products
    total        type of the sum
    result       type of the result
    precision    of f32 products, where the node states one: "default", "f32" or "tf32" (`ir/library/meaning.py`, `passes/precision.py`)
    """

    left: DType
    right: DType
    products: DType
    total: DType
    result: DType
    precision: str = "default"

    @property
    def rounds_products(self) -> bool:
        """Whether the definition rounds products before it adds them."""
        return self.products.bits < self.total.bits


@dataclass(frozen=True, slots=True)
class SumOfProducts:
    """result[axes] = scale * (sum over inner of left * right where all bounds hold) + addend, then converted.

    node      name of the node that has this meaning; `nodes` are the maps and sums whose work it contains, itself last
    axes      the result's axes in order
    batch     result axes that both factors read; rows, columns: those that only the left or only the right factor reads; repeated: those
              that neither reads
    inner     the summed axes
    bounds    conditions under which a product counts. Outside, it is zero even where a factor is not finite. A factor that reads all axes
              of a condition contains it too
    scale     factors without axes; None for one
    addend    bias over the result's axes, added before the result is rounded; None for none
    """

    node: str
    nodes: tuple[str, ...]
    axes: tuple[str, ...]
    batch: Axes
    rows: Axes
    columns: Axes
    repeated: Axes
    inner: Axes
    left: Factor
    right: Factor
    bounds: tuple[Bound, ...]
    scale: Expr | None
    addend: Expr | None
    arithmetic: Arithmetic

    @property
    def shared(self) -> Axes:
        """The summed axes that both factors read."""
        right = {a for a, _ in self.right.axes}
        left = {a for a, _ in self.left.axes}
        return tuple((a, e) for a, e in self.inner if a in left and a in right)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Numbers of batches, rows, columns and summed products of each result. Units: elements."""
        batch, rows, columns, inner = (prod(e for _, e in axes) for axes in (self.batch, self.rows, self.columns, self.inner))
        return batch, rows, columns, inner

    @property
    def is_vector(self) -> bool:
        """Whether one of the factors is a vector for each batch: row kernels compute such a product at the speed of memory."""
        _, rows, columns, _ = self.sizes
        return rows == 1 or columns == 1

    def words(self) -> str:
        """The contraction as `explain` names it."""
        batch, rows, columns, inner = self.sizes
        kind = "matrix-vector product" if self.is_vector else "product"
        each = f", {batch} batches" if batch != 1 else ""
        return f"{kind} of {rows} rows, {columns} columns, {inner} inner{each}"


def sum_of_products(node: Node, graph: Graph) -> SumOfProducts | Rejected:
    """The contraction that a node is, or why it is none. A conversion of a sum that has no other user is part of the contraction.

    Rejected: nodes that are no sums, and sums of one factor or of factors that read the same axes, which are row reductions.
    Cost: linear in the body and the maps read through; 2 ** factors divisions of a product into two.
    """
    if node.kind == "library.matmul":
        return _of_call(node, graph)
    if node.category == "map":
        return _of_conversion(node, graph)
    if node.kind != "reduce.sum" or node.body is None:
        return Rejected(Reason.UNSUPPORTED_OP, f"%{node.name} is {node.kind}, not a sum of products")
    return _of_sum(node, graph)


# ---------------------------------------------------------------- sums


def _of_sum(node: Node, graph: Graph) -> SumOfProducts | Rejected:
    assert node.body is not None
    extents = node.extents
    flat = flat_product(node.body, graph, extents)
    total = dtype_of(node.body, lambda v: graph.type_of(v).dtype)
    varying = [t for t in flat.terms if axes_of(t.element)]
    scales = [t for t in flat.terms if not axes_of(t.element)]
    if len(varying) > SEARCH.domain.factors:
        return Rejected(Reason.TOO_MANY_OPERANDS,
                        f"%{node.name} sums products of {len(varying)} factors, more than {SEARCH.domain.factors}")
    masks = _best_division([axes_of(t.element) for t in varying], node)
    if isinstance(masks, Rejected):
        return masks

    def joined(chosen: Sequence[int], negative: bool) -> Expr:
        return _joined([(_converted(varying[n].element, total, graph), varying[n].divides) for n in chosen], negative, total)

    factors = [_factor(joined(chosen, flat.negative and number_of == 0), flat, extents, graph) for number_of, chosen in enumerate(masks)]
    for factor in factors:
        findings = list(verify_node(factor.node(node.name), dict(graph.type_by_name)))
        if findings:
            return Rejected(Reason.DOMAIN_MISMATCH, f"a factor of %{node.name} needs the other's conditions: {findings[0].message}")
    scale = _joined([(_converted(t.element, total, graph), t.divides) for t in scales], False, total) if scales else None
    arithmetic = Arithmetic(factors[0].stored, factors[1].stored, flat.narrowest, total, node.type.dtype)
    names = tuple(n.name for n in graph.in_order([*flat.opened, node.name]))
    return _assembled(node.name, names, tuple(zip(node.axes, node.type.shape)), node.over, (factors[0], factors[1]),
                      tuple(flat.bounds), scale, None, arithmetic)


def _converted(e: Expr, dtype: DType, graph: Graph) -> Expr:
    return e if dtype_of(e, lambda v: graph.type_of(v).dtype) == dtype else cast(e, dtype)


def _joined(parts: Sequence[tuple[Expr, bool]], negative: bool, dtype: DType) -> Expr:
    """The product of some factors, divided by those that divide."""
    product: Expr | None = None
    divisor: Expr | None = None
    for e, divides in parts:
        if divides:
            divisor = e if divisor is None else call("mul", divisor, e)
        else:
            product = e if product is None else call("mul", product, e)
    if product is None:
        product = const(1, dtype)
    if divisor is not None:
        product = call("div", product, divisor)
    return call("neg", product) if negative else product


def _best_division(axes: Sequence[frozenset[str]], node: Node) -> tuple[tuple[int, ...], tuple[int, ...]] | Rejected:
    """The numbers of the left and of the right factors: the division into two that leaves rows and columns, and the smallest operands."""
    if len(axes) < 2:
        return Rejected(Reason.REDUCTION_MISMATCH, f"%{node.name} sums one operand, not products: a row reduction")
    extents, result, summed = node.extents, set(node.axes), {a for a, _ in node.over}
    best: tuple[tuple[int, int, int], int] | None = None
    for mask in range(1, 1 << (len(axes) - 1)):
        right = frozenset[str]().union(*(a for n, a in enumerate(axes) if mask << 1 >> n & 1))
        left = frozenset[str]().union(*(a for n, a in enumerate(axes) if not mask << 1 >> n & 1))
        if not left & right & summed or not (left ^ right) & result:
            continue
        one_sided = not (left - right) & result or not (right - left) & result
        size = prod(extents[a] for a in left) + prod(extents[a] for a in right)
        best = min(x for x in (best, ((int(one_sided), len((left ^ right) & summed), size), mask)) if x is not None)
    if best is None:
        shared = any(a & b & summed for n, a in enumerate(axes) for b in axes[n + 1:])
        why = "all factors read the same axes of the result: a row reduction" if shared else "no summed axis is read by two factors"
        return Rejected(Reason.REDUCTION_MISMATCH, f"%{node.name}: {why}")
    inside = tuple(n for n in range(len(axes)) if best[1] << 1 >> n & 1)
    outside = tuple(n for n in range(len(axes)) if n not in inside)
    return _left_first(outside, inside, axes, node)


def _left_first(one: tuple[int, ...], other: tuple[int, ...], axes: Sequence[frozenset[str]],
                node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both sides of a division; the left one reads the first result axis that only one of them reads."""
    of_one, of_other = (frozenset[str]().union(*(axes[n] for n in side)) for side in (one, other))
    first = next(a for a in node.axes if (a in of_one) != (a in of_other))
    return (one, other) if first in of_one else (other, one)


def _factor(element: Expr, flat: FlatProduct, extents: Mapping[str, int], graph: Graph) -> Factor:
    """A factor with those conditions of the product that concern its own axes alone: its reads may be in range only there."""
    dtype = dtype_of(element, lambda v: graph.type_of(v).dtype)
    own = tuple(b for b in flat.bounds if b.index.axes() <= axes_of(element))
    return factor_of(Guard(own, element, const(0, dtype)) if own else element, extents, graph)


def factor_of(element: Expr, extents: Mapping[str, int], graph: Graph) -> Factor:
    """The facts about an operand's element. extents: of the iteration domain, in its order."""
    dtype = dtype_of(element, lambda v: graph.type_of(v).dtype)
    axes = axes_of(element)
    bounds: list[Bound] = []
    e, is_plain = element, True
    while True:
        match e:
            case Guard(conditions, then, Const() as otherwise) if otherwise.value == 0:
                bounds += conditions
                e, is_plain = then, False
                continue
        if not is_cast(e):
            break
        (e,) = children(e)
    reads = dict.fromkeys(x for x in walk(e) if isinstance(x, Read))
    others = any(isinstance(x, Index | Guard) for x in walk(e))
    read = next(iter(reads)) if len(reads) == 1 and not others else None
    stored = dtype if read is None else graph.type_of(read.value).dtype
    return Factor(element, dtype, tuple((a, n) for a, n in extents.items() if a in axes), read, stored, tuple(bounds),
                  is_plain and isinstance(e, Read))


def _assembled(name: str, nodes: tuple[str, ...], axes: Axes, inner: Axes, factors: tuple[Factor, Factor], bounds: tuple[Bound, ...],
               scale: Expr | None, addend: Expr | None, arithmetic: Arithmetic) -> SumOfProducts:
    left, right = ({a for a, _ in f.axes} for f in factors)

    def group(of_left: bool, of_right: bool) -> Axes:
        return tuple((a, e) for a, e in axes if (a in left) == of_left and (a in right) == of_right)

    return SumOfProducts(name, nodes, tuple(a for a, _ in axes), group(True, True), group(True, False), group(False, True),
                         group(False, False), inner, *factors, bounds, scale, addend, arithmetic)


# ---------------------------------------------------------------- conversions of sums, library calls


def _of_conversion(node: Node, graph: Graph) -> SumOfProducts | Rejected:
    """A map that converts, and may permute, a sum that nothing else needs."""
    body = node.body
    while body is not None and is_cast(body):
        (body,) = children(body)
    source = graph.node_by_name.get(body.value) if isinstance(body, Read) else None
    if not isinstance(body, Read) or source is None or source.kind != "reduce.sum" or body is node.body:
        return Rejected(Reason.UNSUPPORTED_OP, f"%{node.name} is no sum of products and no conversion of one")
    if len(graph.users_by_name[source.name]) > 1 or source.name in graph.escaping:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{source.name} has other users than its conversion %{node.name}")
    names = [single_axis(e) or "" for e in body.index]
    if sorted(names) != sorted(node.axes):
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} reads %{source.name} by other subscripts than its own axes in some order")
    renamed = _with_axes(source, tuple(names), set(node.axes))
    inner = _of_sum(renamed, graph)
    if isinstance(inner, Rejected):
        return inner
    shape = node.extents
    whole = _assembled(node.name, (*inner.nodes, node.name), tuple(shape.items()), inner.inner, (inner.left, inner.right), inner.bounds,
                       inner.scale, None, replace(inner.arithmetic, result=node.type.dtype))
    ordered = (replace(f, axes=tuple((a, e) for a, e in (shape | dict(inner.inner)).items() if (a, e) in f.axes))
               for f in (whole.left, whole.right))
    left, right = ordered
    return replace(whole, left=left, right=right)


def _with_axes(node: Node, names: tuple[str, ...], taken: set[str]) -> Node:
    """A sum with other names of its result axes; summed axes step aside."""
    over = tuple((f"{a}_inner" if a in taken else a, e) for a, e in node.over)
    assert node.body is not None
    by_axis = {old: axis(new) for old, new in zip((*node.axes, *(a for a, _ in node.over)), (*names, *(a for a, _ in over)), strict=True)}
    return replace(node, axes=names, over=over, body=substitute_axes(node.body, by_axis))


def _of_call(node: Node, graph: Graph) -> SumOfProducts:
    """A library product: leading axes, then rows and columns where its operands have them. Source: `meaning.matmul`."""
    shapes = [graph.type_of(v).shape for v in node.operands]
    lead_rank = len(node.type.shape) - sum(len(s) > 1 for s in shapes[:2])
    names = tuple(f"lead{n}" for n in range(lead_rank))
    row, column = ("row",) if len(shapes[0]) > 1 else (), ("column",) if len(shapes[1]) > 1 else ()
    axes = tuple(zip((*names, *row, *column), node.type.shape, strict=True))
    turned = bool(node.attribute("transpose_a")), bool(node.attribute("transpose_b"))
    last = [((*row, "inner"), ("inner", *row)), (("inner", *column), (*column, "inner"))]
    inner = (("inner", shapes[0][-2 if turned[0] and row else -1]),)
    extents = dict(axes) | dict(inner)
    total = compute_dtype(node.type.dtype)

    def element(value: str, shape: tuple[int, ...], last_axes: tuple[str, ...]) -> Expr:
        own = (*names[len(names) - (len(shape) - len(last_axes)):], *last_axes)
        index = tuple(number(0) if e == 1 and a in names else axis(a) for a, e in zip(own, shape, strict=True))
        return through_views(_converted(Read(value, index), total, graph), graph, extents)

    factors = [factor_of(element(v, s, order[turn]), extents, graph) for v, s, order, turn in zip(node.operands, shapes, last, turned)]
    addend = None
    if len(node.operands) > 2:
        rank = len(shapes[2])
        index = tuple(number(0) if e == 1 else axis(a) for (a, _), e in zip(axes[len(axes) - rank:], shapes[2], strict=True))
        addend = _converted(Read(node.operands[2], index), total, graph)
    precision = str(node.attribute("precision", "default"))
    arithmetic = Arithmetic(factors[0].stored, factors[1].stored, total, total, node.type.dtype, precision)
    return _assembled(node.name, (node.name,), axes, inner, (factors[0], factors[1]), (), None, addend, arithmetic)
