"""Scans along the rows of the row template: lanes, then warps by shuffles, then the block, then the cluster.

    element order:  chunk (slowest) -> thread -> lane;  every partial prefix is added to what comes before it
"""
from __future__ import annotations

from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.domain.resolved import Instance
from tilefuse.emit.kernel_writer import Running
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import F32, F64
from tilefuse.ir.scalar import Bound, Const
from tilefuse.kernel.ir import Assign, Barrier, ClusterStore, Comment, Declare, KExpr, Load, Reg, Shuffle, Store
from tilefuse.templates.rows.exchange import cluster_exchange, slot_base
from tilefuse.templates.rows.walk import RowState, in_row, lane_env_of, restart_scans, vector_at

# Scans whose steps round.
ROUNDED = ("sum", "prod", "logaddexp")


def compose_scans(state: RowState, scans: list[Instance]) -> None:
    """Every scan of a stage. Later bodies compute values again from the elements that a thread holds: values take no registers."""
    for i in scans:
        if state.choice.threads == 1:
            _serial_scan(state, i)
        else:
            _parallel_scan(state, i)


def _serial_scan(state: RowState, i: Instance) -> None:
    """One thread a row: a running value; each element is written as the walk passes it, so no array is kept."""
    e = state.writer.emitter
    dtype = e.dtype(i.body)
    if dtype == F32 and i.node.detail in ROUNDED and state.writer.device.kind == "host":
        # The rounding error of a running value grows with the row. In double precision it stays below the results' own rounding.
        dtype = F64
    running = Reg(e.fresh(i.node.name), dtype)
    e.emit(Declare(running.name, dtype, None, KERNEL_MONOIDS[i.node.detail].identity(dtype)[0]))
    state.writer.running.append(Running(i, running))


