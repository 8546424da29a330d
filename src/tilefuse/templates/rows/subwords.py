"""Reductions of one stage that share their shuffles: each takes a part of the warp's lanes after the first step.

    lane      0 ... 15   16 ... 31            2 sums over 32 lanes: 1 + 4 shuffles instead of 2 * 5
    before    a, b       a, b
    step 16   a + a'     b + b'               a lane keeps its own half's sum and gives the other one away
    then      8, 4, 2, 1 within each half     as every sum alone, so that results are the same bit for bit
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.domain.resolved import Instance
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.scalar import Bound, Guard
from tilefuse.kernel.ir import Assign, Barrier, ClusterStore, Declare, KExpr, Load, Reg, Shuffle, Store
from tilefuse.templates.rows.exchange import cluster_exchange, exchange_copies, have_met, meet_in_block, row_barrier, slot_base
from tilefuse.templates.rows.walk import RowState


def packs(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> bool:
    """Whether `send_packed` serves a stage: one value each, combined alike, over enough lanes to save shuffles."""
    c = state.choice
    alike = {(i.node.detail, parts[i.key][0].dtype, len(parts[i.key])) for i in group}
    if len(alike) != 1 or next(iter(alike))[2] != 1:
        return False
    if len(group) == 1:
        return c.groups > 0 and c.cluster > 1 and c.threads > 32 * state.fitted.exchange.sending_warps
    return len(group) in (2, 4) and min(c.threads, 32) >= 4 * len(group)


@dataclass(frozen=True, slots=True)
class Slots:
    """Where a lane stands: `each` lanes have a result; this one has result `which` as their number `peer`, in warp `warp`."""

    each: int
    which: Affine
    peer: Affine
    warp: Affine


@dataclass(frozen=True, slots=True)
class Sent:
    """Receiving threads' knowledge of sent values: the register of the lane's own result, and where the lane stands (None: alone)."""

    mine: Reg
    slots: Slots | None


def send_packed(state: RowState, group: list[Instance], held: list[Reg]) -> Sent:
    """Every thread's values of `held` on their way to the threads of its row.

    Requires: all combined alike, one part each, a power of two of them (one: for the sake of the two steps in a cluster).
    """
    c, e = state.choice, state.writer.emitter
    width = min(c.threads, 32)
    lane = e.let("lane_of_warp", state.place % width, width)
    mine = _fold(state, group[0], held, lane, width)
    each = width // len(held)
    warps = max(c.threads // 32, 1)
    if warps * c.cluster == 1:
        _spread(state, held, mine, each, width)
        return Sent(mine, None)
    slots = _slots(state, lane, len(held))
    if _senders(state) < warps:
        buffer = _buffer(state, group, mine, "warps", warps)
        base = slot_base(state, warps * len(held)) + slots.which * warps
        with e.when([Bound(slots.peer, 0, 1)]):
            e.emit(Store(buffer, base + slots.warp, mine))
        meet_in_block(state)
        _gather(state, group[0], mine, buffer, base, slots, warps)
    count = _senders(state) * c.cluster
    buffer = _buffer(state, group, mine, "shared", count)
    _send(state, group, mine, buffer, slot_base(state, count * len(held)) + slots.which * count, slots)
    return Sent(mine, slots)


def expected_packed(state: RowState, group: list[Instance], like: Reg) -> Sent:
    """Result of `send_packed` for its turn, for a turn whose values were sent one turn ago."""
    e = state.writer.emitter
    width = min(state.choice.threads, 32)
    mine = Reg(e.fresh(like.name + "_kept"), like.dtype)
    e.emit(Declare(mine.name, mine.dtype))
    return Sent(mine, _slots(state, e.let("lane_of_warp", state.place % width, width), len(group)))


def receive_packed(state: RowState, group: list[Instance], held: list[Reg], sent: Sent, meet: bool) -> None:
    """Sent values, combined: values of `held` in every thread of the row. `meet`: the block's threads have not met since."""
    c, mine, slots = state.choice, sent.mine, sent.slots
    if slots is None:
        return
    if meet or c.cluster > 1:
        state.writer.emitter.emit(_exchange(state, group, mine))
        if c.cluster == 1:
            have_met(state)
    count = _senders(state) * c.cluster
    buffer = _buffer(state, group, mine, "shared", count)
    base = slot_base(state, count * len(held))
    if count <= state.fitted.exchange.slots_read_by_all:
        _read_all(state, group[0], held, buffer, base, count)
        return
    _gather(state, group[0], mine, buffer, base + slots.which * count, slots, count)
    _spread(state, held, mine, slots.each, min(c.threads, 32))


