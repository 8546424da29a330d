"""Products of a stitched kernel on the matrix unit: tiles of a warp, with the stage's maps on the sums."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.domain.contraction import COLUMN, INNER, ROW, Tiling
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound, const
from tilefuse.kernel.ir import Assign, Comment, Declare, If, MatrixProduct, Reg
from tilefuse.target.capabilities import WARP
from tilefuse.templates.staged.stitched.plan import Piece, Stage
from tilefuse.templates.staged.stitched.points import keep
from tilefuse.templates.staged.stitched.products.elements import finish, lead_place, operand_at
from tilefuse.templates.staged.stitched.products.row_sums import SumRows, column_within
from tilefuse.templates.staged.stitched.values import StitchValues


@dataclass(frozen=True, slots=True)
class WarpTiles:
    """The tiles of a stage's products: `tall` x `wide` of them at each lead place. `warps`: of the block."""

    first: Piece
    tiling: Tiling
    warps: int

    @property
    def tall(self) -> int:
        """Tiles down."""
        return self.first.region[-2].extent // (16 * self.tiling.rows)

    @property
    def wide(self) -> int:
        """Tiles across; the last one may be partial."""
        return -(-self.first.region[-1].extent // (8 * self.tiling.columns))

    @property
    def count(self) -> int:
        """Tiles at all lead places."""
        return prod(s.extent for s in self.first.region[:-2]) * self.tall * self.wide

    def at(self, w: StitchValues, item: Affine) -> WarpTile:
        """A tile by its number, which is below `count`."""
        lead, rest = lead_place(w, self.first, item, self.tall * self.wide)
        row = (w.let("tile_row", rest // self.wide, self.tall) if self.tall > 1 else number(0)) * (16 * self.tiling.rows)
        column = (w.let("tile_column", rest % self.wide, self.wide) if self.wide > 1 else number(0)) * (8 * self.tiling.columns)
        return WarpTile(lead, row, column)


@dataclass(frozen=True, slots=True)
class WarpTile:
    """Local lead coordinates, first row and first column of a warp's tile."""

    lead: list[Affine]
    row: Affine
    column: Affine


def warp_tiles(w: StitchValues, stage: Stage, t: Tiling) -> WarpTiles:
    """The tiles of a stage's products."""
    return WarpTiles(w.plan.pieces[stage.products[0]], t, w.threads // WARP)


def warp_and_lane(w: StitchValues, warps: int) -> tuple[Affine, Affine]:
    """Names of the thread's warp in the block, and of its lane."""
    return w.let("warp", axis("thread") // WARP, warps), w.let("lane_of_warp", axis("thread") % WARP, WARP)


def emit_by_warps(w: StitchValues, stage: Stage, t: Tiling) -> None:
    """One product stage: each warp tiles of `rows` x `columns` instructions, over the whole inner axis."""
    products = [w.plan.pieces[k] for k in stage.products]
    tiles = warp_tiles(w, stage, t)
    count, warps = tiles.count, tiles.warps
    turns = -(-count // warps)
    warp, lane = warp_and_lane(w, warps)
    for p in (w.plan.pieces[k] for k in stage.pieces if k in w.plan.held):
        w.held[p.key] = w.fresh(f"{p.value}_held")
        w.emit(Declare(w.held[p.key], p.dtype, 4 * t.rows * t.columns))
    with w.loop("turn", turns, unroll=w.unroll and turns <= 2) as turn:
        item = w.let("warp_tile", turn * warps + warp, turns * warps)
        with w.when(() if turns * warps == count else [Bound(item, 0, count)]):
            w.narrow_to(item, count)
            tile = tiles.at(w, item)
            sums = {p.key: warp_sums(w, p, t, tile, number(0)) for p in products}
            if stage.columns:
                SumRows(w, stage, t, {p.value: (p, sums[p.key]) for p in products}, tile.lead, tile.row, lane).emit()
                return
            with w.loop("a", t.rows, unroll=w.unroll) as a, w.loop("b", t.columns, unroll=w.unroll) as b, \
                    w.loop("half", 2, unroll=w.unroll) as half:
                finish_pair(w, stage, products, sums, tile.lead, tile.row + 16 * a + 8 * half + lane // 4,
                            tile.column + 8 * b + 2 * (lane % 4), 4 * t.columns * a + 4 * b + 2 * half)


def warp_sums(w: StitchValues, p: Piece, t: Tiling, tile: WarpTile, part: Affine) -> Reg:
    """The sums of one warp's tile of one product, over one of the `t.split` parts of the inner axis."""
    contraction = w.plan.contractions[p.value]
    inner = contraction.inner // t.split
    total = w.fresh(f"{p.value}_sum")
    w.emit(Comment(f"%{p.value}: the warp's tile on the matrix unit"), Declare(total, F32, 4 * t.rows * t.columns))
    with w.loop("n", 4 * t.rows * t.columns, unroll=w.unroll) as n:
        w.emit(Assign(Reg(total, F32, n), const(0, F32)))
    held = next((w.held[k] for k in w.plan.sources[p.key] if k in w.plan.held and w.plan.pieces[k].value == contraction.left), "")
    places = []
    for value, which, subscripts, along in (
            (contraction.left, "left", contraction.left_index, ROW if contraction.inner_last_left else INNER),
            (contraction.right, "right", contraction.right_index, COLUMN if contraction.inner_last_right else INNER)):
        if held and which == "left":
            places.append((held, number(0), 0))
            continue
        index = operand_at(w, contraction, p, tile.lead, which, tile.row, tile.column, inner * part)
        piece = w.tile_of(value, index)
        assert piece is not None, f"the operand %{value} lies in shared memory"
        stride = sum(e.coefficient(along) * s for e, s in zip(subscripts, piece.strides, strict=True))
        places.append((w.shared[piece.key].name, w.tile_offset(piece, index), stride))
    (left, left_at, left_stride), (right, right_at, right_stride) = places
    w.emit(MatrixProduct(total, left, left_at, left_stride, not contraction.inner_last_left, right, right_at, right_stride,
                         contraction.inner_last_right, t.rows, t.columns, inner, bool(held), t.arithmetic,
                         p.region[-1].extent if p.region[-1].extent < 8 * t.columns else 0))
    return Reg(total, F32)


def finish_pair(w: StitchValues, stage: Stage, products: Sequence[Piece], sums: dict[int, Reg], lead: list[Affine], row: Affine,
                column: Affine, first: Affine) -> None:
    """Two neighbouring columns of the stage's pieces from the sums, the first of which is element `first`; zeros beyond the last column."""
    columns = w.plan.pieces[stage.products[0]].region[-1].extent
    width = 2 - columns % 2
    for v in (0,) if width == 2 else (0, 1):
        here = column + v
        beyond = tuple(b for b in (Bound(here, 0, columns),) if not w.always(b))

        def element(u: Affine, v: int = v) -> Affine:
            return first + v + u

        with w.nested() as inner:
            finish(w, stage, products, sums, lead, row, column_within(w, here, columns) if beyond else here, width, element)
        with w.nested() as other:
            for p in (w.plan.pieces[k] for k in stage.pieces):
                keep(w, p, [const(0, p.dtype)] * width, element)
        w.emit(*((If(beyond, tuple(inner.statements), tuple(other.statements)),) if beyond else inner.statements))
