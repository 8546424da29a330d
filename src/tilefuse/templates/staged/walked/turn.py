"""One turn of a pipelined walk: what threads do with scores while the products of the turn before are in flight.

    scores arrive | maximum, powers in the scores' registers | products before end | rescale | powers rounded to a left operand
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Call, Read
from tilefuse.kernel.ir import Assign, Comment, Declare, IfValue, KExpr, Reg, VectorLoad
from tilefuse.kernel.pipeline import Consume
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.online.fragments import Fragment
from tilefuse.templates.staged.online.lazy import LazyTop
from tilefuse.templates.staged.online.total import Total
from tilefuse.templates.staged.online.turn import Turn
from tilefuse.templates.staged.pipelined.plan import OperandTile
from tilefuse.templates.staged.walked.draws import DrawnBits
from tilefuse.templates.staged.walked.own_rows import Chunks, Known, with_known
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

    def of_scores(self, scores: Reg, slots: Mapping[str, str], drawn: DrawnBits) -> None:
        """Maxima, sums and powers of this turn, the powers in the place of the scores. drawn: its random numbers."""
        self.sums, self.slots, self.drawn = [scores], slots, drawn
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
        bare, masked_body = limit.bare, limit.masked

        def emit(first: int, end: int, known: Known) -> None:
            body = bare if known is None else with_known(masked_body, known)
            with self.each_column(*(n // MMA_COLUMNS * self.here.vector for n in (first, end))) as j:
                self.elements_of_column(replace(t, body=body), elements, j)

        Chunks(w, self.start, w.walk.choice.columns, masked_body, emit).write()
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

    def draws_known(self, i: Affine, j: Affine) -> None:
        """As of `Turn`."""
        self.drawn.know(i, j)

    def inputs_known(self, i: Affine, j: Affine) -> None:
        """Makes the biases of a score known."""
        for read, pair in self.pairs.items():
            self.w.remember(read, Reg(pair.name, pair.dtype, i * self.here.vector + j % self.here.vector))


def round_powers(w: WalkState, scores: Reg, powers: Reg, size: int) -> None:
    """Powers of a turn as the left operand of the weighted product, two at a time."""
    w.emit(Comment("powers of this turn as a left operand"))
    with w.loop("n", size // NEIGHBOURS, unroll=w.unroll) as n:
        for v in range(NEIGHBOURS):
            at = n * NEIGHBOURS + v
            w.emit(Assign(Reg(powers.name, powers.dtype, at), Call(powers.dtype.name, (Reg(scores.name, scores.dtype, at),))))
