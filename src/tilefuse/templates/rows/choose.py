"""Row schedules by the length of the row: part of a warp, a block, a cluster, a persistent grid that fetches ahead, or streaming."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.access import Access, by_memory_order, stride_of, vector_limit, widest_vector
from tilefuse.domain.online import EXPSUM
from tilefuse.domain.resolved import Domain, direct_touches
from tilefuse.domain.stages import has_channel_values, is_multi_stage, kept_bytes_of, writes_rows
from tilefuse.ir.affine import row_major_strides
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.rows.modes import Held, Rows, Split, Streamed, read_by
from tilefuse.templates.rows.pipelined import choose_pipelined, from_queue, through_shared_memory
from tilefuse.templates.rows.shape import RowShape
from tilefuse.templates.rows.shared.prepared import prepared_values
from tilefuse.templates.rows.shared.queue import multiplies_shared, shared_queue
from tilefuse.templates.rows.starts import widest_run

# Reductions whose result is the place of an element in its row.
POSITIONS = ("argmax", "argmin")


def choose_shared(domain: Domain, device: DeviceSpec, touched: list[Access], fetches_early: bool, blocks: int) -> Rows | None:
    """Rows in queues of so many blocks at most, beside vectors that all rows share; None where there are none, or on the host.

    fetches_early: whether rows may set out while the kernel ahead still runs. Otherwise vectors must have something to prepare.
    """
    if not shares_vectors(domain, device, fetches_early):
        return None
    rows_order, row_order = _orders(domain, touched)
    last = tuple(a for a in row_order if domain.extents[a] > 1)[-1:]
    width = widest_vector(touched, last, domain.num_reduced, vector_limit(touched, device))
    return shared_queue(RowShape.of(domain, device, rows_order, row_order, width, kept_bytes_of(domain, touched)), blocks)


def shares_vectors(domain: Domain, device: DeviceSpec, fetches_early: bool) -> bool:
    """Whether rows may gain by queues beside a vector that all of them share. fetches_early: as of `choose_shared`."""
    if device.kind == "host":
        return False
    return bool(prepared_values(domain).vectors) or fetches_early and multiplies_shared(domain, device)


def _orders(domain: Domain, touched: list[Access]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The kept and the reduced axes, in the order of memory."""
    of_rows, of_row = ([a for a in touched if a.offset.axes() & set(axes)] for axes in (domain.kept, domain.reduced))
    return (by_memory_order(domain.kept, of_rows, domain.extents),
            domain.reduced if domain.has_scan else by_memory_order(domain.reduced, of_row, domain.extents))


