"""Reductions, scans and the composite operators built on them (means, norms, softmax family).

Composites are library nodes that the pass `decompose` expands into reductions and maps; frontends emit them whole so that
softmax is the same text wherever it came from.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilefuse.base.errors import TypeMismatchError
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import converted, normal_axes, normal_axis
from tilefuse.ir.building.tensor_layout import LayoutBuilder
from tilefuse.ir.dtype import BOOL, I32, I64, DType, compute_dtype
from tilefuse.ir.graph import REDUCE_MONOIDS, SCAN_MONOIDS, Attribute, Type
from tilefuse.ir.monoids import MONOIDS
from tilefuse.ir.scalar import Bound, Const, Expr, Guard, Read

Axes = Sequence[int] | int | None


def kept_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """`shape` without `axes`, or with 1 in their place."""
    return tuple(1 if d in axes else s for d, s in enumerate(shape) if keepdims or d not in axes)


class ReduceBuilder(LayoutBuilder):
    """reduce, scan, and composites."""

    def reduce(self, x: str, monoid: str, axes: Axes = None, keepdims: bool = False, dtype: DType | None = None) -> str:
        """`x` reduced over `axes` (None: all) by a monoid of the graph.

        dtype: type of the result (that of `x` where None; any/all: bool, argmax/argmin: i64). Arithmetic is done in its
        compute dtype: sums of f16 and bf16 accumulate in f32 and are rounded once. argmax gives the row-major position
        within `axes`.
        Raises: TypeMismatchError for an unknown monoid; ShapeError for an axis out of range.
        """
        if monoid not in REDUCE_MONOIDS:
            raise TypeMismatchError(f"unknown reduction {monoid}", hint=f"known: {', '.join(REDUCE_MONOIDS)}")
        have, shape = self.dtype_of(x), self.shape_of(x)
        over_axes = normal_axes(axes, len(shape))
        names = axis_names(len(shape))
        final_dtype = BOOL if monoid in ("any", "all") else I64 if monoid in ("argmax", "argmin") else dtype or have
        work = compute_dtype(have) if monoid in ("argmax", "argmin") else compute_dtype(final_dtype)
        if work == BOOL and monoid not in ("any", "all"):
            work = I32
        element = converted(self.read(x, shape, names), have, work)
        kept = [d for d in range(len(shape)) if d not in over_axes]
        result_dtype = I64 if monoid in ("argmax", "argmin") else work
        reduced = self.reduce_node(
            monoid, result_dtype, [shape[d] for d in kept], [names[d] for d in kept], [(names[d], shape[d]) for d in over_axes], element
        )
        reduced = self.cast(reduced, final_dtype)
        return self.expand_dims(reduced, over_axes) if keepdims and over_axes else reduced

    def reduce_node(
        self,
        monoid: str,
        dtype: DType,
        shape: Sequence[int],
        axes: Sequence[str],
        over: Sequence[tuple[str, int]],
        body: Expr,
        name: str = "",
    ) -> str:
        """The plain reduction node of the graph, with a body written by hand."""
        return super().add_reduction(self.hint or name or f"reduce_{monoid}", monoid, dtype, shape, axes, over, body)

    def scan(self, x: str, monoid: str, axis_at: int, exclusive: bool = False, reverse: bool = False, dtype: DType | None = None) -> str:
        """Running combination of `x` along one axis; `exclusive` leaves the own element out, `reverse` runs from the end.

        dtype: type of the result; arithmetic as in `reduce`.
        """
        if monoid not in SCAN_MONOIDS:
            raise TypeMismatchError(f"unknown scan {monoid}", hint=f"known: {', '.join(SCAN_MONOIDS)}")
        have, shape = self.dtype_of(x), self.shape_of(x)
        if not shape:
            return self._scan_scalar(x, monoid, exclusive, dtype or have)
        result_dtype = dtype or have
        work = I32 if result_dtype == BOOL else compute_dtype(result_dtype)
        d = normal_axis(axis_at, len(shape))
        names = axis_names(len(shape))
        along = axis(names[d])
        source: list[Affine] = [axis(a) for a in names]
        if reverse:
            source[d] = (shape[d] - 1) - along
        element = converted(Read(x, tuple(number(0) if s == 1 else e for s, e in zip(shape, source, strict=True))), have, work)
        running = super().add_scan(self.hint or f"scan_{monoid}", monoid, work, shape, names, names[d], element)
        if exclusive:
            back = tuple(along - 1 if n == d else number(0) if s == 1 else axis(names[n]) for n, s in enumerate(shape))
            shifted: Expr = Guard((Bound(along - 1, 0, shape[d]),), Read(running, back), identity_of(monoid, work))
            running = self.make_map("shift", work, shape, names, shifted)
        if reverse:
            running = self.flip(running, [d])
        return self.cast(running, result_dtype)

    def _scan_scalar(self, x: str, monoid: str, exclusive: bool, result_dtype: DType) -> str:
        if not exclusive:
            return self.cast(x, result_dtype)
        return self.full((), identity_of(monoid, result_dtype).value, result_dtype)

    # Composites: one library node each, expanded by the pass `decompose`

    def composite(
        self, operator: str, x: str, shape: Sequence[int], attributes: dict[str, Attribute], *more: str, dtype: DType | None = None
    ) -> str:
        """A library node of one of the operators that `decompose` knows."""
        return self.library(self.hint or operator, operator, Type(dtype or self.dtype_of(x), tuple(shape)), (x, *more), attributes)

    def _over(self, operator: str, x: str, axes: Axes, keepdims: bool, **attributes: Attribute) -> str:
        over = normal_axes(axes, self.rank_of(x))
        return self.composite(operator, x, kept_shape(self.shape_of(x), over, keepdims), {"axes": over, "keepdims": keepdims, **attributes})

    def mean(self, x: str, axes: Axes = None, keepdims: bool = False) -> str:
        """Arithmetic mean over `axes`. f16 and bf16 accumulate in f32."""
        return self._over("mean", x, axes, keepdims)

    def variance(self, x: str, axes: Axes = None, correction: int | float = 1, keepdims: bool = False) -> str:
        """Sum of squared deviations from the mean over (number of elements - correction), floored at zero degrees of freedom."""
        return self._over("variance", x, axes, keepdims, correction=correction)

    def standard_deviation(self, x: str, axes: Axes = None, correction: int | float = 1, keepdims: bool = False) -> str:
        """Square root of `variance`."""
        return self._over("standard_deviation", x, axes, keepdims, correction=correction)

    def logsumexp(self, x: str, axes: Axes = None, keepdims: bool = False) -> str:
        """log of the sum of exponentials, shifted by the maximum so that it does not overflow."""
        return self._over("logsumexp", x, axes, keepdims)

    def softmax(self, x: str, axis_at: int, dtype: DType | None = None) -> str:
        """Exponentials that sum to one along the axis; `dtype` converts first."""
        x = self.cast(x, dtype) if dtype is not None else x
        return self.composite("softmax", x, self.shape_of(x), {"axis": normal_axis(axis_at, self.rank_of(x))})

    def safe_softmax(self, x: str, axis_at: int) -> str:
        """The same, and zeros where all elements along the axis are -inf, as torch's attention has rows that a mask hides whole."""
        top = self.reduce(x, "max", (axis_at,), keepdims=True, dtype=compute_dtype(self.dtype_of(x)))
        return self.where(self.elementwise("eq", top, float("-inf")), 0.0, self.softmax(x, axis_at))

    def log_softmax(self, x: str, axis_at: int, dtype: DType | None = None) -> str:
        """Logarithm of softmax along the axis; `dtype` converts first."""
        x = self.cast(x, dtype) if dtype is not None else x
        return self.composite("log_softmax", x, self.shape_of(x), {"axis": normal_axis(axis_at, self.rank_of(x))})

    def norm(self, x: str, p: float = 2.0, axes: Axes = None, keepdims: bool = False, dtype: DType | None = None) -> str:
        """The p-norm over `axes`, for any p including 0 (number of nonzeros) and the infinities. Accumulates in the compute dtype."""
        result_dtype = dtype or self.dtype_of(x)
        work = compute_dtype(result_dtype)
        size = self.elementwise("abs", self.cast(x, work))
        if p in (float("inf"), float("-inf")):
            return self.cast(self.reduce(size, "max" if p > 0 else "min", axes, keepdims), result_dtype)
        if p == 0:
            nonzero = self.elementwise("ne", size, 0)
            return self.cast(self.reduce(self.cast(nonzero, work), "sum", axes, keepdims), result_dtype)
        if p == 1:
            return self.cast(self.reduce(size, "sum", axes, keepdims), result_dtype)
        if p == 2:
            squares = self.reduce(self.elementwise("mul", size, size), "sum", axes, keepdims)
            return self.cast(self.elementwise("sqrt", squares), result_dtype)
        powers = self.reduce(self.elementwise("pow", size, p), "sum", axes, keepdims)
        return self.cast(self.elementwise("pow", powers, 1.0 / p), result_dtype)

    def layer_norm(self, x: str, axes: Axes, weight: str | None = None, bias: str | None = None, eps: float = 1e-5) -> tuple[str, str, str]:
        """(x - mean) * rstd * weight + bias over `axes`; results y, mean and rstd (the last two in the compute dtype, extents 1 on `axes`).

        Shapes: weight, bias: the extents of `axes`.
        """
        over = normal_axes(axes, self.rank_of(x))
        attributes: dict[str, Attribute] = {"axes": over, "eps": eps, "has_weight": weight is not None, "has_bias": bias is not None}
        parameters = tuple(v for v in (weight, bias) if v is not None)
        return self._norm_results("layer_norm", x, kept_shape(self.shape_of(x), over, True), attributes, parameters)

    def rms_norm(self, x: str, axes: Axes, weight: str | None = None, eps: float = 1e-6) -> tuple[str, str]:
        """x * rstd * weight with rstd = 1 / sqrt(mean(x * x) + eps) over `axes`; results y and rstd.

        Shapes: rstd: extents 1 on `axes`, in the compute dtype
        """
        over = normal_axes(axes, self.rank_of(x))
        attributes: dict[str, Attribute] = {"axes": over, "eps": eps, "has_weight": weight is not None}
        parameters = () if weight is None else (weight,)
        y = self.composite("rms_norm", x, self.shape_of(x), attributes | {"result": 0}, *parameters)
        rstd = self.composite(
            "rms_norm",
            x,
            kept_shape(self.shape_of(x), over, True),
            attributes | {"result": 1},
            *parameters,
            dtype=compute_dtype(self.dtype_of(x)),
        )
        return y, rstd

    def group_norm(
        self, x: str, groups: int, weight: str | None = None, bias: str | None = None, eps: float = 1e-5
    ) -> tuple[str, str, str]:
        """Normalisation over each group of channels and all spatial positions; results y, mean and rstd.

        Shapes: x: [N, C, ...]; weight, bias: [C]; mean, rstd: [N, groups] in the compute dtype
        """
        attributes: dict[str, Attribute] = {"groups": groups, "eps": eps, "has_weight": weight is not None, "has_bias": bias is not None}
        parameters = tuple(v for v in (weight, bias) if v is not None)
        return self._norm_results("group_norm", x, (self.shape_of(x)[0], groups), attributes, parameters)

    def _norm_results(
        self, operator: str, x: str, small: Sequence[int], attributes: dict[str, Attribute], parameters: tuple[str, ...]
    ) -> tuple[str, str, str]:
        statistic = compute_dtype(self.dtype_of(x))
        y = self.composite(operator, x, self.shape_of(x), attributes | {"result": 0}, *parameters)
        mean = self.composite(operator, x, small, attributes | {"result": 1}, *parameters, dtype=statistic)
        return y, mean, self.composite(operator, x, small, attributes | {"result": 2}, *parameters, dtype=statistic)


def identity_of(monoid: str, dtype: DType) -> Const:
    """The element that changes nothing under a monoid with one component."""
    return MONOIDS[monoid].identity(dtype)[0]
