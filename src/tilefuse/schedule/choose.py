"""How a root domain is spread over grid, cluster, block, warp and thread: the template's parameters, chosen from sizes and device.

Every template has one record. Widths are in elements, counts in what the field says.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Union

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.schedule.access import Access, accesses, by_memory_order, contiguous_axes, stride_of, widest_vector
from tilefuse.schedule.carried import blocks_per_multiprocessor, row_threads
from tilefuse.schedule.resolved import Domain, Touch, direct_touches
from tilefuse.target.device import DeviceSpec

# Bytes of boundary values that one thread may keep in registers across the stages of a row: a quarter of 255 registers
# leaves room for addresses, accumulators and conversions (measured: no spills at 128).
KEPT_BYTES_PER_THREAD = 128


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Flat walk: `threads` x `steps` vectors a block. `unrolled`: all loads of the steps are issued before the first use."""

    order: tuple[str, ...]
    vector: int
    threads: int
    steps: int
    unrolled: bool


@dataclass(frozen=True, slots=True)
class Transpose:
    """Tiles of `rows` x `columns`: read along `read_axis`, written along `write_axis`, turned in shared memory."""

    order: tuple[str, ...]
    read_axis: str
    write_axis: str
    rows: int
    columns: int
    threads: int
    read_vector: int
    write_vector: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Reduced axes run along memory: `threads` lanes a row, `rows` rows a block, `cluster` blocks a row, `split` blocks a row
    that meet through global memory. `chunks`: vectors a thread. `on_chip`: the row stays in registers between stages; else
    `batch` vectors are loaded at a time. `lanes`: accumulators a thread. `stages` > 0: a persistent grid of `groups` (blocks or
    clusters), each walking rows group, group + groups, ..., with `stages` rows on their way into shared memory ahead of it. `span` > 0: groups of that many
    consecutive rows instead, `rows` at a time, with sums carried down the columns.
    `resident`: blocks that must fit a multiprocessor together (0: no matter).
    """

    kept_order: tuple[str, ...]
    reduced_order: tuple[str, ...]
    vector: int
    threads: int
    rows: int
    chunks: int
    cluster: int
    split: int
    on_chip: bool
    lanes: int
    batch: int = 1
    stages: int = 0
    groups: int = 0
    span: int = 0
    resident: int = 0


@dataclass(frozen=True, slots=True)
class Columns:
    """Kept axes run along memory: `threads_x` vectors of columns a block, `threads_y` threads down each column, `split` blocks
    down a column that meet through global memory. `chunks`: rows a thread. `on_chip`: they stay in registers between stages.
    """

    kept_order: tuple[str, ...]
    reduced_order: tuple[str, ...]
    vector: int
    threads_x: int
    threads_y: int
    chunks: int
    split: int
    on_chip: bool
    batch: int


Choice = Union[Pointwise, Transpose, Rows, Columns]


def choose(domain: Domain, device: DeviceSpec) -> Choice | Rejected:
    """The template and its parameters for a domain on a device, or why there is none."""
    found = accesses(domain)
    shared = [i for i in domain.instances if i.shared]
    if domain.scatter is not None or not shared:
        return _pointwise_or_transpose(domain, device, found)
    if any(i.carried for i in shared):
        return _rows_with_carried(domain, device, found)
    weights = contiguous_axes(found, domain.kept + domain.reduced, domain.extents)
    along_kept = max((weights[a] for a in domain.kept), default=0)
    along_reduced = max((weights[a] for a in domain.reduced), default=0)
    if along_kept > along_reduced and domain.num_kept > 1 and not domain.has_scan:
        return _columns(domain, device, found)
    return _rows(domain, device, found)


def _vector_limit(found: list[Access], device: DeviceSpec) -> int:
    if device.kind == "host":
        return 16
    smallest = min((a.itemsize for a in found if a.elements > 1), default=4)
    return min(8, max(1, device.vector_bytes // smallest))


def _pointwise_or_transpose(domain: Domain, device: DeviceSpec, found: list[Access]) -> Choice | Rejected:
    names = domain.kept + domain.reduced
    order = by_memory_order(names, found, domain.extents)
    total = prod(domain.extents[a] for a in names)
    if device.kind == "cuda" and domain.scatter is None:
        turned = _transpose(domain, device, found, order)
        if turned is not None:
            return turned
    limit = _vector_limit(found, device)
    last = [a for a in order if domain.extents[a] > 1][-1:]
    width = widest_vector(found, tuple(last), domain.extents, total if len(last) == 0 else max(total, 1), limit)
    if domain.scatter is not None or any(i.serial for i in domain.instances):
        width = 1 if device.kind == "cuda" else min(width, 4)
    if device.kind == "host":
        vectors = max(total // width, 1)
        return Pointwise(order, width, 1, max(1, min(vectors, 4096 // width + 1)), False)
    # One vector a thread, small blocks: 0.95 to 0.98 of a copy on H200; two or four vectors gave 0.90 to 0.96 (benchmarks/tuning.py).
    return Pointwise(order, width, 128, 1, True)


def _transpose(domain: Domain, device: DeviceSpec, found: list[Access], order: tuple[str, ...]) -> Transpose | None:
    """A tile transpose where the large reads run along another axis than the writes."""
    if any(i.serial for i in domain.instances):
        return None
    total = prod(domain.extents[a] for a in order)
    if total < 1 << 14:
        return None
    write_axes = {a for access in found if access.written for a in order if domain.extents[a] > 1 and stride_of(access.offset, a) == 1}
    if len(write_axes) != 1:
        return None
    write_axis = next(iter(write_axes))
    turned: dict[str, int] = {}
    for access in found:
        if access.written or access.dynamic or access.guarded or access.elements * 2 < total:
            continue
        fast = [a for a in order if domain.extents[a] > 1 and stride_of(access.offset, a) == 1]
        if len(fast) == 1 and fast[0] != write_axis and (stride_of(access.offset, write_axis) or 0) > 1:
            turned[fast[0]] = max(turned.get(fast[0], 0), access.itemsize)
    if len(turned) != 1:
        return None
    read_axis, itemsize = next(iter(turned.items()))
    if min(domain.extents[read_axis], domain.extents[write_axis]) < 8:
        return None
    return _transpose_tile(domain, found, order, read_axis, write_axis, itemsize)


def _transpose_tile(domain: Domain, found: list[Access], order: tuple[str, ...], read_axis: str, write_axis: str,
                    itemsize: int) -> Transpose:
    side = 64
    largest = max(a.itemsize for a in found)

    def width(axis: str, itemsize: int, written: bool) -> int:
        best = max(1, min(8, 16 // itemsize))
        for a in found:
            if a.dynamic or a.guarded or stride_of(a.offset, axis) != 1 or (a.written != written and not written):
                continue
            while best > 1 and (domain.extents[axis] % best or a.offset.const % best
                                or any(c % best for atom, c in a.offset.terms if atom != axis)):
                best //= 2
        return best

    return Transpose(order, read_axis, write_axis, side, side, 256 if itemsize <= 2 else 512, width(read_axis, itemsize, False),
                     width(write_axis, largest, True))


def _kept_bytes(domain: Domain, found: list[Access]) -> int:
    """Bytes an element of the row that must stay on chip between stages (each distinct full read once)."""
    full = [a for a in found if not a.written and not a.dynamic and a.offset.axes() & set(domain.reduced)
            and (not domain.kept or domain.num_kept == 1 or a.offset.axes() & set(domain.kept))]
    return sum(a.itemsize for a in full)


def stages(domain: Domain) -> dict[int, int]:
    """For every shared instance how many shared reductions must come before it."""
    depth: dict[int, int] = {}
    below: dict[int, int] = {}
    for instance in domain.instances:
        needed = max((below[u] for u in instance.uses), default=0)
        if instance.shared and not instance.carried:
            depth[instance.key] = needed
            below[instance.key] = needed + 1
        else:
            below[instance.key] = needed
    return depth


def _is_multi_stage(domain: Domain) -> bool:
    """Whether elements are needed again after a reduction over them is done."""
    depth = stages(domain)
    if max(depth.values(), default=0) > 0 or domain.has_scan:
        return True
    return any(offset.axes() & set(domain.reduced) for _, key,
               offset in domain.outputs if domain.num_reduced > 1 and _after_shared(domain, key))


def _after_shared(domain: Domain, key: int) -> bool:
    instance = domain.instances[key]
    return instance.shared or any(_after_shared(domain, u) for u in instance.uses)


def _writes_rows(domain: Domain) -> bool:
    return any(offset.axes() & set(domain.reduced) for _, _, offset in domain.outputs)


def _rows(domain: Domain, device: DeviceSpec, found: list[Access]) -> Rows | Rejected:
    kept = by_memory_order(domain.kept, [a for a in found if a.offset.axes() & set(domain.kept)], domain.extents)
    reduced = domain.reduced if domain.has_scan else by_memory_order(domain.reduced,
                                                                     [a for a in found if a.offset.axes() & set(domain.reduced)],
                                                                     domain.extents)
    length, count = domain.num_reduced, domain.num_kept
    last = [a for a in reduced if domain.extents[a] > 1][-1:]
    multi = _is_multi_stage(domain)
    if device.kind == "host":
        if domain.has_scan:
            return Rows(kept, reduced, 1, 1, 1, max(length, 1), 1, 1, False, 1)
        width = 16 if length >= 16 else 1
        split = 1
        if not multi and not _writes_rows(domain) and count < device.num_multiprocessors and length >= 1 << 16:
            split = device.num_multiprocessors
        chunks = -(-(length // width) // split) if length >= width else 1
        return Rows(kept, reduced, width, 1, 1, max(chunks, 1), 1, split, False, width)
    width = widest_vector(found, tuple(last), domain.extents, length, _vector_limit(found, device))
    if domain.has_scan:
        width = min(width, 8)
    return _rows_on_cuda(domain, device, kept, reduced, width, _kept_bytes(domain, found), multi)


def _rows_on_cuda(domain: Domain, device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int, kept_bytes: int,
                  multi: bool) -> Rows | Rejected:
    length, count = domain.num_reduced, domain.num_kept
    vectors = -(-length // width)
    vector_bytes = max(kept_bytes, 1) * width
    max_chunks = max(1, KEPT_BYTES_PER_THREAD // vector_bytes)
    # Two vectors of each operand a thread keep most loads in flight per register (measured: 2 beats 4 and 8 up to rows of 32 KiB).
    wanted_chunks = min(max_chunks, max(1, 32 // vector_bytes))
    if vectors <= 32 * max(wanted_chunks, min(max_chunks, 4)):
        return _short_rows(device, kept, reduced, width, vectors, wanted_chunks, count)
    if not multi and not _writes_rows(domain):
        return _rows_reduced_once(domain, device, kept, reduced, width, vectors)
    piped = _pipelined(domain, device, kept, reduced, width, vectors, kept_bytes)
    if piped is not None:
        return piped
    found = _held_in_registers(domain, device, kept, reduced, width, vectors, vector_bytes, wanted_chunks, max_chunks)
    if found is not None:
        return found
    if domain.has_scan:
        return Rejected(Reason.SHARED_MEMORY, f"a scanned row of {length} elements does not fit the registers of a cluster")
    if count < 2 * device.num_multiprocessors:
        return Rejected(Reason.NEEDS_GRID_SYNC,
                        f"{count} rows of {length} elements fit neither on chip nor in one block each; their reduction needs all blocks "
                        "to meet")
    threads = 1024
    return Rows(kept, reduced, width, threads, 1, -(-vectors // threads), 1, 1, False, min(width, 2), 4)


def _held_in_registers(domain: Domain, device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int, vectors: int,
                       vector_bytes: int, wanted_chunks: int, max_chunks: int) -> Rows | None:
    """The smallest cluster whose blocks hold their share of the row in registers with at most 512 threads.

    Two such blocks fit a multiprocessor and overlap. Clusters exchange by signalled stores, so that small blocks in larger clusters
    beat one large block (measured on H200: rows of 65536 f16 0.87 of a copy by 8 blocks of 128, 0.62 by one of 1024).
    """
    narrow = vector_bytes // width <= 2
    for cluster in (1, 2, 4, 8, 16):
        if cluster > device.max_cluster_blocks:
            break
        share = -(-vectors // cluster)
        limit = 512 if cluster == 1 or not narrow else 256
        for chunks in dict.fromkeys((wanted_chunks, 4, 8, max_chunks)):
            if chunks > max_chunks or chunks < wanted_chunks:
                continue
            threads = 32 * -(-share // (32 * chunks))
            if threads <= (256 if chunks < min(8, max_chunks) else limit):
                return Rows(kept, reduced, width, threads, 1, -(-share // threads), cluster, 1, True, min(width, 2))
    for cluster in (8, 16):
        share = -(-vectors // cluster)
        threads = 32 * -(-share // (32 * max_chunks))
        if cluster <= device.max_cluster_blocks and threads <= 1024:
            return Rows(kept, reduced, width, threads, 1, -(-share // threads), cluster, 1, True, min(width, 2))
    return None


def _short_rows(device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int, vectors: int, wanted_chunks: int,
                count: int) -> Rows:
    """Rows of at most a few vectors a lane: one warp or part of one a row, four warps a block."""
    threads = 1
    while threads < 32 and threads * wanted_chunks < vectors:
        threads *= 2
    rows = 128 // threads
    while rows * threads > 32 and count // rows < device.num_multiprocessors * 2:
        rows //= 2
    return Rows(kept, reduced, width, threads, rows, -(-vectors // threads), 1, 1, True, min(width, 2))


def _rows_with_carried(domain: Domain, device: DeviceSpec, found: list[Access]) -> Rows | Rejected:
    """A persistent grid over groups of consecutive rows; sums down the columns stay in registers until a group ends."""
    kept = domain.kept
    reduced = by_memory_order(domain.reduced, [a for a in found if a.offset.axes() & set(domain.reduced)], domain.extents)
    carried = [i for i in domain.instances if i.carried]
    spans = {i.node.over[0][1] for i in carried}
    last = [a for a in reduced if domain.extents[a] > 1][-1:]
    length = domain.num_reduced
    shape = row_threads(length)
    if shape is None:
        return Rejected(Reason.REGISTERS, f"rows of {length} elements with sums carried down their columns fit no cluster")
    threads, rows, cluster = shape
    width = widest_vector(found, tuple(last), domain.extents, length, _vector_limit(found, device))
    vectors = -(-length // width)
    chunks = -(-vectors // (threads * cluster))
    kept_bytes = max(_kept_bytes(domain, found), 1)
    if device.kind != "cuda" or len(spans) != 1 or domain.has_scan or cluster > device.max_cluster_blocks or vectors % cluster:
        return Rejected(Reason.REDUCTION_MISMATCH, "sums down the columns do not fit this kernel's walk over rows")
    bytes_per_thread = chunks * width * (kept_bytes + 4 * len(carried))
    if bytes_per_thread > 3 * KEPT_BYTES_PER_THREAD:
        return Rejected(Reason.REGISTERS, f"{len(carried)} carried sums and {kept_bytes} bytes an element need {bytes_per_thread} bytes a thread")
    share_bytes = vectors // cluster * width * kept_bytes * rows
    fetched = fetched_touches(domain)
    fits = (fetched and all(t.dtype.itemsize * width >= 16 for t in fetched)
            and all(copies_of(t, domain, kept, reduced, vectors // cluster * width) for t in fetched))
    scratch = rows * length * 4 if rows > 1 else 0
    resident = blocks_per_multiprocessor(threads * rows)
    room = device.shared_bytes_per_multiprocessor // resident - 8192 - scratch
    stages = min(4, room // share_bytes) if fits and device.arch.startswith("sm_9") else 0
    return Rows(kept, reduced, width, threads, rows, chunks, cluster, 1, True, min(width, 2), 1, stages if stages >= 2 else 0,
                carried[0].node.type.shape[0], next(iter(spans)), resident)


# Bytes of one row share that a block keeps on its way: three of them fill shared memory.
STAGE_BYTES = 72 * 1024
# Shorter rows are held in registers by several small blocks a multiprocessor, which overlap on their own.
PIPELINED_ROW_BYTES = 512 * 1024


def _pipelined(domain: Domain, device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int, vectors: int,
               kept_bytes: int) -> Rows | None:
    """Long rows: a persistent grid fetches rows ahead by asynchronous bulk copies, so that loads never wait for reductions."""
    row_bytes = vectors * width * kept_bytes
    if not domain.has_scan and len([a for a in reduced if domain.extents[a] > 1]) < 2:
        # One exchange or two over a contiguous row: blocks that share a multiprocessor overlap at least as well (measured).
        return None
    if row_bytes < PIPELINED_ROW_BYTES or device.max_cluster_blocks < 1 or not device.arch.startswith("sm_9"):
        return None
    fetched = fetched_touches(domain)
    if not fetched or any(t.dtype.itemsize * width < 16 for t in fetched):
        return None
    for cluster in (1, 2, 4, 8, 16):
        if cluster > device.max_cluster_blocks or vectors % cluster:
            return None
        share_bytes = row_bytes // cluster
        if share_bytes > STAGE_BYTES or any(copies_of(t, domain, kept, reduced, vectors // cluster * width) is None for t in fetched):
            continue
        share = vectors // cluster
        threads = 32 * -(-share // (32 * 8))
        chunks = 8
        while chunks > 4 and threads < 512:
            chunks //= 2
            threads = 32 * -(-share // (32 * chunks))
        if threads > 1024:
            continue
        stages = min(4, (device.shared_bytes_per_block - 8192) // share_bytes)
        most = max(1, device.num_multiprocessors // cluster if cluster < 8 else device.num_multiprocessors // (cluster + 1))
        turns = -(-domain.num_kept // most)
        if stages < 2 or turns < 2:
            return None
        return Rows(kept, reduced, width, threads, 1, -(-share // threads), cluster, 1, True, min(width, 2), 1, stages,
                    -(-domain.num_kept // turns))
    return None


def fetched_touches(domain: Domain) -> list[Touch]:
    """Direct reads of every element of the row: what a pipelined kernel fetches ahead."""
    reduced, known = set(domain.reduced), set(domain.reduced) | set(domain.kept)
    found: dict[Touch, None] = {}
    for i in domain.instances:
        for t in direct_touches(i.body):
            if t.offset.axes() & reduced and (t.offset.axes() & set(domain.kept) or domain.num_kept == 1) and t.offset.axes() <= known:
                found.setdefault(t)
    return list(found)


def copies_of(t: Touch, domain: Domain, kept: tuple[str, ...], reduced: tuple[str, ...], share: int) -> int | None:
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


def _rows_reduced_once(domain: Domain, device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int,
                       vectors: int) -> Rows:
    """Rows that are read once and leave only row results: blocks split a row where there are too few rows."""
    threads = min(256, 32 * -(-vectors // (32 * 4)))
    split = 1
    wanted_blocks = device.num_multiprocessors * 4
    while domain.num_kept * split * 2 <= wanted_blocks and vectors // (split * 2) >= threads * 4:
        split *= 2
    return Rows(kept, reduced, width, threads, 1, -(-vectors // (threads * split)), 1, split, False, min(width, 4), 4)


def _columns(domain: Domain, device: DeviceSpec, found: list[Access]) -> Columns | Rejected:
    kept = by_memory_order(domain.kept, [a for a in found if a.offset.axes() & set(domain.kept)], domain.extents)
    reduced = by_memory_order(domain.reduced, [a for a in found if a.offset.axes() & set(domain.reduced)], domain.extents)
    length, count = domain.num_reduced, domain.num_kept
    multi = _is_multi_stage(domain)
    last = [a for a in kept if domain.extents[a] > 1][-1:]
    if device.kind == "host":
        width = 1
        while width < 16 and count % (width * 2) == 0:
            width *= 2
        split = 1
        if not multi and not _writes_rows(domain):
            while count // width * split < device.num_multiprocessors * 4 and length // (split * 2) >= 64:
                split *= 2
        return Columns(kept, reduced, width, 1, 1, -(-length // split), split, False, 1)
    width = widest_vector(found, tuple(last), domain.extents, count, _vector_limit(found, device))
    kept_bytes = max(_kept_bytes(domain, found), 1)
    vectors = -(-count // width)
    threads_x = 32
    while threads_x > 16 and length >= 64:
        threads_x //= 2
    while threads_x > 4 and (threads_x > vectors or multi and vectors // threads_x < device.num_multiprocessors // 2):
        threads_x //= 2
    threads_y = 1
    while threads_y * threads_x < 256 and threads_y < length:
        threads_y *= 2
    if not multi and not _writes_rows(domain):
        blocks = -(-vectors // threads_x)
        split = 1
        while blocks * split * 2 <= device.num_multiprocessors * 4 and length // (split * 2) >= threads_y * 4:
            split *= 2
        return Columns(kept, reduced, width, threads_x, threads_y, -(-length // (threads_y * split)), split, False, 4)
    max_chunks = max(1, KEPT_BYTES_PER_THREAD // (kept_bytes * width))
    while threads_y * threads_x < 1024 and -(-length // threads_y) > max_chunks and threads_y < 64:
        threads_y *= 2
    chunks = -(-length // threads_y)
    if chunks <= max_chunks:
        return Columns(kept, reduced, width, threads_x, threads_y, chunks, 1, True, chunks)
    blocks = -(-vectors // threads_x)
    if blocks < device.num_multiprocessors // 2 and length * count * kept_bytes > device.l2_bytes // 8:
        return Rejected(Reason.NEEDS_GRID_SYNC,
                        f"{blocks} column tiles cannot fill {device.num_multiprocessors} multiprocessors, and columns of {length} "
                        "do not fit on chip")
    return Columns(kept, reduced, width, threads_x, threads_y, chunks, 1, False, 4)
