"""Gradients of attention as patterns: that of keys and values, and that of queries, from the logarithms of the sums."""
from __future__ import annotations

from dataclasses import dataclass

from tests.unit.templates.stitched_graphs import normal
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, F32, I64, DType
from tilefuse.ir.graph import Graph


@dataclass(frozen=True)
class Gradient:
    """softmax(q k' / 4) v over [batch, heads, rows]; of: "keys" (two results) or "queries"."""

    of: str = "keys"
    scores: tuple[str, ...] = ()
    heads: int = 2
    rows: int = 70
    keys: int = 90
    inner: int = 16
    width: int = 16
    dtype: DType = F16
    window: int = 20

    def graph(self) -> Graph:
        b = TensorBuilder(f"gradient_of_{self.of}")
        q, o = (b.input(n, self.dtype, (1, self.heads, self.rows, e)) for n, e in (("q", self.inner), ("g", self.width)))
        k, v = (b.input(n, self.dtype, (1, self.heads, self.keys, e)) for n, e in (("k", self.inner), ("v", self.width)))
        turned = self.of == "keys"
        shape = (1, self.heads, 1, self.rows) if turned else (1, self.heads, self.rows, 1)
        lse, delta = (b.reshape(b.input(n, F32, (1, self.heads, self.rows)), shape) for n in ("lse", "delta"))
        s = b.matmul(k, q, transpose_b=True) if turned else b.matmul(q, k, transpose_b=True)
        d = b.matmul(v, o, transpose_b=True) if turned else b.matmul(o, v, transpose_b=True)
        s, d = b.cast(s, F32), b.cast(d, F32)
        s = b.elementwise("mul", s, b.full((1, 1, 1, 1), 0.25, F32))
        across = (1, 1, self.keys, self.rows) if turned else (1, 1, self.rows, self.keys)
        row, column = b.iota(across, 3 if turned else 2, I64), b.iota(across, 2 if turned else 3, I64)
        lowest = b.full((1, 1, 1, 1), float("-inf"), F32)
        for name in self.scores:
            if name == "causal":
                s = b.where(b.elementwise("le", column, row), s, lowest)
            if name == "window":
                near = b.elementwise("lt", b.elementwise("sub", row, column), b.full((1, 1, 1, 1), self.window, I64))
                s = b.where(near, s, lowest)
        p = b.elementwise("exp", b.elementwise("sub", s, lse))
        ds = b.cast(b.elementwise("mul", p, b.elementwise("sub", d, delta)), self.dtype)
        if turned:
            return normal(b, [self._scaled(b, b.matmul(ds, q)), b.matmul(b.cast(p, self.dtype), o)])
        return normal(b, [self._scaled(b, b.matmul(ds, k))])

    def _scaled(self, b: TensorBuilder, y: str) -> str:
        return b.elementwise("mul", y, b.full((1, 1, 1, 1), 0.25, self.dtype))
