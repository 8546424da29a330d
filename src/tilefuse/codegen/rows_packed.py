"""Reductions of one stage that share their shuffles: each takes a part of the warp's lanes after the first step.

    lane      0 ... 15   16 ... 31            2 sums over 32 lanes: 1 + 4 shuffles instead of 2 * 5
    before    a, b       a, b
    step 16   a + a'     b + b'               a lane keeps its own half's sum and gives the other one away
    then      8, 4, 2, 1 within each half     as every sum alone, so that results are the same bit for bit
"""
from __future__ import annotations

from tilefuse.codegen.kernel import Assign, Barrier, ClusterStore, Declare, KExpr, Load, Reg, Shuffle, Store
from tilefuse.codegen.rows_exchange import cluster_exchange, slot_base
from tilefuse.codegen.rows_walk import RowState
from tilefuse.ir.affine import Affine
from tilefuse.ir.scalar import Bound, Guard
from tilefuse.schedule.resolved import Instance

# Every thread reads all slots of a result itself below this many; above, the lanes share them out.
MOST_SLOTS_READ_BY_ALL = 4


def combine_packed(state: RowState, group: list[Instance], held: list[Reg]) -> None:
    """Every thread's values of `held` become those of its row. Requires: all combined alike, a power of two of them, one part each."""
    c, e = state.choice, state.writer.emitter
    width = min(c.threads, 32)
    lane = e.let("lane_of_warp", state.place % width, width)
    mine = _fold(state, group[0], held, lane, width)
    slots = max(c.threads // 32, 1) * c.cluster
    each = width // len(held)
    if slots == 1:
        _spread(state, held, mine, each, width)
        return
    # The result that this lane has, and the lane's number among those that have it.
    which = e.let("which", lane // each, len(held))
    peer = e.let("peer", lane % each, each)
    buffer = _send(state, group, mine, which, peer, slots, each)
    base = slot_base(state, slots * len(held))
    if slots <= MOST_SLOTS_READ_BY_ALL:
        _read_all(state, group[0], held, buffer, base, slots)
        return
    _gather(state, group[0], mine, buffer, base + which * slots, peer, slots, each)
    _spread(state, held, mine, each, width)


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
        given = [_choose(state, upper, b, a, a.name + "_given") for a, b in zip(values[:half], values[half:], strict=True)]
        for k, g in zip(kept, given, strict=True):
            other = Reg(e.fresh(k.name + "_other"), dtype)
            e.emit(Declare(other.name, dtype), Shuffle(other, g, "xor", distance, width))
            e.combine(like.node.detail, [k], [other], e.dtype(like.body))
        values = kept
    _shuffle_down(state, like, values[0], distance // 2, width)
    return values[0]


def _choose(state: RowState, upper: Affine, low: Reg, high: Reg, name: str) -> Reg:
    e = state.writer.emitter
    made = Reg(e.fresh(name), low.dtype)
    chosen: KExpr = Guard((Bound(upper, 0, 1),), low, high)  # type: ignore[arg-type]
    e.emit(Declare(made.name, made.dtype, None, chosen))
    return made


def _shuffle_down(state: RowState, like: Instance, value: Reg, distance: int, width: int) -> None:
    """Pairs at `distance`, then at half of it, and so on: each lane ends with the result of its 2 * distance lanes."""
    e = state.writer.emitter
    while distance >= 1:
        other = Reg(e.fresh(value.name + "_other"), value.dtype)
        e.emit(Declare(other.name, other.dtype), Shuffle(other, value, "xor", distance, width))
        e.combine(like.node.detail, [value], [other], e.dtype(like.body))
        distance //= 2


def _send(state: RowState, group: list[Instance], mine: Reg, which: Affine, peer: Affine, slots: int, each: int) -> str:
    """The warp's results into its slots: of this block, or of every block of the cluster by a lane each."""
    w, c = state.writer, state.choice
    e = w.emitter
    key = group[0].key
    if key not in state.exchange:
        copies = 2 if c.groups else 1
        state.exchange[key] = [w.shared("_".join(i.node.name for i in group) + "_shared", mine.dtype, slots * len(group) * c.rows * copies)]
    buffer = state.exchange[key][0]
    warps = slots // c.cluster
    warp = e.let("warp", state.place // 32, warps)
    own = slot_base(state, slots * len(group)) + which * slots + state.rank * warps + warp
    exchange = cluster_exchange(state, [mine.dtype] * len(group), slots) if c.cluster > 1 else Barrier("block")
    for r in range(-(-c.cluster // each)):
        to = peer + r * each
        with e.when([Bound(to, 0, c.cluster)]):
            e.emit(Store(buffer, own, mine) if c.cluster == 1 else ClusterStore(buffer, own, to, mine, exchange.signal))
    e.emit(exchange)
    return buffer


def _read_all(state: RowState, like: Instance, held: list[Reg], buffer: str, base: Affine, slots: int) -> None:
    e = state.writer.emitter
    for n, p in enumerate(held):
        e.emit(Assign(p, Load(buffer, p.dtype, base + n * slots)))
        with e.loop("slot", slots, start=1, unroll=state.writer.unroll) as slot:
            other = e.register(Load(buffer, p.dtype, base + n * slots + slot), p.dtype, p.name + "_other")
            e.combine(like.node.detail, [p], [other], e.dtype(like.body))


def _gather(state: RowState, like: Instance, mine: Reg, buffer: str, base: Affine, peer: Affine, slots: int, each: int) -> None:
    """Every warp reads the slots of all results, those of one by the lanes that have it, and shuffles within these lanes."""
    e = state.writer.emitter
    e.emit(Assign(mine, e.identities(like)[0]))
    with e.loop("round", -(-slots // each), unroll=state.writer.unroll) as r, e.when([Bound(r * each + peer, 0, slots)]):
        other = e.register(Load(buffer, mine.dtype, base + r * each + peer), mine.dtype, mine.name + "_other")
        e.combine(like.node.detail, [mine], [other], e.dtype(like.body))
    _shuffle_down(state, like, mine, each // 2, 32)


def _spread(state: RowState, held: list[Reg], mine: Reg, each: int, width: int) -> None:
    """Every lane takes each result from the first lane that has it."""
    e = state.writer.emitter
    for n, p in enumerate(held):
        e.emit(Shuffle(p, mine, "lane", n * each, width))
