"""Products of a stitched kernel whose tiles are fewer than its warps: several warps share the inner axis of a tile and add up their sums.

    warps 0 1 2 3, one tile:   inner 0 .. 127 | 128 .. 255 | 256 .. 383 | 384 .. 511     sums of each, stored in shared memory
    barrier
    warps 0 1:                 half of the tile each: the sums of all four, added in order, and the stage's maps on them

A warp's products on the matrix unit wait for each other, so that a chain of a fourth of the length takes little more than a fourth of the
time. Sums lie in pairs of columns, those of a warp's lanes next to each other.
"""
from __future__ import annotations

from tilefuse.domain.contraction import Tiling
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound, Call
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, Reg, VectorLoad, VectorStore
from tilefuse.target.capabilities import WARP
from tilefuse.templates.staged.stitched.plan import Piece, Stage
from tilefuse.templates.staged.stitched.products.warps import finish_pair, warp_and_lane, warp_sums, warp_tiles
from tilefuse.templates.staged.stitched.values import StitchValues


def emit_shared_inner(w: StitchValues, stage: Stage, t: Tiling) -> None:
    """One product stage whose tiles `t.split` warps share each; every warp has one tile or none."""
    products = [w.plan.pieces[k] for k in stage.products]
    tiles = warp_tiles(w, stage, t)
    warp, lane = warp_and_lane(w, tiles.warps)
    item = w.let("warp_tile", warp // t.split, -(-tiles.warps // t.split))
    part = w.let("inner_part", warp % t.split, t.split)
    present = () if tiles.warps == tiles.count * t.split else (Bound(item, 0, tiles.count),)
    exchange = _Exchange(w, stage, t, item, lane)
    with w.when(present):
        w.narrow_to(item, tiles.count)
        tile = tiles.at(w, item)
        # All products, then all stores: no load of the next product's fragments passes a store to shared memory, so that with stores in
        # between the chains of matrix instructions would run one after the other.
        sums_by_product = [warp_sums(w, p, t, tile, part) for p in products]
        for n, sums_of_warp in enumerate(sums_by_product):
            exchange.store(n, part, sums_of_warp)
    w.emit(Barrier())
    with w.when((*present, Bound(part, 0, exchange.finishing))):
        w.narrow_to(item, tiles.count)
        w.narrow_to(part, exchange.finishing)
        tile = tiles.at(w, item)
        sums = {p.key: exchange.total(n, p, part) for n, p in enumerate(products)}
        with w.loop("pair", exchange.pairs, unroll=w.unroll) as pair:
            place = w.let("place", part * exchange.pairs + pair, 2 * t.rows * t.columns)
            row = tile.row + 16 * (place // (2 * t.columns)) + 8 * (place % 2) + lane // 4
            finish_pair(w, stage, products, sums, tile.lead, row, tile.column + 8 * (place // 2 % t.columns) + 2 * (lane % 4), 2 * pair)


class _Exchange:
    """The sums of all warps of a stage in shared memory.

    finishing  warps that finish a tile; the others have no pair of columns
    pairs      pairs of columns that each of them finishes a lane
    """

    def __init__(self, w: StitchValues, stage: Stage, t: Tiling, item: Affine, lane: Affine) -> None:
        self._w, self._tiling, self._item, self._lane = w, t, item, lane
        self._buffer, self._products, self._places = w.exchanges[stage.products[0]], len(stage.products), 2 * t.rows * t.columns
        self.finishing = next(n for n in range(t.split, 0, -1) if self._places % n == 0 and t.split % n == 0)
        self.pairs = self._places // self.finishing

    def _index(self, part: Affine, product: int, place: Affine) -> Affine:
        """First of a lane's two sums of one product at one place of the tile. Units: elements."""
        tile = (self._item * self._tiling.split + part) * self._products + product
        return self._w.simplified(((tile * self._places + place) * WARP + self._lane) * 2)

    def store(self, product: int, part: Affine, sums: Reg) -> None:
        """The sums of one warp."""
        w = self._w
        with w.loop("place", self._places, unroll=w.unroll) as place:
            w.emit(VectorStore(self._buffer.name, self._index(part, product, place), sums.name, 2 * place, 2))

    def total(self, product: int, p: Piece, part: Affine) -> Reg:
        """The sums of all warps at the places that this one finishes, in the order of the inner axis."""
        w = self._w
        total, other = w.fresh(f"{p.value}_total"), w.fresh(f"{p.value}_part")
        w.emit(Comment(f"%{p.value}: the sums of {self._tiling.split} warps"), Declare(total, F32, 2 * self.pairs), Declare(other, F32, 2))
        with w.loop("pair", self.pairs, unroll=w.unroll) as pair:
            place = part * self.pairs + pair
            w.emit(VectorLoad(total, 2 * pair, self._buffer.name, self._index(number(0), product, place), 2))
            with w.loop("n", self._tiling.split, start=1, unroll=w.unroll) as n:
                w.emit(VectorLoad(other, number(0), self._buffer.name, self._index(n, product, place), 2))
                for u in range(2):
                    own = Reg(total, F32, 2 * pair + u)
                    w.emit(Assign(own, Call("add", (own, Reg(other, F32, number(u))))))
        return Reg(total, F32)
