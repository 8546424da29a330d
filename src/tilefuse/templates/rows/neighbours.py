"""Neighbours of row kernels for tuning: other threads, rows a block, clusters, splits and modes, as the mode of the choice allows.

    8 rows a block, 16 lanes each, held in registers     ->     other lanes and rows
    one row in turns, a queue of 2 slots                 ->     other threads and slots; rows without a queue, in clusters
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.base.errors import InternalError
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.resolved import Domain
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.rows.legality import runs_ahead
from tilefuse.templates.rows.modes import (
    AheadQueue,
    Held,
    HeldQueue,
    HeldTurns,
    PieceQueue,
    ReadAgain,
    RowQueue,
    Rows,
    Split,
    Streamed,
    read_by,
)
from tilefuse.templates.rows.starts import vectors_of


def rows_neighbours(base: Rows, domain: Domain, device: DeviceSpec) -> Iterator[Rows]:
    """Other numbers and modes, by the mode of `base`. Choices that are not legal are rejected when they are scheduled."""
    if device.kind == "host":
        # A block is one thread there: only the number of accumulators is free.
        yield from (replace(base, lanes=lanes) for lanes in (1, 4, 8, 16) if lanes <= base.vector)
        return
    if base.carried_rows:
        yield from _other_slots(base, domain)
        return
    share = vectors_of(domain, base)
    clusters = [c for c in SEARCH.walks.row_clusters if c <= device.max_cluster_blocks]
    match base.mode:
        case HeldQueue() | RowQueue() | PieceQueue() | AheadQueue():
            yield from _queued_otherwise(base, domain, share, device)
            yield from _in_one_round(base, share, clusters, device)
        case Held() if base.threads > 32 or base.cluster > 1:
            yield from _held_rows(base, share, clusters, device)
            if domain.num_reduced % base.vector == 0:  # a queue holds whole vectors
                yield from _queued_rows(base, share, clusters, device)
        case Held():
            yield from _short_rows(base, share)
        case Streamed(batch=batch) | Split(batch=batch):
            for threads in (128, 256, 512):
                for split in (1, 2, 4, 8, 16, 32, 64):
                    few = base.split > 1 or domain.num_kept < device.num_multiprocessors and base.cluster == base.rows == 1
                    if share // (split * threads) >= 1 and (split == 1 or few):
                        yield replace(base, threads=threads, mode=read_by(split, batch), chunks=-(-share // (split * threads)))
        case HeldTurns() | ReadAgain():
            return  # rows in turns without a queue carry sums
        case _:
            raise InternalError(f"no neighbours for rows of mode {base.mode!r}")


def _other_slots(base: Rows, domain: Domain) -> Iterator[Rows]:
    """Rows that carry sums: their pattern says how they are spread, and only the depth of their queue is free."""
    match base.mode:
        case PieceQueue(slots=slots) as mode:
            for fewer in range(base.chunks + 1, slots, max(1, (slots - base.chunks) // 4)):
                yield replace(base, mode=replace(mode, slots=fewer))
        case HeldQueue() | RowQueue() | AheadQueue() as mode:
            for slots in SEARCH.walks.row_slots:
                yield replace(base, mode=replace(mode, slots=slots))
                yield from _ahead(base, domain, slots)


def _queued_otherwise(base: Rows, domain: Domain, share: int, device: DeviceSpec) -> Iterator[Rows]:
    """Queues of other depths by other numbers of threads."""
    for chunks in (4, 8):
        width = share // base.cluster
        threads = _warps(width, chunks)
        if threads > device.max_threads_per_block:
            continue
        each = -(-width // threads)
        match base.mode:
            case PieceQueue(groups=groups, slots=slots):
                # Shared memory stays full: pieces of another size, as many as fit.
                pieces = slots * base.threads // threads
                if pieces >= each > 1 and width == threads * each:
                    yield replace(base, threads=threads, chunks=each, mode=PieceQueue(groups, pieces))
            case HeldQueue() | RowQueue() | AheadQueue() as mode:
                for slots in (2, 3):
                    plain = RowQueue(mode.groups, slots) if isinstance(mode, RowQueue) else HeldQueue(mode.groups, slots)
                    changed = replace(base, threads=threads, chunks=each, mode=plain)
                    yield changed
                    yield from _ahead(changed, domain, slots + 1)


def _in_one_round(base: Rows, share: int, clusters: list[int], device: DeviceSpec) -> Iterator[Rows]:
    """Rows of a queue by blocks without one: in registers, or read again by every walk."""
    held = isinstance(base.mode, HeldQueue | AheadQueue)
    batch = base.chunks if isinstance(base.mode, RowQueue) else 1
    for cluster in clusters:
        for chunks in (4, 8):
            width = -(-share // cluster)
            threads = _warps(width, chunks)
            if 64 <= threads <= device.max_threads_per_block:
                yield replace(base, threads=threads, rows=base.rows if cluster == 1 else 1, chunks=-(-width // threads), cluster=cluster,
                              mode=Held() if held else Streamed(batch))


def _ahead(base: Rows, domain: Domain, slots: int) -> Iterator[Rows]:
    """The same rows in the queue, reduced a turn before they are finished, where that can be."""
    choice = replace(base, mode=AheadQueue(base.groups, slots, base.carried_rows))
    if runs_ahead(domain, choice):
        yield choice


def _short_rows(base: Rows, share: int) -> Iterator[Rows]:
    for threads in (4, 8, 16, 32):
        for rows in (4, 8, 16, 32, 64):
            chunks = -(-share // threads)
            if 64 <= threads * rows <= 512 and chunks <= 8:
                yield replace(base, threads=threads, rows=rows, chunks=chunks)


def _held_rows(base: Rows, share: int, clusters: list[int], device: DeviceSpec) -> Iterator[Rows]:
    for cluster in clusters:
        for chunks in (1, 2, 4, 8):
            width = -(-share // cluster)
            threads = _warps(width, chunks)
            if 32 < threads <= device.max_threads_per_block:
                for rows in dict.fromkeys((1, base.rows)) if cluster == 1 else (1,):
                    if threads * rows <= device.max_threads_per_block:
                        yield replace(base, threads=threads, rows=rows, chunks=-(-width // threads), cluster=cluster,
                                      resident=base.resident if cluster == base.cluster and threads == base.threads else 0)


def _queued_rows(base: Rows, share: int, clusters: list[int], device: DeviceSpec) -> Iterator[Rows]:
    for cluster in clusters:
        for chunks in (2, 4):
            for slots in (2, 3):
                width = share // cluster
                threads = _warps(width, chunks)
                fits = width * base.vector * 4 * slots <= device.shared_bytes_per_block - device.fitted.rows.queue.reserved_bytes
                if base.rows == 1 and share % cluster == 0 and 128 <= threads <= device.max_threads_per_block and fits:
                    groups = max(1, device.num_multiprocessors // cluster - (1 if cluster > 2 else 0))
                    yield replace(base, threads=threads, chunks=-(-width // threads), cluster=cluster, mode=HeldQueue(groups, slots),
                                  resident=0)


def _warps(vectors: int, chunks: int) -> int:
    """Threads, in whole warps, that share `vectors` with `chunks` each."""
    return 32 * -(-vectors // (32 * chunks))
