"""Rows fetched ahead into shared memory: which reads can be bulk copies, in what pieces, and when a queue of rows pays."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import gcd

from tilefuse.domain.access import stride_of
from tilefuse.domain.carried import clusters_in_turn
from tilefuse.domain.resolved import Domain, Touch, direct_touches, resolved_dtype
from tilefuse.domain.stages import is_row_element
from tilefuse.domain.stages import stages as stage_by_key
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.template import KEPT_BYTES_PER_THREAD, Rows

# Bytes of one row share that a block keeps on its way: three of them fill shared memory.
STAGE_BYTES = 72 * 1024

# Shared memory that a block keeps for its reductions beside the rows on their way. Units: bytes.
RESERVED_BYTES = 8192

# Shorter rows are held in registers by several small blocks a multiprocessor, which overlap on their own.
PIPELINED_ROW_BYTES = 512 * 1024

# Where vectors that all rows share are as many bytes as the row itself, blocks that read them anew for every row ask more of the L2
# cache than of memory: from this length on a persistent grid keeps them in registers, but for what `_by_small_blocks` holds (measured on
# H200, layer norm over 65536 f16: 71.0 us against 72.3 for the best of other blocks). Two rows on their way are enough, more only spread
# the accesses (65536 elements: 72.6, 73.9, 74.3 and 75.3 us with 2, 3, 4 and 6).
WEIGHTED_ROW_BYTES = 64 * 1024
# Rows of one wide operand that small blocks hold.
SMALL_BLOCKS_ROW_BYTES = 128 * 1024
# Rows on their way ahead of one that registers hold: of norms, of others.
HELD_NORM_STAGES, HELD_STAGES = 2, 4
# Bytes that 512 threads keep of them, 128 each; where the row itself stays in the queue, twice as many.
COLUMN_SHARE_BYTES = 64 * 1024

# A kernel that reads its rows from the queue has this many threads, one block a multiprocessor: 128 registers each.
QUEUE_THREADS = 512
# Shares of rows that registers hold for two blocks of a multiprocessor only, and shared memory for three.
ONCE_BYTES = 64 * 1024
# Bytes of the next row that must be on their way while a row's pieces are all on chip.
AHEAD_BYTES = 48 * 1024


# Rows in a queue whose reductions run a turn ahead: the one that is finished, the one that is reduced, and two on their way where they fit.
AHEAD_STAGES = 4
LEAST_AHEAD_STAGES = 3


def runs_ahead(domain: Domain, choice: Rows) -> bool:
    """Whether rows of the choice can be reduced one turn and finished the next, held by nothing but their queue meanwhile.

    That takes a queue of whole rows and a single exchange between a row's threads, of values that travel as signalled stores do. A sum of
    squared deviations alone, or with the sum of the same elements, is one exchange where `rows_moments.joins_moments` holds.
    """
    shared = [i for i in domain.instances if i.shared and not i.carried]
    legal = choice.stages >= 2 and choice.groups > 0 and not choice.on_chip and choice.split == 1 and choice.threads * choice.cluster > 32
    if not legal or not shared or domain.has_scan or any(i.second_of is not None for i in shared):
        return False
    if any(i.node.detail not in ("sum", "max", "min", "m2") or resolved_dtype(i.body, domain).itemsize < 4 for i in shared):
        return False
    squares = [i for i in shared if i.node.detail == "m2" or i.squares_of is not None]
    others = [i for i in shared if i not in squares]
    depth = stage_by_key(domain)
    if any(depth[i.key] for i in others) or any(depth[i.key] for i in squares if i.squares_of is None):
        return False
    if not squares:
        return True
    vectors, tail = divmod(domain.num_reduced, choice.vector)
    joined = tail == 0 and choice.threads % 32 == 0 and (choice.cluster > 1 or vectors == choice.chunks * choice.threads)
    return joined and len(squares) == 1 and len(others) <= 1 and all(
        o.node.detail == "sum" and (o.key == squares[0].squares_of or o.body == squares[0].body) for o in others)


def reduced_ahead(domain: Domain, choice: Rows, most_stages: int) -> Rows | None:
    """The choice with its rows in the queue and reduced a turn ahead; None where that cannot be, or the queue is too short.

    What blocks of a cluster tell each other takes about a microsecond, and a turn of 16384 elements three: with the row in registers, loads
    go on meanwhile and nothing else does.
    """
    # The queue leaves room for one block: without that bound the assembler aims at registers for two, and spills.
    made = replace(choice, on_chip=False, batch=choice.chunks, stages=min(AHEAD_STAGES, most_stages), resident=1, ahead=True)
    return made if most_stages >= LEAST_AHEAD_STAGES and runs_ahead(domain, made) else None


def choose_pipelined(domain: Domain, device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int, vectors: int,
                     kept_bytes: int) -> Rows | None:
    """Long rows: a persistent grid fetches rows ahead by asynchronous bulk copies, so that loads never wait for reductions.

    Requires: no scan, which wants its row in registers.
    """
    row_bytes = vectors * width * kept_bytes
    columns = column_touches(domain)
    column_bytes = sum(t.dtype.itemsize for t in columns)
    weighted = column_bytes >= 2 * kept_bytes or (column_bytes >= kept_bytes and len(columns) > 1)
    if not weighted and len([a for a in reduced if domain.extents[a] > 1]) < 2:
        # One exchange over a contiguous row: blocks that share a multiprocessor overlap at least as well (measured).
        return None
    shortest = WEIGHTED_ROW_BYTES if weighted else PIPELINED_ROW_BYTES
    if row_bytes < shortest or device.max_cluster_blocks < 1 or not device.capabilities.bulk_copies:
        return None
    fetched = fetched_touches(domain)
    if not fetched or any(t.dtype.itemsize * width < 16 for t in fetched):
        return None
    small = _by_small_blocks(domain, device, kept, reduced, width, vectors, kept_bytes) if weighted else None
    if small is not None:
        return small
    # One block of 512 threads a multiprocessor and clusters half as large beat two of 256 (measured on H200, layer norm: 71.8 us against
    # 74.7 over 32768 f16, 71.5 against 73.0 over 65536, 71.6 against 76.8 over 32768 f32).
    for cluster in (1, 2, 4, 8, 16):
        if cluster > device.max_cluster_blocks or vectors % cluster:
            break
        share = vectors // cluster
        if share * width * column_bytes > COLUMN_SHARE_BYTES and weighted or share * width * kept_bytes > STAGE_BYTES:
            continue
        if any(copies_of(t, domain, reduced, share * width) is None for t in fetched):
            continue
        found = _with_queue(domain, device, kept, reduced, width, share, cluster, kept_bytes, weighted)
        if found is None and weighted:
            continue
        return found
    return from_queue(domain, device, kept, reduced, width, vectors, kept_bytes) if weighted else None


def _by_small_blocks(domain: Domain, device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int, vectors: int,
                     kept_bytes: int) -> Rows | None:
    """Weighted rows that blocks hold in registers, several a multiprocessor: loads of one go on while another reduces or writes.

    Measured on H200 against the queue: residual and layer norm over 32768 f16 69.8 us against 72.4, over 65536 f16 71.8 against 73.9, over
    32768 f32 68.6 against 71.9, over 65536 f32 71.2 against 72.2, over 8192 f32 67.3 against 70.6; layer norm over 32768 f16 67.8 against
    69.7, over 32768 f32 70.0 against 71.9. Four blocks of two narrow operands spill (90 us).
    """
    fetched = fetched_touches(domain)
    wide = are_wide(fetched)
    row_bytes = vectors * width * kept_bytes
    if len({t.dtype.itemsize for t in fetched}) > 1 or any(t.dtype.itemsize > 4 for t in fetched) or len(fetched) > 2:
        return None
    if row_bytes <= WEIGHTED_ROW_BYTES:
        most_threads, resident = 512, 2
    elif len(fetched) == 2:
        most_threads, resident = 256, 4 if wide else 3
    elif wide and row_bytes <= SMALL_BLOCKS_ROW_BYTES:
        most_threads, resident = 256, 3
    else:
        return None
    chunks = KEPT_BYTES_PER_THREAD // (width * kept_bytes)
    cluster = 1
    while cluster * most_threads * chunks < vectors:
        cluster *= 2
    share = -(-vectors // cluster)
    threads = 32 * -(-share // (32 * chunks))
    # Few rows want all multiprocessors more than full shares.
    if cluster > device.max_cluster_blocks or domain.num_kept * cluster < device.num_multiprocessors:
        return None
    return Rows(kept, reduced, width, threads, 1, -(-share // threads), cluster, 1, True, min(width, 2), resident=resident)


def from_queue(domain: Domain, device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int, vectors: int,
               kept_bytes: int) -> Rows | None:
    """Rows too long for registers: a persistent grid walks them in the queue, whole or in pieces of one vector a thread.

    Measured on H200: held by one block of 1024 threads a multiprocessor, which loads, waits and stores in turn, gradients of softmax
    over 262144 f32 run at 0.75 of a copy.
    """
    fetched, column_bytes = fetched_touches(domain), sum(t.dtype.itemsize for t in column_touches(domain))
    if not device.capabilities.bulk_copies or not fetched or any(t.dtype.itemsize * width < 16 for t in fetched):
        return None
    room = min(device.shared_bytes_per_block, device.shared_bytes_per_multiprocessor) - RESERVED_BYTES
    for cluster in (1, 2, 4, 8, 16):
        share = vectors // cluster
        if cluster > device.max_cluster_blocks or share * cluster != vectors or share % QUEUE_THREADS:
            continue
        chunks, piece_bytes = share // QUEUE_THREADS, QUEUE_THREADS * width * kept_bytes
        stages = room // piece_bytes
        turns = -(-domain.num_kept // clusters_in_turn(device, cluster, _wide_bytes(domain, share * width)))
        if share * width * column_bytes > 2 * COLUMN_SHARE_BYTES or (stages - chunks) * piece_bytes < AHEAD_BYTES or turns < 2:
            continue
        if any(copies_of(t, domain, reduced, QUEUE_THREADS * width) is None for t in fetched):
            continue
        whole = stages // chunks
        stages, batch = (2, chunks) if whole > 1 else (stages, 1)
        made = Rows(kept, reduced, width, QUEUE_THREADS, 1, chunks, cluster, 1, False, min(width, 2), batch, stages,
                    -(-domain.num_kept // turns), resident=1)
        return (reduced_ahead(domain, made, whole) if cluster > 1 else None) or made
    return None


def through_shared_memory(domain: Domain, device: DeviceSpec, held: Rows, kept_bytes: int) -> Rows | None:
    """Rows that few blocks of the longest clusters hold in registers: brought to shared memory by one bulk copy a block, where more of them
    fit; None where they do not, or where registers hold enough.

    Measured on H200, softmax over 262144 f32, whose blocks take 64 KiB each: 74.3 us by three a multiprocessor, 79.0 by two with the row in
    registers.
    """
    fetched, vectors = fetched_touches(domain), domain.num_reduced // held.vector
    legal = (device.capabilities.bulk_copies and held.cluster == device.max_cluster_blocks and not held.groups and not domain.has_scan
             and domain.num_reduced == held.chunks * held.threads * held.cluster * held.vector)
    if not legal or not fetched or any(t.dtype.itemsize * held.vector < 16 for t in fetched) or column_touches(domain):
        return None
    share = vectors // held.cluster
    share_bytes = share * held.vector * kept_bytes
    blocks = device.shared_bytes_per_multiprocessor // (share_bytes + RESERVED_BYTES)
    if share_bytes < ONCE_BYTES or blocks <= max(held.resident, 1):
        return None
    if any(copies_of(t, domain, held.reduced_order, share * held.vector) is None for t in fetched):
        return None
    return replace(held, on_chip=False, batch=held.chunks, stages=1, groups=domain.num_kept, resident=blocks)


def _with_queue(domain: Domain, device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int, share: int,
                cluster: int, kept_bytes: int, weighted: bool) -> Rows | None:
    """A persistent grid whose blocks take `share` vectors of each row; None where a queue of rows does not fit or does not pay.

    weighted: operands vary along the row alone, as a norm's weights do.
    """
    threads = 32 * -(-share // (32 * 8))
    chunks = 8
    while chunks > 4 and threads < 512:
        chunks //= 2
        threads = 32 * -(-share // (32 * chunks))
    room = min(device.shared_bytes_per_block, device.shared_bytes_per_multiprocessor) - RESERVED_BYTES
    most = room // (share * width * kept_bytes)
    stages = min(HELD_NORM_STAGES if weighted else HELD_STAGES, most)
    turns = -(-domain.num_kept // clusters_in_turn(device, cluster, _wide_bytes(domain, share * width)))
    if threads > 1024 or stages < 2 or turns < 2:
        return None
    chunks = -(-share // threads)
    held = Rows(kept, reduced, width, threads, 1, chunks, cluster, 1, True, min(width, 2), 1, stages, -(-domain.num_kept // turns),
                resident=1 if weighted else 0)
    # Over sixteen blocks the exchange takes longer than the next row's loads hide; over fewer, one row in registers and one on its way
    # are faster than rows that the queue holds (measured on H200, layer norm: 262144 f16 72.6 us ahead, 76.6 held; 65536 f16 76.0 and 71.0,
    # 65536 f32 73.4 and 71.1).
    exchanges_long = cluster == device.max_cluster_blocks or not weighted
    return (reduced_ahead(domain, held, most) if cluster > 1 and exchanges_long else None) or held


def _wide_bytes(domain: Domain, share: int) -> int:
    """A block's share of a norm's row of f32 as `clusters_in_turn` wants it; 0 for others. Units: share in elements."""
    fetched = fetched_touches(domain)
    wide = bool(column_touches(domain)) and are_wide(fetched)
    return share * sum(t.dtype.itemsize for t in fetched) if wide else 0


def are_wide(touches: Iterable[Touch]) -> bool:
    """Whether all elements that are read have 32 bits or more."""
    return all(t.dtype.itemsize >= 4 for t in touches)


def column_touches(domain: Domain) -> list[Touch]:
    """Reads of every element of the row that are the same for all rows: weights, a bias."""
    found: dict[Touch, None] = {}
    for i in domain.instances:
        for t in direct_touches(i.body):
            if domain.num_kept > 1 and t.offset.axes() and t.offset.axes() <= set(domain.reduced):
                found.setdefault(t)
    return list(found)


def fetched_touches(domain: Domain) -> list[Touch]:
    """Direct reads of every element of the row: what a pipelined kernel fetches ahead."""
    known = set(domain.reduced) | set(domain.kept)
    found: dict[Touch, None] = {}
    for i in domain.instances:
        for t in direct_touches(i.body):
            if is_row_element(domain, t.offset) and t.offset.axes() <= known:
                found.setdefault(t)
    return list(found)


def copies_of(t: Touch, domain: Domain, reduced: tuple[str, ...], share: int) -> int | None:
    """Elements of each contiguous piece of a share of the row, if all pieces are whole and 16-byte aligned; else None."""
    piece = 1
    for a in reversed(reduced):
        stride = stride_of(t.offset, a)
        if stride is None or (domain.extents[a] > 1 and stride != piece):
            if stride is None:
                return None
            break
        piece *= domain.extents[a]
    piece = gcd(piece, share)
    aligned = 16 // min(t.dtype.itemsize, 16)
    strides = [c for atom, c in t.offset.terms if not (isinstance(atom, str) and c == 1)]
    if piece % aligned or t.offset.const % aligned or any(c % aligned for c in strides) or share // piece > 64:
        return None
    return piece
