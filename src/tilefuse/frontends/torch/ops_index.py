"""Torch operators with data-dependent subscripts: gathers (lookups) and scatters.

Subscripts out of range, for which torch raises, are checked in the kernels. Where torch allows negative subscripts they are wrapped
here. Gradients of lookups look up nothing: the forward has checked their subscripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilefuse.frontends.torch.ops import Scalar, TorchBuilder, Value, decline, lowers
from tilefuse.ir.building.tensor_reduce import identity_of
from tilefuse.ir.dtype import BOOL, F32, I64, U8, compute_dtype
from tilefuse.ir.scalar import call

_MONOID_BY_REDUCE = {"sum": "sum", "add": "sum", "prod": "prod", "multiply": "prod", "amax": "max", "amin": "min"}


@lowers("aten.embedding.default")
def embedding(
    b: TorchBuilder, weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> str:
    return b.embedding(weight, indices, checked=True)


@lowers("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    b: TorchBuilder, grad: Value, indices: Value, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> str:
    """Rows of the gradient summed into the rows of the table they came from; the padding row gets none."""
    if scale_grad_by_freq:
        raise decline("a gradient divided by the frequency of each index")
    rank = b.rank_of(indices)
    features = b.shape_of(grad)[rank:]
    rows = prod(b.shape_of(indices))
    flat = b.reshape(indices, [rows])
    if padding_idx >= 0:
        outside = b.pointwise(
            lambda i, p, n: call("select", call("eq", i, p), n, i),
            Value(flat),
            padding_idx,
            num_weights,
            work=b.dtype_of(flat),
            out=b.dtype_of(flat),
            name="rows",
        )
        flat = outside
    zeros = b.full((num_weights, *features), 0, b.result_dtype)
    return b.index_add(zeros, 0, flat, b.reshape(grad, [rows, *features]))


@lowers("aten.gather.default")
def gather(b: TorchBuilder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> str:
    if b.rank_of(x) == 0:
        return b.reshape(x, list(b.result_shape))
    return b.gather_elements(x, index, dim, checked=True)


@lowers("aten.index_select.default")
def index_select(b: TorchBuilder, x: Value, dim: int, index: Value) -> str:
    if b.rank_of(x) == 0:
        return x
    flat = b.reshape(index, [prod(b.shape_of(index))])
    return b.take(x, flat, dim, checked=True)


@lowers("aten.take.default")
def take(b: TorchBuilder, x: Value, index: Value) -> str:
    return b.take(b.reshape(x, [prod(b.shape_of(x))]), index, 0, wrap=True, checked=True)


def _subscripts(b: TorchBuilder, indices: Sequence[Value | None]) -> list[str | None]:
    if any(i is not None and b.dtype_of(i) in (BOOL, U8) for i in indices):
        raise decline("indexing by a mask, whose result's size depends on data")
    return list(indices)


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(b: TorchBuilder, x: Value, indices: Sequence[Value | None]) -> str:
    return b.index(x, _subscripts(b, indices), checked=True)


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    b: TorchBuilder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False, unsafe: bool = False
) -> str:
    present = [i for i in indices if i is not None]
    if len(present) == 1 and b.dtype_of(present[0]) == BOOL and prod(b.shape_of(values)) == 1 and indices[0] is not None:
        mask = b.reshape(present[0], [*b.shape_of(present[0]), *(1 for _ in range(b.rank_of(x) - b.rank_of(present[0])))])
        scalar = b.reshape(values, [])
        return b.where(b.broadcast_to(mask, b.shape_of(x)), b.elementwise("add", x, scalar) if accumulate else scalar, x)
    return b.index_put(x, _subscripts(b, indices), values, accumulate, checked=True)


@lowers("aten.scatter.src")
def scatter_src(b: TorchBuilder, x: Value, dim: int, index: Value, src: Value) -> str:
    return b.scatter(x, index, src, dim, "set", checked=True)


@lowers("aten.scatter.value")
def scatter_value(b: TorchBuilder, x: Value, dim: int, index: Value, value: Scalar) -> str:
    return b.scatter(x, index, b.full(b.shape_of(index), value, b.result_dtype), dim, "set", checked=True)


@lowers("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_by(b: TorchBuilder, x: Value, dim: int, index: Value, src: Value | Scalar, *, reduce: str) -> str:
    updates = src if isinstance(src, str) else b.full(b.shape_of(index), src, b.result_dtype)
    return b.scatter(x, index, updates, dim, _MONOID_BY_REDUCE[reduce], checked=True)


@lowers("aten.scatter_add.default")
def scatter_add(b: TorchBuilder, x: Value, dim: int, index: Value, src: Value) -> str:
    return b.scatter(x, index, src, dim, "sum", checked=True)


@lowers("aten.scatter_reduce.two")
def scatter_reduce(b: TorchBuilder, x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True) -> str:
    dtype = b.result_dtype
    if reduce not in (*_MONOID_BY_REDUCE, "mean") or dtype == BOOL or reduce == "mean" and not dtype.is_float:
        raise decline(f"scatter_reduce of {dtype} by {reduce}")
    monoid = "sum" if reduce == "mean" else _MONOID_BY_REDUCE[reduce]
    chosen = b.shape_of(index)
    base: str = x
    if not include_self:
        # Places that are written to start from the element that changes nothing.
        neutral = identity_of(monoid, dtype).value
        base = b.scatter(x, index, b.full(chosen, neutral, dtype), dim, "set")
    scattered = b.scatter(base, index, src, dim, monoid, checked=True)
    if reduce != "mean":
        return scattered
    counts = b.scatter(b.full(b.shape_of(x), 1 if include_self else 0, F32), index, b.full(chosen, 1, F32), dim, "sum")
    return _mean(b, scattered, counts, include_self)


@lowers("aten.masked_scatter.default")
def masked_scatter(b: TorchBuilder, x: Value, mask: Value, source: Value) -> str:
    """The elements of `source`, in order, where the mask holds: the n-th place takes the n-th element."""
    shape = b.result_shape
    count, available = prod(shape), prod(b.shape_of(source))
    if not count or not available:
        return b.broadcast_to(x, shape)
    chosen = b.reshape(b.broadcast_to(b.cast(mask, BOOL), shape), [count])
    order = b.where(chosen, b.elementwise("sub", b.scan(chosen, "sum", 0, dtype=I64), 1), 0)
    taken = b.take(b.reshape(source, [available]), order, 0, checked=True)
    return b.reshape(b.where(chosen, taken, b.reshape(b.broadcast_to(x, shape), [count])), list(shape))


def _rows(b: TorchBuilder, x: Value, index: Value, source: Value) -> tuple[str, str, str]:
    """Operands of index_add and index_copy with at least one dimension each."""
    flat = b.reshape(index, [prod(b.shape_of(index))])
    if b.rank_of(x) == 0:
        return b.reshape(x, [1]), flat, b.reshape(source, [prod(b.shape_of(source))])
    return x, flat, source


@lowers("aten.index_add.default")
def index_add(b: TorchBuilder, x: Value, dim: int, index: Value, source: Value, *, alpha: Scalar = 1) -> str:
    scaled = source if alpha == 1 else b.elementwise("mul", source, alpha)
    base, flat, rows = _rows(b, x, index, Value(scaled))
    return b.reshape(b.index_add(base, dim, flat, rows, checked=True), list(b.shape_of(x)))


@lowers("aten.index_reduce.default")
def index_reduce(
    b: TorchBuilder, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> str:
    dtype = b.result_dtype
    if dtype == BOOL or reduce == "mean" and not dtype.is_float:
        raise decline(f"index_reduce of {dtype} by {reduce}")
    monoid = "sum" if reduce == "mean" else _MONOID_BY_REDUCE[reduce]
    base, flat, rows = _rows(b, x, index, source)
    base_shape, chosen = b.shape_of(base), b.shape_of(rows)
    start = base if include_self else b.index_add(base, dim, flat, b.full(chosen, identity_of(monoid, dtype).value, dtype), "set")
    combined = b.index_add(start, dim, flat, rows, monoid, checked=True)
    if reduce == "mean":
        counts = b.index_add(b.full(base_shape, 1 if include_self else 0, F32), dim, flat, b.full(chosen, 1, F32))
        combined = _mean(b, combined, counts, include_self)
    return b.reshape(combined, list(b.shape_of(x)))


def _mean(b: TorchBuilder, sums: str, counts: str, include_self: bool) -> str:
    """Sums divided by their numbers of terms; elements without additions stay."""
    terms = counts if include_self else b.elementwise("maximum", counts, 1.0)
    work = compute_dtype(b.result_dtype)
    return b.pointwise(lambda p, q: call("div", p, q), Value(sums), Value(b.cast(terms, work)), name="mean")


@lowers("aten.index_copy.default")
def index_copy(b: TorchBuilder, x: Value, dim: int, index: Value, source: Value) -> str:
    base, flat, rows = _rows(b, x, index, source)
    return b.reshape(b.index_add(base, dim, flat, rows, "set", checked=True), list(b.shape_of(x)))


@lowers("aten.put.default")
def put(b: TorchBuilder, x: Value, index: Value, source: Value, accumulate: bool = False) -> str:
    """Elements of `source` to flat positions; negative ones count from the end."""
    count = prod(b.shape_of(index))
    flat, places, values = (b.reshape(v, [prod(b.shape_of(v))]) for v in (x, index, source))
    scattered = b.scatter(flat, places, b.reshape(values, [count]), 0, "sum" if accumulate else "set", wrap=True, checked=True)
    return b.reshape(scattered, list(b.shape_of(x)))


@lowers("aten.index_fill.int_Scalar")
def index_fill(b: TorchBuilder, x: Value, dim: int, index: Value, value: Scalar) -> str:
    flat = b.reshape(index, [prod(b.shape_of(index))])
    base = x if b.rank_of(x) else b.reshape(x, [1])
    shape = [prod(b.shape_of(flat)) if n == dim % b.rank_of(base) else s for n, s in enumerate(b.shape_of(base))]
    filled = b.index_add(base, dim, flat, b.full(shape, value, b.result_dtype), "set", wrap=True, checked=True)
    return b.reshape(filled, list(b.shape_of(x)))


@lowers("aten.max_unpool2d.default", "aten.max_unpool3d.default")
def max_unpool(b: TorchBuilder, x: Value, index: Value, *sizes: Sequence[int]) -> str:
    """Maxima written back to their places, zeros elsewhere; an image's places are flat. Shapes: x, index: [*A, *X] -> [*A, *Y]"""
    shape = list(b.result_shape)
    around, count = shape[:-len(sizes[0])], prod(shape[-len(sizes[0]):])
    flat, places = (b.reshape(v, [*around, prod(b.shape_of(v)[len(around):])]) for v in (x, index))
    scattered = b.scatter(b.full([*around, count], 0, b.result_dtype), places, flat, len(around), "set", checked=True)
    return b.reshape(scattered, shape)
