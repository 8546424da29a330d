"""The record of a flat walk."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Flat walk: `threads` x `steps` vectors a block. `unrolled`: all loads of the steps are issued before the first use.

    `side` > 1: a warp stands across two axes, `side` lanes along `across` times 32 / `side` vectors along the last one
    (`templates/flat/side_by_side.py`).
    """

    template: ClassVar[str] = "pointwise"

    order: tuple[str, ...]
    vector: int
    threads: int
    steps: int
    unrolled: bool
    across: str = ""
    side: int = 1

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
