"""The record of reductions across memory."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Columns:
    """Kept axes run along memory: `threads_x` vectors of columns a block, `threads_y` threads down each column, `split` blocks
    down a column that meet through global memory. `chunks`: rows a thread. `on_chip`: they stay in registers between stages.
    `resident`: as of `rows.modes.Rows`.
    """

    template: ClassVar[str] = "columns"

    kept_order: tuple[str, ...]
    reduced_order: tuple[str, ...]
    vector: int
    threads_x: int
    threads_y: int
    chunks: int
    split: int
    on_chip: bool
    batch: int
    resident: int = 0

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        return self.threads_x * self.threads_y

    @property
    def streams_results(self) -> bool:
        """As of `Choice`: they leave the cache first where the kernel floods it."""
        return True
