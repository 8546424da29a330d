"""The record of a stitched kernel."""
from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from tilefuse.base.construction import quickly_built
from tilefuse.domain.tile import Level


@quickly_built
@dataclass(frozen=True, slots=True)
class Stitched:
    """Stages over one tile of the largest result, `tiles` elements a dimension, by `threads` threads; values between stages lie in
    shared memory. The stages follow from the pattern (`cut.py`). `groups` > 0: that many blocks walk all tiles, and what is
    the same for every tile is brought on chip once.

    levels: maps inside that lie at another level than stages give them by themselves (`connect.py`), with this level, sorted by name
    """

    template: ClassVar[str] = "stitched"

    tiles: tuple[int, ...]
    threads: int
    groups: int = 0
    levels: tuple[tuple[str, Level], ...] = ()

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        return self.threads

    @property
    def resident(self) -> int:
        """No bound on registers that the choice knows: blocks that copy ahead count theirs when the kernel is written."""
        return 0

    @property
    def streams_results(self) -> bool:
        """As of `Choice`: they leave the cache first where the kernel floods it."""
        return True


# Tiles by structure, in one search for a plan.
Tiles = dict[Hashable, Stitched]
