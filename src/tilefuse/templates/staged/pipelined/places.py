"""Places of tiles: the rows and columns of the item of work that a block takes next, by the order of tiles or by the groups of rows.

    columns    |  tile 0  |  tile 1  |  tile 2  |  til
               |<----- no element is asked ---->| every pair of elements is asked whether it exists

A condition for each pair of elements costs more than most maps: the compiler makes a branch of it, around which it moves no instruction.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilefuse.domain.contraction import GROUP
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import If
from tilefuse.templates.staged.pipelined.grouped.order import TileOrder, tile_of_item
from tilefuse.templates.staged.pipelined.grouped.tables import from_memory, write_tables
from tilefuse.templates.staged.pipelined.shifted.tiles import begin_rows
from tilefuse.templates.staged.pipelined.state import ProductState


@dataclass(frozen=True)
class TilePlace:
    """First row and first column of a tile's results, and of the operands that are read for it: beyond their ends where they are zeros."""

    first_row: Affine
    first_column: Affine
    read_row: Affine
    read_column: Affine


def begin_groups(w: ProductState) -> None:
    """The tables of a grouped product, and the number of its tiles of rows; nothing for other products."""
    plan, form = w.plan, w.form
    if plan.tables is None or w.tables is None:
        return
    write_tables(w, plan.tables, w.tables, form.contraction.offsets, form.rows, plan.choice.rows, plan.choice.num_threads)
    last = w.tables.first_tile(number(plan.tables.num_groups + 1))
    w.row_tiles = from_memory(w, "row_tiles", last, plan.most_row_tiles + 1)


def items_of(w: ProductState) -> Affine:
    """Number of items of work, of groups that of the offsets at hand."""
    return number(w.plan.num_items) if w.row_tiles is None else w.row_tiles * w.plan.column_tiles


def place_of(w: ProductState, tile: Affine) -> TilePlace:
    """The place of a tile. Sets the lead axes, or the group."""
    return _in_bands(w, tile) if w.row_tiles is None else _of_group(w, tile, w.row_tiles)


def _in_bands(w: ProductState, tile: Affine) -> TilePlace:
    """Bands of row tiles, in each all column tiles.

    Blocks of a cluster have neighbouring columns of the same rows; `tile` counts the tiles of whole clusters.
    """
    plan, form, choice = w.plan, w.plan.form, w.plan.choice
    cluster = choice.cluster_columns
    per_lead = plan.row_tiles * plan.column_tiles // cluster
    lead = tile // per_lead if form.num_leads > 1 else number(0)
    place, stride = tile % per_lead if form.num_leads > 1 else tile, form.num_leads
    for a in form.leads:
        stride //= form.extents[a]
        w.env[a] = w.let(a, lead // stride % form.extents[a], form.extents[a])
    per_band = choice.band * plan.column_tiles // cluster
    band, within = place // per_band, place % per_band
    row_tile = w.let("row_tile", band * choice.band + within % choice.band, plan.row_tiles)
    rank = axis("rank") if cluster > 1 else number(0)
    column_tile = w.let("column_tile", within // choice.band * cluster + rank, plan.column_tiles)
    w.column_tile = column_tile
    begin_rows(w, row_tile)
    row, column = row_tile // form.row_step * choice.rows, column_tile * choice.columns
    return TilePlace(row, column, row, column)


def _of_group(w: ProductState, tile: Affine, row_tiles: Affine) -> TilePlace:
    """The tile of a grouped product. Rows behind the last group have sums of zeros: operands are read beyond their ends."""
    plan, form, choice = w.plan, w.plan.form, w.plan.choice
    assert plan.tables is not None and w.tables is not None
    order = TileOrder(choice.band, plan.most_row_tiles, plan.column_tiles, form.rows, choice.rows)
    at = tile_of_item(w, order, plan.tables, w.tables, row_tiles, tile)
    w.env[GROUP], w.group_tile, w.column_tile = at.group, at, at.column_tile
    column = at.column_tile * choice.columns
    beyond = plan.column_tiles * choice.columns
    return TilePlace(at.first_row, column, at.first_row + at.behind * form.rows, column + at.behind * beyond)


def whole_or_cut(w: ProductState, write: Callable[[], None]) -> None:
    """Statements of `write` for a tile, twice: for tiles inside the columns, and for a last tile that these end in.

    Requires: `write` writes no barrier, and declares no register that later statements read.
    """
    count = w.form.columns // w.plan.choice.columns
    name = _own_name(w)
    if name is None or not count or w.form.columns % w.plan.choice.columns == 0:
        write()
        return
    with w.nested() as whole:
        whole.extents[name] = count
        write()
    with w.nested() as cut:
        write()
    w.emit(If((Bound(w.column_tile, 0, count),), tuple(whole.statements), tuple(cut.statements)))


def _own_name(w: ProductState) -> str | None:
    """The kernel's name of the tile's number; None where it is a constant."""
    terms = w.column_tile.terms
    return terms[0][0] if len(terms) == 1 and isinstance(terms[0][0], str) and w.column_tile == axis(terms[0][0]) else None
