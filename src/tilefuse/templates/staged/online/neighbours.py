"""Neighbours of walks between products for tuning: tiles twice as long and half as long, other threads, with and without prefetching."""
from __future__ import annotations

from collections.abc import Iterator

from tilefuse.templates.staged.online.record import Online


def online_neighbours(base: Online) -> Iterator[Online]:
    """Choices near `base`, which is one of them where it has one of the numbers of threads and stages and no bound on registers."""
    for threads in (128, 256):
        for rows in (base.rows // 2, base.rows, base.rows * 2):
            for columns in (base.columns // 2, base.columns, base.columns * 2):
                for stages in (1, 2):
                    if rows and columns:
                        yield Online(rows, columns, threads, stages)
