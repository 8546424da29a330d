"""Sums of the parts of a tile's inner axis, which different blocks have multiplied, become the tile's sums.

    cluster      each block sends its sums of columns r to block r, counted on the receiver's transaction barrier; block r adds the parts
                 in the order of their ranks
    workspace    each block stores its sums; the last one to arrive at the tile's counter adds all of them in the order of the parts

Both orders are fixed, so results are equal from run to run. A tile split over clusters and a workspace passes through both.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import BOOL
from tilefuse.ir.scalar import Bound, Call
from tilefuse.kernel.ir import Assign, Barrier, Buffer, ClusterStore, Comment, Declare, If, KExpr, LastBlock, Reg, VectorLoad, VectorStore
from tilefuse.kernel.pipeline import WARPGROUP_ROWS
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.warpgroup import LANE_ELEMENTS
from tilefuse.templates.staged.pipelined.state import ProductState


def receive_sums(w: ProductState, turn: Affine) -> None:
    """Sends the sums of a part to the blocks that finish them, and replaces `w.totals` by the sums of all parts of the cluster.

    turn: number of the item among those of the block.
    """
    plan, received = w.plan, w.plan.received
    assert received is not None
    parts = plan.choice.cluster_parts
    copy = w.let("copy", turn % received.copies, received.copies)
    phase = w.let("phase", turn // received.copies % 2, 2)
    signal = w.simplified(copy + plan.first_signal)
    w.emit(Comment(f"{_names(w)}: sums of the cluster's {parts} parts of the inner axis"))
    for total, buffer in zip(w.totals, w.received, strict=True):
        _send(w, total, buffer, copy, signal)
    w.emit(Barrier("cluster", signal, phase, received.phase_bytes))
    w.totals = tuple(_added(w, total, buffer, copy) for total, buffer in zip(w.totals, w.received, strict=True))


def finisher(w: ProductState) -> Affine:
    """Number of the columns of a tile that this block finishes. Blocks beyond the finishers have the sums of another and store none."""
    parts, finishers = w.plan.choice.cluster_parts, w.plan.choice.finishers
    if finishers == 1:
        return number(0)
    return axis("rank") if finishers == parts else w.simplified(axis("rank") % finishers)


def _names(w: ProductState) -> str:
    return ", ".join("%" + n.name for n in w.form.nodes)


def _send(w: ProductState, total: Reg, buffer: Buffer, copy: Affine, signal: Affine) -> None:
    choice = w.plan.choice
    wide, narrow = choice.columns // MMA_COLUMNS, choice.result_columns // MMA_COLUMNS
    with w.loop("receiver", choice.cluster_parts, unroll=w.unroll) as receiver:
        columns = receiver % choice.finishers if choice.finishers < choice.cluster_parts else receiver
        with w.nested() as kept, _each_group(w) as (a, b):
            place, first = _place(w, copy, axis("rank"), a * narrow + b), w.simplified((a * wide + columns * narrow + b) * LANE_ELEMENTS)
            w.emit(VectorStore(buffer.name, place, total.name, first, LANE_ELEMENTS))
        with w.nested() as sent, _each_group(w) as (a, b):
            place, first = _place(w, copy, axis("rank"), a * narrow + b), w.simplified((a * wide + columns * narrow + b) * LANE_ELEMENTS)
            value, *further = (Reg(total.name, total.dtype, first + n) for n in range(LANE_ELEMENTS))
            w.emit(ClusterStore(buffer.name, place, receiver, value, signal, tuple(further)))
        # A thread reads its own sums alone, so that those of its own block need no signal.
        w.emit(If((Bound(w.simplified(axis("rank") - receiver), 0, 1),), tuple(kept.statements), tuple(sent.statements)))


@contextlib.contextmanager
def _each_group(w: ProductState) -> Iterator[tuple[Affine, Affine]]:
    """A loop over the sums of a finisher's columns, four together: their row of instructions, and their place among these columns."""
    choice = w.plan.choice
    with w.loop("a", choice.warpgroup_rows // WARPGROUP_ROWS, unroll=w.unroll) as a, \
            w.loop("b", choice.result_columns // MMA_COLUMNS, unroll=w.unroll) as b:
        yield a, b


def _place(w: ProductState, copy: Affine, part: Affine | int, group: Affine) -> Affine:
    """First element of a thread's sums number `group` of a part, in the shared memory of the block that adds the parts."""
    choice, groups = w.plan.choice, w.plan.result_sums // LANE_ELEMENTS
    place = ((copy * choice.cluster_parts + part) * groups + group) * choice.consumer_threads + axis("thread")
    return w.simplified(place * LANE_ELEMENTS)


def _added(w: ProductState, total: Reg, buffer: Buffer, copy: Affine) -> Reg:
    """The sums of all parts of the cluster, in a register array."""
    parts, count = w.plan.choice.cluster_parts, w.plan.result_sums
    added = Reg(w.fresh(f"{total.name}_of_parts"), total.dtype)
    w.emit(Declare(added.name, total.dtype, count))
    with w.loop("group", count // LANE_ELEMENTS, unroll=w.unroll) as group:
        arrived = w.fresh(f"{total.name}_arrived")
        w.emit(Declare(arrived, total.dtype, parts * LANE_ELEMENTS))
        for part in range(parts):
            w.emit(VectorLoad(arrived, number(part * LANE_ELEMENTS), buffer.name, _place(w, copy, part, group), LANE_ELEMENTS))
        for n in range(LANE_ELEMENTS):
            each = [Reg(arrived, total.dtype, number(part * LANE_ELEMENTS + n)) for part in range(parts)]
            value: KExpr = each[0]
            for further in each[1:]:
                value = Call("add", (value, further))
            w.emit(Assign(Reg(added.name, total.dtype, w.simplified(group * LANE_ELEMENTS + n)), value))
    return added


def store_sums(w: ProductState, tile: Affine, part: Affine) -> Reg:
    """Stores the sums of a part in the workspace; whether this block is the last of the tile's to do so.

    part: number of the part among those that meet in the workspace.
    """
    choice = w.plan.choice
    w.emit(Comment(f"{_names(w)}: sums of {choice.memory_parts} parts of the inner axis through global memory"))
    for total, buffer in zip(w.totals, w.workspaces, strict=True):
        with w.loop("group", w.plan.result_sums // LANE_ELEMENTS, unroll=w.unroll) as group:
            place = _place_in_memory(w, tile, part, group)
            w.emit(VectorStore(buffer.name, place, total.name, w.simplified(group * LANE_ELEMENTS), LANE_ELEMENTS))
    last = Reg(w.fresh("last"), BOOL)
    assert w.counter is not None
    w.emit(Declare(last.name, BOOL), LastBlock(last, w.counter.name, _owner(w, tile), choice.memory_parts))
    return last


def load_sums(w: ProductState, tile: Affine) -> None:
    """Replaces `w.totals` by the sums of all parts, in the order of the parts."""
    count = w.plan.result_sums
    for total, buffer in zip(w.totals, w.workspaces, strict=True):
        # The first part replaces the block's own sums, which are one of the parts.
        with w.loop("group", count // LANE_ELEMENTS, unroll=w.unroll) as group:
            first = _place_in_memory(w, tile, number(0), group)
            w.emit(VectorLoad(total.name, w.simplified(group * LANE_ELEMENTS), buffer.name, first, LANE_ELEMENTS))
        with w.loop("part", w.plan.choice.memory_parts, start=1) as part, \
                w.loop("group", count // LANE_ELEMENTS, unroll=w.unroll) as group:
            other = w.fresh(f"{total.name}_other")
            w.emit(Declare(other, total.dtype, LANE_ELEMENTS),
                   VectorLoad(other, number(0), buffer.name, _place_in_memory(w, tile, part, group), LANE_ELEMENTS))
            for n in range(LANE_ELEMENTS):
                own = Reg(total.name, total.dtype, w.simplified(group * LANE_ELEMENTS + n))
                w.emit(Assign(own, Call("add", (own, Reg(other, total.dtype, number(n))))))


def _owner(w: ProductState, tile: Affine) -> Affine:
    """Number of the tile's columns that this block finishes, among those of all tiles."""
    return w.simplified(tile * w.plan.choice.finishers + finisher(w))


def _place_in_memory(w: ProductState, tile: Affine, part: Affine, group: Affine) -> Affine:
    """First element of a thread's sums number `group` of a part, in the workspace."""
    choice, groups = w.plan.choice, w.plan.result_sums // LANE_ELEMENTS
    return w.simplified((((_owner(w, tile) * choice.memory_parts + part) * groups + group) * choice.consumer_threads + axis("thread"))
                        * LANE_ELEMENTS)
