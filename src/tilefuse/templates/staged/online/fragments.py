"""Whose element is whose: how the threads of a block share the tiles of a kernel that walks an axis, and how they multiply.

On the matrix unit a warp has whole rows, spread over its lanes as sums of m16n8k16 lie; without it sixteen lanes share a row.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilefuse.domain.contraction import INNER
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import Assign, Comment, Declare, KExpr, MatrixProduct, Reg, Shuffle, VectorLoad
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP
from tilefuse.templates.staged.online.operands import load_lanes
from tilefuse.templates.staged.online.plan import LANES, STEP, OnChip, OnlinePlan
from tilefuse.templates.staged.online.products import WALK
from tilefuse.templates.staged.online.state import OnlineState


@dataclass(frozen=True)
class Fragment:
    """One thread's elements of a tile: `rows` x `groups` x `vector`, those of a group next to each other.

    unit     as of `OnlinePlan`
    first    the thread's first row in the block; lane: its place among the lanes that share a row
    """

    unit: str
    rows: int
    groups: int
    vector: int
    first: Affine
    lane: Affine

    @property
    def size(self) -> int:
        """Elements of one thread."""
        return self.rows * self.groups * self.vector

    @property
    def amounts(self) -> tuple[int, ...]:
        """Lane distances of the shuffles that make a row's parts one."""
        return (2, 1) if self.unit == "mma" else tuple(LANES >> n for n in range(1, LANES.bit_length()))

    def row(self, i: Affine) -> Affine:
        """Row in the block."""
        return self.first + (MMA_ROWS * (i // 2) + 8 * (i % 2) if self.unit == "mma" else i)

    def column(self, group: Affine, v: Affine) -> Affine:
        """Column in the tile."""
        return MMA_COLUMNS * group + 2 * self.lane + v if self.unit == "mma" else (LANES * group + self.lane) * self.vector + v

    def place(self, i: Affine, group: Affine, v: Affine) -> Affine:
        """Where an element lies in the thread's array."""
        if self.unit == "mma":
            return 4 * self.groups * (i // 2) + 4 * group + 2 * (i % 2) + v
        return (i * self.groups + group) * self.vector + v


def fragment(w: OnlineState, plan: OnlinePlan, columns: int, vector: int) -> Fragment:
    """How a tile of `columns` columns is shared; `vector`: neighbours a thread has, where threads multiply."""
    first, lane = w.place_of_thread
    if plan.unit == "mma":
        return Fragment("mma", 2 * plan.warp_rows, columns // MMA_COLUMNS, 2, first * (MMA_ROWS * plan.warp_rows) + lane // 4, lane % 4)
    return Fragment("fma", plan.warp_rows, columns // (LANES * vector), vector, first * plan.warp_rows, lane)


def place_of_thread(w: OnlineState, plan: OnlinePlan) -> tuple[Affine, Affine]:
    """Which warp a thread is in and its lane there; where threads multiply, which of those that share rows, and its side."""
    thread, threads = axis("thread"), plan.choice.threads
    if plan.unit == "mma":
        return w.let("warp", thread // WARP, threads // WARP), w.let("lane_of_warp", thread % WARP, WARP)
    return w.let("row_of_block", thread // LANES, threads // LANES), w.let("side", thread % LANES, LANES)


def clear(w: OnlineState, array: Reg, size: int, value: float = 0.0) -> None:
    """Declares a register array full of one value."""
    w.emit(Declare(array.name, array.dtype, size))
    with w.loop("n", size, unroll=w.unroll) as n:
        w.emit(Assign(Reg(array.name, array.dtype, n), const(value, array.dtype)))


def hold_left(w: OnlineState, number_: int, here: Fragment) -> str:
    """The rows of a score's left operand in the lanes of their warp, as left fragments, for the whole walk."""
    plan = w.plan
    score = plan.form.scores[number_]
    inner = plan.inner(number_)
    array = w.fresh(f"{score.left.value}_held")
    groups = inner // MMA_COLUMNS
    left = Fragment("mma", here.rows, groups, 2, here.first, here.lane)
    w.emit(Comment(f"%{score.left.value}: the warp's rows in registers, as left fragments"), Declare(array, score.left.dtype, left.size))
    with w.loop("i", left.rows, unroll=w.unroll) as i, w.loop("g", groups, unroll=w.unroll) as g:
        row, column = w.first_row + left.row(i), left.column(g, number(0))
        load_lanes(w, score.left, {score.left.rows: row if score.left.rows != INNER else column,
                                  score.left.columns: column if score.left.columns == INNER else row}, INNER, 2, array,
                     left.place(i, g, number(0)))
    return array


def multiply_scores(w: OnlineState, number_: int, here: Fragment, held: str, stage: Affine) -> Reg:
    """One tile of a score's sums."""
    plan = w.plan
    score = plan.form.scores[number_]
    total = Reg(w.fresh(f"{score.value}_sum"), plan.form.sum_dtype)
    w.emit(Comment(f"%{score.value}: the tile of this turn"))
    clear(w, total, here.size)
    right = plan.tile("right", number_)
    if plan.unit == "mma":
        turned = right.operand is not None and right.operand.columns == INNER
        _on_matrix_unit(w, total, held, right, stage, here, turned, plan.inner(number_))
        return total
    left = plan.tile("left", number_)
    a, b = (w.fresh(f"{score.value}_{side}") for side in ("left", "right"))
    with w.loop("c", plan.inner(number_) // STEP) as c:
        _rows_of(w, a, left, here.rows, here.row, c * STEP)
        _rows_of(w, b, right, here.groups, lambda j: stage * right.rows + here.column(j, number(0)), c * STEP)
        for k in range(STEP):
            with w.loop("i", here.rows, unroll=w.unroll) as i, w.loop("j", here.groups, unroll=w.unroll) as j:
                _add(w, Reg(total.name, total.dtype, here.place(i, j, number(0))), Reg(a, left.dtype, i * STEP + k),
                     Reg(b, right.dtype, j * STEP + k))
    return total


def multiply_powers(w: OnlineState, number_: int, total: Reg, here: Fragment, held: str, stage: Affine) -> None:
    """Adds the products of one tile's powers with the right operand's rows.

    Source: Ootomo and Yokota 2022, arXiv:2203.03341, for sums outside the matrix unit.
    """
    plan = w.plan
    right = plan.tile("weight", number_)
    w.emit(Comment(f"%{plan.form.weighted[number_].value}: the powers of this turn times %{right.operand.value if right.operand else ''}"))
    if plan.unit == "mma":
        turned = right.operand is not None and right.operand.columns == WALK
        # The unit cuts sums off instead of rounding them: over a long walk that would show in f32, so each turn has sums of its own.
        part = Reg(w.fresh(f"{plan.form.weighted[number_].value}_part"), total.dtype) if plan.arithmetic else total
        if plan.arithmetic:
            clear(w, part, here.size)
        _on_matrix_unit(w, part, held, right, stage, here, turned, plan.choice.columns)
        if plan.arithmetic:
            with w.loop("n", here.size, unroll=w.unroll) as n:
                own = Reg(total.name, total.dtype, n)
                w.emit(Assign(own, Call("add", (own, Reg(part.name, part.dtype, n)))))
        return
    left = plan.tile("powers", number_)
    a, b = w.fresh("powers"), w.fresh(f"{right.role}")
    with w.loop("c", plan.choice.columns // STEP) as c:
        _rows_of(w, a, left, here.rows, here.row, c * STEP)
        for k in range(STEP):
            name = f"{b}_{k}"
            w.emit(Declare(name, right.dtype, here.groups * here.vector))
            lane = w.fresh("v")
            w.frame.extents[lane] = here.vector
            with w.loop("g", here.groups, unroll=w.unroll) as g:
                offset = w.simplified((stage * right.rows + c * STEP + k) * right.pitch + here.column(g, axis(lane)))
                for start, width in vector_parts(offset, lane, here.vector, right.dtype):
                    where = substitute(offset, {lane: number(start)}, w.extents)
                    w.emit(VectorLoad(name, g * here.vector + start, w.shared[right].name, where, width))
            with w.loop("i", here.rows, unroll=w.unroll) as i, w.loop("j", here.groups * here.vector, unroll=w.unroll) as j:
                _add(w, Reg(total.name, total.dtype, i * (here.groups * here.vector) + j), Reg(a, left.dtype, i * STEP + k),
                     Reg(name, right.dtype, j))


def _on_matrix_unit(w: OnlineState, total: Reg, held: str, right: OnChip, stage: Affine, here: Fragment, turned: bool, inner: int) -> None:
    start = w.simplified(stage * right.elements)
    w.emit(MatrixProduct(total.name, held, number(0), 0, False, w.shared[right].name, start, right.pitch, turned, here.rows // 2,
                         here.groups, inner, True, w.plan.arithmetic))


def _rows_of(w: OnlineState, array: str, tile: OnChip, count: int, row: Callable[[Affine], Affine], start: Affine) -> None:
    """`STEP` elements from `start` on of several rows of a tile, in a register array."""
    w.emit(Declare(array, tile.dtype, count * STEP))
    lane = w.fresh("v")
    w.frame.extents[lane] = STEP
    with w.loop("n", count, unroll=w.unroll) as n:
        offset = w.simplified(row(n) * tile.pitch + start + axis(lane))
        for first, width in vector_parts(offset, lane, STEP, tile.dtype):
            w.emit(VectorLoad(array, n * STEP + first, w.shared[tile].name, substitute(offset, {lane: number(first)}, w.extents), width))


def over_lanes(w: OnlineState, fn: str, array: Reg, here: Fragment) -> None:
    """array[row] = fn over the lanes that share the row, in each of them."""
    other = Reg(w.fresh(f"{array.name}_other"), array.dtype)
    w.emit(Declare(other.name, other.dtype))
    with w.loop("i", here.rows, unroll=w.unroll) as i:
        own = Reg(array.name, array.dtype, i)
        for amount in here.amounts:
            w.emit(Shuffle(other, own, "xor", amount), Assign(own, Call(fn, (own, other))))


def _add(w: OnlineState, own: Reg, a: Reg, b: Reg) -> None:
    x, y = (_widened(e, own.dtype) for e in (a, b))
    w.emit(Assign(own, Call("fma", (x, y, own))))


def _widened(e: Reg, dtype: DType) -> KExpr:
    return e if e.dtype == dtype else Call(dtype.name, (e,))
