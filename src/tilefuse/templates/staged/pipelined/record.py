"""The record of a pipelined product."""
from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from tilefuse.base.construction import quickly_built
from tilefuse.kernel.pipeline import WARPGROUP_ROWS
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.templates.roles import WithRoles


@quickly_built
@dataclass(frozen=True, slots=True)
class Pipelined(WithRoles):
    """A main loop over the inner axis, for tiles of `rows` x `columns` sums that persistent blocks take one after another.

    Rows and columns are those of the instructions: of the products, or, where `swapped`, of the transposed products.

    depth       elements of the inner axis in one slot of the ring
    slots       slots of the ring: fillings that are under way or in use
    warpgroups  consumer warpgroups, which share the rows of a tile; one more produces
    pingpong    each warpgroup has tiles of its own: one multiplies while another computes its results
    band        tiles of rows that are taken together before the next tile of columns, so that blocks at work share operands in L2
    blocks      persistent blocks
    cluster     blocks that take neighbouring tiles of columns of the same rows in step, and exchange partial results of these rows; with
                `split`, blocks that take parts of one tile's inner axis and exchange their sums
    swapped     the right operands are the instructions' left ones, whose 64 rows few rows of the product would not fill
    split       parts of the inner axis, taken by different blocks. Sums of a cluster's blocks meet in shared memory, each block finishes
                some columns of the tile. Sums of several clusters (or single blocks) meet in a workspace; the last one finishes the tile
    multicast   each block of a cluster brings a part of the left operand's tiles to all of them
    scattered   the blocks of a cluster lie on any multiprocessors, as many as its columns need, and exchange through global memory. All
                blocks run at once, because they wait for each other. Hardware's clusters leave some multiprocessors idle
    resident    blocks that a multiprocessor holds at once: of this kernel, or one of it and one of the next kernel, which begins early
    by_warps    single warps multiply left operands that consumers expand in registers (mma.sync)
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
    split: int = 1
    multicast: bool = False
    scattered: bool = False
    by_warps: bool = False
    resident: int = 1

    def with_slots(self, slots: int) -> Pipelined:
        """The same with so many slots."""
        return Pipelined(self.rows, self.columns, self.depth, slots, self.warpgroups, self.band, self.blocks, self.pingpong, self.cluster,
                         self.swapped, self.split, self.multicast, self.scattered, self.by_warps, self.resident)

    def in_parts(self, split: int, cluster: int, blocks: int) -> Pipelined:
        """The same tiles with their inner axis in parts. `dataclasses.replace`, quicker: a search has hundreds of these."""
        return Pipelined(self.rows, self.columns, self.depth, self.slots, self.warpgroups, self.band, blocks, self.pingpong, cluster,
                         self.swapped, split, self.multicast, self.scattered, self.by_warps, self.resident)

    @property
    def cluster_columns(self) -> int:
        """Blocks of a cluster that take neighbouring tiles of columns."""
        return self.cluster if self.split == 1 else 1

    @property
    def cluster_parts(self) -> int:
        """Parts of the inner axis whose sums meet in the shared memory of a cluster."""
        return self.cluster if self.split > 1 else 1

    @property
    def memory_parts(self) -> int:
        """Parts of the inner axis whose sums meet in a workspace: those of clusters, or of single blocks."""
        return self.split // self.cluster_parts

    @property
    def finishers(self) -> int:
        """Blocks that compute the results of a tile: those of a cluster with a part of it, as far as eight columns each divide the tile."""
        return gcd(self.cluster_parts, self.columns // MMA_COLUMNS)

    @property
    def result_columns(self) -> int:
        """Columns of a tile whose results one block computes."""
        return self.columns // self.finishers

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
