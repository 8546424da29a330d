"""Row schedules whose sums down the columns stay in registers while a block walks its rows."""
from __future__ import annotations

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.access import Access, by_memory_order, vector_limit, widest_vector
from tilefuse.domain.carried import blocks_per_multiprocessor, row_threads, written_rows
from tilefuse.domain.resolved import Domain
from tilefuse.domain.stages import kept_bytes_of
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.rows.pipelined import RESERVED_BYTES, are_wide, copies_of, fetched_touches, reduced_ahead
from tilefuse.templates.template import KEPT_BYTES_PER_THREAD, Rows

# Rows on their way ahead: two keep memory busy, and more only spread the accesses (measured on H200, 16-bit rows of 1024 to 65536: four
# rows take 1 to 2 % longer). Rows of f32 need a third (8192 elements: 3 % faster), and so does a queue that every walk reads, unless the
# work of several sums hides what the third would (262144 elements f16: 3 % slower with it).
HELD_STAGES, WIDE_STAGES, QUEUE_STAGES = 2, 3, 3
# Bytes of carried sums and of the row above which a thread reads the row from the queue again instead of holding it; and the most that
# carried sums alone may take. Units: bytes a thread of a block of 512.
HELD_BYTES = 256
# Bytes that the blocks of a multiprocessor load at once from which on rows on chip need no queue.
UNQUEUED_BYTES = 64 << 10


def choose_carried(domain: Domain, device: DeviceSpec, found: list[Access]) -> Rows | Rejected:
    """A persistent grid with a group of rows a block or cluster; sums down the columns stay in registers until the group ends."""
    kept = domain.kept
    reduced = by_memory_order(domain.reduced, [a for a in found if a.offset.axes() & set(domain.reduced)], domain.extents)
    carried = [i for i in domain.instances if i.carried]
    spans = {i.node.over[0][1] for i in carried}
    last = [a for a in reduced if domain.extents[a] > 1][-1:]
    length = domain.num_reduced
    sum_bytes = max(i.node.type.dtype.itemsize for i in carried)
    fetched = fetched_touches(domain)
    rows_written = written_rows([t.dtype.itemsize for t in fetched], several=len(carried) > 1) if domain.stores_elements else None
    shape = row_threads(length, sum_bytes, rows_written)
    if shape is None:
        return Rejected(Reason.REGISTERS,
                        f"rows of {length} elements with sums carried down their columns fit no cluster")
    threads, rows, cluster = shape
    width = widest_vector(found, tuple(last), length, vector_limit(found, device))
    vectors = -(-length // width)
    chunks = -(-vectors // (threads * cluster))
    kept_bytes = max(kept_bytes_of(domain, found), 1)
    if device.kind != "cuda" or len(spans) != 1 or domain.has_scan or cluster > device.max_cluster_blocks or vectors % cluster:
        return Rejected(Reason.REDUCTION_MISMATCH, "sums down the columns do not fit this kernel's walk over rows")
    carried_bytes = chunks * width * max(sum_bytes, 4) * len(carried)
    if carried_bytes > HELD_BYTES:
        return Rejected(Reason.REGISTERS, f"{len(carried)} carried sums need {carried_bytes} bytes a thread")
    held_bytes = carried_bytes + chunks * width * kept_bytes
    # Narrow elements are used in single precision: that is what they take while the row is worked on.
    on_chip = carried_bytes + chunks * width * sum(max(t.dtype.itemsize, 4) for t in fetched) <= HELD_BYTES
    share_bytes = vectors // cluster * width * kept_bytes * rows
    fits = (fetched and all(t.dtype.itemsize * width >= 16 for t in fetched)
            and all(copies_of(t, domain, reduced, vectors // cluster * width) for t in fetched))
    scratch = rows * length * max(sum_bytes, 4) if rows > 1 else 0
    resident = blocks_per_multiprocessor(threads * rows)
    room = device.shared_bytes_per_multiprocessor // resident - RESERVED_BYTES - scratch
    held_stages = WIDE_STAGES if are_wide(fetched) else HELD_STAGES
    queue_stages = QUEUE_STAGES if len(carried) == 1 else HELD_STAGES
    stages = min(held_stages if on_chip else queue_stages, room // share_bytes) if fits and device.capabilities.bulk_copies else 0
    batch = 1 if on_chip else chunks
    whole = rows == 1 and vectors == chunks * threads * cluster
    if fits and not on_chip and 0 < stages < HELD_STAGES and whole and all(copies_of(t, domain, reduced, threads * width) for t in fetched):
        # The queue holds pieces: one vector a thread each.
        stages, batch = room // (share_bytes // chunks), 1
    # Rows of several f32 operands in one block come without a queue: what its threads load at once keeps memory busy (measured on H200,
    # gradients of norms of 4096 elements, 64 KiB a group: 69.4 us against 72.3, 70.9 against 74.3; 16-bit elements are half as many bytes
    # a load, and a queue gains 10 to 20 %). Half as many bytes leave memory idle while sums go round the block (A'(A x), 32 KiB a group:
    # 90.3 us against 67.4).
    whole_rows = on_chip and cluster == 1 and threads > 32 and are_wide(fetched)
    if whole_rows and share_bytes * resident >= UNQUEUED_BYTES:
        stages = 0
    if not stages or on_chip and stages < HELD_STAGES:
        if held_bytes > 3 * KEPT_BYTES_PER_THREAD:
            return Rejected(Reason.REGISTERS, f"{len(carried)} carried sums and their row need {held_bytes} bytes a thread")
        stages, on_chip, batch = 0, True, 1
    made = Rows(kept, reduced, width, threads, rows, chunks, cluster, 1, on_chip, min(width, 2), batch, stages,
                carried[0].node.type.shape[0], next(iter(spans)), resident)
    # Rows held in registers keep what a reduction made of them for the elements: a turn ahead they would compute it twice.
    return (reduced_ahead(domain, made, room // share_bytes) if stages and not on_chip and cluster > 1 else None) or made
