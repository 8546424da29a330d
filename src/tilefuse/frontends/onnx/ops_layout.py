"""ONNX operators that only move elements, with shapes known when importing: reshape, transpose, slice, pad, concatenate ..."""

from __future__ import annotations

from math import prod

import numpy as np

from tilefuse.frontends.onnx.call import DTYPE_OF_NUMPY, Call, Value, onnx_op
from tilefuse.frontends.onnx.model import element_dtype
from tilefuse.frontends.onnx.ops_resample import resize_by
from tilefuse.ir.affine import axis
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import broadcast_shapes
from tilefuse.ir.scalar import NUMPY_DTYPES, Bound, Expr, Guard, Read, const


@onnx_op("Identity")
def identity(n: Call) -> Value:
    return n.operand(0)


@onnx_op("Shape")
def shape(n: Call) -> Value:
    """Static: it depends on no input's data."""
    have = n.shape(0)
    return Value(array=np.asarray(have[slice(n.attr("start", 0), n.attr("end"))], dtype=np.int64))


@onnx_op("Size")
def size(n: Call) -> Value:
    return Value(array=np.asarray(prod(n.shape(0)), dtype=np.int64))


@onnx_op("ConstantOfShape", "Range", "MelWeightMatrix", "HannWindow", "HammingWindow", "BlackmanWindow")
def constant_makers(n: Call) -> np.ndarray:
    """Folded when their operands are known; here they are not."""
    for i in range(len(n.inputs)):
        if n.has(i):
            n.known(i, "the shape of the result")
    raise n.unsupported("its operands are known, but the onnx package's reference implementation rejects them")


@onnx_op("Reshape")
def reshape(n: Call) -> str:
    shape = list(n.attr("shape")) if n.version < 5 else n.ints(1, "the shape")
    have = n.shape(0)
    if not n.attr("allowzero", 0):
        if any(e == 0 and d >= len(have) for d, e in enumerate(shape)):
            raise n.wrong(f"shape {shape} takes an extent of {have} over that it has not")
        shape = [have[d] if e == 0 else e for d, e in enumerate(shape)]
    return n.b.reshape(n[0], shape)


@onnx_op("Flatten")
def flatten(n: Call) -> str:
    have = n.shape(0)
    at = n.attr("axis", 1)
    if not -len(have) <= at <= len(have):
        raise n.wrong(f"axis {at} is outside a tensor of {len(have)} dimensions")
    at = at + len(have) if at < 0 else at
    return n.b.reshape(n[0], (prod(have[:at]), prod(have[at:])))


@onnx_op("Squeeze")
def squeeze(n: Call) -> str:
    axes = n.attr("axes") if n.version < 13 else n.ints(1, "the axes") if n.has(1) else None
    have = n.shape(0)
    at = [d for d, e in enumerate(have) if e == 1] if axes is None else sorted({n.axis(a, len(have)) for a in axes})
    if any(have[d] != 1 for d in at):
        raise n.wrong(f"axes {at} of shape {have} are not all of extent 1")
    return n.b.squeeze(n[0], at)


@onnx_op("Unsqueeze")
def unsqueeze(n: Call) -> str:
    axes = n.needed_attr("axes") if n.version < 13 else n.ints(1, "the axes")
    rank = len(n.shape(0)) + len(axes)
    at = {n.axis(a, rank) for a in axes}
    if len(at) != len(axes):
        raise n.wrong(f"axes {axes} name a dimension twice")
    return n.b.expand_dims(n[0], sorted(at))


@onnx_op("Transpose")
def transpose(n: Call) -> str:
    rank = len(n.shape(0))
    return n.b.permute(n[0], n.attr("perm", list(reversed(range(rank)))))


@onnx_op("Concat")
def concat(n: Call) -> str:
    return n.b.concatenate(n.all(), n.attr("axis", 1))


