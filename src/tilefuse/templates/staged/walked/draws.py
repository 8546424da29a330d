"""Random masks of powers, as dropout has them: bits of a turn, drawn while the products of the turn are in flight.

    select(random_bits(seed, length * row + column) < limit, power, 0)

A call of the generator gives four numbers, of four neighbours in a row. Two lanes share these columns, and each has two rows: one lane
draws for the first row, the other one for the second, and they exchange the outcomes of 32 comparisons by a shuffle.

    columns   0 1   2 3   4 5   6 7
    lane       0     1     2     3
    row 0     draws . . |  draws . .
    row 1     . . draws |  . . draws

Where scores are turned, as in the kernel of the keys' gradients, the neighbours are four rows of one column (`recomputed/turned_draws.py`).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilefuse.ir.affine import Affine, number, substitute
from tilefuse.ir.dtype import U32
from tilefuse.ir.ops import RANDOM_NUMBERS_A_CALL
from tilefuse.ir.scalar import Call, Const, Expr, Index, const, walk
from tilefuse.kernel.ir import Assign, Comment, Declare, KExpr, Reg, Shuffle
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.online.fragments import Fragment
from tilefuse.templates.staged.online.products import ROW, WALK, OnlineForm
from tilefuse.templates.staged.online.state import OnlineState
from tilefuse.templates.staged.walked.conditions import ORDERED

# Lanes whose columns are of one call, and groups of columns whose outcomes one word holds.
SHARING, GROUPS_A_WORD = RANDOM_NUMBERS_A_CALL // NEIGHBOURS, U32.bits // RANDOM_NUMBERS_A_CALL


@dataclass(frozen=True)
class Draw:
    """A comparison of a random number with a constant.

    counter  of the number; along the axis `along` they follow each other from a multiple of 4 on
    """

    condition: Call[Expr]
    seed: Expr
    counter: Affine
    limit: Const
    along: str = WALK


def draws_of(form: OnlineForm, axes: Sequence[str] = (WALK,)) -> tuple[Draw, ...]:
    """The comparisons in the elements of sums and products whose numbers lanes may draw for each other. axes: those along which numbers may
    follow each other."""
    bodies = dict.fromkeys(t.body for t in (*form.totals, *(w.total for w in form.weighted)))
    draws = (_draw(e, form, along) for body in bodies for e in walk(body) for along in axes)
    return tuple(dict.fromkeys(d for d in draws if d is not None))


def _draw(e: Expr, form: OnlineForm, along: str) -> Draw | None:
    match e:
        case Call(fn, (Call("random_bits", (seed, Index(counter))), Const() as limit)) if fn in ORDERED:
            extents = {ROW: form.num_rows, WALK: form.length}
            start = substitute(counter, {along: number(0)}, extents)
            is_next = counter - start == Affine(((along, 1),))
            if is_next and start.const % RANDOM_NUMBERS_A_CALL == 0 and all(c % RANDOM_NUMBERS_A_CALL == 0 for _, c in start.terms):
                return Draw(e, seed, counter, limit, along)
    return None


@dataclass(frozen=True)
class DrawnBits:
    """Outcomes of a turn's comparisons: for each row of the thread, `words` words with bits 4 g + v of the groups' columns."""

    w: OnlineState
    here: Fragment
    bits_by_draw: Mapping[Draw, Reg]

    @property
    def words(self) -> int:
        """Words of a row."""
        return -(-self.here.groups // GROUPS_A_WORD)

    def draw(self, start: Affine) -> None:
        """Draws the numbers of a turn. start: its first column. Requires: `declare` came before."""
        w, here = self.w, self.here
        odd = here.lane % SHARING
        for draw, bits in self.bits_by_draw.items():
            own, other = (Reg(w.fresh(name), U32) for name in ("drawn", "of_neighbour"))
            w.emit(Comment("random numbers of this turn, of one row for each lane"), Declare(own.name, U32, self.words))
            with w.loop("n", self.words, unroll=w.unroll) as n:
                w.emit(Assign(at_place(own, n), const(0, U32)))
            with w.loop("g", here.groups, unroll=w.unroll) as g:
                row, column = w.first_row + here.row(odd), start + MMA_COLUMNS * g + RANDOM_NUMBERS_A_CALL * (here.lane // SHARING)
                with w.nested() as inner, w.at(**{ROW: w.simplified(row), WALK: w.simplified(column)}):
                    seed, counter = w.element(draw.seed), w.index(draw.counter)
                    outcomes = outcomes_of(w, draw, seed, counter)
                    place: KExpr = Call("shift_left", (outcomes, u32_of(RANDOM_NUMBERS_A_CALL * (g % GROUPS_A_WORD))))
                    word = at_place(own, g // GROUPS_A_WORD)
                    w.emit(Assign(word, Call("bit_or", (word, place))))
                w.emit(*inner.statements)
            w.emit(Declare(other.name, U32))
            with w.loop("n", self.words, unroll=w.unroll) as n:
                w.emit(Shuffle(other, at_place(own, n), "xor", 1))
                for i in range(here.rows):
                    mine: KExpr = Call("eq", (Index(odd), Index(number(i % SHARING))))
                    chosen: KExpr = Call("select", (mine, at_place(own, n), other))
                    w.emit(Assign(at_place(bits, i * self.words + n), Call("shift_right", (chosen, u32_of(here.vector * odd)))))

    def declare(self) -> None:
        """Declares the words of all rows."""
        for bits in self.bits_by_draw.values():
            self.w.emit(Declare(bits.name, U32, self.here.rows * self.words))

    def know(self, i: Affine, j: Affine) -> None:
        """Makes the comparisons of a thread's row and column known."""
        g, v = j // self.here.vector, j % self.here.vector
        for draw, bits in self.bits_by_draw.items():
            bit: KExpr = Call("shift_left", (const(1, U32), u32_of(RANDOM_NUMBERS_A_CALL * (g % GROUPS_A_WORD) + v)))
            word = at_place(bits, i * self.words + g // GROUPS_A_WORD)
            self.w.remember(draw.condition, Call("ne", (Call("bit_and", (word, bit)), const(0, U32))))


def outcomes_of(w: OnlineState, draw: Draw, seed: KExpr, counter: Affine) -> KExpr:
    """Four comparisons as bits, those of the numbers from a counter on."""
    outcomes: KExpr = const(0, U32)
    for k in range(RANDOM_NUMBERS_A_CALL):
        drawn: KExpr = Call("random_bits", (seed, Index(w.simplified(counter + k))))
        bit: KExpr = Call("select", (Call(draw.condition.fn, (drawn, draw.limit)), const(1 << k, U32), const(0, U32)))
        outcomes = Call("bit_or", (outcomes, bit)) if k else bit
    return outcomes


def drawn_bits(w: OnlineState, here: Fragment, draws: tuple[Draw, ...]) -> DrawnBits:
    """The words of a turn, declared."""
    drawn = DrawnBits(w, here, {draw: Reg(w.fresh("kept_bits"), U32) for draw in draws})
    drawn.declare()
    return drawn


def at_place(array: Reg, n: Affine) -> Reg:
    """An element of an array of registers."""
    return Reg(array.name, array.dtype, n)


def u32_of(e: Affine) -> KExpr:
    """An index as bits."""
    return Call("u32", (Index(e),))
