"""Row schedules whose sums down the columns stay in registers while a block walks its rows."""
from __future__ import annotations

from dataclasses import replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.access import Access, by_memory_order, vector_limit, widest_vector
from tilefuse.domain.carried import blocks_per_multiprocessor, row_threads, written_rows
from tilefuse.domain.resolved import Domain
from tilefuse.domain.stages import kept_bytes_of
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.rows.legality import queue_refusal
from tilefuse.templates.rows.modes import HeldQueue, HeldTurns, PieceQueue, RowQueue, Rows
from tilefuse.templates.rows.pipelined import fetches_wide, reduced_ahead
from tilefuse.templates.rows.reads import are_wide, fetched_touches


def choose_carried(domain: Domain, device: DeviceSpec, touched: list[Access]) -> Rows | Rejected:
    """A persistent grid with a group of rows a block or cluster; sums down the columns stay in registers until the group ends."""
    kept = domain.kept
    reduced = by_memory_order(domain.reduced, [a for a in touched if a.offset.axes() & set(domain.reduced)], domain.extents)
    carried = [i for i in domain.instances if i.carried]
    spans = {i.node.over[0][1] for i in carried}
    last = [a for a in reduced if domain.extents[a] > 1][-1:]
    length = domain.num_reduced
    sum_bytes = max(i.node.type.dtype.itemsize for i in carried)
    fetched = fetched_touches(domain)
    rows_written = written_rows([t.dtype.itemsize for t in fetched], several=len(carried) > 1) if domain.stores_elements else None
    fitted = device.fitted.rows.carried
    shape = row_threads(fitted, length, sum_bytes, rows_written)
    if shape is None:
        return Rejected(Reason.REGISTERS,
                        f"rows of {length} elements with sums carried down their columns fit no cluster")
    threads, rows, cluster = shape
    width = widest_vector(touched, tuple(last), length, vector_limit(touched, device))
    vectors = -(-length // width)
    chunks = -(-vectors // (threads * cluster))
    if device.kind != "cuda" or len(spans) != 1 or domain.has_scan or cluster > device.max_cluster_blocks or vectors % cluster:
        return Rejected(Reason.REDUCTION_MISMATCH, "sums down the columns do not fit this kernel's walk over rows")
    carried_bytes = chunks * width * max(sum_bytes, 4) * len(carried)
    if carried_bytes > fitted.held_bytes:
        return Rejected(Reason.REGISTERS, f"{len(carried)} carried sums need {carried_bytes} bytes a thread")
    kept_bytes = max(kept_bytes_of(domain, touched), 1)
    held_bytes = carried_bytes + chunks * width * kept_bytes
    held = Rows(kept, reduced, width, threads, rows, chunks, min(width, 2), HeldTurns(carried[0].node.type.shape[0], next(iter(spans))),
                cluster, blocks_per_multiprocessor(device, threads * rows))
    scratch_bytes = rows * length * max(sum_bytes, 4) if rows > 1 else 0
    queued = _with_queue(domain, device, held, carried_bytes, vectors // cluster * width * kept_bytes * rows, scratch_bytes)
    if queued is None and held_bytes > 3 * device.fitted.kept.thread_bytes:
        return Rejected(Reason.REGISTERS, f"{len(carried)} carried sums and their row need {held_bytes} bytes a thread")
    return queued or held


def _with_queue(domain: Domain, device: DeviceSpec, held: Rows, carried_bytes: int, share_bytes: int, scratch_bytes: int) -> Rows | None:
    """The choice with rows on their way to shared memory ahead of it; None where they cannot be, or are as fast without.

    Units: carried_bytes of a thread's sums; share_bytes of a block's rows of one turn; scratch_bytes for the end of a group.
    """
    share = held.share_of(domain.num_reduced)
    if not fetches_wide(domain, device, held.vector) or queue_refusal(domain, device, held.reduced_order, share) is not None:
        return None
    fetched, fitted = fetched_touches(domain), device.fitted.rows.carried
    room = device.shared_bytes_per_multiprocessor // held.resident - device.fitted.rows.queue.reserved_bytes - scratch_bytes
    most = room // share_bytes
    groups, carried_rows = held.groups, held.carried_rows
    # Narrow elements are used in single precision: that is what they take while the row is worked on.
    if carried_bytes + held.chunks * held.vector * sum(max(t.dtype.itemsize, 4) for t in fetched) <= fitted.held_bytes:
        # Rows of several f32 operands in one block need no queue: the loads of all threads keep memory busy. Half as many bytes leave
        # memory idle while sums go round the block.
        alone = held.cluster == 1 and held.threads > 32 and are_wide(fetched) and share_bytes * held.resident >= fitted.unqueued_bytes
        slots = min(fitted.wide_slots if are_wide(fetched) else fitted.slots, most)
        return None if alone or slots < fitted.slots else replace(held, mode=HeldQueue(groups, slots, carried_rows))
    slots = min(fitted.whole_slots if sum(i.carried for i in domain.instances) == 1 else fitted.slots, most)
    if slots < 1:
        return None
    whole = held.rows == 1 and share == held.chunks * held.threads * held.vector
    in_pieces = slots < fitted.slots and whole and held.chunks > 1
    if in_pieces and queue_refusal(domain, device, held.reduced_order, held.threads * held.vector) is None:
        return replace(held, mode=PieceQueue(groups, room // (share_bytes // held.chunks), carried_rows))
    queued = replace(held, mode=RowQueue(groups, slots, carried_rows))
    # Rows held in registers keep what a reduction made of them for the elements: a turn ahead they would compute it twice.
    return (reduced_ahead(domain, device, queued, most) if held.cluster > 1 else None) or queued
