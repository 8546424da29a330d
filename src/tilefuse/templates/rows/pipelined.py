"""Rows fetched ahead into shared memory: which reads can be bulk copies, in what pieces, and when a queue of rows pays."""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.carried import clusters_in_turn
from tilefuse.domain.resolved import Domain
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.rows.legality import queue_refusal, runs_ahead
from tilefuse.templates.rows.modes import AheadQueue, Held, HeldQueue, PieceQueue, RowQueue, Rows
from tilefuse.templates.rows.reads import are_wide, fetched_touches
from tilefuse.templates.rows.shape import RowShape


def reduced_ahead(domain: Domain, device: DeviceSpec, choice: Rows, most_slots: int) -> Rows | None:
    """The choice with its rows in the queue and reduced a turn ahead; None where that cannot be, or the queue is too short.

    An exchange between the blocks of a cluster takes about a microsecond, and a turn of 16384 elements three: with the row in registers,
    loads go on meanwhile and nothing else does.
    """
    fitted = device.fitted.rows.queue
    if most_slots < fitted.least_ahead_slots:
        return None
    # The queue leaves room for one block: without that bound the assembler aims at registers for two, and spills.
    ahead = replace(choice, mode=AheadQueue(choice.groups, min(fitted.ahead_slots, most_slots), choice.carried_rows), resident=1)
    return ahead if runs_ahead(domain, ahead) else None


def choose_pipelined(row: RowShape) -> Rows | None:
    """Long rows: a persistent grid fetches rows ahead by asynchronous bulk copies, so that loads never wait for reductions.

    Requires: no scan, which wants its row in registers.
    """
    weighted = row.column_bytes >= 2 * row.kept_bytes or row.column_bytes >= row.kept_bytes and len(row.columns) > 1
    if not weighted and not row.has_several_axes:
        # One exchange over a contiguous row: blocks that share a multiprocessor overlap at least as well (measured).
        return None
    fitted = row.fitted.queue
    shortest = fitted.weighted_row_bytes if weighted else fitted.row_bytes
    if row.row_bytes < shortest or not fetches_wide(row.domain, row.device, row.vector):
        return None
    small = _by_small_blocks(row) if weighted else None
    if small is not None:
        return small
    # Three slots fill shared memory; the threads of a block keep their share of the weights.
    slot_bytes, column_bytes = _room(row.device) // 3, _column_bytes(row.device)
    for cluster in (1, 2, 4, 8, 16):
        if cluster > row.device.max_cluster_blocks or row.vectors % cluster:
            break
        share = row.vectors // cluster * row.vector
        if share * row.column_bytes > column_bytes and weighted or share * row.kept_bytes > slot_bytes:
            continue
        if queue_refusal(row.domain, row.device, row.reduced_order, share) is not None:
            continue
        queued = _with_queue(row, cluster, weighted)
        if queued is not None or not weighted:
            return queued
    return from_queue(row) if weighted else None


def fetches_wide(domain: Domain, device: DeviceSpec, width: int) -> bool:
    """Whether bulk copies bring all that is read of a row, and a thread then takes 16 bytes of each operand at a time."""
    fetched = fetched_touches(domain)
    return device.capabilities.bulk_copies and bool(fetched) and all(t.dtype.itemsize * width >= 16 for t in fetched)


