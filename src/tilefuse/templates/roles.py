"""Numbers that all records of kernels with producing and consuming warpgroups share."""
from __future__ import annotations

from tilefuse.kernel.pipeline import WARPGROUP


class WithRoles:
    """A choice of a kernel whose persistent blocks have `warpgroups` consumer warpgroups, and one more that produces."""

    __slots__ = ()
    warpgroups: int

    @property
    def consumer_threads(self) -> int:
        """Threads that multiply."""
        return WARPGROUP * self.warpgroups

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        return self.consumer_threads + WARPGROUP

    @property
    def resident(self) -> int:
        """One block: its registers are distributed among its roles."""
        return 1

    @property
    def streams_results(self) -> bool:
        """As of `Choice`: results leave the cache before operands, which other blocks read again."""
        return True
