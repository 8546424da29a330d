"""The left operand of streamed products: reductions of its rows by every block, and the block's share of the rows in shared memory.

    sum of squares of a row     a team of warps a row, by shuffles, then through shared memory
    rows                        each thread computes neighbours of a row and stores them where matrix instructions expect them
"""
from __future__ import annotations

from math import prod

from tilefuse.domain.contraction import INNER, ROW
from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.ir.affine import Affine, axis, delinearise, number
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Node
from tilefuse.ir.scalar import Bound, Index, const
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, KExpr, Load, Reg, Shuffle, Store, VectorStore
from tilefuse.target.capabilities import WARP
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.staged.streamed.lanes import FOURS
from tilefuse.templates.staged.streamed.state import StreamState, converted

# Turns of a loop of loads that is unrolled, so that they are in flight together.
MOST_UNROLLED = 8
# Neighbours of a row that a thread reduces together.
NEIGHBOURS = 8


def reduce_rows(w: StreamState) -> None:
    """Results of all reductions in shared memory, one after another in graph order."""
    for node in w.plan.reductions:
        _reduce(w, node)


def _reduce(w: StreamState, node: Node) -> None:
    """One reduction of all rows: partial results of warps, then their combination by one thread a row."""
    plan, rows = w.plan, w.form.rows
    team, warps = plan.team, plan.team // WARP
    together = plan.choice.num_threads // team
    w.emit(Comment(f"%{node.name}: {team} threads a row"))
    with w.loop("turn", -(-rows // together)) as turn:
        row = w.let("team_row", turn * together + axis("thread") // team, -(-rows // together) * together)
        parts = _identities(w, node)
        with w.when(w.beyond(row, rows)):
            w.narrow_to(row, rows)
            _accumulate(w, node, parts, row)
        _meet(w, node, parts)
        with w.when((Bound(axis("thread") % WARP, 0, 1), *w.beyond(row, rows))):
            for part, buffer in zip(parts, w.partials[node.name], strict=True):
                w.emit(Store(buffer.name, w.simplified(row * warps + axis("thread") // WARP % warps), part))
    w.emit(Barrier())
    with w.when((Bound(axis("thread"), 0, rows),)):
        parts = _identities(w, node)
        with w.loop("n", warps, unroll=w.unroll) as n:
            others = [Load(b.name, b.dtype, w.simplified(axis("thread") * warps + n)) for b in w.partials[node.name]]
            w.combine(node.detail, parts, [w.register(e, e.dtype, "part") for e in others], plan.body_dtype(node))
        result = KERNEL_MONOIDS[node.detail].finish(tuple(parts), plan.body_dtype(node))
        w.emit(Store(w.results[node.name].name, axis("thread"), converted(result, node.type.dtype)))
    w.emit(Barrier())


def _accumulate(w: StreamState, node: Node, parts: list[Reg], row: Affine) -> None:
    """A thread's elements of a row, neighbours at a time."""
    assert node.body is not None
    body, dtype, monoid = node.body, w.plan.body_dtype(node), KERNEL_MONOIDS[node.detail]
    names, shape = tuple(a for a, _ in node.over), tuple(e for _, e in node.over)
    length, team = prod(shape), w.plan.team
    each = next(n for n in (NEIGHBOURS, 4, 2, 1) if shape[-1] % n == 0)
    turns = -(-length // (team * each))
    with w.loop("c", turns, unroll=w.unroll and turns <= MOST_UNROLLED) as turn:
        # Named before it is multiplied, so that the neighbours' alignment stays visible.
        first = w.let("k", turn * team + axis("thread") % team, turns * team) * each
        with w.when(w.beyond(first, length)):
            kept, w.row = w.row, row
            point = {a: w.at_row(e, row) for a, e in w.form.reductions[node.name].items()}

            def value(n: Affine) -> Reg:
                over = dict(zip(names, delinearise(first + n, shape, w.extents), strict=True))
                with w.at(**point, **over):
                    element = w.register(w.here.expression(body), dtype, f"{node.name}_x")
                assert isinstance(element, Reg)
                return element

            w.load_neighbours(value, each)
            for n in range(each):
                w.combine(node.detail, parts, monoid.lift(value(number(n)), Index(first + n), dtype), dtype)
            w.row = kept


def _meet(w: StreamState, node: Node, parts: list[Reg]) -> None:
    """Partial results of a warp's lanes, combined."""
    amount = WARP // 2
    while amount:
        others = []
        for part in parts:
            other = Reg(w.fresh(part.name + "_other"), part.dtype)
            w.emit(Declare(other.name, other.dtype), Shuffle(other, part, "xor", amount))
            others.append(other)
        w.combine(node.detail, parts, others, w.plan.body_dtype(node))
        amount //= 2


def _identities(w: StreamState, node: Node) -> list[Reg]:
    parts = []
    for start in KERNEL_MONOIDS[node.detail].identity(w.plan.body_dtype(node)):
        name = w.fresh(node.name)
        w.emit(Declare(name, start.dtype, None, start))
        parts.append(Reg(name, start.dtype))
    return parts


# -- rows --------------------------------------------------------------------------------------------------------------------


def place_rows(w: StreamState, first_inner: Affine) -> None:
    """The block's share of every row of the left operand; zeros beyond the operand's end."""
    plan, form = w.plan, w.form
    dtype, lanes = form.left_dtype, plan.lanes
    each = lanes.elements if lanes.turned > 1 else ACCESS_BYTES // dtype.itemsize
    # The share is whole steps of warps, and those are whole groups of `each`.
    each = next(n for n in (each, 4, 2, 1) if plan.share % n == 0)
    groups, threads = plan.share // each, plan.choice.num_threads
    total = plan.held_rows * groups
    turns = -(-total // threads)
    w.emit(Comment(f"%{form.contraction.left}: {plan.held_rows} rows of {plan.share}"))
    with w.loop("turn", turns, unroll=w.unroll and turns <= MOST_UNROLLED) as turn:
        group = w.let("group", turn * threads + axis("thread"), turns * threads)
        with w.when(w.beyond(group, total)):
            w.narrow_to(group, total)
            row, local = w.let("held_row", group // groups, plan.held_rows), w.let("local", group % groups, groups)
            array = w.fresh(f"{form.contraction.left}_row")
            w.emit(Declare(array, dtype, each))
            _elements(w, array, dtype, each, row, first_inner + local * each)
            start = row * plan.row_elements
            if lanes.turned == 1:
                w.emit(VectorStore(w.left.name, w.simplified(start + local * each), array, number(0), each))
            for pair in range(each // 2 if lanes.turned > 1 else 0):
                place = start + local // FOURS * lanes.turned + lanes.pair_place(local % FOURS, pair)
                w.emit(VectorStore(w.left.name, w.simplified(place), array, number(2 * pair), 2))


def _elements(w: StreamState, array: str, dtype: DType, each: int, row: Affine, inner: Affine) -> None:
    """Neighbours of a row from `inner` on into a register array."""
    form = w.form
    whole = form.inner % each == 0
    bounds = (*w.beyond(row, form.rows), *(w.beyond(inner, form.inner) if whole else ()))
    if bounds or not whole:
        for n in range(each):
            w.emit(Assign(Reg(array, dtype, number(n)), const(0, dtype)))
    kept, w.row = w.row, row
    with w.when(bounds):
        if whole:
            w.load_neighbours(lambda n: _element(w, row, inner + n), each)
        for n in range(each):
            with w.when(() if whole else w.beyond(inner + n, form.inner)):
                w.emit(Assign(Reg(array, dtype, number(n)), _element(w, row, inner + n)))
    w.row = kept


def _element(w: StreamState, row: Affine, inner: Affine) -> KExpr:
    with w.at(**{ROW: row, INNER: inner}):
        return w.value(w.form.contraction.left, tuple(w.index(e) for e in w.form.contraction.left_index))
