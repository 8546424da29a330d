"""Neighbours of column kernels for tuning: threads along and down the columns, blocks a column, rows loaded at a time."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.resolved import Domain
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import between_columns


def columns_neighbours(base: Columns, domain: Domain, device: DeviceSpec) -> Iterator[Columns]:
    """Choices near `base` on a device; some come twice, and `base` may be one of them.

    Columns that are walked between vectors of memory stay so, and others do not begin to.
    """
    if device.kind == "host":
        yield from (replace(base, vector=vector) for vector in (4, 8, 16) if vector <= base.vector)
        return
    rows = base.chunks * base.threads_y * base.split
    is_between = between_columns(domain, base) is not None
    for threads_x, threads_y in SEARCH.walks.column_blocks:
        for factor in (1, 2, 4):
            split = max(1, base.split * factor // 2)
            chunks = -(-rows // (threads_y * split))
            for batch in (4, 8):
                near = replace(base, threads_x=threads_x, threads_y=threads_y, split=split, chunks=chunks, batch=batch)
                if (between_columns(domain, near) is not None) == is_between and (base.split > 1 or split == 1):
                    yield near
