"""The record of a pipelined product."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.kernel.pipeline import WARPGROUP, WARPGROUP_ROWS


@dataclass(frozen=True, slots=True)
class Pipelined:
    """A main loop over the inner axis, for tiles of `rows` x `columns` sums that persistent blocks take one after another.

    Rows and columns are those of the instructions: of the products, or, where `swapped`, of the transposed products.

    depth       elements of the inner axis in one slot of the ring
    slots       slots of the ring: fillings that are under way or in use
    warpgroups  consumer warpgroups, which share the rows of a tile; one more produces
    pingpong    each warpgroup has tiles of its own: one multiplies while another computes its results
    band        tiles of rows that are taken together before the next tile of columns, so that blocks at work share operands in L2
    blocks      persistent blocks
    cluster     blocks that take neighbouring tiles of columns of the same rows in step, and exchange partial results of these rows
    swapped     the right operands are the instructions' left ones, whose 64 rows few rows of the product would not fill
    """

    template: ClassVar[str] = "pipelined"

    rows: int
    columns: int
    depth: int
    slots: int
    warpgroups: int
    band: int
    blocks: int
    pingpong: bool = False
    cluster: int = 1
    swapped: bool = False

    @property
    def warpgroup_rows(self) -> int:
        """Rows of a tile that one warpgroup computes."""
        return self.rows if self.pingpong else self.rows // self.warpgroups

    @property
    def num_clusters(self) -> int:
        """Groups of blocks that take tiles together: clusters, or single blocks."""
        return self.blocks // self.cluster

    @property
    def rows_of_thread(self) -> int:
        """Rows of which a consumer thread holds sums: two of every 64 of its warpgroup."""
        return self.warpgroup_rows // WARPGROUP_ROWS * 2

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
        """One block: its accumulators fill the registers."""
        return 1

    @property
    def streams_results(self) -> bool:
        """As of `Choice`: results leave the cache before operands, which other blocks read again."""
        return True
