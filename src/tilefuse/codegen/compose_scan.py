"""Scans along the rows of the row template: lanes, then warps by shuffles, then the block, then the cluster.

    element order:  chunk (slowest) -> thread -> lane;  every partial prefix is added to what comes before it
"""
from __future__ import annotations

from tilefuse.codegen.compose import SCAN_FUNCTION
from tilefuse.codegen.kernel import Assign, Barrier, ClusterStore, Comment, Declare, KExpr, Load, Reg, Shuffle, Store
from tilefuse.codegen.rows_exchange import cluster_exchange, slot_base
from tilefuse.codegen.rows_walk import RowState, in_row, vector_at
from tilefuse.ir.affine import Affine, axis
from tilefuse.ir.scalar import Bound, Call
from tilefuse.schedule.access import flat_axes
from tilefuse.schedule.online import KERNEL_MONOIDS
from tilefuse.schedule.resolved import Instance


def compose_scans(state: RowState, scans: list[Instance]) -> None:
    """Every scan of a stage; its values stay in a register array that later bodies read."""
    for i in scans:
        if state.choice.threads == 1:
            _serial_scan(state, i)
        else:
            _parallel_scan(state, i)


def _join(i: Instance, a: KExpr, b: KExpr) -> KExpr:
    return Call(SCAN_FUNCTION[i.node.detail], (a, b))  # type: ignore[arg-type]


def _serial_scan(state: RowState, i: Instance) -> None:
    """One thread a row: a running value; each element is written as the walk passes it, so no array is kept."""
    e = state.writer.emitter
    dtype = e.dtype(i.body)
    running = Reg(e.fresh(i.node.name), dtype)
    e.emit(Declare(running.name, dtype, None, KERNEL_MONOIDS[i.node.detail].identity(dtype)[0]))
    state.writer.running.append((i, running))


