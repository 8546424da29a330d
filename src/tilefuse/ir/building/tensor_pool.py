"""Pooling: reductions over window axes, with guards where a window hangs over the edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.base.errors import ShapeError
from tilefuse.ir.affine import Affine, axis, bounds, floordiv, number, simplify
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.building.tensor_gather import GatherBuilder
from tilefuse.ir.building.tensor_reduce import identity_of
from tilefuse.ir.dtype import I64, DType, compute_dtype
from tilefuse.ir.scalar import Bound, Expr, Guard, Index, Read, call, cast, const


@dataclass(frozen=True, slots=True)
class Window:
    """One pooled dimension: position of tap k of output i is first + dilation * k.

    first     affine in the output axis
    taps      number of taps (the longest window)
    limits    extra bounds that a tap must meet (windows of varying length)
    count     number of taps that a mean divides by; None: always `taps`
    """

    extent: int
    outputs: int
    taps: int
    dilation: int
    first: Affine
    output_axis: str
    tap_axis: str
    count: Expr | None = None
    end: Affine | None = None

    @property
    def extents(self) -> dict[str, int]:
        """Extents of the output axis and of the axis over the window's taps."""
        return {self.output_axis: self.outputs, self.tap_axis: self.taps}

    @property
    def position(self) -> Affine:
        """Where in the input the tap stands."""
        return simplify(self.first + axis(self.tap_axis) * self.dilation, self.extents)

    def limits(self) -> list[Bound]:
        """Bounds that hold exactly for the taps of the window that lie inside the input; none where all always do."""
        edges: list[Bound] = []
        if self.end is not None:
            beyond = simplify(self.position - self.end, self.extents)
            span = bounds(beyond, self.extents)
            if span is None or span[1] >= 0:
                edges.append(Bound(beyond, -self.taps, 0))
        span = bounds(self.position, self.extents)
        if span is None or span[0] < 0 or span[1] >= self.extent:
            edges.append(Bound(self.position, 0, self.extent))
        return edges


def pooled_extent(extent: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int, ceil_mode: bool) -> int:
    """Number of windows along one dimension.

    With `ceil_mode` a last window that hangs over the end counts, unless it would start in the padding after the end.
    """
    room = extent + padding[0] + padding[1] - dilation * (kernel - 1) - 1
    count = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (count - 1) * stride >= extent + padding[0]:
        count -= 1
    return count


