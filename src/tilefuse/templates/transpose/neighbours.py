"""Neighbours of transpositions for tuning: other tiles and threads. Sides that are whole runs of memory stay as they are."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.target.device import DeviceSpec
from tilefuse.templates.transpose.record import Transpose

TRIED_RUNS, TRIED_THREADS = (64, 128, 256, 512, 1024, 2048), (64, 128, 256, 384, 512)
TRIED_TILES = ((32, 32), (64, 64), (32, 64), (64, 32), (128, 32), (32, 128), (128, 64), (128, 128))


def transpose_neighbours(base: Transpose, device: DeviceSpec) -> Iterator[Transpose]:
    """Choices near `base` on a device; some come twice, and `base` may be one of them. None on the host, which turns no tiles."""
    if device.kind == "host":
        return
    if base.writes_run:
        for columns in TRIED_RUNS:
            for threads in TRIED_THREADS:
                yield replace(base, columns=columns, threads=threads)
    elif base.depth == 0:
        for rows in (64, 128, 256, 512, 1024):
            for threads in TRIED_THREADS:
                yield replace(base, rows=rows, threads=threads)
    else:
        for rows, columns in TRIED_TILES:
            for threads in (128, 256, 512):
                yield replace(base, rows=rows, columns=columns, threads=threads)
