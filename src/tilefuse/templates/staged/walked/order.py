"""The order in which persistent blocks take the tiles of a walk, as statements of the kernel."""
from __future__ import annotations

from collections.abc import Callable

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Let, OfTwo
from tilefuse.templates.staged.online.products import LEAD
from tilefuse.templates.staged.walked.rings import RingState


def each_tile(w: RingState, emit: Callable[[Affine, Affine], None]) -> None:
    """The tiles of a block, or parts of tiles. Where they differ in length, every other round takes blocks in the opposite order.

        rounds of 4 blocks, the longest tiles first     0 1 2 3 | 7 6 5 4 | 8 9 ...     block 0 has tiles 0, 7 and 8

    emit: writes a tile or a part, the how-manieth of the block.
    """
    plan, blocks = w.walk, w.walk.tiling.blocks
    count, rounds = plan.num_items, -(-plan.num_items // blocks)
    stem = "tile" if plan.parts == 1 else "item"
    if plan.of.limit is None or rounds == 1:
        with w.loop(stem, number(count), start=axis("block"), step=blocks, extent=count) as tile:
            emit(tile, tile // blocks)
        return
    with w.loop("round", rounds) as turn:
        back, last = turn % 2 * (blocks - 1), blocks - 1
        name = w.fresh("from_last")
        w.emit(Let(name, OfTwo("least", axis("block") - back + last, back - axis("block") + last), blocks))
        w.frame.extents[name] = blocks
        place = turn * blocks + last - axis(name)
        with w.when([Bound(place, 0, count)]):
            emit(w.let(stem, place, count), turn)


def take_tile(w: RingState, tile: Affine) -> None:
    """Names the lead place and the first row of a tile: tiles of a band's lead places together, those with most turns first."""
    plan, choice, num_leads = w.walk, w.walk.tiling, w.walk.of.online.num_leads
    of_band = choice.band * plan.row_tiles
    band, rest = (tile // of_band, tile % of_band) if choice.band < num_leads else (number(0), tile)
    w.lead = w.let("lead", band * choice.band + rest % choice.band, num_leads)
    row_tile = rest // choice.band
    row_tile = w.let("row_tile", (plan.row_tiles - 1) - row_tile if plan.longest_last else row_tile, plan.row_tiles)
    w.env[LEAD] = w.lead
    w.first_row = row_tile * choice.rows