@onnx_op("Split")
def split(n: Call) -> list[str]:
    """Sizes come from the attribute (before 13), the operand, or the number of outputs."""
    have = n.shape(0)
    at = n.axis(n.attr("axis", 0), len(have))
    sizes = n.ints(1, "the sizes") if n.has(1) else n.attr("split")
    if sizes is None:
        count = n.attr("num_outputs", n.num_outputs)
        each = -(-have[at] // count)
        sizes = [min(each, have[at] - each * i) for i in range(count)]
        if min(sizes, default=0) < 0:
            raise n.wrong(f"{count} pieces of {each} elements are more than the extent {have[at]} of axis {at}")
    if len(sizes) != n.num_outputs:
        raise n.wrong(f"it is split into {len(sizes)} pieces, but has {n.num_outputs} outputs")
    return n.b.split(n[0], sizes, at)


@onnx_op("Slice")
def slice_(n: Call) -> str:
    have = n.shape(0)
    if n.version < 10:
        starts, stops = n.needed_attr("starts"), n.needed_attr("ends")
        axes, steps = n.attr("axes"), None
    else:
        starts, stops = n.ints(1, "the starts"), n.ints(2, "the ends")
        axes = n.ints(3, "the axes") if n.has(3) else None
        steps = n.ints(4, "the steps") if n.has(4) else None
    axes = list(range(len(starts))) if axes is None else [n.axis(a, len(have)) for a in axes]
    if len(set(axes)) != len(axes) or not len(axes) == len(starts) == len(stops):
        raise n.wrong(f"{len(starts)} starts and {len(stops)} ends for the axes {axes}")
    limit = max(have, default=1) + 1  # INT64_MIN and INT64_MAX mean "to the end"
    stops = [min(max(e, -limit - 1), limit) for e in stops]
    starts = [min(max(e, -limit - 1), limit) for e in starts]
    return n.b.slice(n[0], starts, stops, steps, axes)


@onnx_op("Pad")
def pad(n: Call) -> str:
    rank = len(n.shape(0))
    if n.version < 11:
        amounts = n.attr("pads", n.attr("paddings"))
        value = n.attr("value", 0.0)
    else:
        amounts = n.ints(1, "the paddings")
        value = n.known(2, "the value").reshape(-1)[0].item() if n.has(2) and n.operand(2).array is not None else None if n.has(2) else 0
    axes = [n.axis(a, rank) for a in n.ints(3, "the axes")] if n.has(3) else list(range(rank))
    if len(amounts) != 2 * len(axes):
        raise n.wrong(f"{len(amounts)} paddings for {len(axes)} axes")
    pairs = [(0, 0)] * rank
    for i, d in enumerate(axes):
        pairs[d] = (amounts[i], amounts[i + len(axes)])
    mode = n.attr("mode", "constant")
    if mode != "constant" and any(min(p) < 0 for p in pairs):
        return n.b.pad(cropped(n, pairs), [(max(p[0], 0), max(p[1], 0)) for p in pairs], mode, 0)
    if value is not None or mode != "constant":
        return n.b.pad(n[0], pairs, mode, 0 if value is None else value)
    return pad_with(n, n[0], pairs, n.b.reshape(n[2], ()))


def cropped(n: Call, pairs: list[tuple[int, int]]) -> str:
    """The operand without the elements that negative paddings remove; they are removed before the other end is filled from the rest."""
    have = n.shape(0)
    ends = [(max(-before, 0), have[d] + min(after, 0)) for d, (before, after) in enumerate(pairs)]
    return n.b.slice(n[0], [e[0] for e in ends], [max(e) for e in ends])


def pad_with(n: Call, x: str, pairs: list[tuple[int, int]], value: str) -> str:
    """Constant padding with a value known only when running."""
    have = n.b.shape_of(x)
    padded = [e + p[0] + p[1] for e, p in zip(have, pairs)]
    axes = axis_names(len(padded))
    index = tuple(axis(a) - p[0] for a, p in zip(axes, pairs))
    bounds = tuple(Bound(e, 0, s) for e, s in zip(index, have))
    return n.b.make_map("pad", n.b.dtype_of(x), padded, axes, Guard(bounds, Read(x, index), Read(value, ())))


@onnx_op("Expand")
def expand(n: Call) -> str:
    """Broadcasting goes both ways: an extent of 1 in the requested shape keeps the operand's."""
    return n.b.broadcast_to(n[0], broadcast_shapes(n.shape(0), tuple(n.ints(1, "the shape"))))


@onnx_op("Tile")
def tile(n: Call) -> str:
    if n.version < 6:
        repeats = [1] * len(n.shape(0))
        repeats[n.ints(2, "the axis")[0]] = n.ints(1, "the repeats")[0]
        return n.b.tile(n[0], repeats)
    return n.b.tile(n[0], n.ints(1, "the repeats"))


@onnx_op("DepthToSpace")
def depth_to_space(n: Call) -> str:
    batch, depth, height, width = n.shape(0)
    f = n.needed_attr("blocksize")
    if n.attr("mode", "DCR") == "CRD":
        return n.b.pixel_shuffle(n[0], f)
    parts = n.b.reshape(n[0], (batch, f, f, depth // f**2, height, width))
    return n.b.reshape(n.b.permute(parts, (0, 3, 4, 1, 5, 2)), (batch, depth // f**2, height * f, width * f))


@onnx_op("SpaceToDepth")
def space_to_depth(n: Call) -> str:
    batch, depth, height, width = n.shape(0)
    f = n.needed_attr("blocksize")
    if n.attr("mode", "DCR") == "CRD":
        return n.b.pixel_unshuffle(n[0], f)
    parts = n.b.reshape(n[0], (batch, depth, height // f, f, width // f, f))
    return n.b.reshape(n.b.permute(parts, (0, 3, 5, 1, 2, 4)), (batch, depth * f**2, height // f, width // f))


@onnx_op("Trilu")
def trilu(n: Call) -> str:
    k = n.ints(1, "the diagonal")[0] if n.has(1) else 0
    have = n.shape(0)
    k = min(max(k, -have[-2] - have[-1]), have[-2] + have[-1])
    return n.b.triu(n[0], k) if n.attr("upper", 1) else n.b.tril(n[0], k)


@onnx_op("EyeLike")
def eye_like(n: Call) -> np.ndarray:
    """The result depends on the operand's shape only."""
    dtype = element_dtype(n.attr("dtype"), n.place) if n.attr("dtype") else n.dtype(0)
    rows, columns = n.shape(0)
    return np.eye(rows, columns, k=n.attr("k", 0), dtype=np.float64).astype(NUMPY_DTYPES[dtype.name])


@onnx_op("ReverseSequence")
def reverse_sequence(n: Call) -> str:
    """Element t of row b is element length[b] - 1 - t while t < length[b]."""
    time, batch = n.attr("time_axis", 0), n.attr("batch_axis", 1)
    have = n.shape(0)
    steps = n.b.iota((have[time],) if time < batch else (1, have[time]), 0 if time < batch else 1)
    lengths = n.b.cast(n[1], n.b.dtype_of(steps))
    steps = n.b.reshape(steps, (have[time], 1) if time < batch else (1, have[time]))
    lengths = n.b.reshape(lengths, (1, have[batch]) if time < batch else (have[batch], 1))
    back = n.b.elementwise("sub", n.b.elementwise("sub", lengths, 1), steps)
    inside = n.b.where(n.b.elementwise("lt", steps, lengths), back, steps)
    grid = n.b.reshape(inside, (*n.b.shape_of(inside), *(1,) * (len(have) - 2)))
    return n.b.gather_elements(n[0], n.b.broadcast_to(grid, have), time)


@onnx_op("Upsample")
def upsample(n: Call) -> str:
    """Opsets 7 to 9: as Resize with positions out / scale, truncated to integers for the nearest mode."""
    scales = [float(s) for s in n.attr("scales", [])] or [float(s) for s in n.known(1, "the scales").reshape(-1)]
    return resize_by(n, range(len(scales)), scales)


@onnx_op("Col2Im")
def col2im(n: Call) -> str:
    """Sums the blocks of columns back into the image: one term a kernel position, each a shifted, spread copy."""
    image, block = n.ints(1, "the image's shape"), n.ints(2, "the block's shape")
    dims = len(image)
    dilations = n.attr("dilations", [1] * dims)
    strides = n.attr("strides", [1] * dims)
    pads = n.attr("pads", [0] * 2 * dims)
    batch, rows, _ = n.shape(0)
    channels = rows // prod(block)
    counts = [(image[d] + pads[d] + pads[d + dims] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1 for d in range(dims)]
    x = n.b.reshape(n[0], (batch, channels, *block, *counts))
    axes = axis_names(2 + dims)
    total = ""
    for place in np.ndindex(*block):
        at, bounds = [], []
        for d in range(dims):
            offset = axis(axes[2 + d]) + pads[d] - place[d] * dilations[d]
            bounds.append(Bound(offset, 0, (counts[d] - 1) * strides[d] + 1))
            if strides[d] > 1:
                bounds.append(Bound(offset % strides[d], 0, 1))
            at.append(offset // strides[d])
        fixed = tuple(axis(axes[0]) * 0 + p for p in place)
        body: Expr = Guard(tuple(bounds), Read(x, (axis(axes[0]), axis(axes[1]), *fixed, *at)), const(0, n.dtype(0)))
        part = n.b.make_map("col2im", n.dtype(0), (batch, channels, *image), axes, body)
        total = part if not total else n.b.elementwise("add", total, part)
    return total


@onnx_op("Constant")
def constant(n: Call) -> np.ndarray:
    """Reached only for values the evaluator cannot hold."""
    value = n.attr("value", n.attr("sparse_value"))
    if not isinstance(value, np.ndarray) or value.dtype not in DTYPE_OF_NUMPY:
        raise n.unsupported("constants that are no tensors of a supported type")
    return value