def choose_rows(domain: Domain, device: DeviceSpec, touched: list[Access]) -> Rows | Rejected:
    """One thread a row on the host; on a device by the length of the row."""
    kept, reduced = _orders(domain, touched)
    length, count = domain.num_reduced, domain.num_kept
    last = [a for a in reduced if domain.extents[a] > 1][-1:]
    multi = is_multi_stage(domain)
    if device.kind == "host":
        if domain.has_scan:
            return Rows(kept, reduced, 1, 1, 1, max(length, 1), 1, Streamed(1))
        width = 16 if length >= 16 else 1
        split = 1
        if not multi and count < device.num_multiprocessors and length >= 1 << 16:
            split = device.num_multiprocessors
        chunks = -(-(length // width) // split) if length >= width else 1
        return Rows(kept, reduced, width, 1, 1, max(chunks, 1), width, read_by(split, 1))
    limit = vector_limit(touched, device)
    width = widest_vector(touched, tuple(last), length, limit)
    if width < limit and length % limit == 0 and not domain.has_scan and _are_runs(domain, touched, reduced, limit):
        width = limit
    width = widest_run(domain, min(width, 8), min(limit, 8)) if domain.has_scan else widest_run(domain, width, limit)
    wide = _with_rest(domain, device, touched, kept, reduced, tuple(last), width, multi)
    return wide or _rows_on_cuda(RowShape.of(domain, device, kept, reduced, width, kept_bytes_of(domain, touched)), multi)


def _are_runs(domain: Domain, touched: list[Access], reduced: tuple[str, ...], width: int) -> bool:
    """Whether each row of all that is large lies in one aligned run, so that vectors may run on from one channel to the next.

        y[n, g, c, i] = x[n, g, c, i] * w[g, c]  (i < 123039)      ->      vectors of x and y of any channels of a group, elements of w

    Source: H200, group norm over 16 channels of 31 x 63 x 63 f32 with swish and hard swish: 1558 us by single elements, the bytes take 473.
    """
    total = domain.num_kept * domain.num_reduced
    strides = dict(zip(reduced, row_major_strides(tuple(domain.extents[a] for a in reduced)), strict=True))
    large = [a for a in touched if a.elements * 2 >= total]
    return bool(large) and all(
        not a.dynamic and not a.guarded and a.offset.is_linear and a.offset.const % width == 0
        and all(stride_of(a.offset, name) == stride for name, stride in strides.items() if domain.extents[name] > 1)
        and all(c % width == 0 for atom, c in a.offset.terms if atom not in strides) for a in large)


def _with_rest(domain: Domain, device: DeviceSpec, touched: list[Access], kept: tuple[str, ...], reduced: tuple[str, ...],
               last: tuple[str, ...], width: int, multi: bool) -> Rows | None:
    """Streamed rows by vectors that do not divide them, where they begin aligned (windows of padded products): one thread walks the rest.

    Source: H200, losses over windows of 50257 f16 in rows of 50264: 414 us element by element.
    """
    if domain.has_scan or domain.num_reduced < device.fitted.rows.lanes.rest_length or len(last) != 1:
        return None
    limit = vector_limit(touched, device)
    wider = widest_vector(touched, last, limit, limit)
    if wider <= width or domain.num_reduced != domain.extents[last[0]]:
        return None
    choice = _rows_on_cuda(RowShape.of(domain, device, kept, reduced, wider, kept_bytes_of(domain, touched)), multi)
    if isinstance(choice, Rejected) or choice.cluster > 1:
        return None
    match choice.mode:
        case Held(batch=batch) if not multi:
            return replace(choice, mode=Streamed(batch))
        case Streamed() | Split():
            return choice
    return None


def _rows_on_cuda(row: RowShape, multi: bool) -> Rows | Rejected:
    """multi: whether elements of a row are needed again after a reduction over them."""
    domain, device, lanes = row.domain, row.device, row.fitted.lanes
    # A scan holds two more values a vector, its total and what comes before it: as much again twice where a vector is one element (H200,
    # running sums of 32768 rows of 32769 f32: 8947 us by 160 threads with 26 elements each, 5694 by 256 with 9).
    held_bytes = 3 * row.vector_bytes if domain.has_scan and row.vector == 1 else row.vector_bytes
    max_chunks = max(1, device.fitted.kept.thread_bytes // held_bytes)
    # Two vectors of each operand a thread keep most loads in flight per register (measured: 2 beats 4 and 8 up to rows of 32 KiB).
    wanted_chunks = min(max_chunks, max(1, 32 // row.vector_bytes))
    if row.vectors <= 32 * min(max_chunks, max(wanted_chunks, 2) if multi else 4):
        full = domain.num_kept * row.vectors >= lanes.result_vectors * lanes.full_threads * device.num_multiprocessors
        if full and not multi and not writes_rows(domain):
            long = _finds_positions(domain) and row.vectors >= 32 * lanes.result_vectors
            wanted_chunks = min(max_chunks, lanes.short_position_vectors if long else lanes.result_vectors)
        return _short_rows(row, wanted_chunks)
    return _long_rows(row, wanted_chunks, max_chunks) if multi else _rows_reduced_once(row)


def _long_rows(row: RowShape, wanted_chunks: int, max_chunks: int) -> Rows | Rejected:
    """Rows of more than a warp that are walked several times: through a queue, in registers, or read again by every walk."""
    length, count = row.domain.num_reduced, row.domain.num_kept
    piped = None if row.domain.has_scan else choose_pipelined(row)
    if piped is not None:
        return piped
    held = _held_in_registers(row, wanted_chunks, max_chunks)
    if held is not None:
        return through_shared_memory(row, held) or held
    if row.domain.has_scan:
        return Rejected(Reason.SHARED_MEMORY, f"a scanned row of {length} elements does not fit the registers of a cluster")
    if count < 2 * row.device.num_multiprocessors:
        return Rejected(Reason.NEEDS_GRID_SYNC,
                        f"{count} rows of {length} elements fit neither on chip nor in one block each; their reduction needs all blocks "
                        "to meet")
    threads = 1024
    return row.kernel(threads, -(-row.vectors // threads), Streamed(4))


def _held_in_registers(row: RowShape, wanted_chunks: int, max_chunks: int) -> Rows | None:
    """The smallest cluster whose blocks hold their share of the row in registers with at most 512 threads.

    Two such blocks fit a multiprocessor and overlap. Clusters exchange by signalled stores, so that small blocks in larger clusters
    beat one large block (measured on H200: rows of 65536 f16 0.87 of a copy by 8 blocks of 128, 0.62 by one of 1024).
    """
    domain, device = row.domain, row.device
    norms, scan_threads = row.fitted.norms, row.fitted.lanes.scan_threads
    for cluster, chunks, threads in _held_shares(row, wanted_chunks, max_chunks):
        rows = max(1, 128 // threads) if cluster == 1 else 1
        resident = _bounded_blocks(row, cluster, threads, chunks == max_chunks)
        if cluster == 1 and not resident:
            resident = _resident(row, threads * rows, -(-row.vectors // threads))
        if domain.has_scan and cluster == device.max_cluster_blocks and scan_threads < threads <= 2 * scan_threads:
            threads, resident = scan_threads, 2
        held_bytes = resident * threads * rows * chunks * row.vector_bytes
        if threads <= norms.small_block_threads or not 0 < held_bytes < norms.held_bytes or 2 * chunks > max_chunks:
            return row.held(threads, rows=rows, cluster=cluster, resident=resident)
    queued = None if domain.has_scan else from_queue(row)
    if queued is not None:
        return queued
    if has_channel_values(domain):
        # A block alone on its multiprocessor hides nothing: what is looked up for every channel comes on top (measured on H200, swish and
        # group norm over 16 channels of 31 x 63 x 63 f32: 209 us, statistics and norm in two kernels 168).
        return None
    for cluster in (8, 16):
        share = -(-row.vectors // cluster)
        threads = 32 * -(-share // (32 * max(1, device.fitted.kept.thread_bytes // row.vector_bytes)))
        if cluster <= device.max_cluster_blocks and threads <= 1024:
            return row.held(threads, cluster=cluster)
    return None


def _held_shares(row: RowShape, wanted_chunks: int, max_chunks: int) -> Iterator[tuple[int, int, int]]:
    """(blocks of a cluster, vectors a thread, threads a block) that hold a row: few blocks first, then few vectors."""
    most_blocks = row.device.max_cluster_blocks
    for cluster in (c for c in (1, 2, 4, 8, 16) if c <= most_blocks):
        share = -(-row.vectors // cluster)
        # More small blocks overlap better than few large ones where a row is one operand (measured on H200: softmax over 32768 f32 by 4
        # blocks of 256 0.95 of a copy, by 2 of 512 0.87).
        limit = 512 if cluster in (1, most_blocks) or row.vector_bytes > 16 else 256
        for chunks in dict.fromkeys((max(wanted_chunks, 2), 4, 8, max_chunks)):
            if not wanted_chunks <= chunks <= max_chunks:
                continue
            if 1 < cluster < most_blocks and chunks > 4 and row.column_bytes:
                # Weights need registers beside the row.
                continue
            if _is_longest_norm(row, cluster) and chunks < min(8, max_chunks) and share >= 128 * 8:
                continue
            threads = 32 * -(-share // (32 * chunks))
            # A scan adds up its warps' sums one by one: more vectors a thread, fewer warps.
            if threads <= (256 if (cluster > 1 or row.domain.has_scan) and chunks < min(8, max_chunks) else limit):
                yield cluster, chunks, threads


def _is_longest_norm(row: RowShape, cluster: int) -> bool:
    """Whether blocks of the longest clusters hold a norm's row."""
    return cluster == row.device.max_cluster_blocks and bool(row.column_bytes) and not row.domain.has_scan


def _bounded_blocks(row: RowShape, cluster: int, threads: int, full: bool) -> int:
    """Blocks that a bound on registers keeps on a multiprocessor; 0 for no bound. full: a thread holds as many vectors as it may."""
    # Addresses in a row of several axes and vectors of weights take registers of their own; f64 needs twice as many.
    if row.vector < 4 or not (cluster > 1 or threads == 512 and full and len(row.columns) < 2):
        return 0
    # Rows of channels have several axes but no weights an element. Without guards the compiler works on more vectors at once, and 72
    # registers instead of 76 are a block more (measured on H200, batch norm over 64 x 56 x 56 f16: 60.0 us against 65.0; with guards it
    # takes 60 by itself, and a bound changes nothing or 1 % for the worse).
    whole = cluster > 1 and row.vectors % (cluster * threads) == 0 and not row.column_bytes
    if row.has_several_axes and not whole:
        return 0
    norms = row.fitted.norms
    resident_threads = row.device.registers_per_multiprocessor // norms.long_registers
    return (norms.longest_threads if _is_longest_norm(row, cluster) and threads == 128 else resident_threads) // threads


def _resident(of: RowShape, threads: int, chunks: int) -> int:
    """Blocks that fit a multiprocessor together where the registers of a norm over one operand allow; 0 where they are not so few.

    The compiler takes a few more than 40 for what 40 hold without spilling, and then a sixth of the threads have no place (measured on
    H200: layer norm over 4096 f16 2 % faster with 6 blocks of 256 than with 5; with 8, of 32 registers, slower again). Blocks of 512, which
    load their weights late, run by fours where 32 hold it (RMS norm over 8192 f16: 65.1 us against 66.6; layer norm over 4096 f32: 65.0
    against 66.5).
    """
    domain, device, width, norms = of.domain, of.device, of.vector, of.fitted.norms
    columns, row = of.columns, of.fetched
    itemsize = max((t.dtype.itemsize for t in (*row, *columns)), default=8)
    written = [key for _, key, offset in domain.outputs if offset.axes() & set(domain.reduced)]
    simple = len(row) == 1 and len(columns) in (1, 2) and len(written) == 1 and not of.has_several_axes and domain.num_reduced > 1
    if not simple or itemsize > 4 or width * itemsize < 16:
        return 0
    row_words = row[0].dtype.itemsize * chunks * width // 4
    column_words = sum(t.dtype.itemsize for t in columns) * width // 4
    late = row_words + column_words + norms.other_registers + (8 if len(columns) > 1 else 0)
    # Narrow elements are used in single precision, a vector at a time.
    small = threads <= norms.small_block_threads
    if not small and late + width <= norms.full_registers:
        return device.registers_per_multiprocessor // (norms.full_registers * threads)
    early = row_words + column_words * chunks + norms.other_registers
    if (early if small else late) <= norms.bound_registers:
        return device.registers_per_multiprocessor // (norms.bound_registers * threads)
    # Left to itself the compiler asks for all weights early, and a block has no place.
    bound = device.registers_per_multiprocessor // (norms.long_registers * threads)
    return bound if small and late + width <= norms.long_registers <= early + width else 0


def _short_rows(row: RowShape, wanted_chunks: int) -> Rows:
    """Rows of at most a few vectors a lane: one warp or part of one a row, four warps a block."""
    threads = 1
    while threads < 32 and threads * wanted_chunks < row.vectors:
        threads *= 2
    rows = 128 // threads
    while rows * threads > 32 and row.domain.num_kept // rows < row.device.num_multiprocessors * 2:
        rows //= 2
    return row.held(threads, rows=rows)


def _finds_positions(domain: Domain) -> bool:
    """Whether a row's result is the place of an element among narrow ones."""
    positions = [i for i in domain.instances if i.shared and i.node.detail in POSITIONS]
    return bool(positions) and all(t.dtype.itemsize < 4 for i in positions for t in direct_touches(i.body))


def _rows_reduced_once(row: RowShape) -> Rows:
    """Rows that are read once and leave row results, and elements that need none of these: blocks split a row where there are too few."""
    domain, device, vectors, lanes = row.domain, row.device, row.vectors, row.fitted.lanes
    threads, rows, batch = min(256, 32 * -(-vectors // (32 * 4))), 1, 4
    few = min(threads, 32 * -(-vectors // (32 * lanes.position_vectors)))
    if _finds_positions(domain) and not writes_rows(domain) and domain.num_kept * few >= lanes.full_threads * device.num_multiprocessors:
        threads, rows = few, max(1, 128 // few)
    split = most = 1
    wanted_blocks = device.num_multiprocessors * 4
    while vectors // (most * 2) >= threads * 4:
        most *= 2
        if domain.num_kept * most <= wanted_blocks:
            split = most
    if writes_rows(domain):
        batch = 2
        if split > 1 and domain.num_kept * most >= lanes.written_waves * wanted_blocks:
            split = most
    shared_bytes = domain.num_reduced * row.column_bytes
    if split == 1 and threads == 256 and shared_bytes >= lanes.shared_vector_bytes and domain.num_kept >= wanted_blocks:
        threads = lanes.shared_vector_threads
    chunks = -(-vectors // (threads * split))
    if chunks > batch:
        # All batches are full (measured on H200: 4096 rows of 14336 bf16 times a vector, 7 vectors a thread, 32.8 us in batches of 4, 28.1
        # one by one; swish and group norm over 17 x 16 x 31 x 63 x 63 f32 181 and 147).
        batch = max(b for b in range(1, batch + 1) if chunks % b == 0)
    # A row of one batch is on its way before anything else, and all of it is there when its maximum is asked for.
    held = split == 1 and chunks <= batch and not writes_rows(domain) and any(i.node.detail == EXPSUM.name for i in domain.instances)
    mode = Held(batch) if held else read_by(split, batch)
    return replace(row.kernel(threads, chunks, mode, rows=rows), lanes=min(row.vector, 4))
