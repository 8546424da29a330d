"""The turns of a tile of rows as statements of the kernel: where masks bound the columns of each row, all threads compute the same bounds,
also those that memory holds.

    rows 64 .. 127 of a window of 100 columns, 32 columns a turn:    columns -35 .. 127    turns 0 .. 3, none of them whole

Where memory has an end for every 64 rows, a tile of 128 ends at the greater one of its two, and is whole up to the lesser one.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from tilefuse.ir.affine import Affine, axis, bounds, number
from tilefuse.ir.dtype import I64
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import FromMemory, KExpr, Let, OfTwo
from tilefuse.templates.staged.online.products import ROW
from tilefuse.templates.staged.walked.conditions import Edge
from tilefuse.templates.staged.walked.limit import latest
from tilefuse.templates.staged.walked.rings import RingState
from tilefuse.templates.staged.walked.split.parts import parts_are_filled


@dataclass(frozen=True)
class TileTurns:
    """Turns of a tile from its last one backwards, as index expressions.

        first                        last
        | cut | whole | whole | cut | cut |        cut = 2, whole = 4, count = 5

    cut      those from the last one on that a mask cuts, and the last one itself
    whole    these and those behind them that it cuts nothing of
    count    all that are computed
    gap      number of those that are left out, behind the whole ones
    gap_end  the first turn behind these
    """

    first: Affine
    last: Affine
    cut: Affine
    whole: Affine
    count: Affine
    gap: Affine = Affine()
    gap_end: Affine = Affine()


def emit_turns(w: RingState, first_row: Affine) -> TileTurns:
    """Names the turns of the tile that begins with a row. The arithmetic is that of `limit.turns_of`."""
    w.edges_in_memory = {}
    plan, limit, columns = w.walk, w.walk.of.limit, w.walk.tiling.columns
    most = plan.most_turns
    if limit is None or most == 1:
        return TileTurns(number(0), number(most - 1), number(1), number(most), number(most))
    length, last_row = plan.length, first_row + plan.rows_of_tile - 1
    last = plan.row_tiles * plan.rows_of_tile - 1
    bounds_, inner = limit.bounds, limit.whole
    gap_ends, gap_starts = bounds_.gaps[0] if bounds_.gaps else ((), ())
    of = _Edges(w, length, last, latest((*inner.starts, *gap_starts), last, length), latest((*inner.ends, *gap_ends), last, length),
                w.edges_in_memory)
    first = number(0)
    if bounds_.starts:
        first = of.two("least", of.start(bounds_.starts, first_row, "least") // columns, number(most - 1), most)
    end = (of.end(bounds_.ends, last_row, "greatest") + columns - 1) // columns if bounds_.ends else number(most)
    end = of.two("greatest", end, first + 1, most + 1)
    whole_end = (of.end(inner.ends, first_row, "least") if inner.ends else number(length)) // columns
    whole_end = of.two("least", whole_end, end - 1, most + 1)
    whole_first = number(0)
    if inner.starts:
        whole_end = of.two("greatest", whole_end, first, most + 1)
        whole_first = (of.start(inner.starts, last_row, "greatest") + columns - 1) // columns
        whole_first = of.two("least", whole_first, whole_end, most + 1)
    gap = gap_end = number(0)
    if bounds_.gaps:
        begin = of.two("greatest", (of.end(gap_ends, last_row, "greatest") + columns - 1) // columns, first, most + 1)
        gap_end = of.two("least", of.start(gap_starts, first_row, "least") // columns, whole_first, most + 1)
        gap = w.let("gap", of.two("greatest", gap_end - begin, number(0), most + 1), most + 1)
    cut, whole, count = (w.let(name, end - e, most + 1) for name, e in (("cut", whole_end), ("whole", whole_first), ("count", first + gap)))
    return TileTurns(first, w.let("last", end - 1, most), cut, whole, count, gap, gap_end)


def turn_number(w: RingState, turns: TileTurns, n: Affine) -> Affine:
    """The n-th turn that is computed, from the last one on.

        turns 9 8 7 | gap 6 5 4 3 | 2 1 0        n = 4        turn 1, where 5 would be without the gap
    """
    turn = turns.last - n
    if turns.gap == number(0):
        return turn
    most = w.walk.most_turns
    is_before = lesser(w, greater(w, turns.gap_end - turn, number(0), most + 1), number(1), 2)
    return turn - _named(w, "left_out", OfTwo("product", is_before, turns.gap), most + 1)


@dataclass(frozen=True)
class PartRange:
    """The turns of a part among those of its tile, numbered from the last one on: `count` of them from number `first` on.

        11 turns in 3 parts: n = 0 .. 3 | 4 .. 7 | 8 .. 10
    """

    first: Affine
    count: Affine


def range_of_part(w: RingState, turns: TileTurns, part: Affine) -> PartRange:
    """The range of one part of a tile. A part has none where the tile has fewer turns than parts."""
    parts, most = w.walk.parts, w.walk.most_turns
    if parts == 1:
        return PartRange(number(0), turns.count)
    each = w.let("each", (turns.count + parts - 1) // parts, -(-most // parts) + 1)
    if turns.count.is_const and parts_are_filled(turns.count.const, parts):
        first = part * each.const
        count = each if turns.count.const % each.const == 0 else lesser(w, each, turns.count - first, each.const + 1)
        return PartRange(first, count)
    before = part * each.const if each.is_const else _named(w, "parts_before", OfTwo("product", part, each), (most + parts) * parts)
    first = lesser(w, before, turns.count, most + 1)
    return PartRange(first, lesser(w, each, turns.count - first, -(-most // parts) + 1))


def turns_of_part(w: RingState, turns: TileTurns, part: PartRange) -> TileTurns:
    """The turns of a part that has some, numbered from its own last one on."""
    if w.walk.parts == 1:
        return turns
    most, count = w.walk.most_turns, part.count
    last = w.let("last", turns.last - part.first, most)
    first = last - count + 1
    if w.walk.of.limit is None:
        return TileTurns(first, last, number(1), count, count)
    cut, whole = (lesser(w, greater(w, e - part.first, number(1), most + 1), count, most + 1) for e in (turns.cut, turns.whole))
    return TileTurns(first, last, cut, whole, count, turns.gap, turns.gap_end)


def lesser(w: RingState, a: Affine, b: Affine, extent: int) -> Affine:
    """The lesser of two index expressions, as of `_of_two`."""
    return _of_two(w, "least", a, b, extent)


def greater(w: RingState, a: Affine, b: Affine, extent: int) -> Affine:
    """The greater of two index expressions, as of `_of_two`."""
    return _of_two(w, "greatest", a, b, extent)


def _of_two(w: RingState, function: str, a: Affine, b: Affine, extent: int) -> Affine:
    """The name of the lesser or greater one; that one itself where extents decide. extent: names lie below it."""
    a, b = w.simplified(a), w.simplified(b)
    span = bounds(a - b, w.extents)
    if span is not None and (span[0] >= 0 or span[1] <= 0):
        return a if (span[0] >= 0) == (function == "greatest") else b
    return _named(w, "edge", OfTwo(function, a, b), extent)


def _named(w: RingState, stem: str, value: OfTwo, extent: int) -> Affine:
    name = w.fresh(stem)
    w.emit(Let(name, value, extent))
    w.frame.extents[name] = extent
    return axis(name)


@dataclass(frozen=True)
class _Edges:
    """Writer of edges. latest_row: the last row of all tiles; latest_start, latest_end: the greatest edge of any row; by_edge: numbers of
    memory so far, those of each block of rows that a tile has rows of.

    of_rows: whether the least or the greatest edge of a tile's blocks of rows is asked for
    """

    w: RingState
    length: int
    latest_row: int
    latest_start: int
    latest_end: int
    by_edge: dict[Edge, tuple[Affine, ...]]

    def end(self, groups: tuple[tuple[Edge, ...], ...], row: Affine, of_rows: str) -> Affine:
        """The first column behind those of a row, at most the length."""
        highest = [reduce(lambda a, b: self.two("greatest", a, b, self.latest_end + 1), self._edges(g, row, of_rows)) for g in groups]
        return reduce(lambda a, b: self.two("least", a, b, max(self.latest_end, self.length) + 1), (*highest, number(self.length)))

    def start(self, groups: tuple[tuple[Edge, ...], ...], row: Affine, of_rows: str) -> Affine:
        """The first column of a row."""
        lowest = [reduce(lambda a, b: self.two("least", a, b, self.latest_start + 1), self._edges(g, row, of_rows)) for g in groups]
        return reduce(lambda a, b: self.two("greatest", a, b, self.latest_start + 1), lowest)

    def _edges(self, group: tuple[Edge, ...], row: Affine, of_rows: str) -> list[Affine]:
        extent = max(self.latest_start, self.latest_end) + 1
        edges: list[Affine] = []
        for e in group:
            own = (number(e.beyond),) if e.data is None else self._from_memory(e)
            of_blocks = (self.two("greatest", row * e.slope + x, number(0), extent) for x in own)
            edges.append(reduce(lambda a, b: self.two(of_rows, a, b, extent), of_blocks))
        return edges

    def _from_memory(self, e: Edge) -> tuple[Affine, ...]:
        """`beyond` and the integers of memory, cut off where columns end before the first one in all rows, or are all there in the
        first."""
        if e not in self.by_edge:
            assert e.data is not None
            w, rows, names = self.w, e.slope * self.latest_row, list[Affine]()
            for row in self._rows_of_blocks(e.rows):
                with w.at(**{ROW: row}):
                    value: KExpr = Call("i64", (w.element(e.data, guarded=True),))
                value = Call("minimum", (Call("maximum", (value, const(-rows - e.beyond, I64))), const(self.length - e.beyond, I64)))
                value = Call("i32", (Call("add", (value, const(rows + e.beyond, I64))),))
                name, extent = w.fresh("end"), self.length + rows + 1
                w.emit(Let(name, FromMemory(value), extent))
                w.frame.extents[name] = extent
                names.append(axis(name) - rows)
            self.by_edge[e] = tuple(names)
        return self.by_edge[e]

    def _rows_of_blocks(self, extent: int) -> list[Affine]:
        """A row of each block of `extent` rows that the tile at hand has rows of; its first row where all rows are one block."""
        w, rows, num_rows = self.w, self.w.walk.rows_of_tile, self.w.walk.of.online.num_rows
        within = not extent or extent % rows == 0
        places = [0] if within else [*range(0, rows, extent), *(() if rows % extent == 0 else (rows - 1,))]
        return [lesser(w, w.first_row + place, number(num_rows - 1), num_rows) for place in places]

    def two(self, function: str, a: Affine, b: Affine, extent: int) -> Affine:
        """The name of the lesser or greater one; that one itself where extents decide. extent: names lie below it."""
        return _of_two(self.w, function, a, b, extent)