def _slots(state: RowState, lane: Affine, num_results: int) -> Slots:
    """The result that this lane has, and the lane's number among those that have it."""
    c, e = state.choice, state.writer.emitter
    each, warps = min(c.threads, 32) // num_results, max(c.threads // 32, 1)
    return Slots(each, e.let("which", lane // each, num_results), e.let("peer", lane % each, each), e.let("warp", state.place // 32, warps))


def _senders(state: RowState) -> int:
    """Warps of a block that send its results."""
    warps = max(state.choice.threads // 32, 1)
    return 1 if state.choice.cluster > 1 and warps > state.fitted.exchange.sending_warps else warps


def _exchange(state: RowState, group: list[Instance], mine: Reg) -> Barrier:
    """Where the row's threads meet last."""
    c = state.choice
    if c.cluster == 1:
        return row_barrier(state)
    return cluster_exchange(state, group[0].key, [mine.dtype] * len(group), _senders(state) * c.cluster)


def _fold(state: RowState, like: Instance, held: list[Reg], lane: Affine, width: int) -> Reg:
    """Lanes n * width/N ... of the group end with the group's result of value n of N."""
    e = state.writer.emitter
    dtype = held[0].dtype
    values: list[Reg] = list(held)
    distance = width
    while len(values) > 1:
        distance //= 2
        # Lanes of the lower half of each stretch of 2 * distance go on with the first half of the values.
        upper = e.let("upper", lane // distance % 2, 2)
        half = len(values) // 2
        kept = [_choose(state, upper, a, b, a.name + "_kept") for a, b in zip(values[:half], values[half:], strict=True)]
        sent = [_choose(state, upper, b, a, a.name + "_given") for a, b in zip(values[:half], values[half:], strict=True)]
        for k, g in zip(kept, sent, strict=True):
            other = Reg(e.fresh(k.name + "_other"), dtype)
            e.emit(Declare(other.name, dtype), Shuffle(other, g, "xor", distance, width))
            e.combine(like.node.detail, [k], [other], e.dtype(like.body))
        values = kept
    _shuffle_down(state, like, values[0], distance // 2, width)
    return values[0]


def _choose(state: RowState, upper: Affine, low: Reg, high: Reg, name: str) -> Reg:
    e = state.writer.emitter
    reg = Reg(e.fresh(name), low.dtype)
    chosen: KExpr = Guard((Bound(upper, 0, 1),), low, high)
    e.emit(Declare(reg.name, reg.dtype, None, chosen))
    return reg


def _shuffle_down(state: RowState, like: Instance, value: Reg, distance: int, width: int) -> None:
    """Pairs at `distance`, then at half of it, and so on: each lane ends with the result of its 2 * distance lanes."""
    e = state.writer.emitter
    while distance >= 1:
        other = Reg(e.fresh(value.name + "_other"), value.dtype)
        e.emit(Declare(other.name, other.dtype), Shuffle(other, value, "xor", distance, width))
        e.combine(like.node.detail, [value], [other], e.dtype(like.body))
        distance //= 2


def _buffer(state: RowState, group: list[Instance], like: Reg, use: str, count: int) -> str:
    """Shared memory with `count` slots for each result of the stage: the same again where a split row comes here twice."""
    w, c = state.writer, state.choice
    known = state.exchange.setdefault((group[0].key, "_packed"), [])
    name = "_".join(i.node.name for i in group) + "_" + use
    for buffer in known:
        if buffer.startswith(name):
            return buffer
    known.append(w.shared(name, like.dtype, count * len(group) * c.rows * exchange_copies(c)))
    return known[-1]


def _send(state: RowState, group: list[Instance], mine: Reg, buffer: str, base: Affine, slots: Slots) -> None:
    """Each sending warp's results into its slot: of this block, or of every block of the cluster by a lane each."""
    c, e, senders = state.choice, state.writer.emitter, _senders(state)
    own = base + state.rank * senders + (slots.warp if senders > 1 else number(0))
    sends = [] if senders > 1 else [Bound(slots.warp, 0, 1)]
    exchange = _exchange(state, group, mine)
    for r in range(-(-c.cluster // slots.each)):
        to = slots.peer + r * slots.each
        with e.when([*sends, Bound(to, 0, c.cluster)]):
            e.emit(Store(buffer, own, mine) if c.cluster == 1 else ClusterStore(buffer, own, to, mine, exchange.signal))


def _read_all(state: RowState, like: Instance, held: list[Reg], buffer: str, base: Affine, slots: int) -> None:
    e = state.writer.emitter
    for n, p in enumerate(held):
        e.emit(Assign(p, Load(buffer, p.dtype, base + n * slots)))
        with e.loop("slot", slots, start=1, unroll=state.writer.unroll) as slot:
            other = e.register(Load(buffer, p.dtype, base + n * slots + slot), p.dtype, p.name + "_other")
            e.combine(like.node.detail, [p], [other], e.dtype(like.body))


def _gather(state: RowState, like: Instance, mine: Reg, buffer: str, base: Affine, slots: Slots, count: int) -> None:
    """Every warp reads the slots of all results, those of one by the lanes that have it, and shuffles within these lanes."""
    e = state.writer.emitter
    e.emit(Assign(mine, e.identities(like)[0]))
    with e.loop("round", -(-count // slots.each), unroll=state.writer.unroll) as r, e.when([Bound(r * slots.each + slots.peer, 0, count)]):
        other = e.register(Load(buffer, mine.dtype, base + r * slots.each + slots.peer), mine.dtype, mine.name + "_other")
        e.combine(like.node.detail, [mine], [other], e.dtype(like.body))
    _shuffle_down(state, like, mine, slots.each // 2, 32)


def _spread(state: RowState, held: list[Reg], mine: Reg, each: int, width: int) -> None:
    """Every lane takes each result from the first lane that has it; of a single result all lanes have it."""
    e = state.writer.emitter
    if held[0] == mine:
        return
    for n, p in enumerate(held):
        e.emit(Shuffle(p, mine, "lane", n * each, width))
