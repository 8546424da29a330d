"""Partial results of a row's threads into one: shuffles in warps, shared memory in blocks, the cluster, or global memory between blocks."""
from __future__ import annotations

from tilefuse.domain.online import EXPSUM, second_result
from tilefuse.domain.resolved import Instance
from tilefuse.ir.dtype import BOOL, DType
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import (
    Assign,
    Barrier,
    ClusterStore,
    Declare,
    KExpr,
    LastBlock,
    Load,
    Reg,
    Store,
)
from tilefuse.templates.rows.exchange import cluster_exchange, exchange_copies, meet_in_block, slot_base
from tilefuse.templates.rows.exponentials import gather_exponentials, of_other_lane, shuffle_exponentials
from tilefuse.templates.rows.subwords import Sent, expected_packed, packs, receive_packed, send_packed
from tilefuse.templates.rows.walk import RowState


def combine_threads(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """Shuffles within warps, shared memory across them, the cluster across blocks; every thread ends with the result."""
    _receive(state, group, parts, send_parts(state, group, parts), True)


def send_parts(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> Sent | None:
    """All of `combine_threads` that stands before the barrier at which the row's threads meet last; gives what `_receive` needs."""
    c = state.choice
    if packs(state, group, parts):
        return send_packed(state, group, [parts[i.key][0] for i in group])
    for i in group:
        _shuffle(state, i, parts[i.key], min(c.threads, 32))
    if c.threads > 32:
        _to_block(state, group, parts)
    if c.cluster > 1:
        if c.threads > 32:
            _from_block(state, group, parts, True)
        _to_cluster(state, group, parts)
    return None


def receive_parts(state: RowState, group: list[Instance]) -> None:
    """The rest of `combine_threads`, a turn after `send_parts`. Requires: one value each; a block barrier lies between the two."""
    e = state.writer.emitter
    parts = {i.key: [Reg(e.fresh(i.node.name), start.dtype) for start in e.identities(i)] for i in group}
    e.emit(*(Declare(p.name, p.dtype) for i in group for p in parts[i.key]))
    sent = expected_packed(state, group, parts[group[0].key][0]) if packs(state, group, parts) else None
    _receive(state, group, parts, sent, False)


def _receive(state: RowState, group: list[Instance], parts: dict[int, list[Reg]], sent: Sent | None, meet: bool) -> None:
    """Sent values, combined in every thread. `meet`: the block's threads have not met since."""
    c = state.choice
    if sent is not None:
        receive_packed(state, group, [parts[i.key][0] for i in group], sent, meet)
    elif c.cluster > 1:
        _from_cluster(state, group, parts)
    elif c.threads > 32:
        _from_block(state, group, parts, meet)
    _hand_on(state, group, parts)


def _to_block(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """Every warp's results into shared memory."""
    e, warps = state.writer.emitter, state.choice.threads // 32
    buffers = _slots(state, group, parts, warps, "_shared")
    own = slot_base(state, warps) + e.let("warp", state.place // 32, warps)
    with e.when([Bound(e.let("lane_of_warp", state.place % 32, 32), 0, 1)]):
        for i in group:
            e.emit(*(Store(b, own, p) for p, b in zip(parts[i.key], buffers[i.key], strict=True)))


def _from_block(state: RowState, group: list[Instance], parts: dict[int, list[Reg]], meet: bool) -> None:
    """The warps' results to all threads of the row in this block."""
    warps = state.choice.threads // 32
    if meet:
        meet_in_block(state)
    _gather(state, group, parts, _slots(state, group, parts, warps, "_shared"), warps)


def _to_cluster(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """Every block's results to all blocks of the cluster: thread n tells block n.

    One message from block to block a value: each takes the network a few clocks, and one from every warp made exchanges of 16 blocks
    as long as their loads (measured on H200).
    """
    c, e = state.choice, state.writer.emitter
    buffers = _slots(state, group, parts, c.cluster, "_blocks")
    own = slot_base(state, c.cluster) + state.rank
    exchange = _exchange(state, group, parts)
    with e.when([Bound(state.place, 0, c.cluster)]):
        for i in group:
            e.emit(*(ClusterStore(b, own, state.place, p, exchange.signal) for p, b in zip(parts[i.key], buffers[i.key], strict=True)))


def _from_cluster(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """The blocks' results to all threads of the cluster."""
    cluster = state.choice.cluster
    state.writer.emitter.emit(_exchange(state, group, parts))
    _gather(state, group, parts, _slots(state, group, parts, cluster, "_blocks"), cluster)


def _exchange(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> Barrier:
    return cluster_exchange(state, group[0].key, [p.dtype for i in group for p in parts[i.key]], state.choice.cluster)


def _slots(state: RowState, group: list[Instance], parts: dict[int, list[Reg]], slots: int, suffix: str) -> dict[int, list[str]]:
    """Shared memory for `slots` partial results of each reduction."""
    w, c = state.writer, state.choice
    copies = exchange_copies(c)
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
    """Statements after the block has its results: values of the row, or partial results for the blocks that share the row."""
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
                result = e.register(second_result(parts[i.key], second.node.type.dtype), second.node.type.dtype, second.node.name)
                e.frame.values[second.key] = result


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
