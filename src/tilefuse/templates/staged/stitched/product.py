"""Products inside a stitched kernel: register tiles of a thread (fma), or warp tiles of the matrix unit (mma), with what follows.

The sums of one stage's products stay in registers; the maps of the stage are evaluated element for element on top of them.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.domain.contraction import COLUMN, INNER, ROW, Contraction, Tiling
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import F32, F64, DType
from tilefuse.ir.scalar import Bound, Call, Guard, const
from tilefuse.kernel.ir import Assign, Comment, Declare, If, KExpr, MatrixProduct, Reg, Shuffle, VectorLoad
from tilefuse.target.capabilities import WARP
from tilefuse.templates.staged.stitched.items import Items
from tilefuse.templates.staged.stitched.plan import Piece, Stage
from tilefuse.templates.staged.stitched.points import at_point, keep
from tilefuse.templates.staged.stitched.sums import SumRows, column_within, with_bias
from tilefuse.templates.staged.stitched.values import Point, StitchValues


def emit_product(w: StitchValues, stage: Stage) -> None:
    """One product stage: the loop over register tiles, the sums, and the stage's maps on top of them."""
    assert stage.tiling is not None
    if stage.tiling.unit == "mma":
        _by_warps(w, stage, stage.tiling)
    else:
        _by_threads(w, stage, stage.tiling)


def _lead(w: StitchValues, piece: Piece, item: Affine, each: int) -> tuple[list[Affine], Affine]:
    """Local lead coordinates of an item, and its number among the `each` items (rows and columns, fastest) of one lead place."""
    extents = [s.extent for s in piece.region[:-2]]
    if prod(extents) == 1:
        return [number(0)] * len(extents), item
    coordinates: list[Affine] = []
    place = item // each
    for n, extent in reversed(list(enumerate(extents))):
        coordinates.append(number(0) if extent == 1 else w.let(f"lead{n}", place % extent if n else place, extent))
        place = place // extent if extent > 1 else place
    coordinates.reverse()
    return coordinates, item % each


def _operand(w: StitchValues, contraction: Contraction, piece: Piece, lead: list[Affine], which: str, row: Affine, column: Affine,
             inner: Affine) -> Point:
    """Subscripts of an operand's element for local coordinates of the product's tile."""
    offsets = [w.index(s.offset) for s in piece.region]
    at = {a: o + x for a, o, x in zip(contraction.axes, offsets, [*lead, row, column], strict=True)} | {INNER: inner}
    index = contraction.left_index if which == "left" else contraction.right_index
    return tuple(substitute(e, at, w.extents) for e in index)


def _accumulators(dtype: DType) -> DType:
    return F64 if dtype.name == "f64" else F32


# -- threads -------------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Patch:
    """Where a thread's elements of a tile are: the first at (lead, row, column), rows `down` and columns `across` apart."""

    lead: list[Affine]
    row: Affine
    column: Affine
    down: int
    across: int


