"""Parts of the walked axis: how many there may be, and the numbers that each block leaves for the one that combines a tile.

    keys of a head        | part 0 | part 1 | part 2 |        a block each: maximum, sum, weighted rows relative to its own maximum
    last block to end     reads all of them, makes them relative to one maximum, adds them up, writes the results

    products   [tile, part, row, column]        in global memory
    totals     [tile, value, row, part]         parts of one value lie side by side, as the last block reads them
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilefuse.emit.statements import Statements
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import F32, I32
from tilefuse.kernel.ir import Buffer
from tilefuse.templates.staged.online.products import OnlineForm

# Values that a part leaves of a maximum: itself, and the negated number that its powers are relative to. Of a sum: itself.
OWN, NEGATED = "own", "negated"


@dataclass(frozen=True)
class PartSums:
    """Weighted products that a part of a tile leaves in global memory, and shared memory for the combined ones.

    parts         of a tile
    rows          of a tile that results have
    width         columns of the weighted products, in whole instructions
    offset_bytes  of the rows in shared memory through which combined products come to the threads that have their rows

    Units: elements; bytes.
    """

    parts: int
    rows: int
    width: int
    offset_bytes: int

    @property
    def elements(self) -> int:
        """Weighted products of one part."""
        return self.rows * self.width

    @property
    def end_bytes(self) -> int:
        """The end of the rows in shared memory."""
        return self.offset_bytes + self.elements * F32.itemsize


@dataclass(frozen=True)
class PartBuffers:
    """The buffers of a kernel whose walked axis is in parts. place_by_value: numbers of the values that each row leaves."""

    sums: PartSums
    products: Buffer
    totals: Buffer
    counter: Buffer
    rows: Buffer
    place_by_value: Mapping[tuple[str, str], int]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All of them."""
        return self.products, self.totals, self.counter, self.rows

    def product(self, tile: Affine, part: Affine, row: Affine, column: Affine) -> Affine:
        """Offset of a part's product. Units: elements."""
        return ((tile * self.sums.parts + part) * self.sums.rows + row) * self.sums.width + column

    def total(self, tile: Affine, part: Affine, row: Affine, value: tuple[str, str]) -> Affine:
        """Offset of a value that a part leaves of a row. value: its name, and which of a maximum's. Units: elements."""
        place = (tile * len(self.place_by_value) + self.place_by_value[value]) * self.sums.rows + row
        return place * self.sums.parts + part


def part_buffers(w: Statements, sums: PartSums, num_tiles: int, online: OnlineForm) -> PartBuffers:
    """The buffers of a kernel with so many tiles."""
    values = [(t.value, kind) for t in online.totals for kind in ((OWN, NEGATED) if t.monoid == "max" else (OWN,))]
    stem, items = online.weighted[0].value, num_tiles * sums.parts
    return PartBuffers(
        sums, Buffer(w.fresh(f"{stem}_parts"), F32, items * sums.elements, "global", "workspace"),
        Buffer(w.fresh("totals_of_parts"), F32, items * sums.rows * max(len(values), 1), "global", "workspace"),
        Buffer(w.fresh("arrived"), I32, num_tiles, "global", "counter"),
        Buffer(w.fresh(f"{stem}_rows"), F32, sums.elements, "shared", "", "", sums.offset_bytes),
        {value: n for n, value in enumerate(values)})


def why_no_parts(online: OnlineForm) -> str:
    """The reason why blocks cannot walk parts of the axis; "" where they can. Sums of parts become relative to one maximum by a factor
    where the maximum is subtracted as it is, before a power."""
    for top in online.tops:
        if top.dtype != F32 or any(t.shift != online.reads[top.value] for t in online.relative(top.value)):
            return f"%{top.value} is subtracted in another form than its own, and parts have maxima of their own"
    wide = [t.value for t in (*online.totals, *(w.total for w in online.weighted)) if t.dtype != F32]
    return f"%{wide[0]} is no sum in f32" if wide else ""


def parts_are_filled(turns: int, parts: int) -> bool:
    """Whether each of the parts has turns, of so many."""
    return (parts - 1) * -(-turns // parts) < turns
