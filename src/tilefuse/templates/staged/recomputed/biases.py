"""Biases and masks in memory that the ring of the walked operands brings beside these: a tile of rows and columns in each turn.

    queries' kernel    bias[r, c]    a box of the tile's rows, along the columns of the turn: threads read pairs of columns
    keys' kernel       bias[c, r]    a box of the turn's columns, along the tile's rows: threads read one element after another
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.ir.affine import Affine, number
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.ir import Assign, Declare, Load, Reg, VectorLoad
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, panel_width
from tilefuse.templates.staged.online.fragments import Fragment
from tilefuse.templates.staged.online.plan import padded
from tilefuse.templates.staged.online.products import ROW, WALK, OnlineForm
from tilefuse.templates.staged.pipelined.plan import OperandTile, why_no_map_of
from tilefuse.templates.staged.recomputed.powers import bodies_of
from tilefuse.templates.staged.walked.bias import Bias, strided_bias, unguarded_reads
from tilefuse.templates.staged.walked.rings import RingState


def biases_between(graph: Graph, layouts: Layouts, online: OnlineForm) -> tuple[Bias, ...]:
    """The values with rows and columns of the scores that elements read, whose rows or whose columns follow each other in memory."""
    reads = dict.fromkeys(e for body in bodies_of(online) for e in unguarded_reads(body) if e.value not in graph.node_by_name)
    biases = (strided_bias(graph, layouts, online, e, *axes) for e in reads for axes in ((ROW, WALK), (WALK, ROW)))
    return tuple(b for b in biases if b is not None)


@dataclass(frozen=True)
class BiasTile:
    """A bias and the tile of it that a turn brings."""

    bias: Bias
    tile: OperandTile

    @property
    def is_turned(self) -> bool:
        """Whether the tile's lines are elements of the walked axis."""
        return self.tile.operand.line == WALK

    def copy(self, w: RingState, slot: Affine, first_row: Affine, first: Affine) -> None:
        """Starts the copies to a slot: of the rows from `first_row` on, and of the walked axis from `first` on."""
        line, inner = (first, first_row) if self.is_turned else (first_row, first)
        w.copy_tile(self.bias.of, self.tile, slot, line, inner)

    def load(self, w: RingState, slot: Affine, here: Fragment, group: Affine) -> Reg:
        """Registers with the elements of a group of columns, for each row of the thread."""
        tile, buffer = self.tile, w.slots[self.tile.key].name
        loaded = Reg(w.fresh(f"{tile.operand.value}_pair"), tile.operand.dtype)
        w.emit(Declare(loaded.name, loaded.dtype, here.rows * here.vector))
        for i in range(here.rows):
            row, first = here.row(number(i)), number(i * here.vector)
            if not self.is_turned:
                at = self._place(slot, row, here.column(group, number(0)))
                w.emit(VectorLoad(loaded.name, first, buffer, w.simplified(at), here.vector))
                continue
            for v in range(here.vector):
                at = self._place(slot, here.column(group, number(v)), row)
                w.emit(Assign(Reg(loaded.name, loaded.dtype, first + v), Load(buffer, loaded.dtype, w.simplified(at))))
        return loaded

    def _place(self, slot: Affine, line: Affine, inner: Affine) -> Affine:
        tile = self.tile
        return slot * tile.elements + inner // tile.width * (tile.panel_lines * tile.width) + line * tile.width + inner % tile.width


def placed_biases(biases: tuple[Bias, ...], rows: int, columns: int, slots: int, offset_bytes: int) -> tuple[BiasTile, ...]:
    """Tiles of those biases that tensor maps describe, laid out from `offset_bytes` on."""
    tiles: list[BiasTile] = []
    for n, bias in enumerate(biases):
        operand = bias.of.operand
        lines, inner = (columns, rows) if operand.line == WALK else (rows, columns)
        depth = padded(inner, panel_width(SWIZZLE_LINE_BYTES, operand.dtype.itemsize))
        tile = OperandTile(f"bias{n}", operand, lines, depth, offset_bytes)
        if not why_no_map_of(bias.of.sizes, tile):
            tiles.append(BiasTile(bias, tile))
            offset_bytes += tile.slot_bytes * slots
    return tuple(tiles)
