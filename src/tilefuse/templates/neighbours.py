"""Candidates for tuning: the templates around the one that the scheduler chose, for the same pattern and device.

    chosen: 8 rows a block, 16 lanes each     ->     other lanes, rows, vectors a thread, clusters, stages, splits
    packed: 12 x { w }  1 x { s }             ->     one part's body another way, the others as they are

Only what differs in speed is varied; a candidate may still be rejected by the scheduler, the compiler or the device.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import InternalError
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import between_columns
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.packed.common_threads import packable
from tilefuse.templates.packed.packed import Packed, PackedGroup, packed_like, regrouped
from tilefuse.templates.pattern import schedule_graph
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
from tilefuse.templates.rows.pipelined import RESERVED_BYTES
from tilefuse.templates.rows.starts import vectors_of
from tilefuse.templates.staged.online.program import schedule_online
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.record import Stitched
from tilefuse.templates.staged.stitch_pattern import anchor_of
from tilefuse.templates.staged.stitched import schedule_stitched
from tilefuse.templates.transpose.record import Transpose

CLUSTERS = (1, 2, 4, 8, 16)


# Parts of a packed kernel that are varied, those that move most.
MOST_PARTS = 6


def neighbours(program: TileProgram, device: DeviceSpec) -> tuple[Choice, ...]:
    """Choices near the program's own, which comes first; no choice twice. Empty where the template has no parameters to vary."""
    base, domain = program.choice, program.internal
    if isinstance(base, Packed):
        told = {tuple(g.program.notation for g in choice.groups): choice for choice in (*_packed(base, device), base)}
        return (base, *(choice for choice in told.values() if choice is not base))
    if isinstance(base, Stitched):
        return tuple(dict.fromkeys((base, *_stitched(base, program))))
    if isinstance(base, Online):
        return tuple(dict.fromkeys((base, *_online(base))))
    if not isinstance(domain, Domain) or not isinstance(base, Pointwise | Transpose | Rows | Columns):
        return ()
    found = _on_host(base) if device.kind == "host" else _on_cuda(base, domain, device)
    return tuple(dict.fromkeys((base, *found)))


def program_with(program: TileProgram, choice: Choice, device: DeviceSpec) -> TileProgram | Rejected:
    """The program of the same pattern with another choice, or why there is none."""
    if isinstance(choice, Packed):
        return packed_like(program, choice.groups, device, choice.threads)
    if isinstance(choice, Stitched):
        return schedule_stitched(program.graph, program.layouts, device, choice)
    if isinstance(choice, Online):
        return schedule_online(program.graph, program.layouts, device, choice)
    return schedule_graph(program.graph, program.layouts, device, choice)


def _packed(base: Packed, device: DeviceSpec) -> Iterator[Packed]:
    """Other numbers of threads where all parts are flat walks; then each large part by itself."""
    if device.kind == "cuda" and all(g.flat for g in base.groups):
        for threads in (128, 256, 512):
            yield Packed(threads, tuple(regrouped(g, replace(c, threads=threads)) for g in base.groups
                                        if isinstance(c := g.program.choice, Pointwise)))
    for n, group in enumerate(base.groups[:MOST_PARTS]):
        for other in _bodies(group, base.threads, device):
            yield Packed(base.threads, (*base.groups[:n], other, *base.groups[n + 1:]))


def _bodies(group: PackedGroup, threads: int, device: DeviceSpec) -> Iterator[PackedGroup]:
    """The parts of a group with other bodies of as many threads."""
    choice = group.program.choice
    if group.flat and isinstance(choice, Pointwise):
        for other in _on_host(choice) if device.kind == "host" else (replace(choice, steps=steps) for steps in (1, 2, 4, 8)):
            if isinstance(other, Pointwise):
                yield regrouped(group, other)
        return
    for near in neighbours(group.program, device)[1:]:
        made = program_with(group.program, near, device) if near.num_threads == threads else None
        if isinstance(made, TileProgram) and packable(made) is None:
            yield PackedGroup(made, tuple(replace(p, num_blocks=made.launch.num_blocks) for p in group.parts))


