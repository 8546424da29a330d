"""Products of a stitched kernel that threads multiply: register tiles of a thread, with the stage's maps on the sums."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.domain.contraction import Contraction, Tiling
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import F32, F64, DType
from tilefuse.ir.scalar import Bound, Call, Guard, const
from tilefuse.kernel.ir import Assign, Declare, KExpr, Reg, Shuffle, VectorLoad
from tilefuse.templates.staged.stitched.items import Items
from tilefuse.templates.staged.stitched.plan import Piece, Stage
from tilefuse.templates.staged.stitched.products.elements import finish, lead_place, operand_at
from tilefuse.templates.staged.stitched.values import StitchValues


@dataclass(frozen=True, slots=True)
class _Patch:
    """Where a thread's elements of a tile are: the first at (lead, row, column), rows `down` and columns `across` apart."""

    lead: list[Affine]
    row: Affine
    column: Affine
    down: int
    across: int


def emit_by_threads(w: StitchValues, stage: Stage, t: Tiling) -> None:
    """Each thread `rows` x `columns` elements; `split` lanes share the inner axis and meet by shuffles."""
    products = [w.plan.pieces[k] for k in stage.products]
    first = products[0]
    tall, wide = first.region[-2].extent // t.rows, first.region[-1].extent // t.columns
    count = prod(s.extent for s in first.region[:-2]) * tall * wide
    with Items(w, count // t.side, t.split * t.side) as group:
        if t.side > 1:
            side, part = w.let("side", w.lane % t.side, t.side), w.let("part", w.lane // t.side, t.split)
            item = w.let("tile", group * t.side + side, count)
        else:
            item, part = group, w.lane
        active = w.active
        lead, rest = lead_place(w, first, item, tall * wide)
        patch = _patch(w, t, w.plan.contractions[first.value], lead, rest, tall, wide)
        sums = _thread_sums(w, products, t, patch, part, active)
        _thread_results(w, stage, products, t, patch, sums, part, active)


def _thread_sums(w: StitchValues, products: Sequence[Piece], t: Tiling, patch: _Patch, part: Affine,
                 active: Sequence[Bound]) -> dict[int, Reg]:
    """Each product's sums over what a lane takes of the inner axis, in registers."""
    sums: dict[int, Reg] = {}
    for p in products:
        dtype = _accumulators(p.dtype)
        name = w.fresh(f"{p.value}_sum")
        w.emit(Declare(name, dtype, t.rows * t.columns))
        with w.loop("n", t.rows * t.columns, unroll=w.unroll) as n:
            w.emit(Assign(Reg(name, dtype, n), const(0, dtype)))
        sums[p.key] = Reg(name, dtype)
    contraction = w.plan.contractions[products[0].value]
    steps = contraction.inner // (t.step * t.split)
    with w.when(active), w.loop("c", steps) as c:
        # Lanes that share the inner axis take neighbouring elements of it, so that they read neighbouring rows of the right
        # operand, which lie in different banks; where that lies along the inner axis each lane reads a vector.
        apart = t.split if t.split > 1 and not contraction.inner_last_right else 1
        inner = (w.let("chunk", c * t.split + part, steps * t.split) * t.step if apart == 1
                 else w.let("chunk", c * (t.step * t.split) + part, contraction.inner - (t.step - 1) * t.split))
        for p in products:
            _multiply(w, p, t, patch, inner, sums[p.key], apart)
    return sums


def _thread_results(w: StitchValues, stage: Stage, products: Sequence[Piece], t: Tiling, patch: _Patch, sums: dict[int, Reg], part: Affine,
                    active: Sequence[Bound]) -> None:
    """The lanes' sums added up, and the stage's maps on them: one element a lane where there are lanes enough, else all by the first."""
    lead, row, column = patch.lead, patch.row, patch.column
    elements = t.rows * t.columns
    if t.split >= elements > 1 and elements & (elements - 1) == 0:
        alike = t.split // elements  # lanes that end with the same sum
        for reg in sums.values():
            _scatter_sums(w, reg, t, part)
        mine = w.let("mine", part // alike, elements)
        with w.when((*active, Bound(part % alike, 0, 1))):
            finish(w, stage, products, sums, lead, row + mine // t.columns, column + mine % t.columns, 1, lambda v: number(0))
        return
    amount = t.split // 2
    while amount:
        for reg in sums.values():
            _add_others(w, reg, elements, amount * t.side)
        amount //= 2
    here = (*active, Bound(part, 0, 1)) if t.split > 1 else active
    with w.when(here), w.loop("i", t.rows, unroll=w.unroll) as i:
        if patch.across == 1:
            finish(w, stage, products, sums, lead, row + i * patch.down, column, t.columns, lambda v: i * t.columns + v)
        else:
            with w.loop("j", t.columns, unroll=w.unroll) as j:
                finish(w, stage, products, sums, lead, row + i * patch.down, column + j * patch.across, 1, lambda v: i * t.columns + j)


def _add_others(w: StitchValues, reg: Reg, count: int, amount: int) -> None:
    """The first `count` sums of an array with those of the lane `amount` away."""
    other = w.fresh(f"{reg.name}_other")
    w.emit(Declare(other, reg.dtype))
    with w.loop("n", count, unroll=w.unroll) as n:
        own = Reg(reg.name, reg.dtype, n)
        w.emit(Shuffle(Reg(other, reg.dtype), own, "xor", amount),
               Assign(own, Call("add", (own, Reg(other, reg.dtype)))))


def _scatter_sums(w: StitchValues, reg: Reg, t: Tiling, part: Affine) -> None:
    """Adds up the sums of the `split` lanes of a tile so that each lane has one of them, as its first: number part * elements // split.

        4 sums, 4 lanes:   a b c d | a b c d | a b c d | a b c d   ->   a b | a b | c d | c d   ->   a | b | c | d

    A lane gives away the half that others keep: five shuffles for 4 sums and 16 lanes instead of sixteen.
    """
    count, amount = t.rows * t.columns, t.split // 2
    while count > 1:
        count //= 2
        upper = (Bound(part // amount % 2, 1, 2),)
        other, sent = w.fresh(f"{reg.name}_other"), w.fresh(f"{reg.name}_given")
        w.emit(Declare(other, reg.dtype), Declare(sent, reg.dtype))
        with w.loop("n", count, unroll=w.unroll) as n:
            low, high, away = Reg(reg.name, reg.dtype, n), Reg(reg.name, reg.dtype, n + count), Reg(sent, reg.dtype)
            w.emit(Assign(away, Guard(upper, low, high)), Assign(low, Guard(upper, high, low)),
                   Shuffle(Reg(other, reg.dtype), away, "xor", amount * t.side),
                   Assign(low, Call("add", (low, Reg(other, reg.dtype)))))
        amount //= 2
    while amount:
        _add_others(w, reg, 1, amount * t.side)
        amount //= 2


def _patch(w: StitchValues, t: Tiling, contraction: Contraction, lead: list[Affine], item: Affine, tall: int, wide: int) -> _Patch:
    """A thread's patch. Where rows are in strips, those of a thread lie `tall` apart, so that those of neighbouring lanes lie in different
    banks; so do its columns where the right operand is read along the inner axis."""
    row, column = _tile_of_thread(w, t, item, tall, wide)
    down = tall if t.strip else 1
    across = wide if t.strip and contraction.inner_last_right else 1
    return _Patch(lead, row if down > 1 else row * t.rows, column if across > 1 else column * t.columns, down, across)


def _tile_of_thread(w: StitchValues, t: Tiling, item: Affine, tall: int, wide: int) -> tuple[Affine, Affine]:
    """(row tile, column tile) of a thread. Pairs of lanes share the columns, pairs of pairs the rows: shared memory serves both at once."""
    if not t.strip:
        return (w.let("tile_row", item // wide, tall) if tall > 1 else number(0),
                w.let("tile_column", item % wide, wide) if wide > 1 else number(0))
    pair = 2 if tall % 2 == 0 else 1
    each = tall * t.strip
    here = w.let("in_strip", item % each, each) if t.strip < wide else item
    row = here % pair + pair * (here // (pair * t.strip)) if pair > 1 else here // t.strip
    column = here // pair % t.strip + (item // each * t.strip if t.strip < wide else 0)
    return w.let("tile_row", row, tall) if tall > 1 else number(0), w.let("tile_column", column, wide) if wide > 1 else number(0)


def _multiply(w: StitchValues, p: Piece, t: Tiling, patch: _Patch, inner: Affine, total: Reg, apart: int) -> None:
    """`step` elements of the inner axis for the patch of one thread, each `apart` from the one before."""
    contraction, lead = w.plan.contractions[p.value], patch.lead

    def row(n: Affine) -> Affine:
        return patch.row + n * patch.down

    def column(n: Affine) -> Affine:
        return patch.column + n * patch.across

    left = _fetched(w, contraction, p, lead, "left", t.rows, t.step, lambda n, k: (row(n), column(number(0)), inner + k * apart),
                    contraction.inner_last_left and apart == 1)
    right = _fetched(w, contraction, p, lead, "right", t.columns, t.step, lambda n, k: (row(number(0)), column(n), inner + k * apart),
                     contraction.inner_last_right)
    for k in range(t.step):
        with w.loop("i", t.rows, unroll=w.unroll) as i, w.loop("j", t.columns, unroll=w.unroll) as j:
            own = Reg(total.name, total.dtype, i * t.columns + j)
            a, b = (_widened(x, total.dtype) for x in (left(i, k), right(j, k)))
            w.emit(Assign(own, Call("fma", (a, b, own))))


def _widened(e: Reg, dtype: DType) -> KExpr:
    return e if e.dtype == dtype else Call(dtype.name, (e,))


def _fetched(w: StitchValues, contraction: Contraction, p: Piece, lead: list[Affine], which: str, count: int, step: int,
             at: Callable[[Affine, Affine], tuple[Affine, Affine, Affine]], along: bool) -> Callable[[Affine, int], Reg]:
    """The operand's elements for one turn in a register array, read as vectors along the inner axis or across it, whichever lies so;
    gives a function (n, k) -> register."""
    value = contraction.left if which == "left" else contraction.right
    dtype = w.graph.type_of(value).dtype
    array = w.fresh(f"{value}_{which}")
    w.emit(Declare(array, dtype, count * step))
    outer, vector = (count, step) if along else (step, count)
    lane, turn = w.fresh("v"), w.fresh("n")
    w.frame.extents |= {lane: vector, turn: outer}
    n, k = (axis(turn), axis(lane)) if along else (axis(lane), axis(turn))
    index = operand_at(w, contraction, p, lead, which, *at(n, k))
    place = w.place(value, index)
    assert place is not None, f"the operand %{value} lies in memory"
    buffer, offset, _ = place
    pieces = vector_parts(offset, lane, vector, dtype)
    with w.loop(turn, outer, unroll=w.unroll) as o:
        for start, width in pieces:
            where = substitute(offset, {lane: number(start), turn: o}, w.extents)
            w.emit(VectorLoad(array, o * vector + start, buffer, where, width))
    return (lambda n, k: Reg(array, dtype, n * step + k)) if along else (lambda n, k: Reg(array, dtype, n + k * count))


def _accumulators(dtype: DType) -> DType:
    return F64 if dtype.name == "f64" else F32
