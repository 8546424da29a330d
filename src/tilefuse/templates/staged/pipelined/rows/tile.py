"""The rows of a tile as a consumer thread holds them: rows and columns of its sums."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.kernel.pipeline import WARPGROUP, WARPGROUP_ROWS
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP
from tilefuse.target.warpgroup import HALF_ROWS, NEIGHBOURS
from tilefuse.templates.staged.pipelined.state import ProductState

QUAD = MMA_COLUMNS // NEIGHBOURS


@dataclass(frozen=True)
class RowTile:
    """Where a thread's sums lie.

    group         number of its warpgroup in the block
    own_row       its first row among those of its warpgroup
    first_row     first row of the warpgroup in the product
    first_column  of the tile
    row_column    first column of those that are reduced together
    pair          number of its pair of columns among those of every 8
    """

    group: Affine
    own_row: Affine
    first_row: Affine
    first_column: Affine
    row_column: Affine
    pair: Affine

    def row_of_group(self, slot: int) -> Affine:
        """The thread's row number `slot` among those of its warpgroup."""
        return self._row(slot)

    def row(self, slot: int) -> Affine:
        """The thread's row number `slot` among those of the product."""
        return self.first_row + self._row(slot)

    def _row(self, slot: int) -> Affine:
        return self.own_row + (slot // 2 * WARPGROUP_ROWS + slot % 2 * HALF_ROWS)


def row_tile(w: ProductState, group: Affine, first_row: Affine, first_column: Affine) -> RowTile:
    """The current thread's part of a tile. group: the warpgroup's number; first_row: the first row of its part."""
    thread = axis("thread")
    own_row = w.let("own_row", thread % WARPGROUP // WARP * MMA_ROWS + thread % WARP // QUAD, WARPGROUP_ROWS - HALF_ROWS)
    rank = axis("rank") if w.plan.choice.cluster > 1 else number(0)
    row_column = w.simplified(first_column - rank * w.plan.choice.columns) if w.form.reduced.width else number(0)
    return RowTile(group, own_row, first_row, first_column, row_column, w.let("pair", thread % QUAD, QUAD))
