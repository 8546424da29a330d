"""Patterns with products as graphs: what stitched kernels are tried on. Sizes are small, and most of them divide nothing.

`exact` patterns hold small integers, so that every order of summation gives equal bits; the others have a bound on their error.
"""
from __future__ import annotations

from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, F32, I64, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.manager import PassContext, Pipeline


def normal(build: TensorBuilder, results: list[str]) -> Graph:
    """The graph after the default passes, as schedules get it."""
    return Pipeline.parse(DEFAULT_PIPELINE).run(build.finish(results), PassContext())


def attention(batch: int, length: int, width: int, dtype: DType = F32, *, causal: bool = False, probabilities: bool = False,
              keys: int | None = None) -> Graph:
    """softmax(q k' / 4) v; `probabilities`: the softmax is a result too. Keys after the query are masked where `causal`."""
    b = TensorBuilder("attention")
    keys = keys or length
    q = b.input("q", dtype, (batch, length, width))
    k, v = (b.input(n, dtype, (batch, keys, width)) for n in "kv")
    scores = b.elementwise("mul", b.matmul(q, k, transpose_b=True), b.full((1, 1, 1), 0.25, dtype))
    if causal:
        shape = (1, length, keys)
        later = b.elementwise("gt", b.iota(shape, 2, I64), b.iota(shape, 1, I64))
        scores = b.where(later, b.full((1, 1, 1), float("-inf"), dtype), scores)
    p = b.softmax(scores, -1)
    o = b.matmul(p, v)
    return normal(b, [o, p] if probabilities else [o])


def clamped_layers(rows: int, widths: tuple[int, ...], dtype: DType, turned: bool = True) -> Graph:
    """Layers x -> min(max(x w' + b, 0), 3): whole numbers stay small whole numbers, exact in every float."""
    b = TensorBuilder("layers")
    x = b.input("x", dtype, (rows, widths[0]))
    for n, (wide, out) in enumerate(zip(widths, widths[1:], strict=False)):
        w = b.input(f"w{n}", dtype, (out, wide) if turned else (wide, out))
        bias = b.input(f"b{n}", dtype, (out,))
        x = b.elementwise("add", b.matmul(x, w, transpose_b=turned), bias)
        x = b.clamp(x, b.full((1, 1), 0.0, dtype), b.full((1, 1), 3.0, dtype))
    return normal(b, [x])


def normed_chain(rows: int, width: int, steps: int = 2) -> Graph:
    """x -> x + tanh(layer_norm(x w)), `steps` times."""
    b = TensorBuilder("chain")
    x = b.input("x", F32, (rows, width))
    for n in range(steps):
        y, _, _ = b.layer_norm(b.matmul(x, b.input(f"w{n}", F32, (width, width))), (1,))
        x = b.elementwise("add", b.elementwise("tanh", y), x)
    return normal(b, [x])


def pre_norm_layers(blocks: int, rows: int, width: int, steps: int = 3) -> Graph:
    """x -> x + layer_norm(x) w, `steps` times, then a product; the products see all rows of all blocks as one dimension."""
    b = TensorBuilder("layers")
    x = b.input("x", F32, (blocks, rows, width))
    for n in range(steps + 1):
        y, _, _ = b.layer_norm(x, (2,))
        product = b.matmul(b.reshape(y, [blocks * rows, width]), b.input(f"w{n}", F32, (width, width)))
        x = b.elementwise("add", x, b.reshape(product, [blocks, rows, width])) if n < steps else product
    return normal(b, [x])


def lstm_cell(rows: int, width: int) -> Graph:
    """One step of a long short-term memory: four column slices of one product are its gates; two results."""
    b = TensorBuilder("lstm")
    h, c = b.input("h", F32, (rows, width)), b.input("c", F32, (rows, width))
    given, w = b.input("g", F32, (rows, 4 * width)), b.input("w", F32, (4 * width, width))
    sums = b.elementwise("add", b.matmul(h, w, transpose_b=True), given)
    part = [b.slice(sums, [0, n * width], [rows, (n + 1) * width], [1, 1]) for n in range(4)]
    i, f, o = (b.elementwise("sigmoid", part[n]) for n in (0, 1, 3))
    cell = b.elementwise("add", b.elementwise("mul", f, c), b.elementwise("mul", i, b.elementwise("tanh", part[2])))
    return normal(b, [b.elementwise("mul", o, b.elementwise("tanh", cell)), cell])


