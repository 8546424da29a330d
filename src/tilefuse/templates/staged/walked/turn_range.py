"""The turns of a tile of rows as statements of the kernel: where masks bound the columns of each row, all threads compute the same bounds.

    rows 64 .. 127 of a window of 100 columns, 32 columns a turn:    columns -35 .. 127    turns 0 .. 3, none of them whole
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from tilefuse.ir.affine import Affine, axis, bounds, number
from tilefuse.kernel.ir import Let, OfTwo
from tilefuse.templates.staged.walked.conditions import Edge
from tilefuse.templates.staged.walked.limit import latest
from tilefuse.templates.staged.walked.rings import RingState


@dataclass(frozen=True)
class TileTurns:
    """Turns of a tile from its last one backwards, as index expressions.

        first                        last
        | cut | whole | whole | cut | cut |        cut = 2, whole = 4, count = 5

    cut    those from the last one on that a mask cuts, and the last one itself
    whole  these and those behind them that it cuts nothing of
    count  all
    """

    first: Affine
    last: Affine
    cut: Affine
    whole: Affine
    count: Affine


def emit_turns(w: RingState, first_row: Affine) -> TileTurns:
    """Names the turns of the tile that begins with a row. The arithmetic is that of `limit.turns_of`."""
    plan, limit, columns = w.walk, w.walk.of.limit, w.walk.tiling.columns
    most = plan.most_turns
    if limit is None or most == 1:
        return TileTurns(number(0), number(most - 1), number(1), number(most), number(most))
    length, last_row = plan.of.online.length, first_row + plan.tiling.rows - 1
    last = plan.row_tiles * plan.tiling.rows - 1
    of = _Edges(w, length, latest(limit.bounds.starts, last), latest(limit.bounds.ends, last))
    ends, starts = limit.bounds.ends, limit.bounds.starts
    first = of.two("least", of.start(starts, first_row) // columns, number(most - 1), most) if starts else number(0)
    end = (of.end(ends, last_row) + columns - 1) // columns if ends else number(most)
    end = of.two("greatest", end, first + 1, most + 1)
    whole_end = of.two("least", (of.end(ends, first_row) if ends else number(length)) // columns, end - 1, most + 1)
    whole_first = number(0)
    if starts:
        whole_end = of.two("greatest", whole_end, first, most + 1)
        whole_first = of.two("least", (of.start(starts, last_row) + columns - 1) // columns, whole_end, most + 1)
    cut, whole, count = (w.let(name, end - e, most + 1) for name, e in (("cut", whole_end), ("whole", whole_first), ("count", first)))
    return TileTurns(first, w.let("last", end - 1, most), cut, whole, count)


@dataclass(frozen=True)
class _Edges:
    """Writer of edges. latest_start, latest_end: the greatest edge of any row."""

    w: RingState
    length: int
    latest_start: int
    latest_end: int

    def end(self, groups: tuple[tuple[Edge, ...], ...], row: Affine) -> Affine:
        """The first column behind those of a row, at most the length."""
        highest = [reduce(lambda a, b: self.two("greatest", a, b, self.latest_end + 1), (self._edge(e, row) for e in g)) for g in groups]
        return reduce(lambda a, b: self.two("least", a, b, max(self.latest_end, self.length) + 1), (*highest, number(self.length)))

    def start(self, groups: tuple[tuple[Edge, ...], ...], row: Affine) -> Affine:
        """The first column of a row."""
        lowest = [reduce(lambda a, b: self.two("least", a, b, self.latest_start + 1), (self._edge(e, row) for e in g)) for g in groups]
        return reduce(lambda a, b: self.two("greatest", a, b, self.latest_start + 1), lowest)

    def _edge(self, e: Edge, row: Affine) -> Affine:
        return self.two("greatest", row * e.slope + e.beyond, number(0), max(self.latest_start, self.latest_end) + 1)

    def two(self, function: str, a: Affine, b: Affine, extent: int) -> Affine:
        """The name of the lesser or greater one; that one itself where extents decide. extent: names lie below it."""
        w = self.w
        a, b = w.simplified(a), w.simplified(b)
        span = bounds(a - b, w.extents)
        if span is not None and (span[0] >= 0 or span[1] <= 0):
            return a if (span[0] >= 0) == (function == "greatest") else b
        name = w.fresh("edge")
        w.emit(Let(name, OfTwo(function, a, b), extent))
        w.frame.extents[name] = extent
        return axis(name)
