"""Partial results of a row's threads into one: shuffles in warps, shared memory in blocks, the cluster, or global memory between blocks."""
from __future__ import annotations

from tilefuse.codegen.kernel import (
    Assign,
    ClusterStore,
    Declare,
    KExpr,
    LastBlock,
    Load,
    Reg,
    Store,
)
from tilefuse.codegen.rows_exchange import cluster_exchange, row_barrier, slot_base
from tilefuse.codegen.rows_exponentials import gather_exponentials, of_other_lane, shuffle_exponentials
from tilefuse.codegen.rows_packed import combine_packed, packs
from tilefuse.codegen.rows_walk import RowState
from tilefuse.ir.dtype import BOOL, DType
from tilefuse.ir.scalar import Bound
from tilefuse.schedule.online import EXPSUM, second_result
from tilefuse.schedule.resolved import Instance


def combine_threads(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """Shuffles within warps, shared memory across them, the cluster across blocks; every thread ends with the result."""
    c = state.choice
    if packs(state, group, parts):
        combine_packed(state, group, [parts[i.key][0] for i in group])
        _hand_on(state, group, parts)
        return
    for i in group:
        _shuffle(state, i, parts[i.key], min(c.threads, 32))
    warps = max(c.threads // 32, 1)
    if warps > 1:
        _over_block(state, group, parts, warps)
    if c.cluster > 1:
        _over_cluster(state, group, parts)
    _hand_on(state, group, parts)


def _over_block(state: RowState, group: list[Instance], parts: dict[int, list[Reg]], warps: int) -> None:
    """Every warp's results to all threads of the row in this block."""
    e = state.writer.emitter
    buffers = _slots(state, group, parts, warps, "_shared")
    own = slot_base(state, warps) + e.let("warp", state.place // 32, warps)
    with e.when([Bound(e.let("lane_of_warp", state.place % 32, 32), 0, 1)]):
        for i in group:
            e.emit(*(Store(b, own, p) for p, b in zip(parts[i.key], buffers[i.key], strict=True)))
    e.emit(row_barrier(state))
    _gather(state, group, parts, buffers, warps)


def _over_cluster(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """Every block's results to all threads of the cluster: thread n tells block n.

    One message from block to block a value: each takes the network a few clocks, and one from every warp made exchanges of 16 blocks
    as long as their loads (measured on H200).
    """
    c, e = state.choice, state.writer.emitter
    buffers = _slots(state, group, parts, c.cluster, "_blocks")
    own = slot_base(state, c.cluster) + state.rank
    exchange = cluster_exchange(state, [p.dtype for i in group for p in parts[i.key]], c.cluster)
    with e.when([Bound(state.place, 0, c.cluster)]):
        for i in group:
            e.emit(*(ClusterStore(b, own, state.place, p, exchange.signal) for p, b in zip(parts[i.key], buffers[i.key], strict=True)))
    e.emit(exchange)
    _gather(state, group, parts, buffers, c.cluster)


def _slots(state: RowState, group: list[Instance], parts: dict[int, list[Reg]], slots: int, suffix: str) -> dict[int, list[str]]:
    """Shared memory for `slots` partial results of each reduction."""
    w, c = state.writer, state.choice
    copies = 2 if c.groups else 1
    for i in group:
        # The last block of a split row comes here twice; the meeting of the blocks lies between, so that it may use the same memory.
        if (i.key, suffix) not in state.exchange:
            state.exchange[i.key, suffix] = [w.shared(p.name + suffix, p.dtype, slots * c.rows * copies) for p in parts[i.key]]
    return {i.key: state.exchange[i.key, suffix] for i in group}


def _gather(state: RowState, group: list[Instance], parts: dict[int, list[Reg]], buffers: dict[int, list[str]], slots: int) -> None:
    """Every thread ends with all slots combined."""
    gather = _gather_slots if slots <= 8 else _gather_by_warp
    for i in group:
        gather(state, i, parts[i.key], buffers[i.key], slots, state.writer.emitter.dtype(i.body))


def _hand_on(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """What follows when the block has its results: values of the row, or partial results for the blocks that share the row."""
    if state.choice.split == 1:
        _publish(state, group, parts)
    else:
        _split_partials(state, group, parts)


def _gather_slots(state: RowState, i: Instance, held: list[Reg], buffers: list[str], slots: int, dtype: DType) -> None:
    """Every thread reads all slots: few, and the same address for a whole warp."""
    e = state.writer.emitter
    base = slot_base(state, slots)
    if i.node.detail == EXPSUM.name:
        gather_exponentials(state, held, buffers, base, slots)
        return
    for p, b in zip(held, buffers, strict=True):
        e.emit(Assign(p, Load(b, p.dtype, base)))
    with e.loop("slot", slots, start=1, unroll=state.writer.unroll) as slot:
        other = [e.register(Load(b, p.dtype, base + slot), p.dtype, p.name + "_other") for p, b in zip(held, buffers, strict=True)]
        e.combine(i.node.detail, held, other, dtype)


def _gather_by_warp(state: RowState, i: Instance, held: list[Reg], buffers: list[str], slots: int, dtype: DType) -> None:
    """Every warp reads the slots with its lanes and shuffles: log2(32) steps for any number of slots."""
    e = state.writer.emitter
    base = slot_base(state, slots)
    lane = e.let("lane_of_warp", state.place % 32, 32)
    for p, start in zip(held, e.identities(i), strict=True):
        e.emit(Assign(p, start))
    with e.loop("round", -(-slots // 32), unroll=state.writer.unroll) as r, e.when([Bound(r * 32 + lane, 0, slots)]):
        other = [e.register(Load(b, p.dtype, base + r * 32 + lane), p.dtype, p.name + "_other") for p, b in zip(held, buffers, strict=True)]
        e.combine(i.node.detail, held, other, dtype)
    _shuffle(state, i, held, 32)


def _shuffle(state: RowState, instance: Instance, parts: list[Reg], width: int) -> None:
    e = state.writer.emitter
    dtype = e.dtype(instance.body)
    if instance.node.detail == EXPSUM.name:
        shuffle_exponentials(state, instance, parts, width)
        return
    step = width // 2
    while step >= 1:
        e.combine(instance.node.detail, parts, [of_other_lane(state, p, step, width) for p in parts], dtype)
        step //= 2


def _publish(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """The finished reductions become values of the row."""
    e = state.writer.emitter
    for i in group:
        value: KExpr = e.finished(i, parts[i.key])
        e.frame.values[i.key] = value
        for second in state.writer.domain.instances:
            if second.second_of == i.key:
                made = e.register(second_result(parts[i.key], second.node.type.dtype), second.node.type.dtype, second.node.name)
                e.frame.values[second.key] = made


def _split_partials(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """Each block's partial result goes to global memory; the last block of a row reads them all back."""
    w, c = state.writer, state.choice
    e = w.emitter
    count = w.domain.num_kept
    spaces = {i.key: [w.workspace(f"{p.name}_partial", p.dtype, count * c.split) for p in parts[i.key]] for i in group}
    with e.when([Bound(state.place, 0, 1), *state.row_bounds]):
        for i in group:
            for p, b in zip(parts[i.key], spaces[i.key], strict=True):
                e.emit(Store(b, state.row * c.split + state.part, p))
    last = Reg(e.fresh("is_last"), BOOL)
    counter = w.counter("arrived", count)
    e.emit(Declare(last.name, BOOL), LastBlock(last, counter, state.row, c.split))
    state.split = (last, group, parts, spaces)
