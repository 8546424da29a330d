"""Where partial results of a row meet: exchange slots in shared memory, and the barrier of an exchange over the cluster."""
from __future__ import annotations

from tilefuse.codegen.kernel import Barrier
from tilefuse.codegen.rows_walk import RowState, team_threads
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import DType


def cluster_exchange(state: RowState, dtypes: list[DType], slots: int) -> Barrier:
    """The barrier of one exchange over the cluster: a signalled one where the values have 4 or 8 bytes.

    Turns alternate between two transaction barriers: a block that has all of this turn's values may send the next turn's while
    another block still waits for some of this turn's.
    """
    if any(t.itemsize < 4 for t in dtypes):
        return Barrier("cluster")
    w = state.writer
    first = w.num_barriers
    w.num_barriers += 2 if state.choice.groups else 1
    return Barrier("cluster", first + state.parity, state.phase, slots * sum(t.itemsize for t in dtypes))


def row_barrier(state: RowState) -> Barrier:
    """The barrier of an exchange among the threads of one row in this block."""
    return Barrier("block", team=team_threads(state.choice))


def slot_base(state: RowState, slots: int) -> Affine:
    """First exchange slot of this row. Turns alternate between two copies: a slow thread may still read those of the last turn."""
    return state.row_of_block * slots + state.parity * (slots * state.choice.rows)
