"""Graphs that planner tests start from."""
from __future__ import annotations

from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph

SOFTMAX = """graph @softmax(%x: f16[4, 8]) -> (f16[4, 8]) {
  %m: f32[4] = reduce.max [i] over [k < 8] { f32(%x[i, k]) }
  %e: f32[4, 8] = map [i, j] { exp(sub(f32(%x[i, j]), %m[i])) }
  %s: f32[4] = reduce.sum [i] over [k < 8] { %e[i, k] }
  %y: f16[4, 8] = map [i, j] { f16(div(%e[i, j], %s[i])) }
  return %y
}"""


def softmax() -> Graph:
    """Softmax of rows, as decomposed."""
    return parse_graph(SOFTMAX)


def layers(count: int, rows: int = 64) -> Graph:
    """Repeated layers: tanh, add, product, residual."""
    lines = [f"graph @layers(%x0: f32[{rows}, 64], {', '.join(f'const %w{n}: f32[64, 64]' for n in range(count))}) -> (f32[{rows}, 64]) {{"]
    for n in range(count):
        lines += [f"  %t{n}: f32[{rows}, 64] = map [i, j] {{ tanh(%x{n}[i, j]) }}",
                  f"  %a{n}: f32[{rows}, 64] = map [i, j] {{ add(%t{n}[i, j], %x{n}[i, j]) }}",
                  f"  %p{n}: f32[{rows}, 64] = library.matmul (%a{n}, %w{n})",
                  f"  %x{n + 1}: f32[{rows}, 64] = map [i, j] {{ add(%p{n}[i, j], %x{n}[i, j]) }}"]
    return parse_graph("\n".join([*lines, f"  return %x{count}", "}"]))
