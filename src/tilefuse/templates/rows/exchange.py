"""Where partial results of a row meet: exchange slots in shared memory, and the barrier of an exchange over the cluster."""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Barrier, ClusterStore, Reg, Store
from tilefuse.templates.rows.modes import AheadQueue, Rows
from tilefuse.templates.rows.walk import RowState, team_threads


def exchange_copies(choice: Rows) -> int:
    """Copies of the exchange slots, and transaction barriers of an exchange, that turns use one after another.

    Two: a block that has all of turn t's values may send turn t + 1's while another still waits for some of turn t's. One row ahead, a
    block sends for turn t + 2 once it has all of turn t's, and another, which sent those after it had finished turn t - 2, may still wait
    for turn t - 1's: four. Where only the threads of a block meet, a barrier ends every turn, and two are enough.
    """
    if not choice.groups:
        return 1
    return 4 if isinstance(choice.mode, AheadQueue) and choice.cluster > 1 else 2


def cluster_exchange(state: RowState, key: int, dtypes: list[DType], slots: int) -> Barrier:
    """The barrier of the exchange of reduction `key` over the cluster: a signalled one where the values have 4 or 8 bytes."""
    if any(t.itemsize < 4 for t in dtypes):
        return Barrier("cluster")
    w = state.writer
    if key not in state.signals:
        state.signals[key] = w.num_barriers
        w.num_barriers += exchange_copies(state.choice)
    return Barrier("cluster", state.signals[key] + state.parity, state.phase, slots * sum(t.itemsize for t in dtypes))


def row_barrier(state: RowState) -> Barrier:
    """The barrier of an exchange among the threads of one row in this block."""
    return Barrier("block", team=team_threads(state.choice))


def meet_in_block(state: RowState) -> None:
    """The row's threads in this block meet; what waited for that follows."""
    state.writer.emitter.emit(row_barrier(state))
    have_met(state)


def have_met(state: RowState) -> None:
    """Behind a barrier of the row's threads: what waited for one."""
    waiting = list(state.after_meeting)
    state.after_meeting.clear()
    for follow in waiting:
        follow()


def slot_base(state: RowState, slots: int) -> Affine:
    """First exchange slot of this row. Turns alternate between copies: a slow thread may still read those of the last turn."""
    return state.row_of_block * slots + state.parity * (slots * state.choice.rows)


def exchange_buffers(state: RowState, names: Sequence[str], suffix: str, dtype: DType, slots: int) -> list[str]:
    """Shared memory for `slots` values of each name, the same whenever it is asked for."""
    w, c = state.writer, state.choice
    if (names[0], suffix) not in state.exchange:
        state.exchange[names[0], suffix] = [w.shared(n + suffix, dtype, slots * c.rows * exchange_copies(c)) for n in names]
    return state.exchange[names[0], suffix]


def warps_to_shared(state: RowState, names: Sequence[str], parts: Sequence[Reg], dtype: DType) -> None:
    """Each warp's values into its slot in shared memory. Requires: more than one warp."""
    e, warps = state.writer.emitter, state.choice.threads // 32
    buffers = exchange_buffers(state, names, "_shared", dtype, warps)
    own = slot_base(state, warps) + e.let("warp", state.place // 32, warps)
    with e.when([Bound(e.let("lane_of_warp", state.place % 32, 32), 0, 1)]):
        e.emit(*(Store(b, own, p) for p, b in zip(parts, buffers, strict=True)))


def block_to_cluster(state: RowState, key: int, names: Sequence[str], parts: Sequence[Reg], dtype: DType) -> None:
    """The block's values of reduction `key` into its slot in every block of the cluster: thread n tells block n."""
    c, e = state.choice, state.writer.emitter
    buffers = exchange_buffers(state, names, "_blocks", dtype, c.cluster)
    exchange = cluster_exchange(state, key, [dtype] * len(parts), c.cluster)
    own = slot_base(state, c.cluster) + state.rank
    with e.when([Bound(state.place, 0, c.cluster)]):
        e.emit(*(ClusterStore(b, own, state.place, p, exchange.signal) for p, b in zip(parts, buffers, strict=True)))
