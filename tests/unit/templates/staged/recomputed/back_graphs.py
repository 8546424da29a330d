"""Gradients of attention as patterns, that of keys and values and that of queries, and what they are in f64."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.unit.templates.stitched_graphs import normal
from tilefuse.ir.affine import axis, number
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BOOL, F16, F32, I32, I64, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.meaning import random_uniform
from tilefuse.ir.scalar import NUMPY_DTYPES, Index, Read, call, const

SCALE, CAP = 0.25, 2.0
FIRST = 9
LOWEST = float("-inf")
LARGEST = {"f16": 65504.0, "bf16": 2.0**128 - 2.0**120}
Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Gradient:
    """Of softmax(f(q k' / 4)) v over [heads, rows].

    of      "keys" (gradients of keys and of values) or "queries"
    group   heads of queries that share a head of keys, of "keys": their rows follow each other
    width   of values and their gradients; 0: `inner`, that of queries and keys
    beside  further results: "elements" (gradients of the scores, in f32 where "wide" is among them), "sums" (along the walked axis, of
            these times the distance of row and column)
    lowest  "padding" has the lowest number of its type in the first columns of all heads, and in all columns of the first two, whose
            results have no gradient
    drop    probability by which powers are dropped, by random numbers of the places [heads, walked or rows, keys]
    scores  what f is made of, in order: "cap", "dense" (a bias that is read), "causal", "window", "prefix", "hidden" (a mask that is read),
            "padding" (numbers of columns that two heads share, added), "documents" (columns of the row's own)
    """

    of: str = "keys"
    scores: tuple[str, ...] = ()
    heads: int = 2
    rows: int = 70
    keys: int = 90
    inner: int = 16
    dtype: DType = F16
    window: int = 20
    group: int = 1
    beside: tuple[str, ...] = ()
    width: int = 0
    drop: float = 0.0
    lowest: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the results in f64, in the graph's order."""
        return (*(("dk", "dv") if self.of == "keys" else ("dq",)), *(n for n in self.beside if n != "wide"))

    @property
    def walked(self) -> int:
        """Rows of all heads of a group."""
        return self.group * self.rows

    def graph(self) -> Graph:
        """The pattern, from the logarithms of the sums and the row sums."""
        b = TensorBuilder(f"gradient_of_{self.of}")
        q, g = (b.input(n, self.dtype, (self.heads, self.walked, e)) for n, e in (("q", self.inner), ("g", self.width or self.inner)))
        k, v = (b.input(n, self.dtype, (self.heads, self.keys, e)) for n, e in (("k", self.inner), ("v", self.width or self.inner)))
        turned = self.of == "keys"
        shape = (self.heads, 1, self.walked) if turned else (self.heads, self.rows, 1)
        logarithms, sums = (b.reshape(b.input(n, F32, (self.heads, self.walked)), shape) for n in ("logarithms", "sums"))
        s, of_s = (b.cast(b.matmul(*((y, x) if turned else (x, y)), transpose_b=True), F32) for x, y in ((q, k), (g, v)))
        s = b.elementwise("mul", s, b.full((1, 1, 1), SCALE, F32))
        slope = ""
        for name in self.scores:
            if name == "cap":
                top = b.elementwise("tanh", b.elementwise("mul", s, b.full((1, 1, 1), 1 / CAP, F32)))
                s = b.elementwise("mul", top, b.full((1, 1, 1), CAP, F32))
                slope = b.elementwise("sub", b.full((1, 1, 1), 1.0, F32), b.elementwise("mul", top, top))
            else:
                s = self._changed(b, name, s, turned)
        p = weights = b.elementwise("exp", b.elementwise("sub", s, logarithms))
        if self.drop:
            is_left, zero = self._is_left(b, turned), b.full((1, 1, 1), 0.0, F32)
            weights, of_s = (b.where(is_left, x, zero) for x in (p, of_s))
            sums = b.elementwise("mul", sums, b.full((1, 1, 1), 1 - self.drop, F32))
        ds = b.elementwise("mul", p, b.elementwise("sub", of_s, sums))
        exact = b.elementwise("mul", ds, slope) if slope else ds
        ds = b.cast(exact, self.dtype)
        dv = (self._scaled(b, b.matmul(b.cast(weights, self.dtype), g), 1.0),) if turned else ()
        results = [self._scaled(b, b.matmul(ds, q if turned else k)), *dv]
        for name in self.beside:
            if name == "elements":
                results.append(exact if "wide" in self.beside else ds)
            elif name == "sums":
                across = b.shape_of(exact)
                distance = b.cast(b.elementwise("sub", b.iota(across, 1, I64), b.iota(across, 2, I64)), F32)
                results.append(b.reduce(b.elementwise("mul", exact, distance), "sum", (2,)))
        return normal(b, results)

    def _changed(self, b: TensorBuilder, name: str, s: str, turned: bool) -> str:
        """Scores with a bias or a mask."""
        if name == "dense":
            bias = b.input("dense", self.dtype, (self.heads, self.rows, self.keys))
            return b.elementwise("add", s, b.cast(b.transpose(bias, 1, 2) if turned else bias, F32))
        if name == "padding":
            padding = b.repeat_interleave(b.input("padding", self.dtype, (self.heads // 2, 1, self.keys)), 2, 0)
            return b.elementwise("add", s, b.cast(b.transpose(padding, 1, 2) if turned else padding, F32))
        if name == "hidden":
            kept = b.input("hidden", BOOL, (1, self.rows, self.keys))
            kept = b.transpose(kept, 1, 2) if turned else kept
        elif name == "documents":
            row, column = (b.input(f"documents_of_{n}", I32, (1, e)) for n, e in (("rows", self.rows), ("columns", self.keys)))
            kept = b.elementwise("eq", b.reshape(row, (1, self.rows, 1)), b.reshape(column, (1, 1, self.keys)))
            kept = b.transpose(kept, 1, 2) if turned else kept
        else:
            across = (1, self.keys, self.walked) if turned else (1, self.rows, self.keys)
            axes = axis_names(3)
            place = axis(axes[2]) % self.rows if turned else axis(axes[1])
            row, column = b.make_map("row", I64, across, axes, Index(place)), b.iota(across, 1 if turned else 2, I64)
            number = b.full((1, 1, 1), self.window, I64)
            kept = {"causal": lambda: b.elementwise("le", column, row),
                    "window": lambda: b.elementwise("lt", b.elementwise("sub", row, column), number),
                    "prefix": lambda: b.elementwise("logical_or", b.elementwise("le", column, row), b.elementwise("lt", column, number)),
                    "first": lambda: b.elementwise("logical_or", b.elementwise("lt", b.elementwise("sub", row, column), number),
                                                   b.elementwise("lt", column, b.full((1, 1, 1), FIRST, I64))),
                    }[name]()
        return b.where(kept, s, b.full((1, 1, 1), LOWEST, F32))

    def _is_left(self, b: TensorBuilder, turned: bool) -> str:
        """Powers that are not dropped."""
        rows = self.walked if turned else self.rows
        shape = (self.heads, self.keys, rows) if turned else (self.heads, rows, self.keys)
        axes = axis_names(3)
        head, row, column = (axis(axes[n]) for n in ((0, 2, 1) if turned else (0, 1, 2)))
        seed = Read(b.input("seed", I64, (1,)), (number(0),))
        drawn = call("random_uniform", seed, Index((head * rows + row) * self.keys + column))
        return b.make_map("is_left", BOOL, shape, axes, call("lt", drawn, const(1 - self.drop, F32)))

    def _scaled(self, b: TensorBuilder, y: str, scale: float = SCALE) -> str:
        """A gradient, with the factor of powers that are not dropped."""
        return b.elementwise("mul", y, b.full((1, 1, 1), scale / (1 - self.drop), self.dtype)) if scale != 1.0 or self.drop else y

    def drawn(self, seed: int) -> tuple[Values, Values]:
        """(inputs rounded to their types, gradients in f64 by the derivative of the softmax). Rows that are hidden whole have none."""
        random = np.random.default_rng(seed)
        narrow = NUMPY_DTYPES[self.dtype.name]
        width = self.width or self.inner
        shapes = {"q": (self.heads, self.walked, self.inner), "g": (self.heads, self.walked, width),
                  "k": (self.heads, self.keys, self.inner), "v": (self.heads, self.keys, width),
                  "dense": (self.heads, self.rows, self.keys), "padding": (self.heads // 2, 1, self.keys)}
        values: Values = {n: (random.standard_normal(e) * 0.7).astype(narrow) for n, e in shapes.items()}
        if self.lowest:
            values["padding"][..., :self.keys // 2] = -LARGEST[self.dtype.name]
            values["padding"][0] = -LARGEST[self.dtype.name]
            values["g"][:2] = 0
        values["hidden"] = random.random((1, self.rows, self.keys)) < 0.6
        values["hidden"][:, :3] = False
        documents = np.sort(random.integers(0, 4, (1, max(self.rows, self.keys))), -1).astype(np.int32)
        values |= {"documents_of_rows": documents[:, :self.rows], "documents_of_columns": documents[:, :self.keys]}
        same = values["documents_of_rows"][:, :, None] == values["documents_of_columns"][:, None]
        q, g, k, v, bias = (values[n].astype(np.float64) for n in ("q", "g", "k", "v", "dense"))
        s, slope = q @ k.transpose(0, 2, 1) * SCALE, np.ones(())
        row, column = np.arange(self.walked)[:, None] % self.rows, np.arange(self.keys)[None]
        for name in self.scores:
            match name:
                case "cap":
                    slope, s = 1 - np.tanh(s / CAP) ** 2, CAP * np.tanh(s / CAP)
                case "dense":
                    s = s + bias
                case "padding":
                    s = s + np.repeat(values["padding"].astype(np.float64), 2, 0)
                case _:
                    kept = {"causal": column <= row, "window": row - column < self.window,
                            "prefix": (column <= row) | (column < self.window),
                            "first": (row - column < self.window) | (column < FIRST), "hidden": values["hidden"],
                            "documents": same}[name]
                    s = np.where(kept, s, LOWEST)
        with np.errstate(divide="ignore"):
            logarithms = np.log(np.exp(s).sum(2))
        logarithms = np.where(np.isinf(logarithms), s.max(2) if self.lowest else 0.0, logarithms)
        p = np.exp(s - logarithms[..., None])
        values["seed"] = np.array([2**40 + seed], np.int64)
        drawn = random_uniform(values["seed"], np.arange(s.size).reshape(s.shape))
        factors = (drawn < np.float32(1 - self.drop)) / (1 - self.drop)
        of_p = g @ v.transpose(0, 2, 1) * factors
        ds = p * (of_p - (p * of_p).sum(2, keepdims=True)) * slope
        sums = (g * ((p * factors) @ v)).sum(2)
        values |= {"logarithms": logarithms.astype(np.float32), "sums": sums.astype(np.float32)}
        turned = (0, 2, 1)
        of_scores = ds.transpose(turned) if self.of == "keys" else ds
        distance = np.arange(of_scores.shape[1])[:, None] - np.arange(of_scores.shape[2])
        beside = {"elements": of_scores, "sums": (of_scores * distance).sum(2)}
        weights = (p * factors).transpose(turned)
        return values, beside | {"dq": ds @ k * SCALE, "dk": ds.transpose(turned) @ q * SCALE, "dv": weights @ g}
