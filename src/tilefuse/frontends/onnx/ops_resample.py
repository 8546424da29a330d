"""ONNX resampling: Resize with positions and weights worked out per axis while importing, GridSample with positions from data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilefuse.frontends.onnx.call import Call, Value, onnx_op
from tilefuse.frontends.onnx.ops_gather import gather_known
from tilefuse.ir.dtype import I64, compute_dtype
from tilefuse.ir.scalar import Expr, call, const

Weights = tuple[np.ndarray, np.ndarray]
"""Positions and weights of the taps of every output. Shapes: both [outputs, taps]"""


@onnx_op("Resize")
def resize(n: Call) -> str:
    """One axis after another: the weights of linear and cubic interpolation are products over the axes."""
    have = n.shape(0)
    rank = len(have)
    axes = [n.axis(a, rank) for a in n.attr("axes", list(range(rank)))]
    scales, sizes = resize_extents(n, have, axes)
    roi = [float(v) for v in n.known(1, "the region").reshape(-1)] if n.version >= 11 and n.has(1) else []
    x = n[0]
    for i, d in enumerate(axes):
        region = (roi[i], roi[i + len(axes)]) if roi else (0.0, 1.0)
        if scales[i] == 1.0 and sizes[i] == have[d] and n.attr("coordinate_transformation_mode") != "tf_crop_and_resize":
            continue
        x = resize_axis(n, x, d, sizes[i], scales[i], region)
    return x if n.b.dtype_of(x) == n.dtype(0) else n.b.cast(x, n.dtype(0))


def resize_extents(n: Call, have: Sequence[int], axes: Sequence[int]) -> tuple[list[float], list[int]]:
    """Scale and output extent of every resized axis."""
    scale_at, size_at = (1, 99) if n.version < 11 else (2, 3)
    if n.has(scale_at) and n.shape(scale_at) not in ((0,),):
        scales = [float(s) for s in n.known(scale_at, "the scales").reshape(-1)]
        return scales, [scaled_extent(have[d], s) for d, s in zip(axes, scales)]
    sizes = n.ints(size_at, "the sizes")
    scales = [s / have[d] for d, s in zip(axes, sizes)]
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        scale = min(scales) if policy == "not_larger" else max(scales)
        return [scale] * len(axes), [math.floor(have[d] * scale + 0.5) for d in axes]
    return scales, sizes


def scaled_extent(extent: int, scale: float) -> int:
    """The output extent in f32, as the standard's shape inference has it: 10 * 0.7 is 7 there, 6.99999988 with that scale in f64."""
    return math.floor(np.float32(extent) * np.float32(scale))


def resize_by(n: Call, axes: Sequence[int], scales: Sequence[float]) -> str:
    """Operand 0 resized by the factors, as the attributes say."""
    x, have = n[0], n.shape(0)
    for d, scale in zip(axes, scales):
        if scale != 1.0:
            x = resize_axis(n, x, d, scaled_extent(have[d], scale), scale, (0.0, 1.0))
    return x if n.b.dtype_of(x) == n.dtype(0) else n.b.cast(x, n.dtype(0))


