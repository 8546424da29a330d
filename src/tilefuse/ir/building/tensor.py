"""TensorBuilder: tensor programs written operator by operator, as both frontends and the pass `decompose` do.

The methods are grouped in one file per theme; this one adds library calls and random numbers. Broadcasting is numpy's; arithmetic is done
in the compute dtype and rounded back to the operands' dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilefuse.base.errors import ShapeError, TypeMismatchError
from tilefuse.ir.affine import axis, linearise, number, row_major_strides, simplify
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import broadcast_shapes, converted
from tilefuse.ir.building.tensor_pool import PoolBuilder
from tilefuse.ir.dtype import BOOL, F32, I32, I64, DType, compute_dtype
from tilefuse.ir.graph import Attribute, Type
from tilefuse.ir.scalar import Expr, Index, Read, call, const


class TensorBuilder(PoolBuilder):
    """Builds a graph from whole-tensor operators. Values are names; `type_of` gives their types."""

    # Library calls

    def matmul(self, a: str, b: str, transpose_a: bool = False, transpose_b: bool = False, precision: str = "default",
               dtype: DType | None = None) -> str:
        """Matrix product over the last two dimensions; leading ones broadcast. Vectors count as one row (a) or one column (b).

        precision: of f32 "default" (as the framework is set), "f32" or "tf32"; of 8-bit floats "default" (sums in f32) or "fast".
        dtype: of the result, where it is not that of the operands.
        Shapes: a: [*B, M, K], b: [*B, K, N] -> [*B, M, N] (each last pair exchanged where transposed)
        Raises: ShapeError when the inner extents differ.
        """
        if self.rank_of(a) == 1:
            row = self.matmul(
                self.expand_dims(a, 0),
                b if self.rank_of(b) > 1 else self.expand_dims(b, 1),
                False,
                transpose_b and self.rank_of(b) > 1,
                precision,
                dtype,
            )
            return self.squeeze(row, [-1, -2] if self.rank_of(b) == 1 else [-2])
        if self.rank_of(b) == 1:
            return self.squeeze(self.matmul(a, self.expand_dims(b, 1), transpose_a, False, precision, dtype), [-1])
        left, right = self.shape_of(a), self.shape_of(b)
        m, k = left[-2:] if not transpose_a else left[:-3:-1]
        k_right, n = right[-2:] if not transpose_b else right[:-3:-1]
        if k != k_right:
            raise ShapeError(f"matmul of {self.types[a]} and {self.types[b]}: inner extents differ, {k} and {k_right}")
        shape = (*broadcast_shapes(left[:-2], right[:-2]), m, n)
        attributes: dict[str, Attribute] = {"transpose_a": transpose_a, "transpose_b": transpose_b, "precision": precision}
        if dtype is not None and dtype != self.dtype_of(a):
            attributes["dtype"] = dtype.name
        return self.library(self.hint or "matmul", "matmul", Type(dtype or self.dtype_of(a), shape), (a, b), attributes)

    def grouped_matmul(self, x: str, w: str, offsets: str, transpose_b: bool = False, precision: str = "default") -> str:
        """Rows of x, sorted by group, times the matrix of their group: rows of group g lie before offsets[g] and behind group g - 1.

        Rows behind the last offset give zeros. precision: as of `matmul`.
        Shapes: x: [M, K], w: [G, K, N] (or [G, N, K] with transpose_b), offsets: [G] of i32 or i64 -> [M, N]
        Raises: ShapeError when extents differ; TypeMismatchError for operands of unlike types or offsets that are no integers.
        """
        left, right, ends = self.shape_of(x), self.shape_of(w), self.shape_of(offsets)
        if len(left) != 2 or len(right) != 3 or len(ends) != 1 or ends[0] != right[0] or left[1] != right[2 if transpose_b else 1]:
            raise ShapeError(f"grouped matmul of {self.types[x]} and {self.types[w]} with offsets {self.types[offsets]}: rows [M, K], "
                             f"matrices [G, {'N, K' if transpose_b else 'K, N'}] and offsets [G] are needed")
        if self.dtype_of(x) != self.dtype_of(w) or self.dtype_of(offsets) not in (I32, I64):
            raise TypeMismatchError(f"grouped matmul of {self.types[x]} and {self.types[w]} with offsets {self.types[offsets]}: "
                                    "operands of one type and offsets of i32 or i64 are needed")
        attributes: dict[str, Attribute] = {"transpose_b": transpose_b, "precision": precision}
        shape = (left[0], right[1 if transpose_b else 2])
        return self.library(self.hint or "grouped_matmul", "grouped_matmul", Type(self.dtype_of(x), shape), (x, w, offsets), attributes)

    def convolution(
        self,
        x: str,
        weight: str,
        bias: str | None = None,
        stride: Sequence[int] | None = None,
        padding: Sequence[tuple[int, int]] | None = None,
        dilation: Sequence[int] | None = None,
        groups: int = 1,
    ) -> str:
        """Cross-correlation over the spatial dimensions.

        Shapes: x: [N, C, *S], weight: [O, C / groups, *K], bias: [O] -> [N, O, *S']
        Raises: ShapeError when channels do not match or no window fits.
        """
        return self._convolution(x, weight, bias, stride, padding, dilation, groups, None)

    def convolution_transpose(
        self,
        x: str,
        weight: str,
        bias: str | None = None,
        stride: Sequence[int] | None = None,
        padding: Sequence[tuple[int, int]] | None = None,
        dilation: Sequence[int] | None = None,
        groups: int = 1,
        output_padding: Sequence[int] | None = None,
    ) -> str:
        """The gradient of `convolution` with respect to its input, as an operator.

        Shapes: x: [N, C, *S], weight: [C, O / groups, *K], bias: [O] -> [N, O, *S']
        """
        dims = self.rank_of(x) - 2
        return self._convolution(x, weight, bias, stride, padding, dilation, groups, tuple(output_padding or (0,) * dims))

    def _convolution(
        self,
        x: str,
        weight: str,
        bias: str | None,
        stride: Sequence[int] | None,
        padding: Sequence[tuple[int, int]] | None,
        dilation: Sequence[int] | None,
        groups: int,
        output_padding: tuple[int, ...] | None,
    ) -> str:
        shape, kernel = self.shape_of(x), self.shape_of(weight)
        dims = len(shape) - 2
        steps, gaps = tuple(stride or (1,) * dims), tuple(dilation or (1,) * dims)
        pads = tuple((p[0], p[1]) for p in padding) if padding is not None else ((0, 0),) * dims
        transposed = output_padding is not None
        channels = kernel[0] if transposed else kernel[1] * groups
        if channels != shape[1] or len(kernel) != len(shape) or shape[1] % groups:
            raise ShapeError(
                f"convolution of {self.types[x]} with weight {self.types[weight]} and {groups} groups: "
                f"{channels} input channels expected, {shape[1]} given"
            )
        features = kernel[1] * groups if transposed else kernel[0]
        if bias is not None and self.shape_of(bias) != (features,):
            raise ShapeError(f"convolution with weight {self.types[weight]}: the bias is {self.types[bias]} instead of [{features}]")
        extra = output_padding or (0,) * dims
        out: list[int] = []
        for s, k, t, p, d, e in zip(shape[2:], kernel[2:], steps, pads, gaps, extra, strict=True):
            reach = d * (k - 1) + 1
            out.append((s - 1) * t - p[0] - p[1] + reach + e if transposed else (s + p[0] + p[1] - reach) // t + 1)
        if min(out, default=1) < 1:
            raise ShapeError(
                f"convolution of {self.types[x]} with weight {self.types[weight]}: no window fits (result extents {tuple(out)})"
            )
        attributes: dict[str, Attribute] = {
            "stride": steps,
            "padding": pads,
            "dilation": gaps,
            "groups": groups,
            "transposed": transposed,
            "output_padding": extra,
            "has_bias": bias is not None,
        }
        operands = (x, weight) if bias is None else (x, weight, bias)
        return self.library(
            self.hint or "convolution", "convolution", Type(self.dtype_of(x), (shape[0], features, *out)), operands, attributes
        )

    def attention(self, query: str, key: str, value: str, mask: str | None = None, scale: float | None = None, causal: bool = False) -> str:
        """softmax(query @ key^T * scale + mask) @ value over the last two dimensions; scale None: 1 / sqrt(E).

        A bool mask keeps where it is true; another is added to the scores.

        Shapes: query: [*B, L, E], key: [*B, S, E], value: [*B, S, F], mask: broadcasts to [*B, L, S] -> [*B, L, F]
        """
        shape = (*self.shape_of(query)[:-1], self.shape_of(value)[-1])
        attributes: dict[str, Attribute] = {
            "scale": float(scale) if scale is not None else self.shape_of(query)[-1] ** -0.5,
            "causal": causal,
            "has_mask": mask is not None,
            "dropout": 0.0,
        }
        operands = (query, key, value) if mask is None else (query, key, value, mask)
        return self.library(self.hint or "attention", "attention", Type(self.dtype_of(query), shape), operands, attributes)

    # Random numbers: a function of (seed, row-major position), so that fused kernels and the reference draw the same

    def random_seed(self, call_id: int) -> str:
        """A seed drawn at each run from the framework's generator; `call_id` keeps separate draws separate."""
        return self.library("seed", "random_seed", Type(I64, (1,)), (), {"call": call_id})

    def _random(self, fn: str, shape: Sequence[int], seed: str, axes: Sequence[str]) -> Expr:
        extents = dict(zip(axes, shape, strict=True))
        flat = simplify(linearise(tuple(axis(a) for a in axes), row_major_strides(tuple(shape))), extents)
        return call(fn, Read(seed, (number(0),) * self.rank_of(seed)), Index(flat))

    def random_uniform(self, shape: Sequence[int], seed: str, dtype: DType = F32, low: float = 0.0, high: float = 1.0) -> str:
        """Uniform numbers in [low, high). Shapes: seed: i64[1]"""
        return self._random_map("random_uniform", shape, seed, dtype, high - low, low)

    def random_normal(self, shape: Sequence[int], seed: str, dtype: DType = F32, mean: float = 0.0, deviation: float = 1.0) -> str:
        """Normally distributed numbers. Shapes: seed: i64[1]"""
        return self._random_map("random_normal", shape, seed, dtype, deviation, mean)

    def _random_map(self, fn: str, shape: Sequence[int], seed: str, dtype: DType, factor: float, offset: float) -> str:
        if not dtype.is_float:
            raise TypeMismatchError(f"{fn} gives floats, not {dtype}")
        axes = axis_names(len(shape))
        work = compute_dtype(dtype)
        body = converted(self._random(fn, shape, seed, axes), F32, work)
        if factor != 1.0:
            body = call("mul", body, const(factor, work))
        if offset != 0.0:
            body = call("add", body, const(offset, work))
        return self.make_map(fn, dtype, shape, axes, converted(body, work, dtype))

    def bernoulli(self, shape: Sequence[int], probability: str | float, seed: str, dtype: DType = BOOL) -> str:
        """True (1) with the given probability, a number or a tensor that broadcasts to `shape`."""
        axes = axis_names(len(shape))
        limit: Expr = self.read_as(probability, F32, shape, axes) if isinstance(probability, str) else const(probability, F32)
        return self.make_map(
            "bernoulli", dtype, shape, axes, converted(call("lt", self._random("random_uniform", shape, seed, axes), limit), BOOL, dtype)
        )

    def dropout(self, x: str, p: float, seed: str) -> tuple[str, str]:
        """`x` with each element zeroed with probability `p` and the others divided by 1 - p; and the bool tensor of the kept elements."""
        mask = self.bernoulli(self.shape_of(x), 1.0 - p, seed)
        scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
        return self.where(mask, self.elementwise("mul", x, scale), 0), mask
