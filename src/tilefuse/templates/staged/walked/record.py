"""The record of a pipelined walk between two products."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.base.construction import quickly_built
from tilefuse.kernel.pipeline import WARPGROUP_ROWS
from tilefuse.templates.roles import WithRoles


@quickly_built
@dataclass(frozen=True, slots=True)
class PipelinedWalk(WithRoles):
    """Tiles of 64 rows for each consumer warpgroup, which persistent blocks take one after another along the whole walked axis.

    columns     of scores a turn: elements of the walked axis in one slot of either ring
    warpgroups  consumer warpgroups; one more produces
    left_slots  slots of the ring that brings the rows' left operand, one filling a tile
    slots       slots of each of the rings that bring the walked operands
    band        lead places whose tiles of rows are taken together, the longest first
    blocks      persistent blocks
    bias_slots  slots of each of the rings that bring biases and masks; 0: threads load these
    parts       of the walked axis, which blocks walk side by side; the last block of a tile to end combines them
    heads       lead places with the same walked operands whose rows lie in one tile: row r of head h is row r * heads + h of it
    in_turn     warpgroups start the products of a turn one after another, so that powers of one are computed beside products of another
    """

    template: ClassVar[str] = "pipelined_walk"

    columns: int
    warpgroups: int
    left_slots: int
    slots: int
    band: int
    blocks: int
    in_turn: bool = False
    bias_slots: int = 0
    parts: int = 1
    heads: int = 1

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return WARPGROUP_ROWS * self.warpgroups
