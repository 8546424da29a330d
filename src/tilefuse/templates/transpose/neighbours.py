"""Neighbours of transpositions for tuning: other tiles and threads. Sides that are whole runs of memory stay as they are."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.base.search.limits import SEARCH
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.transpose.record import Transpose


def transpose_neighbours(base: Transpose, device: DeviceSpec) -> Iterator[Transpose]:
    """Choices near `base` on a device; some come twice, and `base` may be one of them. None on the host, which turns no tiles."""
    if device.kind == "host":
        return
    if base.writes_run:
        for columns in SEARCH.walks.turned_runs:
            for threads in SEARCH.walks.turned_threads:
                yield replace(base, columns=columns, threads=threads)
    elif base.depth == 0:
        for rows in (64, 128, 256, 512, 1024):
            for threads in SEARCH.walks.turned_threads:
                yield replace(base, rows=rows, threads=threads)
    else:
        for rows, columns in SEARCH.walks.turned_tiles:
            for threads in (128, 256, 512):
                yield replace(base, rows=rows, columns=columns, threads=threads)
