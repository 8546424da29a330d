"""Torch operators that look for places: binary search, histograms, bags of embeddings, distances between all pairs of rows.

A search is a chain of lookups, one for each halving, which share a kernel with the producer of the sought values and the users of the
result.
"""

from __future__ import annotations

from math import prod

from tilefuse.frontends.torch.ops import Operand, Scalar, TorchBuilder, Value, decline, lowers
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.building.tensor_gather import position
from tilefuse.ir.building.tensor_reduce import identity_of
from tilefuse.ir.dtype import I64, DType, compute_dtype
from tilefuse.ir.scalar import Const, Expr, Lookup, call, cast, const

SUM, MEAN, MAX = 0, 1, 2


def places(b: TorchBuilder, ordered: str, wanted: Operand, right: bool, sorter: str | None = None, at_least: DType | None = None) -> str:
    """Number of elements of each ordered row before `wanted` (`right`: or equal to it), as i64.

    Shapes: ordered: [n] for `wanted` of any shape, or [*A, n] for [*A, m]; sorter: as `ordered`, the order of its elements
    Requires: each row is ordered. NaN comes behind everything.
    Cost: one lookup for each halving of n.
    """
    have = b.shape_of(ordered)
    shape = b.shape_of(wanted) if isinstance(wanted, str) else ()
    axes = axis_names(len(shape))
    dtype = at_least or b.dtype_of(ordered)
    sought = b.read_as(wanted, dtype, shape, axes) if isinstance(wanted, str) else const(wanted, dtype)
    lead = tuple(position(a, s) for a, s in zip(axes, have[:-1], strict=False))

    def is_before(place: Expr) -> Expr:
        at = Lookup(sorter, (*lead, place)) if sorter is not None else place
        element = converted(Lookup(ordered, (*lead, at if sorter is None else cast(at, I64))), b.dtype_of(ordered), dtype)
        return call("logical_not", call("gt" if right else "ge", element, sought))

    left, start_of_rest = have[-1], b.full(shape, 0, I64)
    while left:
        half = max(left // 2, 1)
        here: Expr = b.read(start_of_rest, shape, axes)
        behind = call("add", here, const(half, I64))
        start_of_rest = b.make_map("place", I64, shape, axes, call("select", is_before(call("sub", behind, const(1, I64))), behind, here))
        left = left - half if left > 1 else 0
    return start_of_rest


def _search(b: TorchBuilder, ordered: str, values: Operand, right: bool, sorter: str | None = None) -> str:
    dtype = b.common_dtype(Value(ordered), values)
    return b.cast(places(b, ordered, values, right, sorter, compute_dtype(dtype)), b.result_dtype)


@lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    b: TorchBuilder, ordered: Value, wanted: Operand, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Value | None = None,
) -> str:
    return _search(b, ordered, wanted, right or side == "right", sorter)


