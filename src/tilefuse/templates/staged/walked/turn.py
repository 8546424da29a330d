"""One turn of a pipelined walk: what threads do with scores while the products of the turn before are in flight.

    scores arrive | maximum, powers in the scores' registers | products before end | rescale | powers rounded to a left operand
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import BOOL, F32
from tilefuse.ir.scalar import Bound, Call, Expr, Read, walk
from tilefuse.kernel.ir import Assign, Comment, Declare, If, IfValue, KExpr, Reg, VectorLoad
from tilefuse.kernel.pipeline import WARPGROUP, WARPGROUP_ROWS, Consume
from tilefuse.kernel.visit import statements
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.online.fragments import Fragment
from tilefuse.templates.staged.online.lazy import LazyTop
from tilefuse.templates.staged.online.products import ROW, WALK
from tilefuse.templates.staged.online.total import Total
from tilefuse.templates.staged.online.turn import Turn
from tilefuse.templates.staged.pipelined.plan import OperandTile
from tilefuse.templates.staged.walked.own_rows import CHUNK, decided, own_columns_are_whole, parts_of_blocks
from tilefuse.templates.staged.walked.state import WalkState
from tilefuse.templates.staged.walked.turn_range import lesser


class DeferredTop(LazyTop):
    """A lazily followed maximum whose factors wait for the products in flight before they rescale these."""

    def __init__(self, w: WalkState, t: Total, rows: int) -> None:
        super().__init__(w, t, rows)
        self.factor = Reg("", F32)

    def of(self, t: Total) -> DeferredTop:
        """The same maximum with its elements in another form, as without a mask."""
        other = object.__new__(DeferredTop)
        other.__dict__.update(self.__dict__)
        other.take(t)
        return other

    def grow(self, new: Reg, products: list[Fragment]) -> None:
        """As of `LazyTop`; factors of the products are kept until `rescale`."""
        self.factor = Reg(self.w.fresh(f"{self.total.value}_factor"), F32)
        self.w.emit(Declare(self.factor.name, F32, self.rows))
        super().grow(new, products)

    def rescale_products(self, i: Affine, factor: KExpr, products: list[Fragment]) -> None:
        """Keeps a row's factor."""
        self.w.emit(Assign(self._row(self.factor, i), factor))

    def rescale(self, products: list[Fragment]) -> None:
        """Multiplies what products have summed up by the factors of this turn."""
        w = self.w
        with w.nested() as inner, w.loop("i", self.rows, unroll=w.unroll) as i:
            super().rescale_products(i, self._row(self.factor, i), products)
        w.emit(IfValue(self.grown, tuple(inner.statements)))


