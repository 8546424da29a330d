"""Variants of attention as graphs: functions of scores, masks, groups of heads, and inputs that rows hidden whole occur in."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.unit.templates.stitched_cases import smooth
from tests.unit.templates.stitched_graphs import normal
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BOOL, F16, F32, I32, I64, DType
from tilefuse.ir.graph import Graph

LOWEST = float("-inf")
# Columns that rows see beside a window.
FIRST = 10


@dataclass(frozen=True)
class Variant:
    """softmax(f(q k' / 4)) v over [batch, heads, rows]; `group` heads share keys and values.

    scores  names of functions of `_Scores`, in order
    window  columns of a window, or of a prefix
    safe    rows that are hidden whole are zeros
    logs    logarithms of the sums are a result too: written out, or by the operator, which is finite beside infinities
    page    rows of a page: keys and values are looked up by the numbers of a table, some of which count from the end; 0: tensors
    spare   pages in memory beyond as many as all batches have
    drop    probability with which powers are dropped
    """

    scores: tuple[str, ...] = ()
    batch: int = 1
    heads: int = 2
    group: int = 1
    rows: int = 70
    keys: int = 90
    inner: int = 16
    width: int = 16
    dtype: DType = F16
    window: int = 20
    safe: bool = False
    logs: str = ""
    page: int = 0
    spare: int = 1
    drop: float = 0.0

    @property
    def num_pages(self) -> int:
        """Pages in memory."""
        return self.batch * -(-self.keys // self.page) + self.spare

    def graph(self) -> Graph:
        """The graph."""
        b = TensorBuilder("variant")
        lead, kv = (self.batch, self.heads), (self.batch, self.heads // self.group)
        q = b.input("q", self.dtype, (*lead, self.rows, self.inner))
        if self.page:
            table = b.input("table", I32, (self.batch, -(-self.keys // self.page)))
            k, v = (self._paged(b, name, table, kv[1], n) for name, n in (("k", self.inner), ("v", self.width)))
        else:
            k, v = b.input("k", self.dtype, (*kv, self.keys, self.inner)), b.input("v", self.dtype, (*kv, self.keys, self.width))
        if self.group > 1:
            k, v = (b.repeat_interleave(x, self.group, 1) for x in (k, v))
        s = b.elementwise("mul", b.matmul(q, k, transpose_b=True), b.full((1, 1, 1, 1), 0.25, self.dtype))
        scores = _Scores(self, b)
        for name in self.scores:
            s = getattr(scores, name)(s)
        p = b.safe_softmax(s, -1) if self.safe else b.softmax(s, -1)
        results = [b.matmul(b.dropout(p, self.drop, b.input("seed", I64, (1,)))[0] if self.drop else p, v)]
        if self.logs == "operator":
            results.append(b.logsumexp(b.cast(s, F32), (3,)))
        elif self.logs:
            wide = b.cast(s, F32)
            top = b.reduce(s, "max", (3,), keepdims=True, dtype=F32)
            total = b.reduce(b.elementwise("exp", b.elementwise("sub", wide, top)), "sum", (3,), keepdims=True)
            results.append(b.elementwise("add", b.elementwise("log", total), top))
        return normal(b, results)


    def _paged(self, b: TensorBuilder, name: str, table: str, heads: int, width: int) -> str:
        """Keys or values of all heads, in the pages of a table."""
        pages = b.input(name, self.dtype, (self.num_pages, self.page, heads, width))
        rows = b.take(pages, table, 0, wrap=True, checked=True)
        rows = b.reshape(rows, (self.batch, b.shape_of(rows)[1] * self.page, heads, width))
        rows = b.slice(rows, [0, 0, 0, 0], [self.batch, self.keys, heads, width])
        return b.permute(rows, (0, 2, 1, 3))


class _Scores:
    """Functions of scores."""

    def __init__(self, of: Variant, b: TensorBuilder) -> None:
        self.of, self.b, self.ends = of, b, ""
        shape = (1, 1, of.rows, of.keys)
        self.row, self.column = b.iota(shape, 2, I64), b.iota(shape, 3, I64)

    def _kept(self, condition: str, s: str) -> str:
        return self.b.where(condition, s, self._number(LOWEST, self.of.dtype))

    def _number(self, x: float, dtype: DType = I64) -> str:
        return self.b.full((1, 1, 1, 1), x, dtype)

    def _added(self, name: str, shape: tuple[int, ...], s: str, dtype: DType | None = None) -> str:
        bias = self.b.input(name, dtype or self.of.dtype, shape)
        return self.b.elementwise("add", s, self.b.cast(bias, self.of.dtype))

    def dense(self, s: str) -> str:
        """A bias of its own for each score; some are -inf."""
        return self._added("mask", (self.of.batch, self.of.heads, self.of.rows, self.of.keys), s)

    def of_heads(self, s: str) -> str:
        """A bias that batches share."""
        return self._added("heads", (1, self.of.heads, self.of.rows, self.of.keys), s)

    def of_batch(self, s: str) -> str:
        """A bias that heads share, in f32."""
        return self._added("batches", (self.of.batch, 1, self.of.rows, self.of.keys), s, F32)

    def of_columns(self, s: str) -> str:
        """A bias of columns."""
        return self._added("columns", (self.of.batch, 1, 1, self.of.keys), s)

    def of_rows(self, s: str) -> str:
        """A bias of rows."""
        return self._added("lines", (1, self.of.heads, self.of.rows, 1), s)

    def hidden(self, s: str) -> str:
        """A mask that is read."""
        return self._kept(self.b.input("kept", BOOL, (self.of.batch, 1, self.of.rows, self.of.keys)), s)

    def padding(self, s: str) -> str:
        """A mask of columns that is read."""
        return self._kept(self.b.input("seen", BOOL, (self.of.batch, 1, 1, self.of.keys)), s)

    def lengths(self, s: str) -> str:
        """Columns below a number of the batch that memory holds, as a cache that is filled in part has them."""
        return self._kept(self.b.elementwise("lt", self.column, self._ends()), s)

    def lengths_and_rows(self, s: str) -> str:
        """The same beside the rows before the query's own one, which are the last ones of the cache."""
        return self._kept(self.b.elementwise("lt", self.column, self.b.elementwise("add", self._ends(), self.row)), s)

    def behind(self, s: str) -> str:
        """Columns from a number of memory on, hidden where they lie before it."""
        near = self.b.elementwise("sub", self.b.cast(self.b.input("from", I32, ()), I64), self._number(3))
        return self.b.where(self.b.elementwise("gt", near, self.column), self._number(LOWEST, self.of.dtype), s)

    def _ends(self) -> str:
        if not self.ends:
            self.ends = self.b.cast(self.b.input("ends", I32, (self.of.batch, 1, 1, 1)), I64)
        return self.ends

    def causal(self, s: str) -> str:
        """Columns up to the row."""
        return self._kept(self.b.elementwise("le", self.column, self.row), s)

    def added_triangle(self, s: str) -> str:
        """The same as a matrix of -inf that is added."""
        later = self.b.elementwise("gt", self.column, self.row)
        return self.b.elementwise("add", s, self.b.where(later, self._number(LOWEST, self.of.dtype), self._number(0.0, self.of.dtype)))

    def window(self, s: str) -> str:
        """The row's own column and those before it."""
        distance = self.b.elementwise("sub", self.row, self.column)
        near = self.b.elementwise("lt", distance, self._number(self.of.window))
        return self._kept(self.b.elementwise("logical_and", near, self.b.elementwise("ge", distance, self._number(0))), s)

    def around(self, s: str) -> str:
        """Columns around the row, as two masks, one of them of what is hidden."""
        distance = self.b.elementwise("abs", self.b.elementwise("sub", self.row, self.column))
        far = self.b.elementwise("gt", distance, self._number(self.of.window))
        return self.b.where(far, self._number(LOWEST, self.of.dtype), s)

    def prefix(self, s: str) -> str:
        """A prefix and the columns up to the row."""
        early = self.b.elementwise("lt", self.column, self._number(self.of.window))
        return self._kept(self.b.elementwise("logical_or", early, self.b.elementwise("le", self.column, self.row)), s)

    def first_and_window(self, s: str) -> str:
        """The first columns and a window, up to the row: a gap lies between them."""
        return self._kept(self._up_to_row(self.b.elementwise("lt", self.column, self._number(FIRST))), s)

    def ends_and_window(self, s: str) -> str:
        """The same with first columns whose number memory holds."""
        return self._kept(self._up_to_row(self.b.elementwise("lt", self.column, self._ends())), s)

    def _up_to_row(self, early: str) -> str:
        distance = self.b.elementwise("sub", self.row, self.column)
        near = self.b.elementwise("lt", distance, self._number(self.of.window))
        return self.b.elementwise("logical_and", self.b.elementwise("logical_or", near, early),
                                  self.b.elementwise("ge", distance, self._number(0)))

    def documents(self, s: str) -> str:
        """Columns of the row's own document up to it: the first condition is data."""
        names = self.b.input("documents", I64, (self.of.batch, 1, 1, max(self.of.rows, self.of.keys)))
        columns = self.b.slice(names, [0, 0, 0, 0], [self.of.batch, 1, 1, self.of.keys])
        rows = self.b.reshape(self.b.slice(names, [0, 0, 0, 0], [self.of.batch, 1, 1, self.of.rows]), (self.of.batch, 1, self.of.rows, 1))
        same = self.b.elementwise("eq", self.b.broadcast_to(rows, (self.of.batch, 1, self.of.rows, self.of.keys)), columns)
        return self._kept(self.b.elementwise("logical_and", same, self.b.elementwise("le", self.column, self.row)), s)

    def same(self, s: str) -> str:
        """Columns of the row's own document, whose names rows and columns have of their own."""
        return self._kept(self._compared("eq"), s)

    def other(self, s: str) -> str:
        """The same, written as what is hidden."""
        return self.b.where(self._compared("ne"), self._number(LOWEST, self.of.dtype), s)

    def not_later(self, s: str) -> str:
        """Columns of documents up to the row's own."""
        return self._kept(self._compared("ge"), s)

    def _compared(self, fn: str) -> str:
        shape = (self.of.batch, 1, self.of.rows, self.of.keys)
        rows = self.b.input("documents_of_rows", I32, (self.of.batch, 1, self.of.rows, 1))
        columns = self.b.input("documents_of_columns", I32, (self.of.batch, 1, 1, self.of.keys))
        return self.b.elementwise(fn, *(self.b.broadcast_to(x, shape) for x in (rows, columns)))

    def slopes(self, s: str) -> str:
        """A bias that falls with the distance, a slope a head."""
        wide = self.b.cast(s, F32)
        distance = self.b.elementwise("sub", self.b.cast(self.column, F32), self.b.cast(self.row, F32))
        head = self.b.cast(self.b.iota((1, self.of.heads, 1, 1), 1, I64, start=1), F32)
        slope = self.b.elementwise("pow", self._number(2.0, F32), self.b.elementwise("neg", head))
        return self.b.cast(self.b.elementwise("add", wide, self.b.elementwise("mul", distance, slope)), self.of.dtype)

    def cap(self, s: str) -> str:
        """A soft cap."""
        scaled = self.b.elementwise("div", s, self._number(2.0, self.of.dtype))
        return self.b.elementwise("mul", self.b.elementwise("tanh", scaled), self._number(2.0, self.of.dtype))

    def divided(self, s: str) -> str:
        """A quotient by a constant, as a scale is often written."""
        return self.b.elementwise("div", s, self._number(11.313708, self.of.dtype))

    def temperature(self, s: str) -> str:
        """A factor a head, which is read."""
        return self.b.elementwise("mul", s, self.b.input("factors", self.of.dtype, (1, self.of.heads, 1, 1)))


def variates(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Normal variates; masks hide some elements, and all of row 1 (or of the first batch)."""
    if name == "documents":
        return np.sort(random.integers(0, 4, shape), axis=-1)
    if name in ("ends", "from"):
        return random.integers(-3, 100, shape)
    if name == "table":
        # Numbers from -n to n - 1 of n pages; pages that are of no batch among them.
        return random.integers(-shape[0] * shape[1] - 1, shape[0] * shape[1] + 1, shape)
    if name == "seed":
        return random.integers(-1 << 60, 1 << 60, shape)
    if name == "factors":
        return 0.5 + random.random(shape)
    if name not in ("mask", "kept", "seen"):
        return smooth(random, name, shape)
    hidden = random.random(shape) < 0.4
    if shape[2] == 1:
        hidden[0] = True
    else:
        hidden[:, :, 1:2] = True
    return np.where(hidden, -np.inf, random.standard_normal(shape)) if name == "mask" else ~hidden