@lowers("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(b: TorchBuilder, wanted: Operand, bounds: Value, *, out_int32: bool = False, right: bool = False) -> str:
    return _search(b, bounds, wanted, right)


@lowers("aten.histc.default")
def histc(b: TorchBuilder, x: Value, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> str:
    """Number of elements in each of equal parts of a range (the elements' own range by default); elements outside do not count."""
    dtype = b.dtype_of(x)
    if not dtype.is_float:
        raise decline(f"a histogram of {dtype}")
    work = compute_dtype(dtype)
    count: int = prod(b.shape_of(x))
    flat = b.reshape(x, [count])
    low, high = b.full((), min, work), b.full((), max, work)
    if min == max and count:
        low, high = (b.cast(b.reduce(flat, name), work) for name in ("min", "max"))
    wide = [Value(low), Value(high)]
    first, last = (
        b.pointwise(lambda p, q, s: call("select", call("eq", p, q), call("add", p, s), p), *ends, step, work=work, out=work, name="edge")
        for ends, step in ((wide, -1), (wide[::-1], 1))
    )

    def place(e: Expr, low: Expr, high: Expr, count: Expr) -> Expr:
        share = call("div", call("mul", call("sub", e, low), count), call("sub", high, low))
        inside = call("logical_and", call("ge", e, low), call("le", e, high))
        at = cast(call("select", inside, share, const(-1, work)), I64)
        return call("minimum", at, const(bins - 1, I64))

    at = b.pointwise(place, Value(flat), Value(first), Value(last), bins, work=work, out=I64, name="bin")
    return b.index_add(b.full((bins,), 0, b.result_dtype), 0, at, b.full(b.shape_of(flat), 1, b.result_dtype))


# Bags of embeddings


class Bags:
    """Which bag every index belongs to, and how many indices each bag has that are not padding."""

    def __init__(self, b: TorchBuilder, indices: str, offsets: str | None, bag_of: str | None, num_bags: int, padding_idx: int) -> None:
        self.b = b
        self.indices = indices
        self.num_bags = num_bags
        self.count = prod(b.shape_of(indices))
        self.padding_idx = padding_idx
        if bag_of is None:
            assert offsets is not None
            bag_of = b.elementwise("sub", places(b, offsets, Value(b.iota((self.count,), 0, I64)), True, at_least=I64), 1)
        self.bag_of = b.cast(bag_of, I64)

    def target(self) -> str:
        """The bag of every index; none for padding."""
        b = self.b
        if self.padding_idx < 0:
            return self.bag_of
        return b.where(b.elementwise("eq", self.indices, self.padding_idx), -1, self.bag_of)

    def rows(self) -> str:
        """The row of the table that every index names; none for padding."""
        b = self.b
        wide = b.cast(self.indices, I64)
        return wide if self.padding_idx < 0 else b.where(b.elementwise("eq", wide, self.padding_idx), -1, wide)

    def sizes(self) -> str:
        """Shapes: [bags], i64"""
        b = self.b
        return b.index_add(b.full((self.num_bags,), 0, I64), 0, self.target(), b.full((self.count,), 1, I64))

    def columns(self, x: str) -> str:
        """A vector as a column beside rows of features."""
        return self.b.reshape(x, [*self.b.shape_of(x), 1])


@lowers("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    b: TorchBuilder, weight: Value, indices: Value, offsets: Value, scale_grad_by_freq: bool = False, mode: int = SUM, sparse: bool = False,
    per_sample_weights: Value | None = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> tuple[str, ...]:
    """Rows of a table combined bag by bag; an empty bag is 0. The greatest has its row's number, -1 for an empty bag."""
    dtype, width = b.dtype_of(weight), b.shape_of(weight)[1]
    work = compute_dtype(dtype)
    bags = Bags(b, indices, offsets, None, b.result_shape[0], padding_idx)
    target, sizes = bags.target(), bags.sizes()
    rows = b.take(b.cast(weight, work), b.cast(indices, I64), 0, checked=True)
    if per_sample_weights is not None:
        rows = b.elementwise("mul", rows, bags.columns(b.cast(per_sample_weights, work)))
    monoid = "max" if mode == MAX else "sum"
    neutral = identity_of(monoid, work).value
    total = b.index_add(b.full((bags.num_bags, width), neutral, work), 0, target, rows, monoid)
    greatest = None
    if mode == MEAN:
        least = b.elementwise("maximum", b.cast(sizes, work), 1.0)
        total = b.elementwise("div", total, bags.columns(least))
    elif mode == MAX:
        greatest = _greatest(bags, rows, total, target)
        total = b.where(b.elementwise("gt", bags.columns(sizes), 0), total, 0)
    return b.cast(total, dtype), *(_like(b, n, value) for n, value in ((1, bags.bag_of), (2, sizes), (3, greatest)))


def _greatest(bags: Bags, rows: str, top: str, target: str) -> str:
    """The row of the table that gave each bag's greatest element, the first in the bag of equal ones; -1 where there is none."""
    b = bags.b
    shape = b.shape_of(rows)
    bag_top = b.take(top, b.elementwise("maximum", target, 0), 0)
    is_top = b.elementwise("logical_or", b.elementwise("eq", rows, bag_top), b.elementwise("isnan", rows))
    order = b.where(is_top, b.iota(shape, 0, I64), bags.count)
    first = b.index_add(b.full((bags.num_bags, shape[1]), bags.count, I64), 0, target, order, "min")
    top_row = b.take(b.cast(bags.indices, I64), first, 0) if bags.count else b.full(b.shape_of(first), -1, I64)
    return b.where(b.elementwise("lt", first, bags.count), top_row, -1)


def _like(b: TorchBuilder, number: int, value: str | None) -> str:
    """A result of the type that torch reports; results that a mode leaves undefined are zeros."""
    expected = b.expected[number]
    assert expected is not None
    dtype, shape = expected
    return b.cast(value, dtype) if value is not None and b.shape_of(value) == shape else b.full(shape, 0, dtype)


@lowers("aten._embedding_bag_backward.default")
def embedding_bag_backward(
    b: TorchBuilder, grad: Value, indices: Value, offsets: Value, offset2bag: Value, bag_size: Value, greatest: Value, num_weights: int,
    scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Value | None, padding_idx: int = -1,
) -> str:
    if sparse:
        raise decline("a sparse gradient")
    bags = Bags(b, indices, offsets, None, b.shape_of(grad)[0], padding_idx)
    return _table_gradient(bags, grad, greatest, num_weights, scale_grad_by_freq, mode, per_sample_weights)


@lowers("aten._embedding_bag_dense_backward.default")
def embedding_bag_dense_backward(
    b: TorchBuilder, grad: Value, indices: Value, offset2bag: Value, bag_size: Value, greatest: Value, num_weights: int,
    scale_grad_by_freq: bool, mode: int, per_sample_weights: Value | None, padding_idx: int = -1,
) -> str:
    if b.shape_of(offset2bag) != b.shape_of(indices):
        raise decline("bags that the forward left open")
    bags = Bags(b, indices, None, offset2bag, b.shape_of(grad)[0], padding_idx)
    return _table_gradient(bags, grad, greatest, num_weights, scale_grad_by_freq, mode, per_sample_weights)


def _table_gradient(bags: Bags, grad: Value, greatest: Value, num_weights: int, by_frequency: bool, mode: int, scale: Value | None) -> str:
    """Gradient of every row of the table: its bags' gradients, each times its weight."""
    b = bags.b
    if by_frequency:
        raise decline("a gradient divided by the frequency of each index")
    dtype, width = b.result_dtype, b.shape_of(grad)[1]
    work = compute_dtype(dtype)
    table, wide = b.full((num_weights, width), 0, work), b.cast(grad, work)
    if mode == MAX:
        if b.shape_of(greatest) != b.shape_of(grad):
            raise decline("greatest elements that the forward left open")
        # Torch's own forward leaves 0 for an empty bag.
        filled = b.elementwise("gt", bags.columns(bags.sizes()), 0)
        return b.cast(b.scatter(table, b.where(filled, greatest, -1), wide, 0, "sum"), dtype)
    if mode == MEAN:
        least = b.elementwise("maximum", b.cast(bags.sizes(), work), 1.0)
        wide = b.elementwise("div", wide, bags.columns(least))
    rows = b.take(wide, b.elementwise("maximum", bags.bag_of, 0), 0)
    if scale is not None:
        rows = b.elementwise("mul", rows, bags.columns(b.cast(scale, work)))
    inside = b.elementwise("lt", bags.bag_of, bags.num_bags)
    return b.cast(b.index_add(table, 0, b.where(inside, bags.rows(), -1), rows), dtype)


@lowers("aten._embedding_bag_per_sample_weights_backward.default")
def embedding_bag_weights_backward(
    b: TorchBuilder, grad: Value, weight: Value, indices: Value, offsets: Value, offset2bag: Value, mode: int, padding_idx: int = -1
) -> str:
    bags = Bags(b, indices, offsets, None, b.shape_of(grad)[0], padding_idx)
    work = compute_dtype(b.result_dtype)
    bag_gradient = b.take(b.cast(grad, work), b.elementwise("maximum", bags.bag_of, 0), 0)
    rows = b.take(b.cast(weight, work), b.cast(indices, I64), 0)
    gradient = b.reduce(b.elementwise("mul", bag_gradient, rows), "sum", (1,))
    target = bags.target()
    inside = b.elementwise("logical_and", b.elementwise("ge", target, 0), b.elementwise("lt", target, bags.num_bags))
    return b.cast(b.where(inside, gradient, 0), b.result_dtype)


# Distances


def _differences(b: TorchBuilder, x: str, y: str, work: DType) -> str:
    """x[.., i, k] - y[.., j, k]. Shapes: x: [*A, m, k], y: [*A, n, k] -> [*A, m, n, k]"""
    first, second = (b.expand_dims(b.cast(v, work), (b.rank_of(v) - at,)) for v, at in ((x, 1), (y, 2)))
    return b.elementwise("sub", first, second)


@lowers("aten._cdist_forward.default")
def cdist(b: TorchBuilder, x: Value, y: Value, p: float, compute_mode: int | None = None) -> str:
    """The p-norm of the difference of every row of x and every row of y."""
    work = compute_dtype(b.result_dtype)
    if not b.shape_of(x)[-1]:
        return b.full(b.result_shape, 0, b.result_dtype)
    return b.cast(b.norm(_differences(b, x, y, work), p, (-1,)), b.result_dtype)


def _slope(p: float, d: Expr, g: Expr, distance: Expr, zero: Const) -> Expr:
    """Gradient of one difference: the derivative of (sum |d|^p)^(1/p), 0 where that has none."""
    size, signed = call("abs", d), call("mul", g, call("sign", d))
    if p == 1:
        return signed
    if p == float("inf"):
        return call("select", call("eq", size, distance), signed, zero)
    if p == 2:
        slope = call("div", call("mul", g, d), distance)
    else:
        power = const(p - 1, zero.dtype)
        slope = call("div", call("mul", signed, call("pow", size, power)), call("pow", distance, power))
    flat = call("eq", distance, zero)
    return call("select", call("logical_or", flat, call("eq", d, zero)) if p < 1 else flat, zero, slope)


@lowers("aten._cdist_backward.default")
def cdist_backward(b: TorchBuilder, grad: Value, x: Value, y: Value, p: float, distance: Value) -> str:
    dtype, shape = b.result_dtype, b.result_shape
    work = compute_dtype(dtype)
    if p == 0 or 0 in b.shape_of(distance) or 0 in shape:
        return b.full(shape, 0, dtype)
    d = Value(_differences(b, x, y, work))
    g, norm = (Value(b.reshape(b.cast(v, work), [*b.shape_of(v), 1])) for v in (grad, distance))
    zero = const(0, work)
    terms = b.pointwise(lambda u, v, w: _slope(p, u, v, w, zero), d, g, norm, work=work, out=work, name="slope")
    gradient = b.reduce(terms, "sum", (b.rank_of(terms) - 2,))
    extra = b.rank_of(gradient) - len(shape)
    over = [n for n, s in enumerate(b.shape_of(gradient)) if n < extra or s != shape[n - extra]]
    return b.cast(b.reshape(b.reduce(gradient, "sum", over) if over else gradient, list(shape)), dtype)
