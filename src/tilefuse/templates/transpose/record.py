"""The record of a transposition in tiles."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Transpose:
    """Tiles of `rows` x `columns`: read along `read_axis`, written along `write_axis`, turned in shared memory.

    Each thread reads `depth` vectors that lie below each other along `write_axis` and writes their columns into shared memory.
    `depth` 0: a tile is one run of memory (the read axis is short) and is read in vectors along it. `writes_run`: a tile is one run of
    the written memory (the write axis is short, all of it lies in a tile) and is written in vectors along it.
    """

    template: ClassVar[str] = "transpose"

    order: tuple[str, ...]
    read_axis: str
    write_axis: str
    rows: int
    columns: int
    threads: int
    read_vector: int
    write_vector: int
    depth: int = 1
    writes_run: bool = False

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        return self.threads

    @property
    def resident(self) -> int:
        """No bound on registers."""
        return 0

    @property
    def streams_results(self) -> bool:
        """As of `Choice`: they leave the cache first where the kernel floods it."""
        return True
