"""Products of a model's size with the maps behind them, as one kernel each should hold them, and small ones that stay as they are."""
from __future__ import annotations

from tests.unit.templates.staged.pipelined.product_graphs import product
from tests.unit.templates.stitched_graphs import normal
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, DType
from tilefuse.ir.graph import Graph


def linear_gelu(rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """GELU (exact form) of a product with bias."""
    b = TensorBuilder("linear_gelu")
    h = b.elementwise("add", product(b, (), rows, columns, inner, dtype), b.input("bias", dtype, (columns,)))

    def constant(value: float) -> str:
        return b.full((1, 1), value, dtype)

    half = b.elementwise("mul", h, constant(0.5))
    erf = b.elementwise("erf", b.elementwise("mul", h, constant(0.5**0.5)))
    return normal(b, [b.elementwise("mul", half, b.elementwise("add", erf, constant(1.0)))])


def linear_residual(rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """A product with bias, added to a value of its size."""
    b = TensorBuilder("linear_residual")
    h = b.elementwise("add", product(b, (), rows, columns, inner, dtype), b.input("bias", dtype, (columns,)))
    return normal(b, [b.elementwise("add", b.input("residual", dtype, (rows, columns)), h)])


def queries(batch: int, rows: int, heads: int, width: int, inner: int, dtype: DType = F16) -> Graph:
    """A projection with bias whose columns become heads, in front of the rows."""
    b = TensorBuilder("queries")
    h = b.elementwise("add", product(b, (), batch * rows, heads * width, inner, dtype), b.input("bias", dtype, (heads * width,)))
    split = b.permute(b.reshape(h, (batch, rows, heads, width)), (0, 2, 1, 3))
    return normal(b, [b.elementwise("mul", split, b.full((1, 1, 1, 1), 0.125, dtype))])


def scaled_scores(batch: int, rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """A product a place of the batch, scaled."""
    b = TensorBuilder("scaled_scores")
    return normal(b, [b.elementwise("mul", product(b, (batch,), rows, columns, inner, dtype), b.full((1, 1, 1), 0.125, dtype))])


# Each with sizes of a model, and with small ones of the same form for the checking executor, which no tile divides.
MODEL_SIZED = {
    "linear, bias, gelu": (lambda: linear_gelu(8192, 4096, 1024), lambda: linear_gelu(200, 136, 72)),
    "linear, bias, gelu in bf16": (lambda: linear_gelu(8192, 14336, 4096, BF16), lambda: linear_gelu(200, 136, 72, BF16)),
    "linear, residual": (lambda: linear_residual(8192, 4096, 4096), lambda: linear_residual(200, 136, 72)),
    "projection to heads": (lambda: queries(8, 512, 32, 128, 4096), lambda: queries(2, 70, 3, 24, 64)),
    "batched product": (lambda: scaled_scores(96, 512, 512, 64), lambda: scaled_scores(3, 70, 72, 40)),
}
