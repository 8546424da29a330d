"""The record: all that decides the kernel of a pattern."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Strided:
    """`blocks` blocks of `threads` threads; each thread computes every (blocks * threads)-th element. `order`: axes, the slowest first."""

    template: ClassVar[str] = "strided"

    order: tuple[str, ...]
    blocks: int
    threads: int

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
