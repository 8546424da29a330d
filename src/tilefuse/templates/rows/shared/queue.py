"""Rows that are multiplied by a vector that all of them share: persistent blocks of several rows, whose first rows set out early.

    block:  rows -> slots | norm of the shared vector, once -> shared memory | each warp: its row from its slot, times the vector
            rows -> slots | the shared vector -> registers                   | the same
"""
from __future__ import annotations

from tilefuse.domain.resolved import Domain
from tilefuse.domain.roofline import early_start_us
from tilefuse.domain.stages import is_multi_stage, writes_rows
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.rows.legality import queue_refusal
from tilefuse.templates.rows.modes import RowQueue, Rows
from tilefuse.templates.rows.pipelined import fetches_wide
from tilefuse.templates.rows.reads import column_touches, fetched_touches
from tilefuse.templates.rows.shape import RowShape
from tilefuse.templates.rows.shared.prepared import prepared_values


def shared_queue(row: RowShape, blocks: int) -> Rows | None:
    """Rows in queues of teams of so many blocks at most, beside vectors that all rows share; None where no slot fits."""
    domain, device, fitted = row.domain, row.device, row.fitted.shared
    prepared = prepared_values(domain).vectors
    if not fetches_wide(domain, device, row.vector) or domain.num_reduced % row.vector:
        return None
    if row.vectors < fitted.row_threads:
        return None
    if queue_refusal(domain, device, row.reduced_order, domain.num_reduced) is not None:
        return None
    row_bytes = domain.num_reduced * sum(t.dtype.itemsize for t in row.fetched)
    beside = domain.num_reduced * sum(v.node.type.dtype.itemsize for v in prepared) + row.fitted.queue.reserved_bytes
    room = device.shared_bytes_per_block - beside
    threads, best = fitted.row_threads, None
    while threads <= fitted.threads:
        rows = fitted.threads // threads
        turns = -(-domain.num_kept // (rows * blocks))
        groups, slots = -(-domain.num_kept // (rows * turns)), min(max(room, 0) // (rows * row_bytes), turns, fitted.slots)
        if slots and best is None or best is not None and slots > best.slots:
            best = row.kernel(threads, -(-row.vectors // threads), RowQueue(groups, slots), rows=rows)
        threads *= 2
    return best


def waits_once(choice: Rows) -> bool:
    """Whether all blocks run at once, each with several rows in queues of teams, and no sums are carried."""
    return isinstance(choice.mode, RowQueue) and choice.rows > 1 and not choice.carried_rows


def slot_bytes(choice: Rows, domain: Domain) -> int:
    """Bytes of a block's rows of one turn in their slots."""
    return choice.rows * domain.num_reduced * sum(t.dtype.itemsize for t in fetched_touches(domain))


def multiplies_shared(domain: Domain, device: DeviceSpec) -> bool:
    """Whether rows meet a vector that all of them share, once, and leave one value each: a product of a matrix and a vector.

    The matrix must not be larger than kernels gain by an early start. Larger ones are better walked to and fro, from one product to the
    next.
    """
    if is_multi_stage(domain) or writes_rows(domain) or any(i.carried for i in domain.instances) or not column_touches(domain):
        return False
    matrix_bytes = domain.num_kept * domain.num_reduced * sum(t.dtype.itemsize for t in fetched_touches(domain))
    return early_start_us(matrix_bytes, device) > 0.0
