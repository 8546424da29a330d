"""Layout operators of torch: views, slices, concatenation, padding. All are index maps; nothing is copied for them.

Strides are not modelled here: every value is row-major in the graph's eyes, and the planner decides how it lies in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilefuse.frontends.torch.ops import Scalar, TorchBuilder, Value, decline, lowers
from tilefuse.ir.affine import Affine, axis, delinearise, number, simplify
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.dtype import compute_dtype
from tilefuse.ir.scalar import Bound, Guard, Read


@lowers("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.view_copy.default")
def view(b: TorchBuilder, x: Value, size: Sequence[int]) -> str:
    return b.reshape(x, list(b.result_shape))


@lowers("aten._reshape_alias.default")
def reshape_alias(b: TorchBuilder, x: Value, size: Sequence[int], stride: Sequence[int]) -> str:
    return b.reshape(x, list(b.result_shape))


@lowers("aten.permute.default", "aten.permute_copy.default", "prims.transpose.default")
def permute(b: TorchBuilder, x: Value, order: Sequence[int]) -> str:
    return b.permute(x, list(order))


@lowers("aten.transpose.int", "aten.transpose_copy.int")
def transpose(b: TorchBuilder, x: Value, first: int, second: int) -> str:
    return b.transpose(x, first, second)


@lowers("aten.t.default", "aten.t_copy.default", "aten.numpy_T.default")
def t(b: TorchBuilder, x: Value) -> str:
    return b.permute(x, list(reversed(range(b.rank_of(x)))))


@lowers("aten.mT.default", "aten.mH.default", "aten.adjoint.default")
def matrix_transpose(b: TorchBuilder, x: Value) -> str:
    rank = b.rank_of(x)
    return b.transpose(x, rank - 2, rank - 1)


@lowers("aten.expand.default", "aten.expand_copy.default")
def expand(b: TorchBuilder, x: Value, size: Sequence[int], *, implicit: bool = False) -> str:
    return b.broadcast_to(x, list(b.result_shape))


@lowers("prims.broadcast_in_dim.default")
def broadcast_in_dim(b: TorchBuilder, x: Value, shape: Sequence[int], places: Sequence[int]) -> str:
    have = dict(zip(places, b.shape_of(x)))
    return b.broadcast_to(b.reshape(x, [have.get(d, 1) for d in range(len(shape))]), list(shape))


@lowers(
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze_copy.dim",
    "aten.squeeze_copy.dims",
    "aten.squeeze_copy.default",
)
def squeeze(b: TorchBuilder, x: Value, dim: int | Sequence[int] | None = None) -> str:
    return b.reshape(x, list(b.result_shape))


@lowers("aten.unsqueeze.default", "aten.unsqueeze_copy.default")
def unsqueeze(b: TorchBuilder, x: Value, dim: int) -> str:
    return b.expand_dims(x, dim)


@lowers("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(b: TorchBuilder, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> str:
    extent = b.shape_of(x)[dim]
    return b.slice(x, [0 if start is None else start], [extent if end is None else end], [step], [dim])


@lowers("aten.select.int", "aten.select_copy.int")
def select(b: TorchBuilder, x: Value, dim: int, index: int) -> str:
    return b.select(x, dim, index)


@lowers("aten.split.Tensor", "aten.unsafe_split.Tensor")
def split(b: TorchBuilder, x: Value, size: int, dim: int = 0) -> tuple[str, ...]:
    extent = b.shape_of(x)[dim]
    return split_with_sizes(b, x, [min(size, extent - at) for at in range(0, extent, size)] if size else [0], dim)


@lowers("aten.split_with_sizes.default", "aten.split_with_sizes_copy.default", "aten.unsafe_split_with_sizes.default")
def split_with_sizes(b: TorchBuilder, x: Value, sizes: Sequence[int], dim: int = 0) -> tuple[str, ...]:
    return tuple(b.split(x, list(sizes), dim))


@lowers("aten.tensor_split.sections")
def tensor_split(b: TorchBuilder, x: Value, sections: int, dim: int = 0) -> tuple[str, ...]:
    """Pieces whose extents differ by one at most, the larger ones first."""
    size, rest = divmod(b.shape_of(x)[dim], sections)
    return split_with_sizes(b, x, [size + (n < rest) for n in range(sections)], dim)


@lowers("aten.unbind.int")
def unbind(b: TorchBuilder, x: Value, dim: int = 0) -> tuple[str, ...]:
    return tuple(b.select(x, dim, n) for n in range(b.shape_of(x)[dim]))


@lowers("aten.cat.default", "aten.concatenate.default", "aten.concat.default")
def cat(b: TorchBuilder, tensors: Sequence[Value], dim: int = 0) -> str:
    return b.concatenate([b.cast(x, b.result_dtype) for x in tensors], dim)


@lowers("aten.stack.default")
def stack(b: TorchBuilder, tensors: Sequence[Value], dim: int = 0) -> str:
    return b.stack([b.cast(x, b.result_dtype) for x in tensors], dim)


@lowers("aten.flip.default")
def flip(b: TorchBuilder, x: Value, axes: Sequence[int]) -> str:
    return b.flip(x, list(axes)) if b.rank_of(x) else x


@lowers("aten.roll.default")
def roll(b: TorchBuilder, x: Value, shifts: Sequence[int], axes: Sequence[int] = ()) -> str:
    if not axes:
        flat = b.reshape(x, [prod(b.shape_of(x))])
        return b.reshape(b.roll(flat, [sum(shifts)], [0]), list(b.shape_of(x)))
    return b.roll(x, list(shifts), list(axes))


@lowers("aten.repeat.default", "aten.tile.default")
def repeat(b: TorchBuilder, x: Value, counts: Sequence[int]) -> str:
    return b.tile(x, list(counts))


@lowers("aten.repeat_interleave.self_int")
def repeat_interleave(b: TorchBuilder, x: Value, count: int, dim: int | None = None, *, output_size: int | None = None) -> str:
    if dim is None:
        return b.repeat_interleave(b.reshape(x, [prod(b.shape_of(x))]), count, 0)
    return b.repeat_interleave(x, count, dim)


def _pairs(padding: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """torch's padding list (last dimension first) as (before, after) of every dimension."""
    pairs = [(padding[n], padding[n + 1]) for n in range(0, len(padding), 2)]
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


