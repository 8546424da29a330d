"""The record of a walk between several products, without reductions."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.kernel.pipeline import WARPGROUP_ROWS
from tilefuse.templates.roles import WithRoles


@dataclass(frozen=True, slots=True)
class WalkedBack(WithRoles):
    """Tiles of 64 rows for each consumer warpgroup, which persistent blocks take one after another along the whole walked axis.

    columns     of scores a turn: elements of the walked axis in one slot
    warpgroups  consumer warpgroups; one more produces
    kept_slots  slots of the ring that brings the rows' operands, one filling a tile
    slots       slots of the ring that brings the walked operands, one filling a turn
    band        lead places whose tiles of rows are taken together, the longest first
    blocks      persistent blocks
    bias_ring   whether copies bring biases and masks beside the walked operands; else threads load them
    """

    template: ClassVar[str] = "walked_back"

    columns: int
    warpgroups: int
    kept_slots: int
    slots: int
    band: int
    blocks: int
    bias_ring: bool = False

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return WARPGROUP_ROWS * self.warpgroups
