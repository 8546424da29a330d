"""The record of a register tile."""
from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """Each thread computes `sides` elements along the axes of a tile, at one place of the others.

    order: axes of the domain of tiles, the slowest first; sides: (axis, elements) of a tile. Units: threads a block.
    """

    template: ClassVar[str] = "register tile"

    order: tuple[str, ...]
    sides: tuple[tuple[str, int], ...]
    threads: int

    @property
    def elements(self) -> int:
        """Elements of a tile."""
        return prod(side for _, side in self.sides)

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
        """Results may leave the second-level cache first."""
        return True
