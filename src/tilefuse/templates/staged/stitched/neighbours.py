"""Neighbours of stitched kernels for tuning: tiles twice as long and half as long in each dimension, other numbers of threads."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.domain.tile import TileProgram
from tilefuse.templates.staged.stitched.pattern import anchor_of
from tilefuse.templates.staged.stitched.record import Stitched


def stitched_neighbours(base: Stitched, program: TileProgram) -> Iterator[Stitched]:
    """Choices near `base`, the choice of `program`; `base` is one of them where it has one of the numbers of threads."""
    shape = program.graph.type_of(anchor_of(program.graph)).shape
    for threads in (128, 256, 512):
        yield replace(base, threads=threads)
        for place, extent in enumerate(base.tiles):
            for other in (extent * 2, extent // 2):
                if len(shape) == len(base.tiles) and 1 <= other <= shape[place]:
                    yield replace(base, threads=threads, tiles=(*base.tiles[:place], other, *base.tiles[place + 1:]))
