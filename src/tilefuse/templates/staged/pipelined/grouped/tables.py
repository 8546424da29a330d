"""Tables of a grouped product in shared memory, which a block computes from the offsets before its first tile.

    offsets 5 5 9, 12 rows, tiles of 4 rows       group        0  1  2  behind  end
                                                  first tile   0  2  2  3       4
                                                  first row    0  5  5  9       12

The last entry is repeated up to a power of two, so that a search halves the table at every step.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import I32, DType
from tilefuse.ir.scalar import Bound, Call, Index, const
from tilefuse.kernel.ir import Assign, Barrier, Buffer, Comment, Declare, FromMemory, KExpr, Let, Load, Reg, Store
from tilefuse.templates.staged.graph_values import GraphStatements


@dataclass(frozen=True)
class GroupTables:
    """The place of both tables in shared memory. num_groups: of the product, without the rows behind the last group."""

    num_groups: int
    offset_bytes: int

    @property
    def entries(self) -> int:
        """Entries of a table: one for each group, one for the rows behind, and the end, up to a power of two."""
        return 1 << (self.num_groups + 1).bit_length()

    @property
    def num_bytes(self) -> int:
        """Both tables."""
        return 2 * self.entries * I32.itemsize


@dataclass(frozen=True)
class TableBuffers:
    """The tables as buffers of a kernel."""

    tiles: Buffer
    rows: Buffer

    def first_tile(self, entry: Affine) -> KExpr:
        """The first tile of a group."""
        return Load(self.tiles.name, I32, entry)

    def first_row(self, entry: Affine) -> KExpr:
        """The first row of a group."""
        return Load(self.rows.name, I32, entry)


def table_buffers(w: GraphStatements, tables: GroupTables) -> TableBuffers:
    """Shared buffers for the tables."""
    tiles, rows = (Buffer(w.fresh(name), I32, tables.entries, "shared", "", "", tables.offset_bytes + n * tables.entries * I32.itemsize)
                   for n, name in enumerate(("first_tiles", "first_rows")))
    return TableBuffers(tiles, rows)


def write_tables(w: GraphStatements, tables: GroupTables, buffers: TableBuffers, offsets: str, rows: int, height: int,
                 num_threads: int) -> None:
    """Every thread adds up the tiles before its entries; then the block meets.

    Exact: the boundaries of `tile_rows`. Cost: a step for each group.
    """
    w.emit(Comment(f"rows and tiles before each of {tables.num_groups} groups of %{offsets}"))
    buffer, stride = w.buffers[offsets], w.strides(offsets)[0]
    with w.loop("entry", number(tables.entries), start=axis("thread"), step=num_threads, extent=tables.entries) as entry:
        tiles, last = (Reg(w.fresh(name), I32) for name in ("tiles", "last_row"))
        w.emit(Declare(tiles.name, I32, None, const(0, I32)), Declare(last.name, I32, None, const(0, I32)))
        with w.loop("group", tables.num_groups) as group, w.when([Bound(entry - group, 1, tables.entries)]):
            end = within(Load(buffer.name, buffer.dtype, group * stride), buffer.dtype, rows)
            _add_group(w, tiles, last, Call("maximum", (last, end)), height)
        with w.when([Bound(entry, tables.num_groups + 1, tables.entries)]):
            _add_group(w, tiles, last, const(rows, I32), height)
        w.emit(Store(buffers.tiles.name, entry, tiles), Store(buffers.rows.name, entry, last))
    w.emit(Barrier())


def _add_group(w: GraphStatements, tiles: Reg, last: Reg, end: KExpr, height: int) -> None:
    """Adds the tiles of the rows from `last` to `end`, which becomes the last."""
    group_end = w.register(end, I32, "end")
    rows: KExpr = Call("sub", (group_end, last))
    missing: KExpr = Call("add", (rows, const(height - 1, I32)))
    w.emit(Assign(tiles, Call("add", (tiles, Call("floordiv", (missing, const(height, I32)))))), Assign(last, group_end))


def within(offset: KExpr, dtype: DType, rows: int) -> KExpr:
    """An offset in 0 .. rows, as i32."""
    positive: KExpr = Call("maximum", (offset, const(0, dtype)))
    clamped: KExpr = Call("minimum", (positive, const(rows, dtype)))
    return clamped if dtype == I32 else Call(I32.name, (clamped,))


def from_memory(w: GraphStatements, stem: str, value: KExpr, extent: int) -> Affine:
    """A name for an integer of memory in 0 .. extent - 1."""
    name = w.fresh(stem)
    w.emit(Let(name, FromMemory(value), extent))
    w.frame.extents[name] = extent
    return axis(name)


def integer(e: Affine) -> KExpr:
    """An index expression as i32."""
    return const(e.const, I32) if e.is_const else Call(I32.name, (Index(e),))
