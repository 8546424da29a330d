"""Work of a column walk between vectors, whose tiles begin inside sectors: waves of blocks, round trips, sectors that tiles share."""
from __future__ import annotations

from math import ceil

from tilefuse.domain.resolved import Domain
from tilefuse.domain.work import Waves, Work
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import SECTOR_BYTES
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import ColumnStart, columns_of_tile, num_tiles


def between_work(domain: Domain, device: DeviceSpec, choice: Columns, start: ColumnStart, resident: int, kept_bytes: int) -> Work:
    """Work of a walk between vectors with `choice.split` blocks down a column: full waves at the memory's pace; a last one, however small,
    that takes a round trip for every batch of a block; sectors that tiles share; and where blocks split a column, their meeting.

    resident: blocks that fit a multiprocessor; kept_bytes: of a column's element, over all operands.
    Source: `ColumnFigures`; H200, means of f32 in us, tiles of 32 vectors but where a row names others:
        196 x [1024, 333]     split 1, 392 blocks of 64 vectors: 63.4     588 blocks, 1.1 waves: 69.4     split 4, 4.5 waves: 70.6
        4 x [4096, 4095]      split 2, 0.5 waves: 67.9     split 4, 1.03 waves: 73.2     split 16, 4.1 waves: 71.0     64 vectors, 7: 67.5
        1 x [65536, 1023]     split 29, 261 blocks: 66.5     58: 67.7     117: 73.3
    """
    fitted, split = device.fitted.columns, choice.split
    blocks = num_tiles(domain, choice) * split
    batches = ceil(domain.num_reduced / (choice.threads_y * split * choice.batch))
    # All that a batch asks for is there before the next one is asked for: half of it is under way on average.
    under_way = choice.threads_x * choice.threads_y * fitted.flight_bytes // 2
    waves = Waves(blocks, resident, under_way, batches * fitted.round_trip_us, fitted.uneven_share)
    row_bytes = columns_of_tile(domain, choice, start) * kept_bytes
    read_bytes = choice.threads_x * choice.vector * kept_bytes + SECTOR_BYTES
    num_bytes = domain.num_kept * domain.num_reduced * kept_bytes
    meeting_us = fitted.meeting_us + ceil(split / fitted.parts_ahead) * fitted.round_trip_us if split > 1 else 0.0
    full_waves = blocks // (device.num_multiprocessors * resident)
    return Work(global_bytes=num_bytes, read_bytes=num_bytes, waves=waves, serial_us=full_waves * fitted.wave_us + meeting_us,
                serial_bytes=round(num_bytes * fitted.sector_share * (read_bytes / row_bytes - 1)))