class PipelinedTurn(Turn):
    """One tile of the walked axis, whose scores a warpgroup product has computed into `scores`. slots: of the rings of biases, by key."""

    w: WalkState

    def of_scores(self, scores: Reg, slots: Mapping[str, str]) -> None:
        """Maxima, sums and powers of this turn, the powers in the place of the scores."""
        self.sums, self.slots = [scores], slots
        self.pairs: dict[Read, Reg] = {}
        self.reduce()

    def row_at(self, i: Affine) -> Affine:
        """As of `Turn`; where memory bounds rows, the last row in place of those beyond the end, so that no element asks for its row."""
        row, limit, num_rows = super().row_at(i), self.w.walk.form.limit, self.w.walk.form.online.num_rows
        if limit is None or not limit.is_of_blocks:
            return row
        return lesser(self.w, row, number(num_rows - 1), num_rows)

    def elements_ahead(self, t: Total, elements: Reg) -> bool:
        """Elements with the mask only in the columns that it cuts for the rows of the thread's warpgroup, where memory bounds these."""
        w, limit = self.w, self.w.walk.form.limit
        masked = limit is not None and limit.is_of_blocks and bool(w.edges_in_memory) and t.body == limit.masked
        if not masked:
            return False
        assert limit is not None
        # Chunks begin at multiples of their columns, so that each lies in one block.
        step = gcd(CHUNK, w.walk.choice.columns) // MMA_COLUMNS * self.here.vector
        for first in range(0, self._columns, step):
            last = min(first + step, self._columns)
            before, columns = (n // self.here.vector * MMA_COLUMNS for n in (first, last - first))
            with w.nested() as inner:
                chunk = _Chunk(self, elements, first, last, w.simplified(self.start + before))
                chunk.either(own_columns_are_whole(w, chunk.column, columns), "is_whole", (replace(t, body=limit.bare), ()),
                             (t, tuple(parts_of_blocks(t.body))))
            row = Bound(chunk.row, 0, w.walk.form.online.num_rows)
            w.emit(*(inner.statements if w.always(row) else [If((row,), tuple(inner.statements))]))
        return True

    def power_array(self, number_: int) -> Reg:
        """The scores' registers: each element is read before its power takes its place."""
        return self.sums[0]

    @contextlib.contextmanager
    def inputs_at_hand(self) -> Iterator[None]:
        """Inside, this turn's tiles of the biases are full; then they are given back."""
        w = self.w
        with w.nested() as inner:
            inner.extents.update({self.slots[t.key]: w.walk.slots(t) for t in self._tiles})
            yield
        consumed = tuple(inner.statements)
        for tile in self._tiles:
            consumed = (Consume(tile.key, self.slots[tile.key], consumed),)
        w.emit(*consumed)

    @property
    def _tiles(self) -> list[OperandTile]:
        """Tiles of the biases that this turn brings."""
        return [tile for _, tile in self.w.biases.values() if tile.key in self.slots]

    @contextlib.contextmanager
    def each_column(self, first: int = 0, last: int = 0) -> Iterator[Affine]:
        """A loop over the thread's columns; those of a group with their biases, which are neighbours in shared memory."""
        w, here = self.w, self.here
        if not self.slots:
            with super().each_column(first, last) as j:
                yield j
            return
        with w.loop("g", last // here.vector or here.groups, start=first // here.vector, unroll=w.unroll) as g:
            for read, (_, tile) in w.biases.items():
                if tile in self._tiles:
                    self.pairs[read] = self._pair(tile, g)
            with w.loop("v", here.vector, unroll=w.unroll) as v:
                yield g * here.vector + v
        self.pairs = {}

    def _pair(self, tile: OperandTile, g: Affine) -> Reg:
        """Registers with the neighbours of a group of columns, for each row of the thread."""
        w, here = self.w, self.here
        pair = Reg(w.fresh(f"{tile.operand.value}_pair"), tile.operand.dtype)
        w.emit(Declare(pair.name, pair.dtype, here.rows * here.vector))
        column = here.column(g, number(0))
        for i in range(here.rows):
            place = column // tile.width * (tile.panel_lines * tile.width) + here.row(number(i)) * tile.width + column % tile.width
            at = w.simplified(axis(self.slots[tile.key]) * tile.elements + place)
            w.emit(VectorLoad(pair.name, number(i * here.vector), w.slots[tile.key].name, at, here.vector))
        return pair

    def inputs_known(self, i: Affine, j: Affine) -> None:
        """Makes the biases of a score known."""
        for read, pair in self.pairs.items():
            self.w.remember(read, Reg(pair.name, pair.dtype, i * self.here.vector + j % self.here.vector))


# Elements of a maximum, and conditions in them that are the same for a whole chunk.
Parted = tuple[Total, tuple[Expr, ...]]


class _Chunk:
    """Neighbouring columns of a turn, from the thread's column `first` to before `last`; column: the first one along the walked axis; row:
    the warpgroup's first."""

    def __init__(self, turn: PipelinedTurn, elements: Reg, first: int, last: int, column: Affine) -> None:
        self.turn, self.elements, self.first, self.last, self.column = turn, elements, first, last, column
        w = turn.w
        group = axis("thread") // WARPGROUP * WARPGROUP_ROWS if w.walk.choice.warpgroups > 1 else number(0)
        self.row = w.simplified(w.first_row + group)

    def either(self, condition: KExpr, stem: str, where_true: Parted, where_false: Parted) -> None:
        """The elements of the chunk in one of two forms. condition: the same in all threads of a warpgroup."""
        w = self.turn.w
        known = Reg(w.fresh(stem), BOOL)
        w.emit(Declare(known.name, BOOL, None, condition))
        opposite: KExpr = Call("logical_not", (known,))
        for when, of in ((known, where_true), (opposite, where_false)):
            with w.nested() as inner:
                self._elements(*of)
            if any(isinstance(s, Assign) for s in statements(tuple(inner.statements))):
                w.emit(IfValue(when, tuple(inner.statements)))

    def _elements(self, t: Total, parts: tuple[Expr, ...]) -> None:
        """All elements; conditions that are the same for all of them are asked for first, one after another."""
        turn, w = self.turn, self.turn.w
        left = [p for p in parts if p in walk(t.body)]
        if left:
            with w.at(**{ROW: self.row, WALK: self.column}):
                condition = w.element(left[0], guarded=True)
            sides = (replace(t, body=decided(t.body, left[0], value)) for value in (True, False))
            self.either(condition, "of_block", *((side, tuple(left[1:])) for side in sides))
            return
        with turn.each_column(self.first, self.last) as j:
            turn.elements_of_column(t, self.elements, j)


def round_powers(w: WalkState, scores: Reg, powers: Reg, size: int) -> None:
    """Powers of a turn as the left operand of the weighted product, two at a time."""
    w.emit(Comment("powers of this turn as a left operand"))
    with w.loop("n", size // NEIGHBOURS, unroll=w.unroll) as n:
        for v in range(NEIGHBOURS):
            at = n * NEIGHBOURS + v
            w.emit(Assign(Reg(powers.name, powers.dtype, at), Call(powers.dtype.name, (Reg(scores.name, scores.dtype, at),))))