@lowers("aten.constant_pad_nd.default")
def constant_pad(b: TorchBuilder, x: Value, padding: Sequence[int], value: Scalar = 0) -> str:
    return b.pad(x, _pairs(padding, b.rank_of(x)), "constant", value)


@lowers("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default")
def reflection_pad(b: TorchBuilder, x: Value, padding: Sequence[int]) -> str:
    return b.pad(x, _pairs(padding, b.rank_of(x)), "reflect")


@lowers("aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default")
def replication_pad(b: TorchBuilder, x: Value, padding: Sequence[int]) -> str:
    return b.pad(x, _pairs(padding, b.rank_of(x)), "edge")


@lowers("aten.replication_pad1d_backward.default", "aten.replication_pad2d_backward.default", "aten.replication_pad3d_backward.default")
def replication_pad_backward(b: TorchBuilder, grad: Value, x: Value, padding: Sequence[int]) -> str:
    """Along each dimension the first and the last element also get the gradients of their copies before and after them."""
    gradient = b.cast(grad, compute_dtype(b.result_dtype))
    for d, ((before, after), extent) in enumerate(zip(_pairs(padding, b.rank_of(x)), b.shape_of(x))):
        if not (before or after):
            continue
        whole = b.shape_of(gradient)[d]
        first, last = max(before, 0), whole - max(after, 0)
        inner = b.slice(gradient, [first], [last], axes=[d])
        inner = _padded(b, inner, d, max(-before, 0), max(-after, 0))
        if before > 0:
            edge = b.reduce(b.slice(gradient, [0], [first], axes=[d]), "sum", (d,), keepdims=True)
            inner = b.elementwise("add", inner, _padded(b, edge, d, 0, extent - 1))
        if after > 0:
            edge = b.reduce(b.slice(gradient, [last], [whole], axes=[d]), "sum", (d,), keepdims=True)
            inner = b.elementwise("add", inner, _padded(b, edge, d, extent - 1, 0))
        gradient = inner
    return b.cast(gradient, b.result_dtype)


