"""Patterns in which an axis between products is walked, as graphs. Sizes are small; most divide no tile."""
from __future__ import annotations

from tests.unit.templates.stitched_graphs import normal
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BOOL, F32, I64, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph


def scored(b: TensorBuilder, lead: tuple[int, ...], rows: int, keys: int, inner: int, dtype: DType, turned: bool = True) -> str:
    """Scaled products of q and k; `turned`: k has the inner axis last."""
    q = b.input("q", dtype, (*lead, rows, inner))
    k = b.input("k", dtype, (*lead, keys, inner) if turned else (*lead, inner, keys))
    return b.elementwise("mul", b.matmul(q, k, transpose_b=turned), b.full((1,) * (len(lead) + 2), 0.25, dtype))


def with_logarithm(batch: int, rows: int, keys: int, inner: int, width: int, dtype: DType = F32) -> Graph:
    """exp(s - max - away) / its sum, times v; and the logarithm of the sums, and the maxima."""
    b = TensorBuilder("logged")
    away = b.input("away", dtype, (batch, 1, keys))
    s = b.elementwise("sub", scored(b, (batch,), rows, keys, inner, dtype), away)
    top = b.reduce(s, "max", (2,), keepdims=True)
    powers = b.elementwise("exp", b.elementwise("sub", s, top))
    total = b.reduce(powers, "sum", (2,), keepdims=True)
    v = b.input("v", dtype, (batch, keys, width))
    o = b.matmul(b.elementwise("div", powers, total), v)
    return normal(b, [o, b.reshape(b.elementwise("log", total), (batch, rows)), top])


def masked(rows: int, keys: int, inner: int, width: int, dtype: DType = F32, kind: str = "added") -> Graph:
    """Two lead dimensions, a mask that is added, or boolean and shared by the heads; a map on the result."""
    b = TensorBuilder("masked")
    s = scored(b, (2, 3), rows, keys, inner, dtype)
    if kind == "added":
        s = b.elementwise("add", s, b.input("mask", dtype, (2, 1, rows, keys)))
    else:
        s = b.where(b.input("mask", BOOL, (2, 1, 1, keys)), s, b.full((1, 1, 1, 1), float("-inf"), dtype))
    o = b.matmul(b.softmax(s, -1), b.input("v", dtype, (2, 3, keys, width)))
    gate = b.input("gate", dtype, (2, 3, rows, width))
    return normal(b, [b.elementwise("mul", o, gate)])


def merged_heads(rows: int, keys: int, inner: int, width: int, dtype: DType = F32) -> Graph:
    """Scores and products with one lead dimension, the softmax with two; operands that are maps; k with columns last."""
    b = TensorBuilder("merged")
    s = scored(b, (6,), rows, keys, inner, dtype, turned=False)
    p = b.softmax(b.reshape(s, (2, 3, rows, keys)), -1)
    v = b.elementwise("mul", b.input("v", dtype, (6, keys, width)), b.full((1, 1, 1), 0.5, dtype))
    return normal(b, [b.matmul(b.reshape(p, (6, rows, keys)), v)])


def shared_keys(rows: int, keys: int, inner: int, width: int, dtype: DType = F32) -> Graph:
    """Keys and values of one head for all; v with its columns along the keys; later keys masked."""
    b = TensorBuilder("shared")
    q, k = b.input("q", dtype, (3, rows, inner)), b.input("k", dtype, (1, keys, inner))
    s = b.matmul(q, k, transpose_b=True)
    shape = (1, rows, keys)
    s = b.where(b.elementwise("gt", b.iota(shape, 2, I64), b.iota(shape, 1, I64)), b.full((1, 1, 1), float("-inf"), dtype), s)
    v = b.input("v", dtype, (1, width, keys))
    return normal(b, [b.matmul(b.softmax(s, -1), v, transpose_b=True)])


def without_maximum(rows: int, keys: int, inner: int, width: int, dtype: DType = F32) -> Graph:
    """Products of clamped scores: nothing is rescaled; beside them the sums of the scores' squares, and of both operands' scores."""
    b = TensorBuilder("clamped")
    s = scored(b, (2,), rows, keys, inner, dtype)
    p = b.elementwise("maximum", s, b.full((1, 1, 1), 0.0, dtype))
    o = b.matmul(p, b.input("v", dtype, (2, keys, width)))
    return normal(b, [o, b.reduce(b.elementwise("mul", s, s), "sum", (2,))])


