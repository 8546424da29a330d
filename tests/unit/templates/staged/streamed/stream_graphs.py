"""Patterns of products with few rows, as graphs. Sizes are small; most divide no tile."""
from __future__ import annotations

from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph


def normed(rows: int, columns: int, inner: int, dtype: str = "bf16") -> Graph:
    """Residual plus a product of RMS-normalised rows: a decode step's row."""
    return parse_graph(f"""graph @normed(%x: {dtype}[{rows}, {inner}], %gain: {dtype}[{inner}], %w: {dtype}[{columns}, {inner}],
                                         %residual: {dtype}[{rows}, {columns}]) -> ({dtype}[{rows}, {columns}]) {{
      %wide: f32[{rows}, {inner}] = map [i, k] {{ f32(%x[i, k]) }}
      %squares: f32[{rows}] = reduce.sum [i] over [k < {inner}] {{ mul(%wide[i, k], %wide[i, k]) }}
      %factor: f32[{rows}, 1] = map [i, one] {{ rsqrt(add(mul(%squares[i], 1e-3:f32), 1e-5:f32)) }}
      %normal: {dtype}[{rows}, {inner}] = map [i, k] {{ {dtype}(mul(mul(%wide[i, k], %factor[i, 0]), f32(%gain[k]))) }}
      %y: {dtype}[{rows}, {columns}] = library.matmul (%normal, %w) {{transpose_a = false, transpose_b = true}}
      %sum: {dtype}[{rows}, {columns}] = map [row, column] {{ {dtype}(add(f32(%y[row, column]), f32(%residual[row, column]))) }}
      return %sum
    }}""")


def layer_normed(rows: int, columns: int, inner: int, dtype: str = "f16") -> Graph:
    """A product of layer-normalised rows with a bias; the second reduction reads the first one's result."""
    return parse_graph(f"""graph @layer_normed(%x: {dtype}[{rows}, {inner}], %w: {dtype}[{inner}, {columns}], %bias: {dtype}[{columns}])
        -> ({dtype}[{rows}, {columns}]) {{
      %total: f32[{rows}] = reduce.sum [i] over [k < {inner}] {{ f32(%x[i, k]) }}
      %centred: f32[{rows}, {inner}] = map [i, k] {{ sub(f32(%x[i, k]), mul(%total[i], {1 / inner}:f32)) }}
      %squares: f32[{rows}] = reduce.sum [i] over [k < {inner}] {{ mul(%centred[i, k], %centred[i, k]) }}
      %normal: {dtype}[{rows}, {inner}] = map [i, k] {{ {dtype}(mul(%centred[i, k], rsqrt(add(%squares[i], 1e-3:f32)))) }}
      %y: {dtype}[{rows}, {columns}] = library.matmul (%normal, %w, %bias) {{transpose_a = false, transpose_b = false}}
      %gelu: {dtype}[{rows}, {columns}] = map [i, j] {{ {dtype}(tanh(f32(%y[i, j]))) }}
      return %gelu
    }}""")


def gated_pair(rows: int, columns: int, inner: int, dtype: str = "bf16") -> Graph:
    """Two products with one left operand, and the product of the one's activation with the other."""
    return parse_graph(f"""graph @gated_pair(%x: {dtype}[{rows}, {inner}], %gate: {dtype}[{columns}, {inner}],
                                             %up: {dtype}[{columns}, {inner}]) -> ({dtype}[{rows}, {columns}]) {{
      %g: {dtype}[{rows}, {columns}] = library.matmul (%x, %gate) {{transpose_a = false, transpose_b = true}}
      %u: {dtype}[{rows}, {columns}] = library.matmul (%x, %up) {{transpose_a = false, transpose_b = true}}
      %y: {dtype}[{rows}, {columns}] = map [i, j] {{ {dtype}(mul(mul(f32(%g[i, j]), sigmoid(f32(%g[i, j]))), f32(%u[i, j]))) }}
      return %y
    }}""")


def halves_of_one(rows: int, columns: int, inner: int, dtype: str = "f16") -> Graph:
    """A gated pair whose two weights lie in one tensor, with a bias."""
    return parse_graph(f"""graph @halves_of_one(%x: {dtype}[{rows}, {inner}], %w: {dtype}[{2 * columns}, {inner}],
                                                %bias: {dtype}[{2 * columns}]) -> ({dtype}[{rows}, {columns}]) {{
      %p: {dtype}[{rows}, {2 * columns}] = library.matmul (%x, %w, %bias) {{transpose_a = false, transpose_b = true}}
      %y: {dtype}[{rows}, {columns}] = map [i, j] {{ {dtype}(mul(sigmoid(f32(%p[i, j])), f32(%p[i, j + {columns}]))) }}
      return %y
    }}""")


def siblings(rows: int, columns: int, inner: int, dtype: str = "bf16") -> Graph:
    """Two products of one left operand, both written."""
    return parse_graph(f"""graph @siblings(%x: {dtype}[{rows}, {inner}], %a: {dtype}[{columns}, {inner}], %b: {dtype}[{columns}, {inner}])
        -> ({dtype}[{rows}, {columns}], {dtype}[{rows}, {columns}]) {{
      %p: {dtype}[{rows}, {columns}] = library.matmul (%x, %a) {{transpose_a = false, transpose_b = true}}
      %q: {dtype}[{rows}, {columns}] = library.matmul (%x, %b) {{transpose_a = false, transpose_b = true}}
      return %p, %q
    }}""")
