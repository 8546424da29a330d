"""The record of a chain of products."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilefuse.templates.roles import WithRoles


@dataclass(frozen=True, slots=True)
class ProductChain(WithRoles):
    """Tiles of `rows` rows that persistent blocks take one after another through every product of a chain.

    columns     of each product's sums, in order: the next left operand or the results, in whole instructions
    left_slots  slots of the ring that brings the first left operand
    slots       slots of the ring that brings the right operands; 0: each has a ring of its own, is loaded once and stays
    warpgroups  consumer warpgroups, which share the rows of a tile; one more produces
    blocks      persistent blocks
    """

    template: ClassVar[str] = "product_chain"

    rows: int
    columns: tuple[int, ...]
    left_slots: int
    slots: int
    warpgroups: int
    blocks: int
