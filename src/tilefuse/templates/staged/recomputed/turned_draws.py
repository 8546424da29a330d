"""Random masks of turned scores: a call of the generator gives the numbers of four neighbouring rows of one column.

    rows      4 a .. 4 a + 3, and 8 further on: those of four lanes, which have the same columns
    columns   8 g + 2 l and 8 g + 2 l + 1
    pairs     0, 1: both columns of the first rows        2, 3: both columns of the second rows

Of the four lanes, lane n draws the numbers of pair n for all of them. Outcomes of eight groups of columns are a word; the lanes exchange
their words by three shuffles, and each keeps those of its own row: one word a pair, bit 4 g of it for the group g.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.ir.affine import Affine, number
from tilefuse.ir.dtype import U32
from tilefuse.ir.ops import RANDOM_NUMBERS_A_CALL
from tilefuse.ir.scalar import Call, Index, const
from tilefuse.kernel.ir import Assign, Comment, Declare, KExpr, Reg, Shuffle
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.online.fragments import Fragment
from tilefuse.templates.staged.online.products import ROW, WALK
from tilefuse.templates.staged.online.state import OnlineState
from tilefuse.templates.staged.walked.draws import GROUPS_A_WORD, Draw, at_place, outcomes_of, u32_of

# Lanes with the same columns whose rows are neighbours, their distance, and rows of a thread.
LANES_APART, ROWS = MMA_COLUMNS // NEIGHBOURS, RANDOM_NUMBERS_A_CALL // NEIGHBOURS


@dataclass(frozen=True)
class TurnedBits:
    """Outcomes of a turn's comparisons: `words` words for each pair of a row and a column of a group. lane: of the thread in its warp."""

    w: OnlineState
    here: Fragment
    lane: Affine
    draw_of: Draw
    bits: Reg

    @property
    def words(self) -> int:
        """Words of a pair."""
        return -(-self.here.groups // GROUPS_A_WORD)

    def declare(self) -> None:
        """Declares the words of all pairs."""
        self.w.emit(Declare(self.bits.name, U32, RANDOM_NUMBERS_A_CALL * self.words))

    def draw(self, start: Affine) -> None:
        """Draws the numbers of a turn. start: its first column. Requires: `declare` came before."""
        w, here, draw = self.w, self.here, self.draw_of
        mine = self.lane // LANES_APART % RANDOM_NUMBERS_A_CALL
        words = [Reg(w.fresh(f"drawn{n}"), U32) for n in range(RANDOM_NUMBERS_A_CALL)]
        w.emit(Comment("random numbers of this turn, of one row and column of four lanes for each of them"))
        w.emit(*(Declare(r.name, U32) for r in words))
        for n in range(self.words):
            first, end = n * GROUPS_A_WORD, min((n + 1) * GROUPS_A_WORD, here.groups)
            w.emit(Assign(words[0], const(0, U32)))
            with w.loop("g", end, start=first, unroll=w.unroll) as g:
                row = w.first_row + here.row(mine // NEIGHBOURS) - mine
                column = start + here.column(g, mine % NEIGHBOURS)
                with w.nested() as inner, w.at(**{ROW: w.simplified(row), WALK: w.simplified(column)}):
                    outcomes = outcomes_of(w, draw, w.element(draw.seed), w.index(draw.counter))
                    place: KExpr = Call("shift_left", (outcomes, u32_of(w.simplified(RANDOM_NUMBERS_A_CALL * (g - first)))))
                    w.emit(Assign(words[0], Call("bit_or", (words[0], place))))
                w.emit(*inner.statements)
            w.emit(*(Shuffle(words[n], words[0], "xor", n * LANES_APART) for n in range(1, RANDOM_NUMBERS_A_CALL)))
            for pair, word in enumerate(self._of_pairs(words, mine)):
                w.emit(Assign(at_place(self.bits, number(pair * self.words + n)), Call("shift_right", (word, u32_of(mine)))))

    def _of_pairs(self, words: list[Reg], mine: Affine) -> list[KExpr]:
        """The words in the order of pairs: word n is that of pair n ^ `mine`."""
        ordered: list[KExpr] = list(words)
        for bit in (1, 2):
            changes: KExpr = Call("eq", (Index(mine // bit % 2), Index(number(1))))
            named = [Reg(self.w.fresh("drawn_here"), U32) for _ in ordered]
            self.w.emit(*(Declare(r.name, U32, None, Call("select", (changes, ordered[n ^ bit], ordered[n]))) for n, r in enumerate(named)))
            ordered = list(named)
        return ordered

    def know(self, i: Affine, g: Affine, v: Affine) -> None:
        """Makes the comparison of a thread's row and column known."""
        bit: KExpr = Call("shift_left", (const(1, U32), u32_of(RANDOM_NUMBERS_A_CALL * (g % GROUPS_A_WORD))))
        word = at_place(self.bits, (i * NEIGHBOURS + v) * self.words + g // GROUPS_A_WORD)
        self.w.remember(self.draw_of.condition, Call("ne", (Call("bit_and", (word, bit)), const(0, U32))))
