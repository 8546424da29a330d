"""Tiles of biases that no tensor map describes, such as rows of 197 elements: producing threads load them into the slots of the ring.

    warp w        rows w, w + 4, w + 8 ..     lanes along the columns; several rows are in flight together
"""
from __future__ import annotations

from tilefuse.domain.contraction import INNER
from tilefuse.ir.affine import Affine, axis
from tilefuse.ir.scalar import Bound, const
from tilefuse.kernel.ir import Assign, Declare, Load, Reg, Store
from tilefuse.target.capabilities import WARP
from tilefuse.templates.staged.online.products import ROW, WALK
from tilefuse.templates.staged.pipelined.plan import OperandTile
from tilefuse.templates.staged.walked.bias import LOADING_THREADS, Bias
from tilefuse.templates.staged.walked.state import WalkState


def load_bias(w: WalkState, bias: Bias, tile: OperandTile, slot: Affine, first_column: Affine) -> None:
    """Fills a slot with the rows of the tile at hand and the columns of a turn, zeros beyond the ends of the value."""
    columns, warps = w.walk.choice.columns, LOADING_THREADS // WARP
    chunks = -(-columns // WARP)
    together = w.device.fitted.walks.bias_loads // chunks
    rows = max(n for n in range(1, max(together, 1) + 1) if tile.lines // warps % n == 0)
    warp, lane = w.let("bias_warp", axis("thread") // WARP, warps), w.let("bias_lane", axis("thread") % WARP, WARP)
    dtype = tile.operand.dtype
    with w.loop("group", tile.lines // (warps * rows), rolled=True) as group:
        loaded = w.fresh("loaded")
        w.emit(Declare(loaded, dtype, rows * chunks))
        with w.loop("i", rows, unroll=w.unroll) as i, w.loop("c", chunks, unroll=w.unroll) as c:
            register = Reg(loaded, dtype, i * chunks + c)
            row, column = w.first_row + _row(group, rows, i, warp), first_column + c * WARP + lane
            with w.at(**{ROW: row, WALK: column}):
                load = Load(w.buffers[bias.read.value].name, dtype, w.global_offset(bias.read.value, bias.read.index))
            facts = (Bound(w.simplified(row), 0, bias.of.sizes[ROW]), Bound(w.simplified(column), 0, bias.of.sizes[INNER]))
            w.emit(Assign(register, const(0, dtype)))
            with w.when(facts):
                w.emit(Assign(register, load))
        with w.loop("i", rows, unroll=w.unroll) as i, w.loop("c", chunks, unroll=w.unroll) as c:
            column = c * WARP + lane
            place = slot * tile.elements + column // tile.width * (tile.panel_lines * tile.width) + column % tile.width
            at = w.simplified(place + _row(group, rows, i, warp) * tile.width)
            with w.when((Bound(w.simplified(column), 0, columns),)):
                w.emit(Store(w.slots[tile.key].name, at, Reg(loaded, dtype, i * chunks + c)))


def _row(group: Affine, rows: int, i: Affine, warp: Affine) -> Affine:
    """Row of the tile."""
    return (group * rows + i) * (LOADING_THREADS // WARP) + warp