class PoolBuilder(GatherBuilder):
    """Pooling over windows of the trailing dimensions."""

    def pool(
        self,
        x: str,
        monoid: str,
        kernel: Sequence[int],
        stride: Sequence[int] | None = None,
        padding: Sequence[tuple[int, int]] | None = None,
        dilation: Sequence[int] | None = None,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        with_indices: bool = False,
        divisor: int | None = None,
        index_space: str = "plane",
        output_size: Sequence[int] | None = None,
    ) -> tuple[str, str | None]:
        """Windows of the last len(kernel) dimensions reduced by "max", "min", "sum", "prod" or "mean"; and the indices, if requested.

        Padding never wins a maximum. A mean divides by the taps inside the input, with `count_include_pad` by those inside the
        padded input, with `divisor` by that number. Indices (of "max" or "min") are row-major positions in the pooled dimensions
        (`index_space` "plane") or in the whole tensor ("tensor"). `output_size` overrides the computed number of windows.
        Shapes: x: [*B, *S] -> [*B, *O]
        Raises: ShapeError when a dimension has no window.
        """
        dims = len(kernel)
        pads = [(0, 0)] * dims if padding is None else [(p[0], p[1]) for p in padding]
        steps, gaps = list(stride or kernel), list(dilation or [1] * dims)
        shape = self.shape_of(x)
        spatial = shape[len(shape) - dims :]
        axes, taps = axis_names(len(shape)), axis_names(dims, "k")
        windows: list[Window] = []
        for n, (s, k, t, p, d) in enumerate(zip(spatial, kernel, steps, pads, gaps, strict=True)):
            outputs = output_size[n] if output_size is not None else pooled_extent(s, k, t, p, d, ceil_mode)
            if outputs < 1:
                raise ShapeError(
                    f"pool: a window of {d * (k - 1) + 1} does not fit dimension {len(shape) - dims + n} "
                    f"of {self.types[x]} with padding {p}"
                )
            out = axes[len(shape) - dims + n]
            first = simplify(axis(out) * t - p[0], {out: outputs})
            low, high = (-p[0], s + p[1]) if count_include_pad else (0, s)
            windows.append(Window(s, outputs, k, d, first, out, taps[n], _count(first, k, d, low, high, {out: outputs})))
        return self._pool_windows(x, monoid, windows, divisor, with_indices, index_space)

    def adaptive_pool(self, x: str, monoid: str, output_size: Sequence[int | None], with_indices: bool = False) -> tuple[str, str | None]:
        """Output i of n pools the positions floor(i * extent / n) up to ceil((i + 1) * extent / n); None: extent unchanged."""
        shape = self.shape_of(x)
        dims = len(output_size)
        axes, taps = axis_names(len(shape)), axis_names(dims, "k")
        windows: list[Window] = []
        for n, (extent, output_extent) in enumerate(zip(shape[len(shape) - dims :], output_size, strict=True)):
            outputs = extent if output_extent is None else output_extent
            out = axes[len(shape) - dims + n]
            extents = {out: outputs}
            if outputs and extent % outputs == 0:
                size = extent // outputs
                windows.append(Window(extent, outputs, size, 1, simplify(axis(out) * size, extents), out, taps[n]))
                continue
            first = floordiv(axis(out) * extent, outputs, extents)
            end = floordiv((axis(out) + 1) * extent + (outputs - 1), outputs, extents)
            longest = max(-(-(i + 1) * extent // outputs) - i * extent // outputs for i in range(outputs))
            windows.append(Window(extent, outputs, longest, 1, first, out, taps[n], Index(simplify(end - first, extents)), end))
        return self._pool_windows(x, monoid, windows, None, with_indices, "plane")

    def _pool_windows(
        self, x: str, monoid: str, windows: Sequence[Window], divisor: int | None, with_indices: bool, index_space: str
    ) -> tuple[str, str | None]:
        have, shape = self.dtype_of(x), self.shape_of(x)
        work = compute_dtype(have)
        lead = shape[: len(shape) - len(windows)]
        out_shape = (*lead, *(w.outputs for w in windows))
        axes = axis_names(len(shape))
        plain = "sum" if monoid == "mean" else monoid
        index = (*(number(0) if s == 1 else axis(a) for a, s in zip(axes, lead, strict=False)), *(w.position for w in windows))
        body: Expr = converted(Read(x, index), have, work)
        limits = tuple(b for w in windows for b in w.limits())
        if limits:
            body = Guard(limits, body, identity_of(plain, work))
        over = [(w.tap_axis, w.taps) for w in windows]
        if prod(out_shape) == 0:
            empty = self.full(out_shape, 0, have)
            return empty, self.full(out_shape, 0, I64) if with_indices else None
        pooled = self.reduce_node(plain, work, out_shape, axes, over, body)
        if monoid == "mean":
            pooled = self._divided(pooled, work, have, windows, divisor)
        indices = None
        if with_indices:
            tap = self.reduce_node(f"arg{plain}", I64, out_shape, axes, over, body)
            indices = self._flat_indices(tap, windows, shape if index_space == "tensor" else shape[len(lead) :])
        return self.cast(pooled, have), indices

    def _divided(self, total: str, work: DType, result: DType, windows: Sequence[Window], divisor: int | None) -> str:
        """Sums over numbers of taps, in the dtype `result`."""
        shape = self.shape_of(total)
        axes = axis_names(len(shape))
        count: Expr = const(prod(w.taps for w in windows) if divisor is None else divisor, work)
        if divisor is None and any(w.count is not None for w in windows):
            product: Expr = const(prod(w.taps for w in windows if w.count is None), I64)
            for w in windows:
                if w.count is not None:
                    product = w.count if product == const(1, I64) else call("mul", product, w.count)
            count = cast(product, work)
        body = call("div" if work.is_float else "truncdiv", self.read(total, shape, axes), count)
        return self.make_map("mean", result, shape, axes, converted(body, work, result))

    def _flat_indices(self, tap: str, windows: Sequence[Window], space: Sequence[int]) -> str:
        """Row-major positions in `space` (whose last dimensions are the pooled ones) of the taps at row-major window positions `tap`."""
        shape = self.shape_of(tap)
        axes = axis_names(len(shape))
        rest: Expr = self.read(tap, shape, axes)
        places: list[Expr] = []
        for w in reversed(windows):
            only = w is windows[0]
            k = rest if only else call("mod", rest, const(w.taps, I64))
            rest = rest if only else call("floordiv", rest, const(w.taps, I64))
            scaled = k if w.dilation == 1 else call("mul", k, const(w.dilation, I64))
            place: Expr = call("add", Index(w.first), scaled)
            if w.limits():
                # Where nothing in the window beats the padding (all -inf), the first tap wins, which may lie outside.
                place = call("minimum", call("maximum", place, const(0, I64)), const(w.extent - 1, I64))
            places.insert(0, place)
        for a, s in reversed(list(zip(axes, space, strict=False))[: len(space) - len(windows)]):
            places.insert(0, Index(number(0) if s == 1 else axis(a)))
        flat = places[0]
        for place, extent in zip(places[1:], space[1:], strict=True):
            flat = call("add", call("mul", flat, const(extent, I64)), place)
        return self.make_map("indices", I64, shape, axes, flat)


def _count(first: Affine, taps: int, dilation: int, low: int, high: int, extents: dict[str, int]) -> Expr | None:
    """Number of taps with low <= first + dilation * k < high, as an i64 expression; None where it is always `taps`."""
    span = bounds(first, extents)
    if span is not None and span[0] >= low and span[1] + dilation * (taps - 1) < high:
        return None
    below = floordiv(low - first + (dilation - 1), dilation, extents)
    above = floordiv(high - first + (dilation - 1), dilation, extents)
    return call("sub", _clamped(above, taps, extents), _clamped(below, taps, extents))


def _clamped(e: Affine, high: int, extents: dict[str, int]) -> Expr:
    """`e` held inside [0, high], without the comparisons that the bounds of `e` make superfluous."""
    span = bounds(e, extents)
    if span is not None and span[0] >= high:
        return const(high, I64)
    if span is not None and span[1] <= 0:
        return const(0, I64)
    out: Expr = Index(e)
    if span is None or span[1] > high:
        out = call("minimum", out, const(high, I64))
    if span is None or span[0] < 0:
        out = call("maximum", out, const(0, I64))
    return out
