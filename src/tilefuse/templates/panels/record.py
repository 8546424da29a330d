"""The record of a product by panels."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP


@dataclass(frozen=True, slots=True)
class Panels:
    """A block computes `turns` tiles of `rows` x `columns` results one after another; its warps lie `down` x `across` in a tile.

    Panels of `depth` inner elements pass `slots` slots, those of the next tile behind those of the present one.
    """

    template: ClassVar[str] = "panels"

    rows: int
    columns: int
    down: int
    across: int
    depth: int
    slots: int
    turns: int = 1

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        return self.down * self.across * WARP

    @property
    def resident(self) -> int:
        """No bound on registers."""
        return 0

    @property
    def streams_results(self) -> bool:
        """False: the task that follows reads the results."""
        return False

    @property
    def instructions(self) -> tuple[int, int]:
        """Matrix instructions of a warp, down and across."""
        return self.rows // self.down // MMA_ROWS, self.columns // self.across // MMA_COLUMNS

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        m, n = self.instructions
        return 4 * m * n