def _padded(b: TorchBuilder, x: str, d: int, before: int, after: int) -> str:
    if not (before or after):
        return x
    return b.pad(x, [(before, after) if n == d else (0, 0) for n in range(b.rank_of(x))], "constant", 0)


@lowers("aten._pad_circular.default")
def circular_pad(b: TorchBuilder, x: Value, padding: Sequence[int]) -> str:
    return b.pad(x, _pairs(padding, b.rank_of(x)), "wrap")


@lowers("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(b: TorchBuilder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> str:
    return b.diagonal(x, offset, dim1, dim2)


@lowers("aten.diagonal_scatter.default")
def diagonal_scatter(b: TorchBuilder, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> str:
    """`x` with one diagonal from `source`, whose last dimension runs along it."""
    shape, rank = b.shape_of(x), b.rank_of(x)
    axes = axis_names(rank)
    row, column = axis(axes[dim1 % rank]), axis(axes[dim2 % rank])
    along = row + min(offset, 0)
    length = b.shape_of(source)[-1]
    lead = [a for d, a in enumerate(axes) if d not in (dim1 % rank, dim2 % rank)]
    unchanged = b.read(x, shape, axes)
    if not length:
        return b.make_map("diagonal_scatter", b.result_dtype, shape, axes, unchanged)
    index = tuple(number(0) if s == 1 else e for s, e in zip(b.shape_of(source), (*map(axis, lead), along)))
    on = (Bound(column - row, offset, offset + 1), Bound(along, 0, length))
    return b.make_map("diagonal_scatter", b.result_dtype, shape, axes, Guard(on, Read(b.cast(source, b.result_dtype), index), unchanged))


@lowers("aten.tril.default")
def tril(b: TorchBuilder, x: Value, diagonal: int = 0) -> str:
    return b.tril(x, diagonal)


@lowers("aten.triu.default")
def triu(b: TorchBuilder, x: Value, diagonal: int = 0) -> str:
    return b.triu(x, diagonal)


@lowers("aten.unfold.default", "aten.unfold_copy.default")
def unfold(b: TorchBuilder, x: Value, dimension: int, size: int, step: int) -> str:
    if b.rank_of(x) == 0:
        return b.reshape(x, list(b.result_shape))
    return b.windows(x, dimension, size, step)


@lowers("aten.im2col.default")
def im2col(b: TorchBuilder, x: Value, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]) -> str:
    if b.rank_of(x) != 4:
        raise decline("im2col of an image without a batch dimension")
    return b.unfold(x, list(kernel), list(stride), [(p, p) for p in padding], list(dilation))


@lowers("aten.pixel_shuffle.default")
def pixel_shuffle(b: TorchBuilder, x: Value, factor: int) -> str:
    return b.pixel_shuffle(x, factor)


@lowers("aten.pixel_unshuffle.default")
def pixel_unshuffle(b: TorchBuilder, x: Value, factor: int) -> str:
    return b.pixel_unshuffle(x, factor)


@lowers("aten.slice_scatter.default")
def slice_scatter(
    b: TorchBuilder, x: Value, source: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> str:
    extent = b.shape_of(x)[dim]
    first, last, _ = slice(start, end, step).indices(extent)
    return b.slice_scatter(x, b.cast(source, b.result_dtype), dim, first, last, step)


@lowers("aten.select_scatter.default")
def select_scatter(b: TorchBuilder, x: Value, source: Value, dim: int, index: int) -> str:
    return b.select_scatter(x, b.cast(source, b.result_dtype), dim, index)


@lowers("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(b: TorchBuilder, x: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> str:
    """Elements at offset + sum of subscript * stride of row-major memory."""
    if not b.operands_dense:
        raise decline("as_strided of a tensor that is not contiguous")
    have = b.shape_of(x)
    shape = tuple(size)
    reach = (storage_offset or 0) + sum((s - 1) * t for s, t in zip(shape, stride))
    if prod(shape) and reach >= prod(have):
        raise decline("as_strided that reaches beyond its tensor")
    extents = dict(zip(axis_names(len(shape)), shape))

    def subscripts(i: tuple[Affine, ...]) -> Sequence[Affine]:
        flat = number(storage_offset or 0)
        for e, step in zip(i, stride):
            flat = flat + e * step
        return delinearise(simplify(flat, extents), have, extents)

    return b.view("as_strided", x, shape, subscripts)