def _by_small_blocks(row: RowShape) -> Rows | None:
    """Weighted rows that blocks hold in registers, several a multiprocessor: loads of one go on while another reduces or writes.

    Measured on H200 against the queue: residual and layer norm over 32768 f16 69.8 us against 72.4, over 65536 f16 71.8 against 73.9, over
    32768 f32 68.6 against 71.9, over 65536 f32 71.2 against 72.2, over 8192 f32 67.3 against 70.6; layer norm over 32768 f16 67.8 against
    69.7, over 32768 f32 70.0 against 71.9. Four blocks of two narrow operands spill (90 us).
    """
    fetched, wide = row.fetched, are_wide(row.fetched)
    if len({t.dtype.itemsize for t in fetched}) > 1 or any(t.dtype.itemsize > 4 for t in fetched) or len(fetched) > 2:
        return None
    if row.row_bytes <= row.fitted.queue.weighted_row_bytes:
        most_threads, resident = 512, 2
    elif len(fetched) == 2:
        most_threads, resident = 256, 4 if wide else 3
    elif wide and row.row_bytes <= row.fitted.queue.small_block_row_bytes:
        most_threads, resident = 256, 3
    else:
        return None
    chunks = row.device.fitted.kept.thread_bytes // row.vector_bytes
    cluster = 1
    while cluster * most_threads * chunks < row.vectors:
        cluster *= 2
    share = -(-row.vectors // cluster)
    threads = 32 * -(-share // (32 * chunks))
    # Few rows want all multiprocessors more than full shares.
    if cluster > row.device.max_cluster_blocks or row.domain.num_kept * cluster < row.device.num_multiprocessors:
        return None
    return row.held(threads, cluster=cluster, resident=resident)


def from_queue(row: RowShape) -> Rows | None:
    """Rows too long for registers: a persistent grid walks them in the queue, whole or in pieces of one vector a thread.

    Measured on H200: held by one block of 1024 threads a multiprocessor, which loads, waits and stores in turn, gradients of softmax
    over 262144 f32 run at 0.75 of a copy.
    """
    domain, device, fitted = row.domain, row.device, row.fitted.queue
    if not fetches_wide(domain, device, row.vector):
        return None
    piece_bytes = fitted.threads * row.vector_bytes
    pieces = _room(device) // piece_bytes
    for cluster in (1, 2, 4, 8, 16):
        share = row.vectors // cluster
        if cluster > device.max_cluster_blocks or share * cluster != row.vectors or share % fitted.threads:
            continue
        chunks, turns = share // fitted.threads, _turns(row, cluster)
        few_columns = share * row.vector * row.column_bytes <= 2 * _column_bytes(device)
        if not few_columns or (pieces - chunks) * piece_bytes < fitted.ahead_bytes or turns < 2:
            continue
        if queue_refusal(domain, device, row.reduced_order, fitted.threads * row.vector) is not None:
            continue
        whole, groups = pieces // chunks, -(-domain.num_kept // turns)
        mode = RowQueue(groups, 2) if whole > 1 else PieceQueue(groups, pieces)
        kernel = row.kernel(fitted.threads, chunks, mode, cluster=cluster, resident=1)
        return (reduced_ahead(domain, device, kernel, whole) if cluster > 1 else None) or kernel
    return None


def through_shared_memory(row: RowShape, held: Rows) -> Rows | None:
    """Rows that few blocks of the longest clusters hold in registers: brought to shared memory by one bulk copy a block, where more of them
    fit; None where they do not, or where registers hold enough.
    """
    domain, device = row.domain, row.device
    whole = domain.num_reduced == held.chunks * held.threads * held.cluster * held.vector
    long = isinstance(held.mode, Held) and held.cluster == device.max_cluster_blocks and not domain.has_scan
    if not (whole and long and fetches_wide(domain, device, held.vector)) or row.columns:
        return None
    share = domain.num_reduced // held.cluster
    share_bytes = share * row.kept_bytes
    blocks = device.shared_bytes_per_multiprocessor // (share_bytes + row.fitted.queue.reserved_bytes)
    if share_bytes < row.fitted.queue.once_bytes or blocks <= max(held.resident, 1):
        return None
    if queue_refusal(domain, device, held.reduced_order, share) is not None:
        return None
    return replace(held, mode=RowQueue(domain.num_kept, 1), resident=blocks)


def _with_queue(row: RowShape, cluster: int, weighted: bool) -> Rows | None:
    """A persistent grid whose blocks take an equal share of each row; None where a queue of rows does not fit or does not pay.

    weighted: operands vary along the row alone, as a norm's weights do.
    """
    domain, share, fitted = row.domain, row.vectors // cluster, row.fitted.queue
    threads = 32 * -(-share // (32 * 8))
    if threads < 512:
        threads = 32 * -(-share // (32 * 4))
    most = _room(row.device) // (share * row.vector_bytes)
    slots = min(fitted.norm_slots if weighted else fitted.held_slots, most)
    turns = _turns(row, cluster)
    if threads > 1024 or slots < 2 or turns < 2:
        return None
    mode = HeldQueue(-(-domain.num_kept // turns), slots)
    held = row.kernel(threads, -(-share // threads), mode, cluster=cluster, resident=1 if weighted else 0)
    # Over sixteen blocks the exchange takes longer than the next row's loads hide; over fewer, one row in registers and one on its way
    # are faster than rows that the queue holds (`RowQueueFigures.ahead_slots`).
    exchanges_long = cluster == row.device.max_cluster_blocks or not weighted
    return (reduced_ahead(domain, row.device, held, most) if cluster > 1 and exchanges_long else None) or held


def _room(device: DeviceSpec) -> int:
    """Shared memory of a block for a queue. Units: bytes."""
    return min(device.shared_bytes_per_block, device.shared_bytes_per_multiprocessor) - device.fitted.rows.queue.reserved_bytes


def _column_bytes(device: DeviceSpec) -> int:
    """Bytes of vectors along a row that the threads of a block keep."""
    return device.fitted.rows.queue.threads * device.fitted.kept.thread_bytes


def _turns(row: RowShape, cluster: int) -> int:
    """Rows that a cluster walks one after another, where as many clusters walk as `clusters_in_turn` says."""
    wide = bool(row.columns) and are_wide(row.fetched)
    wide_bytes = row.vectors // cluster * row.vector * sum(t.dtype.itemsize for t in row.fetched) if wide else 0
    return -(-row.domain.num_kept // clusters_in_turn(row.device, cluster, wide_bytes))