def source_position(
    n: Call, out: np.ndarray, scale: float | np.floating[Any], extent: int, outputs: int, region: tuple[float, float]
) -> np.ndarray:
    """Where in the input each output stands. Source: the operator's `coordinate_transformation_mode`."""
    mode = n.attr("coordinate_transformation_mode", "half_pixel" if n.version >= 11 else "asymmetric")
    match mode:
        case "asymmetric":
            return out / scale
        case "align_corners":
            # The scale may come with a fraction: the last output that it implies meets the last input.
            length = extent * scale
            return np.asarray(out * (extent - 1) / (length - 1)) if length != 1 else np.zeros_like(out)
        case "half_pixel":
            return (out + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (out + 0.5) / scale - 0.5 if outputs > 1 else np.zeros_like(out)
        case "half_pixel_symmetric":
            adjustment = outputs / (extent * scale)
            return extent / 2 * (1 - adjustment) + (out + 0.5) / scale - 0.5
        case "tf_half_pixel_for_nn":
            return (out + 0.5) / scale
        case "tf_crop_and_resize":
            start, stop = region
            if outputs > 1:
                return np.asarray(start * (extent - 1) + out * (stop - start) * (extent - 1) / (outputs - 1))
            return np.full_like(out, 0.5 * (start + stop) * (extent - 1))
    raise n.unsupported(f"coordinate_transformation_mode {mode}")


def nearest_positions(n: Call, at: np.ndarray) -> np.ndarray:
    """Positions rounded as `nearest_mode` says."""
    mode = n.attr("nearest_mode", "round_prefer_floor" if n.version >= 11 else "floor")
    match mode:
        case "round_prefer_floor":
            return np.asarray(np.ceil(at - 0.5))
        case "round_prefer_ceil":
            return np.asarray(np.floor(at + 0.5))
        case "floor":
            return np.asarray(np.floor(at))
        case "ceil":
            return np.asarray(np.ceil(at))
    raise n.unsupported(f"nearest_mode {mode}")


def cubic_kernel(distance: np.ndarray, a: float) -> np.ndarray:
    """Weight at a distance. Source: Keys 1981, Cubic convolution interpolation."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def axis_weights(n: Call, extent: int, at: np.ndarray, scale: float) -> Weights:
    """Taps of linear or cubic interpolation. With `antialias` a shrinking axis widens the kernel by 1 / scale."""
    mode, a = n.attr("mode", "nearest"), n.attr("cubic_coeff_a", -0.75)
    if mode not in ("linear", "cubic"):
        raise n.unsupported(f"mode {mode}")
    stretch = min(scale, 1.0) if n.attr("antialias", 0) else 1.0
    reach = math.ceil((1 if mode == "linear" else 2) / stretch)
    base = np.floor(at).astype(np.int64)
    places = base[:, None] + np.arange(1 - reach, reach + 1)[None, :]
    distance = (at[:, None] - places) * stretch
    weights = np.maximum(0.0, 1.0 - np.abs(distance)) if mode == "linear" else cubic_kernel(distance, a)
    if n.attr("exclude_outside", 0):
        weights = np.where((places >= 0) & (places < extent), weights, 0.0)
    return np.clip(places, 0, extent - 1), weights / weights.sum(axis=1, keepdims=True)


def resize_axis(n: Call, x: str, d: int, outputs: int, scale: float, region: tuple[float, float]) -> str:
    """One axis of `x` resampled to `outputs` positions."""
    have = n.b.shape_of(x)
    extent = have[d]
    is_nearest = n.attr("mode", "nearest") == "nearest"
    # Nearest positions are worked out in f32, as runtimes do: with 4 / (4 / 3) in f64, 2.9999999 is cut to 2.
    number = np.float32 if is_nearest else np.float64
    at = source_position(n, np.arange(outputs, dtype=number), number(scale), extent, outputs, region)
    outside = (at < 0) | (at > extent - 1)
    if is_nearest:
        places = np.clip(nearest_positions(n, at), 0, extent - 1).astype(np.int64)
        out = nearest(n, x, d, places)
    else:
        out = weighted(n, x, d, axis_weights(n, extent, at, scale))
    if n.attr("coordinate_transformation_mode") != "tf_crop_and_resize" or not outside.any():
        return out
    mask = constant(n, outside.reshape(-1, *(1,) * (len(have) - d - 1)), "outside")
    return n.b.where(mask, n.attr("extrapolation_value", 0.0), out)


def nearest(n: Call, x: str, d: int, places: np.ndarray) -> str:
    """The elements at `places`: whole factors become index maps, everything else a gather at constant positions."""
    extent = n.b.shape_of(x)[d]
    factor = len(places) // extent if extent and len(places) % extent == 0 else 0
    if factor > 1 and (places == np.arange(len(places)) // factor).all():
        return n.b.repeat_interleave(x, factor, d)
    return gather_known(n, x, places, d)


def weighted(n: Call, x: str, d: int, taps: Weights) -> str:
    """Sum over the taps of weight times element, in the compute dtype."""
    places, weights = taps
    work = compute_dtype(n.b.dtype_of(x))
    if not work.is_float:
        raise n.unsupported(f"interpolating {n.b.dtype_of(x)}")
    x = n.b.cast(x, work)
    rank, total = n.b.rank_of(x), ""
    for t in range(places.shape[1]):
        if not weights[:, t].any():
            continue
        factor = constant(
            n, weights[:, t].astype(np.float64 if work.name == "f64" else np.float32).reshape(-1, *(1,) * (rank - d - 1)), "weights"
        )
        part = n.b.elementwise("mul", gather_known(n, x, places[:, t], d), factor)
        total = part if not total else n.b.elementwise("add", total, part)
    return total


def constant(n: Call, array: np.ndarray, what: str) -> str:
    """A known array as a value of the graph."""
    return n.importer.materialise(Value(array=array), f"{n.label}_{what}")


# GridSample

Index = Callable[[str], str]


@onnx_op("GridSample")
def grid_sample(n: Call) -> str:
    """Elements of x at the positions that `grid` gives in [-1, 1] for every output.

    Shapes: x: [N, C, *S], grid: [N, *O, len(S)] with the last axis in reverse order of S -> [N, C, *O]
    """
    spatial = n.shape(0)[2:]
    dims = len(spatial)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(n.attr("mode", "linear"), n.attr("mode", "linear"))
    align = bool(n.attr("align_corners", 0))
    grid = n.b.cast(n[1], compute_dtype(n.dtype(1)))
    positions = []
    for d, extent in enumerate(spatial):
        g = n.b.select(grid, n.b.rank_of(grid) - 1, dims - 1 - d)
        scaled = n.b.elementwise("mul", n.b.elementwise("add", g, 1.0), (extent - 1) / 2 if align else extent / 2)
        positions.append(scaled if align else n.b.elementwise("sub", scaled, 0.5))
    if mode == "nearest":
        return sampled(n, [n.b.elementwise("round", p) for p in positions], align)
    if mode not in ("linear", "cubic"):
        raise n.unsupported(f"mode {mode}")
    return interpolated(n, positions, [], [], mode, align)


def interpolated(n: Call, positions: list[str], chosen: list[str], factors: list[str], mode: str, align: bool) -> str:
    """The sum over all taps of one dimension after another."""
    d = len(chosen)
    if d == len(positions):
        weight = factors[0]
        for f in factors[1:]:
            weight = n.b.elementwise("mul", weight, f)
        element = sampled(n, chosen, align)
        spread = n.b.cast(n.b.expand_dims(weight, 1), n.b.dtype_of(element))
        return n.b.elementwise("mul", element, spread)
    base = n.b.elementwise("floor", positions[d])
    total = ""
    for tap in (0, 1) if mode == "linear" else (-1, 0, 1, 2):
        place = n.b.elementwise("add", base, float(tap))
        distance = n.b.elementwise("abs", n.b.elementwise("sub", positions[d], place))
        part = interpolated(n, positions, [*chosen, place], [*factors, tap_weight(n, distance, mode, tap)], mode, align)
        total = part if not total else n.b.elementwise("add", total, part)
    return total


def tap_weight(n: Call, distance: str, mode: str, tap: int) -> str:
    """Weight of a tap at a distance known to lie in its piece of the kernel (cubic with a = -0.75)."""
    work, a = n.b.dtype_of(distance), -0.75

    def c(value: float) -> Expr:
        return const(value, work)

    def polynomial(x: Expr, *coefficients: float) -> Expr:
        total: Expr = c(coefficients[0])
        for k in coefficients[1:]:
            total = call("add", call("mul", total, x), c(k))
        return total

    def body(x: Expr) -> Expr:
        if mode == "linear":
            return call("sub", c(1.0), x)
        return polynomial(x, a + 2, -(a + 3), 0.0, 1.0) if tap in (0, 1) else polynomial(x, a, -5 * a, 8 * a, -4 * a)

    return n.b.expression(body, distance, dtype=work, name="weight")


def sampled(n: Call, places: list[str], align: bool) -> str:
    """x at whole-numbered (float) places, with the operator's padding mode beyond the edges. Shapes: places: [N, *O] -> [N, C, *O]"""
    shape = n.shape(0)
    padding = n.attr("padding_mode", "zeros")
    batch, channels = shape[:2]
    rank = n.b.rank_of(places[0]) + 1
    inside, subscripts = "", []
    for place, extent in zip(places, shape[2:]):
        if padding == "reflection":
            place = reflected(n, place, extent, align)
        if padding == "zeros":
            here = n.b.elementwise("logical_and", n.b.elementwise("ge", place, 0.0), n.b.elementwise("le", place, float(extent - 1)))
            inside = here if not inside else n.b.elementwise("logical_and", inside, here)
        whole = n.b.cast(n.b.clamp(place, 0.0, float(extent - 1)), I64)
        subscripts.append(n.b.expand_dims(whole, 1))
    first = n.b.iota((batch, *(1,) * (rank - 1)), 0)
    second = n.b.iota((1, channels, *(1,) * (rank - 2)), 1)
    out = n.b.index(n[0], [first, second, *subscripts], wrap=False)
    return n.b.where(n.b.expand_dims(inside, 1), out, 0) if inside else out


def reflected(n: Call, place: str, extent: int, align: bool) -> str:
    """A position folded back at the edges: at the outermost centres where corners are aligned, else half an element beyond."""
    low, high = (0.0, float(extent - 1)) if align else (-0.5, extent - 0.5)
    span = high - low
    if span == 0:
        return n.b.elementwise("mul", place, 0.0)
    turned = n.b.elementwise("mod", n.b.elementwise("sub", place, low), 2 * span)
    work = n.b.dtype_of(place)

    def body(t: Expr) -> Expr:
        return call("add", call("minimum", t, call("sub", const(2 * span, work), t)), const(low, work))

    return n.b.expression(body, turned, dtype=work, name="reflected")