def _parallel_scan(state: RowState, i: Instance) -> None:
    w, c = state.writer, state.choice
    e = w.emitter
    dtype = e.dtype(i.body)
    identity = KERNEL_MONOIDS[i.node.detail].identity(dtype)[0]
    e.emit(Comment(f"%{i.node.name} ({i.node.kind}): lanes -> warp -> block" + (" -> cluster" if c.cluster > 1 else "")))
    totals = Reg(e.fresh(i.node.name + "_total"), dtype)
    e.emit(Declare(totals.name, dtype, c.chunks))
    _add_lanes(state, i, totals, identity)
    lane_of_warp = e.let("lane_of_warp", state.place % min(c.threads, 32), min(c.threads, 32))
    _scan_warp(state, i, totals, lane_of_warp)
    warps = max(c.threads // 32, 1)
    slots = c.chunks * warps
    shared = w.shared(i.node.name + "_warps", dtype, slots * c.rows * (2 if c.groups else 1))
    base = slot_base(state, slots)
    warp = e.let("warp", state.place // 32, warps)
    with e.loop("chunk", c.chunks, unroll=w.unroll) as k, e.when([Bound(lane_of_warp, min(c.threads, 32) - 1, min(c.threads, 32))]):
        e.emit(Store(shared, base + k * warps + warp, Reg(totals.name, dtype, k)))
    e.emit(Barrier("block"))
    offset = Reg(e.fresh("before"), dtype)
    e.emit(Declare(offset.name, dtype, None, identity))
    by_all = slots <= state.fitted.exchange.scan_slots and c.cluster == 1
    exchange = shared
    if not by_all:
        exchange, total = _scan_slots(state, i, shared, base, slots, lane_of_warp, identity)
        if c.cluster > 1:
            _before_this_block(state, i, total, offset)
    before = _before_vectors(state, i, totals, exchange, base, warps, warp, lane_of_warp, offset, by_all)
    running = Reg(e.fresh(i.node.name), dtype)
    e.emit(Declare(running.name, dtype))
    w.running.append(Running(i, running, before))


def _add_lanes(state: RowState, i: Instance, totals: Reg, identity: KExpr) -> None:
    """Total of each vector; elements past the row's end count as the identity."""
    w, c = state.writer, state.choice
    e = w.emitter
    dtype = totals.dtype
    with e.loop("chunk", c.chunks, unroll=w.unroll) as k:
        e.emit(Assign(Reg(totals.name, dtype, k), identity))
        vector = e.let("vector", vector_at(state, k), c.chunks * c.threads * c.cluster)
        with e.when(in_row(state, k, vector)):
            env = lane_env_of(state, vector, c.vector)
            restart_scans(state, True)
            with w.lanes(c.vector, env, state.lane) as v:
                w.bind(state.held, k, v)
                e.emit(Assign(Reg(totals.name, dtype, k), state.writer.joined(i, Reg(totals.name, dtype, k), e.expression(i.body))))


def _scan_warp(state: RowState, i: Instance, totals: Reg, lane: Affine) -> None:
    """Inclusive scan of the vectors' totals over the lanes of each warp. Source: Hillis and Steele 1986, CACM 29(12)."""
    w, c = state.writer, state.choice
    with w.emitter.loop("chunk", c.chunks, unroll=w.unroll) as k:
        _scan_lanes(state, i, Reg(totals.name, totals.dtype, k), lane)


def _scan_lanes(state: RowState, i: Instance, value: Reg, lane: Affine) -> None:
    """Each lane's value joined with those of the lower lanes."""
    e = state.writer.emitter
    width = min(state.choice.threads, 32)
    step = 1
    while step < width:
        other = Reg(e.fresh("lower"), value.dtype)
        e.emit(Declare(other.name, other.dtype), Shuffle(other, value, "up", step, width))
        with e.when([Bound(lane, step, width)]):
            e.emit(Assign(value, state.writer.joined(i, other, value)))
        step *= 2


def _scan_slots(state: RowState, i: Instance, shared: str, base: Affine, slots: int, lane: Affine, identity: Const) -> tuple[str, Reg]:
    """Combination of all before each warp's part of each chunk, in shared memory; and a total that is the block's in the last lane.

    Every warp adds up the slots with its lanes, neighbouring slots a lane; the row's first one writes. Ends with a barrier.
    """
    w, c = state.writer, state.choice
    e = w.emitter
    width = min(c.threads, 32)
    each = -(-slots // width)
    below = w.shared(i.node.name + "_below", identity.dtype, slots * c.rows * (2 if c.groups else 1))
    parts = Reg(e.fresh("slot_sums"), identity.dtype)
    total, lower = (Reg(e.fresh(name), parts.dtype) for name in ("block_total", "before_slot"))
    e.emit(Declare(parts.name, parts.dtype, each), Declare(total.name, parts.dtype, None, identity), Declare(lower.name, parts.dtype))
    with e.loop("slot", each, unroll=w.unroll) as n, e.when([Bound(lane * each + n, 0, slots)]):
        e.emit(Assign(Reg(parts.name, parts.dtype, n), Load(shared, parts.dtype, base + lane * each + n)),
               Assign(total, state.writer.joined(i, total, Reg(parts.name, parts.dtype, n))))
    _scan_lanes(state, i, total, lane)
    e.emit(Shuffle(lower, total, "up", 1, width))
    with e.when([Bound(lane, 0, 1)]):
        e.emit(Assign(lower, identity))
    with e.loop("slot", each, unroll=w.unroll) as n, e.when([Bound(state.place, 0, width), Bound(lane * each + n, 0, slots)]):
        e.emit(Store(below, base + lane * each + n, lower), Assign(lower, state.writer.joined(i, lower, Reg(parts.name, parts.dtype, n))))
    e.emit(Barrier("block"))
    return below, total


def _before_this_block(state: RowState, i: Instance, total: Reg, offset: Reg) -> None:
    """Contribution of the lower blocks of the cluster: every block tells its total to all."""
    w, c = state.writer, state.choice
    e = w.emitter
    dtype = offset.dtype
    totals = w.shared(i.node.name + "_blocks", dtype, c.cluster * (2 if c.groups else 1))
    first = state.parity * c.cluster
    exchange = cluster_exchange(state, i.key, [dtype], c.cluster)
    last = min(c.threads, 32) - 1
    with e.when([Bound(state.place, last, last + 1)]), e.loop("peer", c.cluster, unroll=True) as peer:
        e.emit(ClusterStore(totals, first + state.rank, peer, total, exchange.signal))
    e.emit(exchange)
    with e.loop("lower_rank", c.cluster, unroll=True) as r, e.when([Bound(state.rank - r, 1, c.cluster)]):
        e.emit(Assign(offset, state.writer.joined(i, offset, Load(totals, dtype, first + r))))


def _before_vectors(state: RowState, i: Instance, totals: Reg, exchange: str, base: Affine, warps: int, warp: Affine, lane: Affine,
                    offset: Reg, by_all: bool) -> Reg:
    """Combination of all before each of the thread's vectors: lower blocks, lower chunks and warps, lower lanes.

    exchange: what comes before each chunk of each warp; `by_all`: the sums of chunks of warps, which every thread adds up.
    """
    w, c = state.writer, state.choice
    e = w.emitter
    dtype = totals.dtype
    width = min(c.threads, 32)
    before = Reg(e.fresh("before_vector"), dtype)
    e.emit(Declare(before.name, dtype, c.chunks))
    with e.loop("chunk", c.chunks, unroll=w.unroll) as k:
        mine = Reg(before.name, dtype, k)
        lower = Reg(e.fresh("before_lane"), dtype)
        first = offset if by_all else state.writer.joined(i, offset, Load(exchange, dtype, base + k * warps + warp))
        e.emit(Assign(mine, first), Declare(lower.name, dtype))
        if by_all:
            with e.loop("slot", warps, unroll=w.unroll) as s:
                held = e.register(Load(exchange, dtype, base + k * warps + s), dtype, "warp_sum")
                with e.when([Bound(warp - s, 1, max(warps, 2))]):
                    e.emit(Assign(mine, state.writer.joined(i, mine, held)))
                e.emit(Assign(offset, state.writer.joined(i, offset, held)))
        e.emit(Shuffle(lower, Reg(totals.name, dtype, k), "up", 1, width))
        with e.when([Bound(lane, 1, width)]):
            e.emit(Assign(mine, state.writer.joined(i, mine, lower)))
    return before
