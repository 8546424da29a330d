"""Column schedules: threads across and down, blocks that split a column where there are few, rows held on chip where they fit."""
from __future__ import annotations

from dataclasses import replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.access import Access, accesses, by_memory_order, vector_limit, widest_vector
from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.domain.resolved import Domain, resolved_dtype
from tilefuse.domain.roofline import price_work
from tilefuse.domain.stages import is_multi_stage, kept_bytes_of, writes_rows
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import LINE_BYTES, SECTOR_BYTES
from tilefuse.templates.columns.between_work import between_work
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import column_start, num_tiles


def choose_columns(domain: Domain, device: DeviceSpec, touched: list[Access]) -> Columns | Rejected:
    """Threads across by vectors, threads down by the length; held on chip where later stages need the elements again."""
    kept = by_memory_order(domain.kept, [a for a in touched if a.offset.axes() & set(domain.kept)], domain.extents)
    reduced = by_memory_order(domain.reduced, [a for a in touched if a.offset.axes() & set(domain.reduced)], domain.extents)
    length, count, fitted = domain.num_reduced, domain.num_kept, device.fitted.columns
    multi = is_multi_stage(domain)
    last = [a for a in kept if domain.extents[a] > 1][-1:]
    if device.kind == "host":
        width = 1
        while width < 16 and count % (width * 2) == 0:
            width *= 2
        split = 1
        if not multi:
            while count // width * split < device.num_multiprocessors * 4 and length // (split * 2) >= 64:
                split *= 2
        return Columns(kept, reduced, width, 1, 1, -(-length // split), split, False, 1)
    width = widest_vector(touched, tuple(last), count, vector_limit(touched, device))
    kept_bytes = max(kept_bytes_of(domain, touched), 1)
    between = _between_vectors(domain, device, kept, reduced, width, vector_limit(touched, device), kept_bytes)
    if between is not None:
        return between
    vectors = -(-count // width)
    threads_x, widest = 32, max(a.itemsize for a in touched)
    # A row of a tile that begins inside a sector reads one sector more than it fills: such tiles stay a line wide.
    narrowest = LINE_BYTES if _begin_inside_sectors(touched) else 0
    while threads_x > 16 and length >= fitted.long_column and threads_x // 2 * width * widest >= narrowest:
        threads_x //= 2
    while threads_x > 4 and (threads_x > vectors or multi and vectors // threads_x < device.num_multiprocessors // 2):
        threads_x //= 2
    threads_y = 1
    while threads_y * threads_x < fitted.block_threads and threads_y < length:
        threads_y *= 2
    if not multi:
        if length <= fitted.few_rows * threads_y:
            return _short_columns(device, kept, reduced, width, count, length, max(a.itemsize for a in touched))
        return _split_columns(domain, device, kept, reduced, width, threads_x, kept_bytes)
    max_chunks = max(1, device.fitted.kept.thread_bytes // (kept_bytes * width))
    while (threads_y * threads_x < device.max_threads_per_block and -(-length // threads_y) > max_chunks
           and threads_y < fitted.kept_threads_down):
        threads_y *= 2
    chunks = -(-length // threads_y)
    if chunks <= max_chunks:
        return Columns(kept, reduced, width, threads_x, threads_y, chunks, 1, True, chunks)
    blocks = -(-vectors // threads_x)
    if blocks < device.num_multiprocessors // 2 and length * count * kept_bytes > device.l2_bytes // fitted.reread_l2_share:
        return Rejected(Reason.NEEDS_GRID_SYNC,
                        f"{blocks} column tiles cannot fill {device.num_multiprocessors} multiprocessors, and columns of {length} "
                        "do not fit on chip")
    return Columns(kept, reduced, width, threads_x, threads_y, chunks, 1, False, fitted.batch)


def _between_vectors(domain: Domain, device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int, limit: int,
                     kept_bytes: int) -> Columns | None:
    """Columns of odd rows by vectors wider than `width`, up to `limit`; None where no such vectors fit them.

    Source: H200, a prototype's means of 4 x [4096, 4095] f32: 71.1 us, by single elements at best 72.6, and 78.5 in tiles of a line. A
    warp reads 17 sectors of 32 bytes for 16 that it needs, by single elements 5 for 4, and the second-level cache sets the pace.
    """
    while limit > width:
        start = column_start(domain, kept, limit)
        if start is not None:
            break
        limit //= 2
    else:
        return None
    length, fitted = domain.num_reduced, device.fitted.columns
    batch = max(2, fitted.flight_bytes // (limit * kept_bytes))
    origins = limit * sum(i.node.detail == "m2" for i in domain.instances if i.shared)
    registers = _registers(domain, device, batch, limit, kept_bytes) + _operand_registers(accesses(domain), kept, limit) + origins

    def walk(threads_x: int) -> tuple[float, Columns]:
        threads_y = start.period
        while threads_y * threads_x < fitted.block_threads and threads_y < length:
            threads_y *= 2
        threads = threads_x * threads_y
        resident = max(1, min(4 * fitted.block_threads // threads, device.registers_per_multiprocessor // (threads * registers)))
        one = Columns(kept, reduced, limit, threads_x, threads_y, 1, 1, False, batch, resident if threads >= fitted.block_threads else 0)
        waves = fitted.most_waves * resident * device.num_multiprocessors // num_tiles(domain, one)
        most = max(1, min(length // (2 * threads_y * batch), waves))
        time_us, split = min((price_work(between_work(domain, device, replace(one, split=n), start, resident, kept_bytes), device).us, n)
                             for n in range(1, most + 1))
        chunks = -(-length // (threads_y * split))
        return time_us, replace(one, chunks=chunks, split=split, batch=min(batch, chunks))

    # Tiles wider than an image would leave threads without columns; narrower ones than of 32 vectors fill the device with short columns.
    widths = [x for x in (64, 32, 16, 8, 4, 2) if x == 2 or x // 2 < start.vectors]
    _, columns = min((walk(x) for x in widths[:2]), key=lambda priced: priced[0])
    for x in widths[2:]:
        if num_tiles(domain, columns) * columns.split < device.num_multiprocessors:
            _, columns = walk(x)
    return columns


def _operand_registers(touched: list[Access], kept: tuple[str, ...], width: int) -> int:
    """Registers of a thread for what lies along its columns and is the same in all rows."""
    return sum(a.itemsize * width // 4 for a in touched if not a.written and a.offset.axes() and a.offset.axes() <= set(kept))


def _begin_inside_sectors(touched: list[Access]) -> bool:
    """Whether the rows of some operand are no whole number of sectors apart.

    Source: H200, means of 128 x [4096, 4095] f32 down the columns: 2425 us by tiles of 64 bytes, 2201 by 128, 2161 by 256; of
    512 x [1024, 333]: 207, 189, 200.
    """
    return any(c * a.itemsize % SECTOR_BYTES for a in touched if not a.dynamic and not a.written
               for atom, c in a.offset.terms if isinstance(atom, str) and c * a.itemsize >= SECTOR_BYTES)


def _split_columns(domain: Domain, device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int, threads_x: int,
                   kept_bytes: int) -> Columns:
    """Columns read once: as many blocks as the device holds at a time, several down each column.

    Registers tell how many blocks of 256 threads fit together: what is loaded ahead, the accumulators, and addresses.
    Squared deviations have several accumulators, and so narrower tiles, down to half a line: what the last block of a tile reads back
    grows with the square of its width (256 parts of 128 columns are 512 KiB for one multiprocessor). Sums of more than
    `ColumnFigures.most_parts` parts have tiles of a line.
    """
    fitted = device.fitted.columns
    squares = [i for i in domain.instances if i.shared and i.node.detail == "m2"]
    registers = _registers(domain, device, fitted.batch, width, kept_bytes)
    resident = min(4, max(2, device.registers_per_multiprocessor // (fitted.block_threads * registers)))
    vectors = -(-domain.num_kept // width)
    threads, batch = fitted.block_threads, fitted.batch
    parts = device.num_multiprocessors * 2 // -(-vectors // threads_x)
    tall = parts >= fitted.tall_split and domain.num_reduced >= parts * fitted.tall_batch * (fitted.tall_threads // threads_x)
    needed = registers + (fitted.tall_batch - fitted.batch) * width * kept_bytes // 4
    fits = 2 * fitted.tall_threads * needed <= device.registers_per_multiprocessor
    if tall and not squares and not writes_rows(domain) and fits:
        threads, batch, resident = fitted.tall_threads, fitted.tall_batch, 2
    resident_blocks = device.num_multiprocessors * resident
    while threads_x > 4:
        wide, many = threads_x * width * kept_bytes > LINE_BYTES, resident_blocks // -(-vectors // threads_x) > fitted.most_parts
        if not (wide or many if squares else wide and many):
            break
        threads_x //= 2
    threads_y = 1
    while threads_y * threads_x < threads and threads_y < domain.num_reduced:
        threads_y *= 2
    tiles = -(-vectors // threads_x)
    split = max(1, min(resident_blocks // tiles, domain.num_reduced // (threads_y * batch)))
    if writes_rows(domain):
        # As a copy: many short blocks, and few rows a thread ahead of the stores.
        short = domain.num_reduced // (threads_y * fitted.written_rows)
        if tiles * short >= fitted.written_waves * resident_blocks:
            split = short
        chunks = -(-domain.num_reduced // (threads_y * split))
        return Columns(kept, reduced, width, threads_x, threads_y, chunks, split, False, fitted.written_batch)
    least = fitted.least_threads
    while resident_blocks < tiles and threads > least and threads_x * threads_y == threads and tiles <= resident_blocks * threads // least:
        # A second, half empty wave costs more than short blocks do.
        threads, threads_y, resident, resident_blocks = threads // 2, threads_y // 2, resident * 2, resident_blocks * 2
    return Columns(kept, reduced, width, threads_x, threads_y, -(-domain.num_reduced // (threads_y * split)), split, False, batch,
                   resident if (resident > 2 or batch > fitted.batch) and threads_x * threads_y == threads else 0)


def _registers(domain: Domain, device: DeviceSpec, batch: int, width: int, kept_bytes: int) -> int:
    """Registers of a thread that loads `batch` vectors of rows ahead: these, the accumulators of its columns, and the rest."""
    shared = [i for i in domain.instances if i.shared]
    squares = [i for i in shared if i.node.detail == "m2"]
    # A sum over the values of an m2 follows from its accumulators.
    components = [c for i in shared if i in squares or all(i.body != s.body for s in squares)
                  for c in KERNEL_MONOIDS[i.node.detail].identity(resolved_dtype(i.body, domain))]
    accumulators = sum(max(4, c.dtype.itemsize) // 4 for c in components)
    return batch * width * kept_bytes // 4 + width * accumulators + device.fitted.columns.other_registers


def _short_columns(device: DeviceSpec, kept: tuple[str, ...], reduced: tuple[str, ...], width: int, count: int, length: int,
                   itemsize: int) -> Columns:
    """Columns of few rows: narrower tiles fill the device, down to 64 bytes a row of the tile, and no two blocks have to meet.

    """
    fitted = device.fitted.columns
    threads_x = 16 if length >= fitted.long_column else 32
    threads_x = min(threads_x, max(4, 1 << (-(-count // width) - 1).bit_length()))
    while -(-count // (width * threads_x)) < device.num_multiprocessors:
        if width * itemsize > 16:
            width //= 2
        elif threads_x > 4:
            threads_x //= 2
        else:
            break
    threads_y = 1
    while threads_y * threads_x < fitted.block_threads and threads_y < length:
        threads_y *= 2
    chunks = -(-length // threads_y)
    return Columns(kept, reduced, width, threads_x, threads_y, chunks, 1, False, min(chunks, fitted.short_batch))
