"""Patterns with one product, as graphs. Sizes are small; most divide no tile."""
from __future__ import annotations

from tests.unit.templates.stitched_graphs import normal
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph


def product(b: TensorBuilder, lead: tuple[int, ...], rows: int, columns: int, inner: int, dtype: DType,
            turned: tuple[bool, bool] = (False, True), shared: bool = False) -> str:
    """x times w; turned: x has the inner axis first, w has it last. shared: one w for all lead places."""
    x = b.input("x", dtype, (*lead, inner, rows) if turned[0] else (*lead, rows, inner))
    w = b.input("w", dtype, (*(() if shared else lead), *((columns, inner) if turned[1] else (inner, columns))))
    return b.matmul(x, w, transpose_a=turned[0], transpose_b=turned[1])


def plain(rows: int, columns: int, inner: int, dtype: DType = F16, turned: tuple[bool, bool] = (False, True),
          lead: tuple[int, ...] = (), shared: bool = False) -> Graph:
    """The product alone."""
    b = TensorBuilder("plain")
    return normal(b, [product(b, lead, rows, columns, inner, dtype, turned, shared)])


def gated(rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """Bias, activation, residual: two results, one of which is the product's own activation."""
    b = TensorBuilder("gated")
    h = b.elementwise("add", product(b, (), rows, columns, inner, dtype), b.input("bias", dtype, (columns,)))
    activated = b.elementwise("tanh", h)
    return normal(b, [activated, b.elementwise("add", activated, b.input("residual", dtype, (rows, columns)))])


def heads(rows: int, heads_: int, width: int, inner: int, dtype: DType = F16) -> Graph:
    """Columns become heads, heads come before rows."""
    b = TensorBuilder("heads")
    y = b.reshape(product(b, (), rows, heads_ * width, inner, dtype), (rows, heads_, width))
    return normal(b, [b.elementwise("mul", b.permute(y, (1, 0, 2)), b.full((1, 1, 1), 0.5, dtype))])


def padded(rows: int, columns: int, inner: int, turned: tuple[bool, bool] = (False, True), dtype: str = "f16") -> Graph:
    """A product whose operands are padded to whole 16 bytes, as `pad-products` leaves it, and a window of its result, with a bias."""
    m, n, k = (-(-size // 8) * 8 for size in (rows, columns, inner))
    x, w = (k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n)
    return parse_graph(f"""graph @padded(%x: {dtype}[{x[0]}, {x[1]}], %w: {dtype}[{w[0]}, {w[1]}], %bias: {dtype}[{columns}])
        -> ({dtype}[{rows}, {columns}], {dtype}[{rows}, {columns}]) {{
      %p: {dtype}[{m}, {n}] = library.matmul (%x, %w) {{transpose_a = {str(turned[0]).lower()}, transpose_b = {str(turned[1]).lower()}}}
      %window: {dtype}[{rows}, {columns}] = map [i, j] {{ %p[i, j] }}
      %biased: {dtype}[{rows}, {columns}] = map [i, j] {{ {dtype}(add(f32(%p[i, j]), f32(%bias[j]))) }}
      return %window, %biased
    }}""")
