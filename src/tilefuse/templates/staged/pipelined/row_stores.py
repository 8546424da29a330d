"""Results whose rows begin anywhere in memory: each warp stores the 16 rows of a stage that it has written, row after row.

    stage     16 rows x 64 columns of a warp, in shared memory
    memory    row 0   |  word  |  word  | ..   32 lanes store the words of a row, which lie together
              row 1     1|  word  |  word  | .. 1   a row of an odd number of elements begins inside a word: head and tail are single

Rows that begin at the same place of a word are a phase of the loop, so that every access is known to be aligned.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilefuse.domain.access import is_vector
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Assign, Comment, Declare, If, Load, Reg, Store, VectorLoad, VectorStore
from tilefuse.kernel.pipeline import WARPGROUP
from tilefuse.target.capabilities import MMA_ROWS, REGISTER_BYTES, WARP
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.staged.pipelined.stages import STAGE_COLUMNS, StagedTile
from tilefuse.templates.staged.pipelined.state import ProductState


@dataclass(frozen=True)
class WarpRows:
    """The rows of a stage that a warp has written. first_row, first_column: of the results; start: their first element in the stages."""

    tile: StagedTile
    first_row: Affine
    first_column: Affine
    start: Affine

    def offset(self, w: ProductState, row: Affine, column: Affine) -> Affine:
        """Offset in memory of the result's element at a row and a column of these. Units: elements."""
        with w.at(**w.place(self.first_row + row, self.first_column + column)):
            return w.result_offset(self.tile.name)

    def element(self, w: ProductState, row: Affine, column: Affine) -> Affine:
        """The same in the stages."""
        return w.simplified(self.start + row * self.tile.pitch + column)


def store_rows(w: ProductState, tile: StagedTile, first_row: Affine, first_column: Affine, start: Affine) -> None:
    """Each warp stores its rows of a stage, which its lanes have written and met since. first_row, first_column: of the stage."""
    warp = axis("thread") % WARPGROUP // WARP * MMA_ROWS
    rows = WarpRows(tile, w.simplified(first_row + warp), first_column, w.simplified(start + warp * tile.pitch))
    w.emit(Comment(f"%{tile.name}: rows of each warp"))
    inside = (*w.beyond_rows(rows.first_row + (MMA_ROWS - 1)), *w.beyond(first_column + (STAGE_COLUMNS - 1), w.form.columns))
    with w.nested() as whole:
        _store_rows_of_step(w, rows)
    if not inside:
        w.emit(*whole.statements)
        return
    with w.nested() as cut:
        _store_elements(w, rows)
    w.emit(If(inside, tuple(whole.statements), tuple(cut.statements)))


def _store_rows_of_step(w: ProductState, rows: WarpRows) -> None:
    """All rows and columns. Where tiles take every n-th row, their first row tells where in a word all of them begin: a branch for each
    place."""
    phases = REGISTER_BYTES // rows.tile.dtype.itemsize
    first, step = w.first_of_step, w.form.row_step
    if step % phases or phases == 1 or word_of(w, rows)[0] > 1:
        _store_words(w, rows)
        return
    of_phase = w.let("first_pair", first // phases, step // phases)
    for phase in range(phases):
        w.first_of_step = of_phase * phases + phase
        with w.nested() as stored:
            _store_words(w, rows)
        w.first_of_step = first
        w.emit(If((Bound(first - of_phase * phases, phase, phase + 1),), tuple(stored.statements)))


def _store_elements(w: ProductState, rows: WarpRows) -> None:
    """One by one, those that exist: neighbouring lanes store neighbours of a row."""
    name, dtype = rows.tile.name, rows.tile.dtype
    with w.loop("row", MMA_ROWS) as row, w.loop("n", STAGE_COLUMNS // WARP, unroll=w.unroll) as n:
        column = n * WARP + axis("thread") % WARP
        with w.when([*w.beyond_rows(rows.first_row + row), *w.beyond(rows.first_column + column, w.form.columns)]):
            w.emit(Store(w.buffers[name].name, rows.offset(w, row, column),
                         Load(w.stages[name].name, dtype, rows.element(w, row, column))))


def _store_words(w: ProductState, rows: WarpRows) -> None:
    """All rows and columns: whole words, and single elements before and behind them."""
    each, shifts = word_of(w, rows)
    words = STAGE_COLUMNS // each
    at_once = max(WARP // words, 1)
    for phase, shift in enumerate(shifts):
        with w.loop("turn", MMA_ROWS // len(shifts) // at_once, unroll=w.unroll) as turn:
            for first in range(0, words, WARP):
                lane = axis("thread") % WARP
                word = lane % words if at_once > 1 else lane + first
                row = w.simplified((turn * at_once + (lane // words if at_once > 1 else number(0))) * len(shifts) + phase)
                _store_word(w, rows, row, word, words, each, shift)


def _store_word(w: ProductState, rows: WarpRows, row: Affine, word: Affine, words: int, each: int, shift: int) -> None:
    """A word of a row, the first of which lies `shift` elements behind the row's first one. The lane of the last word stores these elements
    and those behind the words, one by one."""
    name, dtype = rows.tile.name, rows.tile.dtype
    array, stage, memory = w.fresh(f"{name}_word"), w.stages[name].name, w.buffers[name].name
    column = w.simplified(word * each + shift)
    w.emit(Declare(array, dtype, each))
    if not shift:
        w.emit(VectorLoad(array, number(0), stage, rows.element(w, row, column), each),
               VectorStore(memory, rows.offset(w, row, column), array, number(0), each))
        return
    # The last word would reach beyond the columns: its elements are those behind the others, and the first ones of the row.
    wrapped = [w.simplified((column + n) % STAGE_COLUMNS) for n in range(each)]
    w.emit(*(Assign(Reg(array, dtype, number(n)), Load(stage, dtype, rows.element(w, row, c))) for n, c in enumerate(wrapped)))
    single = (Store(memory, rows.offset(w, row, c), Reg(array, dtype, number(n))) for n, c in enumerate(wrapped))
    w.emit(If((Bound(word, 0, words - 1),), (VectorStore(memory, rows.offset(w, row, column), array, number(0), each),), tuple(single)))


def word_of(w: ProductState, rows: WarpRows) -> tuple[int, tuple[int, ...]]:
    """Elements of a store, and how many elements of a row lie before its first one, for each row of a period.

    The widest store that all rows begin with; else registers, with as many phases as these have elements; else single elements.
    """
    itemsize = rows.tile.dtype.itemsize
    for each in _widths(ACCESS_BYTES // itemsize):
        if _shift(w, rows, each, 1, 0) == 0:
            return each, (0,)
        if each * itemsize <= REGISTER_BYTES:
            shifts = [_shift(w, rows, each, each, phase) for phase in range(each)]
            if None not in shifts:
                return each, tuple(s for s in shifts if s is not None)
    return 1, (0,)


def _widths(most: int) -> Iterator[int]:
    while most > 1:
        yield most
        most //= 2


def _shift(w: ProductState, rows: WarpRows, each: int, period: int, phase: int) -> int | None:
    """Elements before the first whole store of the rows number `phase`, `phase` + `period` and so on; None where these differ, or where
    nothing is known of their places."""
    turn, word, lane = (w.fresh(name) for name in ("turn", "word", "v"))
    for shift in range(each):
        with w.nested() as tried:
            tried.extents |= {turn: MMA_ROWS // period, word: STAGE_COLUMNS // each, lane: each}
            offset = rows.offset(w, axis(turn) * period + phase, axis(word) * each + (axis(lane) + shift))
        if is_vector(offset, lane, each):
            return shift
    return None
