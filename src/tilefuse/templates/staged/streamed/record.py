"""The record of a streamed product."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.target.capabilities import WARP


@dataclass(frozen=True, slots=True)
class Streamed:
    """Tiles of columns, whose weights each thread copies for itself into a ring in shared memory; the few rows lie there whole.

    wide      columns of a warp, in units of its lanes (`lanes.py`)
    across    warps side by side along the columns
    along     warps that share the inner axis
    cluster   blocks that share the inner axis; their sums meet through the cluster's shared memory
    slots     steps of the ring: the one in use, and those whose copies are under way
    """

    template: ClassVar[str] = "streamed"

    wide: int
    across: int
    along: int
    cluster: int
    slots: int

    @property
    def warps(self) -> int:
        """Warps a block."""
        return self.across * self.along

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        return WARP * self.warps

    @property
    def resident(self) -> int:
        """One block sets the bound on registers; shared memory decides how many there are."""
        return 1

    @property
    def streams_results(self) -> bool:
        """As of `Choice`: results are small beside the weights."""
        return False
