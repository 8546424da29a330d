"""The record of a walk along an axis between products."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.base.construction import quickly_built


@quickly_built
@dataclass(frozen=True, slots=True)
class Online:
    """Products along an axis that is walked (`products.py`): `rows` rows of results a block, shared by `threads` threads; `columns`
    elements of the walked axis a turn. `stages` 2: the operands of the next turn are fetched while this one is computed. `resident`: blocks
    that must fit a multiprocessor together."""

    template: ClassVar[str] = "online"

    rows: int
    columns: int
    threads: int
    stages: int = 1
    resident: int = 1

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        return self.threads

    @property
    def streams_results(self) -> bool:
        """As of `Choice`: they leave the cache first where the kernel floods it."""
        return True