def two_of_each(rows: int, keys: int, inner: int, width: int, dtype: DType = F32) -> Graph:
    """Two products make the scores, their softmax multiplies two operands, thinned out for one of them."""
    b = TensorBuilder("two")
    s = scored(b, (2,), rows, keys, inner, dtype)
    s = b.elementwise("add", s, b.matmul(b.input("r", dtype, (2, rows, inner)), b.input("t", dtype, (2, keys, inner)), transpose_b=True))
    p = b.softmax(s, -1)
    kept = b.input("kept", BOOL, (2, rows, keys))
    thin = b.where(kept, b.elementwise("mul", p, b.full((1, 1, 1), 2.0, dtype)), b.full((1, 1, 1), 0.0, dtype))
    first = b.matmul(p, b.input("v", dtype, (2, keys, width)))
    second = b.matmul(thin, b.input("u", dtype, (2, keys, width)))
    return normal(b, [b.elementwise("sub", first, second)])


def logarithm_of_sum(rows: int, inner: int, keys: int, dtype: DType = F32) -> Graph:
    """The log-sum-exp of a product's rows, without their product with anything."""
    b = TensorBuilder("lse")
    s = b.matmul(b.input("q", dtype, (rows, inner)), b.input("k", dtype, (inner, keys)))
    return normal(b, [b.logsumexp(s, (1,))])


def biased_layers(rows: int, inner: int, hidden: int, width: int, dtype: DType = F32) -> Graph:
    """Two layers with biases that belong to their products, the first one clamped."""
    flags = '{has_bias = true, precision = "default", transpose_a = false, transpose_b = false}'
    wide = "f16(maximum(f32(%s[i, j]), 0.0:f32))" if dtype.name == "f16" else f"maximum(%s[i, j], 0.0:{dtype})"
    return parse_graph(f"""graph @layers(%x: {dtype}[{rows}, {inner}], %w: {dtype}[{inner}, {hidden}], %b: {dtype}[{hidden}],
                                         %u: {dtype}[{hidden}, {width}], %c: {dtype}[{width}]) -> ({dtype}[{rows}, {width}]) {{
      %s: {dtype}[{rows}, {hidden}] = library.matmul (%x, %w, %b) {flags}
      %r: {dtype}[{rows}, {hidden}] = map [i, j] {{ {wide} }}
      %y: {dtype}[{rows}, {width}] = library.matmul (%r, %u, %c) {flags}
      return %y
    }}""")


def packed_heads(batch: int, length: int, heads: int, width: int, dtype: DType, causal: bool = False) -> Graph:
    """Queries, keys and values of all heads packed in one tensor; the heads' results side by side in each row."""
    b = TensorBuilder("packed")
    x = b.input("qkv", dtype, (batch, length, 3 * heads * width))
    split = b.permute(b.reshape(x, (batch, length, 3, heads, width)), (2, 0, 3, 1, 4))
    q, k, v = (b.reshape(b.slice(split, [n], [n + 1]), (batch, heads, length, width)) for n in range(3))
    s = b.elementwise("mul", b.matmul(q, k, transpose_b=True), b.full((1, 1, 1, 1), 0.25, dtype))
    if causal:
        shape = (1, 1, length, length)
        s = b.where(b.elementwise("gt", b.iota(shape, 3, I64), b.iota(shape, 2, I64)), b.full((1, 1, 1, 1), float("-inf"), dtype), s)
    o = b.matmul(b.softmax(s, -1), v)
    return normal(b, [b.reshape(b.permute(o, (0, 2, 1, 3)), (batch, length, heads * width))])


def kept_scores(rows: int, keys: int) -> Graph:
    """Attention of 16 bits whose scores are the products' sums in f32."""
    return parse_graph(f"""graph @kept(%q: f16[2, {rows}, 16], %k: f16[2, {keys}, 16], %v: f16[2, {keys}, 16]) -> (f16[2, {rows}, 16]) {{
      %s: f32[2, {rows}, {keys}] = library.matmul (%q, %k) {{transpose_b = true, dtype = "f32"}}
      %x: f32[2, {rows}, {keys}] = map [h, i, j] {{ mul(%s[h, i, j], 0.25:f32) }}
      %m: f32[2, {rows}] = reduce.max [h, i] over [j < {keys}] {{ %x[h, i, j] }}
      %e: f32[2, {rows}, {keys}] = map [h, i, j] {{ exp(sub(%x[h, i, j], %m[h, i])) }}
      %t: f32[2, {rows}] = reduce.sum [h, i] over [j < {keys}] {{ %e[h, i, j] }}
      %p: f16[2, {rows}, {keys}] = map [h, i, j] {{ f16(div(%e[h, i, j], %t[h, i])) }}
      %y: f16[2, {rows}, 16] = library.matmul (%p, %v) {{}}
      return %y
    }}""")
