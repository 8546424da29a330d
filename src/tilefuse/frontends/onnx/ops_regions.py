"""ONNX features of regions: bilinear samples at positions that boxes decide."""

from __future__ import annotations

from tilefuse.frontends.onnx.call import Call, onnx_op
from tilefuse.ir.dtype import I64, compute_dtype


@onnx_op("RoiAlign")
def roi_align(n: Call) -> str:
    """Mean of the samples of each bin, or the largest of their weighted taps.

    Shapes: x: [N, C, H, W], regions: [R, 4], images: [R] -> [R, C, output_height, output_width]
    """
    samples = n.attr("sampling_ratio", 0)
    if samples <= 0:
        raise n.unsupported("without a sampling_ratio, the data of the regions decides how many samples a bin has")
    bins, extents = (n.attr("output_height", 1), n.attr("output_width", 1)), n.shape(0)[2:]
    half = n.attr("coordinate_transformation_mode", "half_pixel" if n.version >= 16 else "output_half_pixel") == "half_pixel"
    regions = n.b.cast(n[1], compute_dtype(n.dtype(1)))
    regions = n.b.elementwise("sub", n.b.elementwise("mul", regions, float(n.attr("spatial_scale", 1.0))), 0.5 if half else 0.0)
    axes = []
    for d in range(2):
        start, stop = (n.b.expand_dims(n.b.select(regions, 1, 1 - d + side), 1) for side in (0, 2))
        extent = n.b.elementwise("sub", stop, start)
        axes.append(_taps(n, start, extent if half else n.b.elementwise("maximum", extent, 1.0), bins[d], samples, extents[d]))
    work = compute_dtype(n.dtype(0))
    count, channels = n.shape(1)[0], n.shape(0)[1]
    image = n.b.reshape(n.b.cast(n[2], I64), (count, 1, 1, 1))
    channel = n.b.iota((1, channels, 1, 1), 1)
    largest = n.attr("mode", "avg") == "max"
    total = ""
    for row, row_weight in axes[0]:
        for column, column_weight in axes[1]:
            tap = n.b.index(n[0], [image, channel, n.b.expand_dims(row, [1, 3]), n.b.expand_dims(column, [1, 2])], checked=True)
            weight = n.b.elementwise("mul", n.b.expand_dims(row_weight, [1, 3]), n.b.expand_dims(column_weight, [1, 2]))
            part = n.b.elementwise("mul", n.b.cast(tap, work), n.b.cast(weight, work))
            total = part if not total else n.b.elementwise("maximum" if largest else "add", total, part)
    apart = n.b.reshape(total, (count, channels, bins[0], samples, bins[1], samples))
    return n.b.cast(n.b.reduce(apart, "max", (3, 5)) if largest else n.b.mean(apart, (3, 5)), n.dtype(0))


def _taps(n: Call, start: str, extent: str, bins: int, samples: int, size: int) -> list[tuple[str, str]]:
    """Both taps of every sample along one axis: positions, and weights that are 0 for samples over one element outside.

    Shapes: start, extent: [R, 1] -> [R, bins * samples] each
    """
    step = n.b.elementwise("div", extent, float(bins))
    number = n.b.iota((1, bins * samples), 1)
    work = n.b.dtype_of(step)
    whole = n.b.cast(n.b.elementwise("floordiv", number, samples), work)
    inner = n.b.elementwise("add", n.b.cast(n.b.elementwise("mod", number, samples), work), 0.5)
    at = n.b.elementwise("add", start, n.b.elementwise("mul", whole, step))
    at = n.b.elementwise("add", at, n.b.elementwise("div", n.b.elementwise("mul", inner, step), float(samples)))
    inside = n.b.elementwise("logical_and", n.b.elementwise("ge", at, -1.0), n.b.elementwise("le", at, float(size)))
    moved = n.b.clamp(at, 0.0, float(size - 1))
    low = n.b.elementwise("floor", moved)
    share = n.b.elementwise("sub", moved, low)
    first = n.b.clamp(n.b.cast(low, I64), 0, size - 1)  # a region that is not a number has no position
    second = n.b.elementwise("minimum", n.b.elementwise("add", first, 1), size - 1)
    near = n.b.elementwise("sub", 1.0, share)
    return [(first, n.b.where(inside, near, 0.0)), (second, n.b.where(inside, share, 0.0))]