def _parallel_scan(state: RowState, i: Instance) -> None:
    w, c = state.writer, state.choice
    e = w.emitter
    dtype = e.dtype(i.body)
    identity = KERNEL_MONOIDS[i.node.detail].identity(dtype)[0]
    e.emit(Comment(f"%{i.node.name} ({i.node.kind}): lanes -> warp -> block" + (" -> cluster" if c.cluster > 1 else "")))
    values = Reg(e.fresh(i.node.name + "_v"), dtype)
    totals = Reg(e.fresh(i.node.name + "_total"), dtype)
    e.emit(Declare(values.name, dtype, c.chunks * c.vector), Declare(totals.name, dtype, c.chunks))
    _scan_lanes(state, i, values, totals, identity)
    lane_of_warp = e.let("lane_of_warp", state.place % min(c.threads, 32), min(c.threads, 32))
    _scan_warp(state, i, totals, identity, lane_of_warp)
    warps = max(c.threads // 32, 1)
    slots = c.chunks * warps
    shared = w.shared(i.node.name + "_warps", dtype, slots * c.rows * (2 if c.groups else 1))
    base = slot_base(state, slots)
    warp = e.let("warp", state.place // 32, warps)
    last = Reg(e.fresh("warp_total"), dtype)
    with e.loop("chunk", c.chunks, unroll=w.unroll) as k, e.when([Bound(lane_of_warp, min(c.threads, 32) - 1, min(c.threads, 32))]):
        e.emit(Store(shared, base + k * warps + warp, Reg(totals.name, dtype, k)))
    e.emit(Barrier("block"))
    offset = Reg(e.fresh("before"), dtype)
    e.emit(Declare(offset.name, dtype, None, identity))
    if c.cluster > 1:
        _before_this_block(state, i, shared, base, slots, offset, identity)
    _add_before(state, i, values, totals, shared, base, warps, warp, lane_of_warp, offset, last, identity)
    _publish(state, i, values)


def _env(state: RowState, vector: Affine, width: int) -> dict[str, Affine]:
    e = state.writer.emitter
    return flat_axes(state.choice.reduced_order, vector * width + axis(state.lane), state.writer.domain.extents,
                     e.extents | {state.lane: width})


def _scan_lanes(state: RowState, i: Instance, values: Reg, totals: Reg, identity: KExpr) -> None:
    """Prefix within each vector; elements past the row's end count as the identity."""
    w, c = state.writer, state.choice
    e = w.emitter
    dtype = values.dtype
    with e.loop("chunk", c.chunks, unroll=w.unroll) as k:
        e.emit(Assign(Reg(totals.name, dtype, k), identity))
        vector = e.let("vector", vector_at(state, k), c.chunks * c.threads * c.cluster)
        with e.when(in_row(state, k, vector)):
            env = _env(state, vector, c.vector)
            with w.lanes(c.vector, env, state.lane) as v:
                w.bind(state.held, k, v)
                e.emit(Assign(Reg(totals.name, dtype, k), _join(i, Reg(totals.name, dtype, k), e.expression(i.body))))
                e.emit(Assign(Reg(values.name, dtype, k * c.vector + v), Reg(totals.name, dtype, k)))


def _scan_warp(state: RowState, i: Instance, totals: Reg, identity: KExpr, lane: Affine) -> None:
    """Inclusive scan of the vectors' totals over the lanes of each warp. Source: Hillis and Steele 1986, CACM 29(12)."""
    w, c = state.writer, state.choice
    e = w.emitter
    width = min(c.threads, 32)
    with e.loop("chunk", c.chunks, unroll=w.unroll) as k:
        step = 1
        while step < width:
            other = Reg(e.fresh("lower"), totals.dtype)
            e.emit(Declare(other.name, other.dtype), Shuffle(other, Reg(totals.name, totals.dtype, k), "up", step, width))
            with e.when([Bound(lane, step, width)]):
                e.emit(Assign(Reg(totals.name, totals.dtype, k), _join(i, other, Reg(totals.name, totals.dtype, k))))
            step *= 2


def _before_this_block(state: RowState, i: Instance, shared: str, base: Affine, slots: int, offset: Reg, identity: KExpr) -> None:
    """What the lower blocks of the cluster contribute: every block tells its total to all."""
    w, c = state.writer, state.choice
    e = w.emitter
    dtype = offset.dtype
    told = w.shared(i.node.name + "_blocks", dtype, c.cluster * (2 if c.groups else 1))
    first = state.parity * c.cluster
    total = Reg(e.fresh("block_total"), dtype)
    exchange = cluster_exchange(state, [dtype], c.cluster)
    with e.when([Bound(state.place, 0, 1)]):
        e.emit(Declare(total.name, dtype, None, identity))
        with e.loop("slot", slots) as s:
            e.emit(Assign(total, _join(i, total, Load(shared, dtype, base + s))))
        with e.loop("peer", c.cluster, unroll=True) as peer:
            e.emit(ClusterStore(told, first + state.rank, peer, total, exchange.signal))
    e.emit(exchange)
    with e.loop("lower_rank", c.cluster, unroll=True) as r, e.when([Bound(state.rank - r, 1, c.cluster)]):
        e.emit(Assign(offset, _join(i, offset, Load(told, dtype, first + r))))


def _add_before(state: RowState, i: Instance, values: Reg, totals: Reg, shared: str, base: Affine, warps: int, warp: Affine, lane: Affine,
                offset: Reg, last: Reg, identity: KExpr) -> None:
    """Adds to each vector what comes before it: lower chunks, lower warps, lower lanes."""
    w, c = state.writer, state.choice
    e = w.emitter
    dtype = values.dtype
    width = min(c.threads, 32)
    with e.loop("chunk", c.chunks, unroll=w.unroll) as k:
        mine = Reg(e.fresh("before_warp"), dtype)
        lower = Reg(e.fresh("before_lane"), dtype)
        e.emit(Declare(mine.name, dtype, None, offset), Declare(lower.name, dtype))
        with e.loop("slot", warps, unroll=w.unroll) as s:
            held = e.register(Load(shared, dtype, base + k * warps + s), dtype, "warp_sum")
            with e.when([Bound(warp - s, 1, max(warps, 2))]):
                e.emit(Assign(mine, _join(i, mine, held)))
            e.emit(Assign(offset, _join(i, offset, held)))
        e.emit(Shuffle(lower, Reg(totals.name, dtype, k), "up", 1, width))
        with e.when([Bound(lane, 1, width)]):
            e.emit(Assign(mine, _join(i, mine, lower)))
        vector = e.let("vector", vector_at(state, k), c.chunks * c.threads * c.cluster)
        with e.when(in_row(state, k, vector)), e.loop("v", c.vector, unroll=w.unroll) as v:
            at = Reg(values.name, dtype, k * c.vector + v)
            e.emit(Assign(at, _join(i, mine, at)))


def _publish(state: RowState, i: Instance, values: Reg) -> None:
    state.writer.chunk_values[i.key] = (values, state.choice.vector)

