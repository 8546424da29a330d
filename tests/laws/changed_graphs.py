"""Graphs that passes around planning change, one a pass: small ones where a device's thresholds allow it."""
from __future__ import annotations

from dataclasses import dataclass, field

import tilefuse.driver.kernel_passes  # noqa: F401  registers the passes of every room
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.ir.text import parse_graph
from tilefuse.passes.device.packed_weights import PackConvolutionWeights
from tilefuse.passes.device.transformed_convolutions import TransformConvolutions
from tilefuse.passes.facts import CallerLayouts
from tilefuse.passes.manager import Pass, Pipeline
from tilefuse.passes.precision import StatePrecision

CONVOLUTION = ("dilation = (1, 1), has_bias = {bias}, output_padding = (0, 0), padding = ((1, 1), (1, 1)), stride = (1, 1), "
               "transposed = false")


@dataclass(frozen=True)
class Changed:
    """A pass, a graph that it changes on an H200, and the strides that the caller gives."""

    item: Pass
    graph: Graph
    caller: CallerLayouts = field(default_factory=CallerLayouts)


def changed(item: str | Pass, text: str, caller: CallerLayouts | None = None) -> Changed:
    """The record of a pass, by name or as it is, and of a graph's text."""
    made = item if isinstance(item, Pass) else Pipeline.parse(item).passes[0]
    return Changed(made, parse_graph(text), caller or CallerLayouts())


def convolution(dtype: str, groups: int, bias: bool) -> str:
    """Six channels from six over images of 9 x 8."""
    more, operand = (f", %b: {dtype}[6]", ", %b") if bias else ("", "")
    return f"""graph @g(%x: {dtype}[2, 6, 9, 8], %w: {dtype}[6, {6 // groups}, 3, 3]{more}) -> ({dtype}[2, 6, 9, 8]) {{
      %y: {dtype}[2, 6, 9, 8] = library.convolution (%x, %w{operand}) {{{CONVOLUTION.format(bias=str(bias).lower())}, groups = {groups}}}
      return %y
    }}"""


def product(dtype: str, rows: int, inner: int, columns: int) -> str:
    """A product of a kernel's result, which another kernel reads."""
    return f"""graph @g(%x: f32[{rows}, {inner}], %w: {dtype}[{inner}, {columns}]) -> (f32[{rows}, {columns}]) {{
      %a: {dtype}[{rows}, {inner}] = map [i, j] {{ {dtype}(neg(%x[i, j])) }}
      %y: {dtype}[{rows}, {columns}] = library.matmul (%a, %w) {{precision = "default", transpose_a = false, transpose_b = false}}
      %z: f32[{rows}, {columns}] = map [i, j] {{ neg(f32(%y[i, j])) }}
      return %z
    }}"""


CONVERTED = """graph @g(%x: bf16[1024, 768], %w: bf16[768, 512]) -> (f32[1024, 512]) {
  %a: f32[1024, 768] = map [i, j] { f32(%x[i, j]) }
  %b: f32[768, 512] = map [i, j] { f32(%w[i, j]) }
  %y: f32[1024, 512] = library.matmul (%a, %b) {precision = "default", transpose_a = false, transpose_b = false}
  return %y
}"""
SWAPPED = """graph @g(%a: f32[6], %b: f32[6], const %c: f32[6]) -> (f32[6], f32[6]) {
  update %a = %b
  update %b = %a
  return %a, %c
}"""
FILLS = """graph @g(%x: f32[4], %i: i64[4]) -> (f32[6], f32[6]) {
  %z: f32[6] = map [i] { 0.0:f32 }
  %a: f32[6] = scatter.sum over [j < 4] into %z at [%i[j]] { %x[j] }
  %b: f32[6] = scatter.sum over [j < 4] into %z at [%i[j]] { neg(%x[j]) }
  return %a, %b
}"""
UPDATE = """graph @g(%p: f32[8], %q: f32[8]) -> (f32[8], f32[8]) {
  %n: f32[8] = map [i] { add(%p[i], %q[i]) }
  %s: f32[8] = map [i] { neg(%n[i]) }
  %r: f32[8] = map [i] { mul(%p[i], %p[-1*i + 7]) }
  update %p = %n
  return %s, %r
}"""
SCAN = f"""graph @g(%x: i32[{(1 << 20) + 3}]) -> (i32[{(1 << 20) + 3}]) {{
  %y: i32[{(1 << 20) + 3}] = scan.sum [j] along j {{ %x[j] }}
  return %y
}}"""
CENTRED = """graph @g(%x: f32[4096, 768]) -> (f32[4096, 768], f32[768]) {
  %s: f32[4096] = reduce.sum [i] over [k < 768] { %x[i, k] }
  %y: f32[4096, 768] = map [i, j] { sub(%x[i, j], %s[i]) }
  %c: f32[768] = reduce.sum [j] over [k < 4096] { %x[k, j] }
  return %y, %c
}"""
GROUPS = """graph @g(%x: f32[3, 16, 7, 5]) -> (f32[3, 4], f32[3, 4]) {
  %s: f32[3, 4] = reduce.sum [i, j] over [k < 4, l < 7, m < 5] { %x[i, 4*j + k, l, m] }
  %d: f32[3, 4] = reduce.m2 [i, j] over [k < 4, l < 7, m < 5] { %x[i, 4*j + k, l, m] }
  return %s, %d
}"""
LONG_SUM = """graph @g(%x: f32[16384, 8], %w: f32[8, 256]) -> (f32[16384, 256]) {
  %y: f32[16384, 256] = reduce.sum [i, j] over [k < 8] { mul(%x[i, k], %w[k, j]) }
  return %y
}"""

