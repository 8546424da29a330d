"""How the lanes of a warp share a tile of weights: each lane reads accesses of 16 bytes, and multiplies its own elements.

    matrix instructions, inner axis contiguous    lane 4 g + t: inner elements E t .. E t + E - 1 of columns g and g + 8
    matrix instructions, columns contiguous       lane 4 g + t: columns E g .. E g + E - 1 of inner elements 2 t, 2 t + 1, 2 t + 8, 2 t + 9
    threads, inner axis contiguous                lane n: inner elements E n .. E n + E - 1 of one column
    threads, columns contiguous                   lane n: columns E n .. E n + E - 1 of four inner elements

The weights are the left operand of matrix instructions: 16 columns are their rows. The order of inner elements inside an instruction is
free as long as both operands have the same, so a lane's neighbours in memory need not be neighbours in the instruction.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.domain.contraction import INNER
from tilefuse.ir.affine import Affine, number
from tilefuse.target.capabilities import MMA_INNER, MMA_ROWS, WARP

# Inner elements of a step of threads where columns are contiguous: rows of the left operand are read four at a time.
THREAD_INNER = 4
# Lanes of a warp that share a row of an instruction's left operand. Source: PTX ISA, fragments of m16n8k16.
FOURS, EIGHTS = 4, 8


@dataclass(frozen=True, slots=True)
class Lanes:
    """One warp's tile of a step.

    unit      "mma" or "fma"
    along     INNER or COLUMN: the axis along which the elements of an access follow each other
    elements  of an access
    wide      columns of the tile: 16 or one for each where the inner axis is contiguous, else those of an access by 8 or 32 lanes
    """

    unit: str
    along: str
    elements: int
    wide: int

    @property
    def columns(self) -> int:
        """Columns of the tile."""
        if self.along == INNER:
            return self.wide * (MMA_ROWS if self.unit == "mma" else 1)
        return self.wide * self.elements * (EIGHTS if self.unit == "mma" else WARP)

    @property
    def depth(self) -> int:
        """Inner elements of a step."""
        if self.along == INNER:
            return self.elements * (FOURS if self.unit == "mma" else WARP)
        return MMA_INNER if self.unit == "mma" else THREAD_INNER

    @property
    def accesses(self) -> int:
        """Accesses of a lane in one step."""
        if self.along == INNER:
            return self.wide * (2 if self.unit == "mma" else 1)
        return self.wide * 4

    @property
    def tiles(self) -> int:
        """Matrix instructions along the columns."""
        return self.columns // MMA_ROWS

    def place(self, access: int, lane: Affine, four: Affine, eight: Affine) -> tuple[Affine, Affine]:
        """(column, inner) of an access's first element in the tile. lane = 4 * eight + four."""
        each = self.elements
        if self.unit == "mma" and self.along == INNER:
            return eight + 8 * access, four * each
        if self.unit == "mma":
            group, (half, second) = access // 4, divmod(access % 4, 2)
            return eight * each + group * EIGHTS * each, four * 2 + 8 * half + second
        if self.along == INNER:
            return number(access), lane * each
        return lane * each + access // 4 * WARP * each, number(access % 4)

    def register(self, access: int, element: int) -> int:
        """Place of an element in a lane's registers of the left operand, as `MatrixProduct` numbers them."""
        if self.along == INNER:
            tile, half = divmod(access, 2)
            step, (high, second) = element // 4, divmod(element % 4, 2)
            return tile * 2 * self.elements + 8 * step + 4 * high + 2 * half + second
        group, (high, second) = access // 4, divmod(access % 4, 2)
        tile, half = divmod(element, 2)
        return (group * self.elements // 2 + tile) * 8 + 4 * high + 2 * half + second

    def column_of(self, tile: int, half: int, eight: Affine) -> Affine:
        """Column of a sum: row `eight` + 8 * half of a tile's instruction."""
        if self.along == INNER:
            return eight + (MMA_ROWS * tile + EIGHTS * half)
        group, within = divmod(tile, self.elements // 2)
        return eight * self.elements + (EIGHTS * self.elements * group + 2 * within + half)

    @property
    def turned(self) -> int:
        """Inner elements that change places among each other in the left operand's rows; 1 where none does."""
        return self.depth if self.unit == "mma" and self.along == INNER else 1

    def pair_place(self, four: Affine, pair: int) -> Affine:
        """Place of elements 2 * pair and the next one of lane `four`, among the inner elements that change places with each other."""
        step, high = divmod(pair, 2)
        return four * 2 + (16 * step + 8 * high)
