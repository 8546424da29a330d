"""Tiles of left operands whose rows begin anywhere in memory: copies, and zeros over the elements of neighbouring rows (`rows.py`)."""
from __future__ import annotations

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Bound, Guard, const
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, If, Reg, Stmt, VectorLoad, VectorStore
from tilefuse.kernel.pipeline import SWIZZLE_CHUNK_BYTES, SWIZZLE_LINE_BYTES, WARPGROUP
from tilefuse.kernel.tensor_map import ProxyFence, TensorCopy, TensorMap
from tilefuse.templates.staged.pipelined.plan import OperandTile, shifted_maps
from tilefuse.templates.staged.pipelined.shifted.rows import ShiftedRows
from tilefuse.templates.staged.pipelined.state import ProductState


def begin_rows(w: ProductState, row_tile: Affine) -> None:
    """Sets the first row of a tile's rows, and the inner elements before the first one in its slots. Other products have neither."""
    rows = w.form.shifted
    if rows is None:
        return
    w.first_of_step = w.let("first_of_step", row_tile % rows.step, rows.step)
    w.shift = w.let("shift", _begin(w, rows) % rows.each, rows.each)


def _begin(w: ProductState, rows: ShiftedRows) -> Affine:
    """Where the first row of the tile's step lies in memory."""
    return rows.begin(w.first_of_step, {a: w.env[a] for a, _ in rows.strides})


def copy_shifted(w: ProductState, rows: ShiftedRows, tile: OperandTile, slot: Affine, first_row: Affine, first_inner: Affine) -> None:
    """Copies of a tile's panels, from the tensor that holds all rows of its step."""
    maps = shifted_maps(rows, tile)
    for n, m in enumerate(maps):
        if (key := f"{tile.key}{n}") not in w.maps:
            w.maps[key] = TensorMap(w.fresh(f"{tile.operand.value}_map"), w.buffers[tile.operand.value].name, tile.operand.dtype, m.extents,
                                    m.strides, m.box, SWIZZLE_LINE_BYTES)
    # The copy engine takes no box that begins between multiples of 16 bytes.
    begin = _begin(w, rows) // rows.each * rows.each + first_inner
    places = [((w.simplified(first_row), w.simplified(begin + panel * tile.width)),
               w.simplified(slot * tile.elements + panel * tile.panel_lines * tile.width)) for panel in range(tile.num_panels)]
    copies: list[tuple[Stmt, ...]] = [tuple(TensorCopy(w.maps[f"{tile.key}{n}"].name, at, w.slots[tile.key].name, start)
                                            for at, start in places) for n in range(len(maps))]
    longer = Bound(w.first_of_step, 0, rows.rows % rows.step)
    w.emit(*copies[0] if len(maps) == 1 else (If((longer,), *copies),))


def clear_neighbours(w: ProductState, tile: OperandTile, slot: Affine, group: Affine, inner: Affine) -> tuple[Stmt, ...]:
    """Zeros over the elements of other rows in a slot that has some: a warpgroup clears its own rows. inner: first element of the slot."""
    if w.form.shifted is None:
        return ()
    choice, dtype = w.plan.choice, tile.operand.dtype
    each = SWIZZLE_CHUNK_BYTES // dtype.itemsize
    thread = axis("thread") % WARPGROUP if choice.warpgroups > 1 and not choice.pingpong else axis("thread")
    per_line, own = tile.width // each, choice.warpgroup_rows * tile.width
    with w.nested() as cleared:
        w.emit(Comment(f"%{tile.operand.value}: zeros over elements of other rows"))
        for panel in range(tile.num_panels):
            with w.loop("turn", own // each // WARPGROUP, unroll=w.unroll) as turn:
                chunk = turn * WARPGROUP + thread
                place = w.simplified(slot * tile.elements + panel * tile.panel_lines * tile.width + group * own + chunk * each)
                array, first = w.fresh(f"{tile.operand.value}_chunk"), inner - w.shift + panel * tile.width + chunk % per_line * each
                w.emit(Declare(array, dtype, each), VectorLoad(array, number(0), w.slots[tile.key].name, place, each))
                for v in range(each):
                    element = Reg(array, dtype, number(v))
                    inside = w.beyond(w.simplified(first + v), w.form.inner)
                    w.emit(Assign(element, Guard(inside, element, const(0, dtype))))
                w.emit(VectorStore(w.slots[tile.key].name, place, array, number(0), each))
        w.emit(ProxyFence(), Barrier(team=WARPGROUP))
    whole = Bound(w.simplified(inner - w.shift), 0, max(w.form.inner - choice.depth + 1, 0))
    return (If((whole,), (), tuple(cleared.statements)),)