def _stitched(base: Stitched, program: TileProgram) -> Iterator[Stitched]:
    """Tiles twice as long and half as long in each dimension, with other numbers of threads."""
    shape = program.graph.type_of(anchor_of(program.graph)).shape
    for threads in (128, 256, 512):
        yield replace(base, threads=threads)
        for place, extent in enumerate(base.tiles):
            for other in (extent * 2, extent // 2):
                if len(shape) == len(base.tiles) and 1 <= other <= shape[place]:
                    yield replace(base, threads=threads, tiles=(*base.tiles[:place], other, *base.tiles[place + 1:]))


def _online(base: Online) -> Iterator[Online]:
    """Tiles twice as long and half as long, with other numbers of threads, fetched ahead or not."""
    for threads in (128, 256):
        for rows in (base.rows // 2, base.rows, base.rows * 2):
            for columns in (base.columns // 2, base.columns, base.columns * 2):
                for stages in (1, 2):
                    if rows and columns:
                        yield Online(rows, columns, threads, stages)


def _on_host(base: Choice) -> Iterator[Choice]:
    """A block is one thread there: vector widths, elements a task, accumulators."""
    match base:
        case Pointwise():
            for vector in (1, 4, 8, 16):
                for steps in (base.steps // 4, base.steps, base.steps * 4):
                    if vector <= base.vector and steps >= 1:
                        yield replace(base, vector=vector, steps=steps)
        case Rows():
            for lanes in (1, 4, 8, 16):
                if lanes <= base.vector:
                    yield replace(base, lanes=lanes)
        case Columns():
            for vector in (4, 8, 16):
                if vector <= base.vector:
                    yield replace(base, vector=vector)


def _on_cuda(base: Choice, domain: Domain, device: DeviceSpec) -> Iterator[Choice]:
    match base:
        case Pointwise():
            for threads in (128, 256, 512):
                for steps in (1, 2, 4, 8):
                    yield replace(base, threads=threads, steps=steps)
            for side in (1, 8, 16, 32) if base.across else ():
                yield replace(base, side=side)
        case Rows():
            yield from _rows(base, domain, device)
        case Columns():
            for threads_x, threads_y in ((8, 32), (16, 16), (32, 8), (32, 16), (64, 4), (32, 32)):
                for factor in (1, 2, 4):
                    for batch in (4, 8):
                        split = max(1, base.split * factor // 2)
                        length = base.chunks * base.threads_y * base.split
                        made = replace(base, threads_x=threads_x, threads_y=threads_y, split=split,
                                       chunks=-(-length // (threads_y * split)), batch=batch)
                        alike = (between_columns(domain, made) is None) == (between_columns(domain, base) is None)
                        if alike and (base.split > 1 or split == 1):
                            yield made
        case Transpose(writes_run=True):
            for columns in (64, 128, 256, 512, 1024, 2048):
                for threads in (64, 128, 256, 384, 512):
                    yield replace(base, columns=columns, threads=threads)
        case Transpose(depth=0):
            for rows in (64, 128, 256, 512, 1024):
                for threads in (64, 128, 256, 384, 512):
                    yield replace(base, rows=rows, threads=threads)
        case Transpose():
            for rows, columns in ((32, 32), (64, 64), (32, 64), (64, 32), (128, 32), (32, 128), (128, 64), (128, 128)):
                for threads in (128, 256, 512):
                    yield replace(base, rows=rows, columns=columns, threads=threads)


def _rows(base: Rows, domain: Domain, device: DeviceSpec) -> Iterator[Rows]:
    """Other numbers and modes for rows, by the mode of the base. Those that are not legal are rejected when they are scheduled."""
    if base.carried_rows:
        yield from _other_slots(base, domain)
        return
    share = vectors_of(domain, base)
    clusters = [c for c in CLUSTERS if c <= device.max_cluster_blocks]
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
            for slots in (2, 3, 4, 6):
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
    made = replace(base, mode=AheadQueue(base.groups, slots, base.carried_rows))
    if runs_ahead(domain, made):
        yield made


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
                fits = width * base.vector * 4 * slots <= device.shared_bytes_per_block - RESERVED_BYTES
                if base.rows == 1 and share % cluster == 0 and 128 <= threads <= device.max_threads_per_block and fits:
                    groups = max(1, device.num_multiprocessors // cluster - (1 if cluster > 2 else 0))
                    yield replace(base, threads=threads, chunks=-(-width // threads), cluster=cluster, mode=HeldQueue(groups, slots),
                                  resident=0)


def _warps(vectors: int, chunks: int) -> int:
    """Threads, in whole warps, that share `vectors` with `chunks` each."""
    return 32 * -(-vectors // (32 * chunks))