def lstm_step(rows: int, inner: int, width: int, dtype: DType = F32) -> Graph:
    """One step whose gates are sums of two products, of its input and of the state of the step before; two results."""
    b = TensorBuilder("step")
    x, h, c = b.input("x", dtype, (rows, inner)), b.input("h", dtype, (rows, inner)), b.input("c", dtype, (rows, width))
    w, u = b.input("w", dtype, (inner, 4 * width)), b.input("u", dtype, (inner, 4 * width))
    sums = b.elementwise("add", b.matmul(x, w), b.matmul(h, u))
    part = [b.slice(sums, [0, n * width], [rows, (n + 1) * width], [1, 1]) for n in range(4)]
    i, f, o = (b.elementwise("sigmoid", part[n]) for n in (0, 1, 3))
    cell = b.elementwise("add", b.elementwise("mul", f, c), b.elementwise("mul", i, b.elementwise("tanh", part[2])))
    return normal(b, [b.elementwise("mul", o, b.elementwise("tanh", cell)), cell])


def two_results(rows: int, inner: int, columns: int, dtype: DType = F32) -> Graph:
    """A product written, and what a map makes of it."""
    b = TensorBuilder("two")
    y = b.matmul(b.input("x", dtype, (rows, inner)), b.input("w", dtype, (inner, columns)))
    return normal(b, [y, b.elementwise("maximum", y, b.full((1, 1), 0.0, dtype))])


def turned_product(rows: int, inner: int, columns: int, turned: tuple[bool, bool], dtype: DType = F32) -> Graph:
    """A product with either operand transposed, times two."""
    b = TensorBuilder("turned")
    x = b.input("x", dtype, (inner, rows) if turned[0] else (rows, inner))
    w = b.input("w", dtype, (columns, inner) if turned[1] else (inner, columns))
    y = b.matmul(x, w, transpose_a=turned[0], transpose_b=turned[1])
    return normal(b, [b.elementwise("add", y, y)])


def batched(left: tuple[int, ...], right: tuple[int, ...]) -> Graph:
    """A product whose operands' lead dimensions are broadcast, plus one."""
    b = TensorBuilder("batched")
    y = b.matmul(b.input("x", F32, left), b.input("w", F32, right))
    return normal(b, [b.elementwise("add", y, b.full((1,) * len(left), 1.0, F32))])


def many_reductions(rows: int, inner: int, columns: int) -> Graph:
    """Of one product: maxima of rows with their dimension kept, sums of columns, the sum of all; each is subtracted again."""
    b = TensorBuilder("reductions")
    y = b.matmul(b.input("x", F32, (rows, inner)), b.input("w", F32, (inner, columns)))
    high = b.reduce(y, "max", (1,), keepdims=True)
    total = b.reduce(y, "sum", (0,), keepdims=True)
    everything = b.reduce(y, "sum", None, keepdims=True)
    y = b.elementwise("sub", b.elementwise("sub", b.elementwise("sub", y, high), total), everything)
    return normal(b, [y])


def product_softmax(rows: int, inner: int, columns: int, dtype: DType = F32) -> Graph:
    """The softmax of a product's rows."""
    b = TensorBuilder("soft")
    return normal(b, [b.softmax(b.matmul(b.input("x", dtype, (rows, inner)), b.input("w", dtype, (inner, columns))), -1)])


def masked_sum(rows: int, inner: int, columns: int) -> Graph:
    """Sums of the rows of a product's lower triangle, times the product's own first column."""
    b = TensorBuilder("masked")
    y = b.matmul(b.input("x", F32, (rows, inner)), b.input("w", F32, (inner, columns)))
    s = b.reduce(b.tril(y), "sum", (1,), keepdims=True)
    return normal(b, [b.elementwise("mul", s, b.slice(y, [0, 0], [rows, 1], [1, 1]))])


def siblings(rows: int, inner: int, columns: int) -> Graph:
    """Two products of one left operand, one gating the other."""
    b = TensorBuilder("siblings")
    x = b.input("x", F32, (rows, inner))
    u, v = (b.matmul(x, b.input(n, F32, (inner, columns))) for n in ("w", "u"))
    return normal(b, [b.elementwise("mul", u, b.elementwise("maximum", v, b.full((1, 1), 0.0, F32)))])


def gram(rows: int, width: int, dtype: DType = F32) -> Graph:
    """x x' of x clamped, and x clamped: both results' rows run with the blocks, the columns of the first must not."""
    b = TensorBuilder("gram")
    x = b.clamp(b.input("x", dtype, (rows, width)), b.full((1, 1), -1.0, dtype), b.full((1, 1), 1.0, dtype))
    y = b.matmul(x, x, transpose_b=True)
    return normal(b, [b.elementwise("add", y, y), x])


