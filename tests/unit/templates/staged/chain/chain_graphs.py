"""Patterns whose products follow each other, as graphs. Sizes are small; most divide no tile."""
from __future__ import annotations

from tests.unit.templates.stitched_graphs import normal
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph


def layers(rows: int, widths: tuple[int, ...], dtype: DType = F16, *, turned: bool = True, biased: bool = False, activation: str = "tanh",
           lead: tuple[int, ...] = (), kept: bool = False, residual: bool = False, own_weights: bool = False) -> Graph:
    """x through products with an activation between them; "" for none.

    turned: weights have the inner axis last. kept: every activation is a result too. residual: a boundary value is added to each.
    own_weights: each lead place has weights of its own.
    """
    b = TensorBuilder("layers")
    x, results = b.input("x", dtype, (*lead, rows, widths[0])), []
    for n, (wide, out) in enumerate(zip(widths, widths[1:], strict=False)):
        shape = (out, wide) if turned else (wide, out)
        x = b.matmul(x, b.input(f"w{n}", dtype, (*(lead if own_weights else ()), *shape)), transpose_b=turned)
        last = n + 2 == len(widths)
        if biased:
            x = b.elementwise("add", x, b.input(f"b{n}", dtype, (out,)))
        if residual:
            x = b.elementwise("add", x, b.input(f"r{n}", dtype, (*lead, rows, out)))
        if activation == "relu" and not last:
            x = b.elementwise("maximum", x, b.full((1,) * (len(lead) + 2), 0.0, dtype))
        elif activation and not last:
            x = b.elementwise(activation, x)
        results = [*(results if kept else []), x]
    return normal(b, results)


def turned_columns(rows: int, width: int) -> Graph:
    """The second product reads the first one's columns in the opposite order."""
    return parse_graph(f"""graph @turned(%x: f16[{rows}, {width}], %v: f16[{width}, {width}], %w: f16[{width}, {width}])
        -> (f16[{rows}, {width}]) {{
      %p: f16[{rows}, {width}] = library.matmul (%x, %v)
      %h: f16[{rows}, {width}] = map [i, j] {{ %p[i, -1*j + {width - 1}] }}
      %y: f16[{rows}, {width}] = library.matmul (%h, %w)
      return %y
    }}""")


def skipping(rows: int, width: int) -> Graph:
    """The value between two products is added to the second one's result: it would have to stay in registers beside the sums."""
    b = TensorBuilder("skipping")
    h = b.elementwise("tanh", b.matmul(b.input("x", F16, (rows, width)), b.input("v", F16, (width, width))))
    return normal(b, [b.elementwise("add", h, b.matmul(h, b.input("w", F16, (width, width))))])


def windowed(rows: int, width: int, padded: int) -> Graph:
    """A product of padded columns, of which a window goes on, padded again: as `pad-products` leaves odd widths."""
    return parse_graph(f"""graph @windowed(%x: f16[{rows}, {padded}], %v: f16[{padded}, {padded}], %w: f16[{padded}, {padded}],
                                           %bias: f16[{width}]) -> (f16[{rows}, {width}]) {{
      %p: f16[{rows}, {padded}] = library.matmul (%x, %v)
      %h: f16[{rows}, {width}] = map [i, j] {{ f16(exp(f32(%p[i, j]))) }}
      %g: f16[{rows}, {padded}] = map [i, j] {{ guard(0 <= j < {width} ? %h[i, j] : 0.0:f16) }}
      %q: f16[{rows}, {padded}] = library.matmul (%g, %w)
      %y: f16[{rows}, {width}] = map [i, j] {{ f16(add(f32(%q[i, j]), f32(%bias[j]))) }}
      return %y
    }}""")
