"""Where partial results of a row meet: exchange slots in shared memory, and the barrier of an exchange over the cluster."""
from __future__ import annotations

from tilefuse.codegen.kernel import Barrier
from tilefuse.codegen.rows_walk import RowState
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.dtype import DType


def cluster_exchange(state: RowState, dtypes: list[DType], slots: int) -> Barrier:
    """The barrier of one exchange over the cluster: a signalled one where the values have 4 or 8 bytes."""
    if any(t.itemsize < 4 for t in dtypes):
        return Barrier("cluster")
    w = state.writer
    w.num_barriers += 1
    phase = state.parity if state.choice.groups else number(0)
    return Barrier("cluster", number(w.num_barriers - 1), phase, slots * sum(t.itemsize for t in dtypes))


def slot_base(state: RowState, slots: int) -> Affine:
    """First exchange slot of this row. Turns alternate between two copies: a slow thread may still read those of the last turn."""
    return state.row_of_block * slots + state.parity * (slots * state.choice.rows)
