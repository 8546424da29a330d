"""The tile of a grouped product that an item of work is: its group, rows and columns, found in the block's tables.

    item -> band of row tiles, column tile, row tile      bands are as high as rows are left: the last one is lower
    row tile -> group                                     the last entry of the table whose first tile is not behind it
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.ir.affine import Affine, number
from tilefuse.ir.dtype import I32
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import KExpr
from tilefuse.templates.staged.graph_values import GraphStatements
from tilefuse.templates.staged.pipelined.grouped.tables import GroupTables, TableBuffers, from_memory, integer


@dataclass(frozen=True)
class GroupedTile:
    """A tile of a grouped product. end: of its group's rows. behind: 1 for rows behind the last group, else 0."""

    group: Affine
    first_row: Affine
    end: Affine
    column_tile: Affine
    behind: Affine


@dataclass(frozen=True)
class TileOrder:
    """The order in which blocks take tiles. row_tiles: most tiles of rows; rows: of the product; height: rows of a tile."""

    band: int
    row_tiles: int
    column_tiles: int
    rows: int
    height: int


def tile_of_item(w: GraphStatements, order: TileOrder, tables: GroupTables, buffers: TableBuffers, total: Affine,
                 item: Affine) -> GroupedTile:
    """The tile of an item. total: tiles of rows of these offsets."""
    row_tile, column_tile = _place_in_bands(w, order, total, item)
    group = _group_of(w, tables, buffers, row_tile)
    ahead: KExpr = Call("sub", (integer(row_tile), buffers.first_tile(group)))
    above: KExpr = Call("mul", (ahead, const(order.height, I32)))
    first: KExpr = Call("add", (buffers.first_row(group), above))
    first_row = from_memory(w, "first_row", first, order.rows)
    end = from_memory(w, "end_row", buffers.first_row(group + 1), order.rows + 1)
    behind = group // tables.num_groups
    return GroupedTile(w.let("weights", group - behind, tables.num_groups), first_row, end, column_tile, behind)


def _place_in_bands(w: GraphStatements, order: TileOrder, total: Affine, item: Affine) -> tuple[Affine, Affine]:
    """(row tile, column tile) of an item."""
    columns, band = order.column_tiles, min(order.band, order.row_tiles)
    if band == 1:
        return w.let("row_tile", item // columns, order.row_tiles), w.let("column_tile", item % columns, columns)
    first = w.let("band_first", item // (band * columns) * band, order.row_tiles)
    within = w.let("within", item % (band * columns), band * columns)
    height = from_memory(w, "height", Call("minimum", (const(band, I32), integer(total - first))), band + 1)
    column_tile = from_memory(w, "column_tile", Call("floordiv", (integer(within), integer(height))), columns)
    above: KExpr = Call("mul", (integer(column_tile), integer(height)))
    row_tile = from_memory(w, "row_tile", Call("sub", (integer(first + within), above)), order.row_tiles)
    return row_tile, column_tile


def _group_of(w: GraphStatements, tables: GroupTables, buffers: TableBuffers, row_tile: Affine) -> Affine:
    """The group of a row tile: the last entry whose first tile is not behind it. A group without rows shares its first tile with the next.
    """
    group, step = number(0), tables.entries // 2
    while step:
        is_there: KExpr = Call("le", (buffers.first_tile(group + step), integer(row_tile)))
        group = group + from_memory(w, "ahead", Call("select", (is_there, const(step, I32), const(0, I32))), step + 1)
        step //= 2
    return w.let("group", group, tables.num_groups + 1)