PATCHES = """graph @g(%x: f16[64, 3, 64, 48], %w: f16[40, 3, 16, 16], %b: f16[40]) -> (f16[64, 12, 40]) {
  %y: f16[64, 40, 4, 3] = library.convolution (%x, %w, %b) {GEOMETRY}
  %t: f16[64, 12, 40] = map [i, j, k] { %y[i, k, (j // 3), (j % 3)] }
  return %t
}""".replace("GEOMETRY", "dilation = (1, 1), groups = 1, has_bias = true, output_padding = (0, 0), padding = ((0, 0), (0, 0)), "
                          "stride = (16, 16), transposed = false")
ROW_MAXIMA = """graph @g(%x: f16[64, 8], %w: f16[8, 520]) -> (f32[64]) {
  %p: f16[64, 520] = library.matmul (%x, %w)
  %m: f32[64] = reduce.max [i] over [j < 520] { f32(%p[i, j]) }
  return %m
}"""
ATTENTION = """graph @g(%q: f16[400, 70, 16], %k: f16[400, 130, 16], %v: f16[400, 130, 24]) -> (f16[400, 70, 24]) {
  %y: f16[400, 70, 24] = library.attention (%q, %k, %v) {causal = true, dropout = 0.0, has_mask = false, scale = 0.25}
  return %y
}"""
DOCUMENTS = """graph @g(%q: f16[400, 260, 16], %k: f16[400, 300, 16], %v: f16[400, 300, 24], %d: i32[260], %e: i32[300])
        -> (f16[400, 260, 24]) {
  %s: f16[400, 260, 300] = library.matmul (%q, %k) {precision = "default", transpose_a = false, transpose_b = true}
  %w: f32[400, 260, 300] = map [i, r, c] { select(eq(%d[r], %e[c]), f32(%s[i, r, c]), -inf:f32) }
  %m: f32[400, 260] = reduce.max [i, r] over [c < 300] { %w[i, r, c] }
  %x: f32[400, 260, 300] = map [i, r, c] { exp(sub(%w[i, r, c], %m[i, r])) }
  %t: f32[400, 260] = reduce.sum [i, r] over [c < 300] { %x[i, r, c] }
  %p: f16[400, 260, 300] = map [i, r, c] { f16(div(%x[i, r, c], %t[i, r])) }
  %y: f16[400, 260, 24] = library.matmul (%p, %v) {precision = "default", transpose_a = false, transpose_b = false}
  return %y
}"""

CROWDED = """graph @g(%t: i32[8, 3], %g: i32[20000, 3], %i: i64[20000]) -> (i32[8, 3]) {
  %y: i32[8, 3] = scatter.sum over [r < 20000, c < 3] into %t at [%i[r], index(c)] { %g[r, c] }
  return %y
}"""

COLUMN_SUM = """graph @g(%x: f16[1024, 64], %w: f16[64, 1024]) -> (f16[1024, 1024], f32[1024]) {
  %p: f16[1024, 1024] = library.matmul (%x, %w)
  %y: f16[1024, 1024] = map [i, j] { f16(tanh(f32(%p[i, j]))) }
  %s: f32[1024] = reduce.sum [j] over [i < 1024] { f32(%y[i, j]) }
  return %y, %s
}"""

CHANGED: dict[str, Changed] = {c.item.name: c for c in (
    changed("separate-updates", SWAPPED), changed("separate-fills", FILLS), changed("order-updates", UPDATE),
    changed("call-products", LONG_SUM), changed("reduce-product-rows", ROW_MAXIMA), changed("expand-attention", ATTENTION),
    changed("sum-product-columns", COLUMN_SUM), changed("bound-masks", DOCUMENTS), changed("reduce-scatters", CROWDED),
    changed(StatePrecision("tf32", "f32"), product("f32", 3, 8, 5)), changed("split-long-scans", SCAN),
    changed("split-cross-reductions", CENTRED), changed("split-long-products", product("f32", 3, 4096, 5)),
    changed("narrow-products", CONVERTED), changed("pad-products", product("f16", 2000, 1996, 1301)),
    changed("split-convolution-biases", convolution("f32", 1, True)),
    changed(PackConvolutionWeights("always"), convolution("f16", 1, False)),
    changed("sum-channel-windows", convolution("f32", 6, True)),
    changed("multiply-windows", PATCHES), changed(TransformConvolutions("always"), convolution("f32", 1, True)),
    changed("split-channel-sums", GROUPS, CallerLayouts({"x": channels_last_strides((3, 16, 7, 5))})),
)}