def beside_itself(size: int) -> Graph:
    """x w + x' - x: the map reads elements of the product's operand that its tile does not hold."""
    b = TensorBuilder("beside")
    x, w = (b.input(n, F32, (size, size)) for n in ("x", "w"))
    y = b.elementwise("add", b.matmul(x, w), b.transpose(x, 0, 1))
    return normal(b, [b.elementwise("sub", y, x)])


def row_sums_and_product(rows: int, inner: int, columns: int) -> Graph:
    """x w minus the sums and the maxima of the rows of x: reductions of a boundary value beside a product."""
    b = TensorBuilder("sums")
    x = b.input("x", F32, (rows, inner))
    y = b.matmul(x, b.input("w", F32, (inner, columns)))
    for monoid in ("sum", "max"):
        y = b.elementwise("sub", y, b.reduce(x, monoid, (1,), keepdims=True))
    return normal(b, [y])


def norm_before_product(rows: int, width: int, columns: int, dtype: DType = F32) -> Graph:
    """n w with n the layer norm of x + s; n and the sums of its rows are results too, which every block of columns needs."""
    b = TensorBuilder("before")
    n, _, _ = b.layer_norm(b.elementwise("add", *(b.input(v, dtype, (rows, width)) for v in "xs")), (1,))
    y = b.matmul(n, b.input("w", dtype, (width, columns)))
    total = b.reduce(n, "sum", (1,))
    return normal(b, [n, total, b.elementwise("add", y, b.reshape(total, (rows, 1)))])


def heads(rows: int, count: int, width: int, dtype: DType = F16) -> Graph:
    """q k' of each head, where heads lie between rows and columns of the operands."""
    b = TensorBuilder("heads")
    q, k = (b.permute(b.input(n, dtype, (1, rows, count, width)), (0, 2, 1, 3)) for n in "qk")
    y = b.matmul(q, k, transpose_b=True)
    return normal(b, [b.elementwise("add", y, y)])


def slice_of_a_tile(rows: int, start: int, width: int, dtype: DType = F16) -> Graph:
    """Columns of a computed value times w, plus the sum of all its columns: the operand is a part of a tile, at any place in its rows."""
    b = TensorBuilder("part")
    x = b.clamp(b.input("x", dtype, (rows, 35)), b.full((1, 1), -1.0, dtype), b.full((1, 1), 1.0, dtype))
    part = b.slice(x, [0, start], [rows, start + width], [1, 1])
    y = b.matmul(part, b.input("w", dtype, (width, 16)))
    return normal(b, [b.elementwise("add", y, b.reduce(x, "max", (1,), keepdims=True)), x])


def joined_operand(rows: int, widths: tuple[int, ...], columns: int) -> Graph:
    """Values side by side, the last of them computed, times w; what they are joined to is a result too."""
    b = TensorBuilder("joined")
    parts = [b.input(f"x{n}", F32, (rows, width)) for n, width in enumerate(widths)]
    parts[-1] = b.clamp(parts[-1], b.full((1, 1), -1.0, F32), b.full((1, 1), 1.0, F32))
    x = b.concatenate(parts, 1)
    return normal(b, [b.matmul(x, b.input("w", F32, (sum(widths), columns))), x])


def gated_state(rows: int, width: int) -> Graph:
    """A state computed from gates, and its product: both are results. The product's weights need not wait for the state."""
    b = TensorBuilder("gated")
    gates, h, w = b.input("gates", F32, (rows, 2 * width)), b.input("h", F32, (rows, width)), b.input("w", F32, (width, width))
    new, keep = (b.slice(gates, [0, n * width], [rows, (n + 1) * width], [1, 1]) for n in range(2))
    state = b.elementwise("add", b.elementwise("mul", b.elementwise("sigmoid", keep), h), b.elementwise("tanh", new))
    return normal(b, [state, b.matmul(state, w)])


def two_tiles(reader: str, shape: tuple[int, ...]) -> Graph:
    """Row sums that are read at two places: a block holds two tiles of them. `reader`: the nodes from the sums to the result %y."""
    return parse_graph(f"""graph @tiles(%x: f32[64, 8]) -> (f32[{', '.join(map(str, shape))}]) {{
      %s: f32[64] = reduce.sum [i] over [k < 8] {{ %x[i, k] }}
      {reader}
      return %y
    }}""")