def _by_threads(w: StitchValues, stage: Stage, t: Tiling) -> None:
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
        lead, rest = _lead(w, first, item, tall * wide)
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
            _finish(w, stage, products, sums, lead, row + mine // t.columns, column + mine % t.columns, 1, lambda v: number(0))
        return
    amount = t.split // 2
    while amount:
        for reg in sums.values():
            _add_others(w, reg, elements, amount * t.side)
        amount //= 2
    here = (*active, Bound(part, 0, 1)) if t.split > 1 else active
    with w.when(here), w.loop("i", t.rows, unroll=w.unroll) as i:
        if patch.across == 1:
            _finish(w, stage, products, sums, lead, row + i * patch.down, column, t.columns, lambda v: i * t.columns + v)
        else:
            with w.loop("j", t.columns, unroll=w.unroll) as j:
                _finish(w, stage, products, sums, lead, row + i * patch.down, column + j * patch.across, 1, lambda v: i * t.columns + j)


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
    index = _operand(w, contraction, p, lead, which, *at(n, k))
    place = w.place(value, index)
    assert place is not None, f"the operand %{value} lies in memory"
    buffer, offset, _ = place
    pieces = vector_parts(offset, lane, vector, dtype)
    with w.loop(turn, outer, unroll=w.unroll) as o:
        for start, width in pieces:
            where = substitute(offset, {lane: number(start), turn: o}, w.extents)
            w.emit(VectorLoad(array, o * vector + start, buffer, where, width))
    return (lambda n, k: Reg(array, dtype, n * step + k)) if along else (lambda n, k: Reg(array, dtype, n + k * count))


# -- the matrix unit -------------------------------------------------------------------------------------------------------------

def _by_warps(w: StitchValues, stage: Stage, t: Tiling) -> None:
    """Each warp tiles of `rows` x `columns` instructions, over the whole inner axis."""
    products = [w.plan.pieces[k] for k in stage.products]
    first = products[0]
    tall, wide = first.region[-2].extent // (16 * t.rows), -(-first.region[-1].extent // (8 * t.columns))
    count = prod(s.extent for s in first.region[:-2]) * tall * wide
    warps = w.threads // WARP
    turns = -(-count // warps)
    warp = w.let("warp", axis("thread") // WARP, warps)
    lane = w.let("lane_of_warp", axis("thread") % WARP, WARP)
    for p in (w.plan.pieces[k] for k in stage.pieces if k in w.plan.held):
        w.held[p.key] = w.fresh(f"{p.value}_held")
        w.emit(Declare(w.held[p.key], p.dtype, 4 * t.rows * t.columns))
    with w.loop("turn", turns, unroll=w.unroll and turns <= 2) as turn:
        item = w.let("warp_tile", turn * warps + warp, turns * warps)
        with w.when(() if turns * warps == count else [Bound(item, 0, count)]):
            w.narrow_to(item, count)
            lead, rest = _lead(w, first, item, tall * wide)
            row = (w.let("tile_row", rest // wide, tall) if tall > 1 else number(0)) * (16 * t.rows)
            column = (w.let("tile_column", rest % wide, wide) if wide > 1 else number(0)) * (8 * t.columns)
            sums: dict[int, Reg] = {}
            for p in products:
                sums[p.key] = _warp_sums(w, p, t, lead, row, column)
            if stage.columns:
                SumRows(w, stage, t, {p.value: (p, sums[p.key]) for p in products}, lead, row, lane).emit()
                return
            columns = first.region[-1].extent
            with w.loop("a", t.rows, unroll=w.unroll) as a, w.loop("b", t.columns, unroll=w.unroll) as b, \
                    w.loop("half", 2, unroll=w.unroll) as half:
                for v in (0,) if columns % 2 == 0 else (0, 1):
                    def element(u: Affine, a: Affine = a, b: Affine = b, half: Affine = half, v: int = v) -> Affine:
                        return 4 * t.columns * a + 4 * b + 2 * half + v + u

                    here = column + 8 * b + 2 * (lane % 4) + v
                    beyond = tuple(b for b in (Bound(here, 0, columns),) if not w.always(b))
                    with w.nested() as inner:
                        here = column_within(w, here, columns) if beyond else here
                        _finish(w, stage, products, sums, lead, row + 16 * a + 8 * half + lane // 4, here, 2 - columns % 2, element)
                    with w.nested() as other:
                        for p in (w.plan.pieces[k] for k in stage.pieces):
                            keep(w, p, [const(0, p.dtype)] * (2 - columns % 2), element)
                    w.emit(*((If(beyond, tuple(inner.statements), tuple(other.statements)),) if beyond else inner.statements))


def _warp_sums(w: StitchValues, p: Piece, t: Tiling, lead: list[Affine], row: Affine, column: Affine) -> Reg:
    """The sums of one warp tile of one product."""
    contraction = w.plan.contractions[p.value]
    total = w.fresh(f"{p.value}_sum")
    w.emit(Comment(f"%{p.value}: the warp's tile on the matrix unit"), Declare(total, F32, 4 * t.rows * t.columns))
    with w.loop("n", 4 * t.rows * t.columns, unroll=w.unroll) as n:
        w.emit(Assign(Reg(total, F32, n), const(0, F32)))
    held = next((w.held[k] for k in w.plan.sources[p.key] if k in w.plan.held and w.plan.pieces[k].value == contraction.left), "")
    places = []
    for value, which, subscripts, along in (
            (contraction.left, "left", contraction.left_index, ROW if contraction.inner_last_left else INNER),
            (contraction.right, "right", contraction.right_index, COLUMN if contraction.inner_last_right else INNER)):
        if held and which == "left":
            places.append((held, number(0), 0))
            continue
        index = _operand(w, contraction, p, lead, which, row, column, number(0))
        piece = w.tile_of(value, index)
        assert piece is not None, f"the operand %{value} lies in shared memory"
        stride = sum(e.coefficient(along) * s for e, s in zip(subscripts, piece.strides, strict=True))
        places.append((w.shared[piece.key].name, w.tile_offset(piece, index), stride))
    (left, left_at, left_stride), (right, right_at, right_stride) = places
    w.emit(MatrixProduct(total, left, left_at, left_stride, not contraction.inner_last_left, right, right_at, right_stride,
                         contraction.inner_last_right, t.rows, t.columns, contraction.inner, bool(held), t.arithmetic,
                         p.region[-1].extent if p.region[-1].extent < 8 * t.columns else 0))
    return Reg(total, F32)


# -- what follows ------------------------------------------------------------------------------------------------------------------

def _finish(w: StitchValues, stage: Stage, products: Sequence[Piece], sums: dict[int, Reg], lead: list[Affine], row: Affine, column: Affine,
            width: int, element: Callable[[Affine], Affine]) -> None:
    """`width` neighbouring columns of the stage's pieces from the sums: `element(v)` is a column's place in the register tile."""
    pieces = [w.plan.pieces[k] for k in stage.pieces]
    local = (*lead, row, column)

    def sums_at(v: Affine) -> None:
        for p in products:
            at = tuple(w.simplified(w.index(s.offset) + x + (v if n == len(local) - 1 else 0))
                       for n, (s, x) in enumerate(zip(p.region, local, strict=True)))
            reg = Reg(sums[p.key].name, sums[p.key].dtype, element(v))
            value = with_bias(w, w.plan.contractions[p.value], reg, at)
            value = value if reg.dtype == p.dtype else Call(p.dtype.name, (value,))
            w.remember(p.value, at, w.register(value, p.dtype, p.value))

    w.before_lane, w.keep_at = sums_at, element
    at_point(w, pieces, local, width)
    w.before_lane = w.keep_at = None
