"""Products of f32 operands as exact as f32: each operand is a high part of 11 bits and a low part, and low times low is left out.

    x = high + low      the tensor cores read the high part of an element in its slot: its first 11 bits
                        threads store the low part beside it: the rest, rounded to 11 bits

    sums of a slot      high * high             threads add them to the tile's sums in f32, since the tensor cores round toward zero
    low sums            high * low + low * high of all slots; they stay in their accumulator, and are added at the end of the tile

    step k:  low parts of slot k | wait for the products of slot k - 1 | meet | add their sums | start the products of slot k

A low part is at most 2^-10 of its element, so that an element of the result is wrong by at most 2^-19 of the sum of the magnitudes of its
products, and by roundings of f32. Elements that are not finite have the high products alone: low parts of infinite numbers make NaN.
Source: Ootomo and Yokota 2022, arXiv:2203.03341; PTX ISA, wgmma.mma_async of tf32.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Call
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, KExpr, Reg, Stmt, VectorLoad, VectorStore
from tilefuse.kernel.pipeline import SWIZZLE_CHUNK_BYTES, WARPGROUP, WarpgroupProduct, WarpgroupWait
from tilefuse.kernel.tensor_map import ProxyFence
from tilefuse.templates.staged.pipelined.plan import LOW_TILES, LowParts
from tilefuse.templates.staged.pipelined.state import ProductState


def split_step(w: ProductState, products: list[WarpgroupProduct], lows: tuple[Reg, ...], added: tuple[Stmt, ...], step: Affine,
               slot_by_key: Mapping[str, str], group: Affine) -> tuple[Stmt, ...]:
    """The statements of one slot. products: of the slot's operands, into the sums of a slot; added: adds these to the tile's sums."""
    # The first slot of a tile takes the other place than the last one of the tile before, whose products may be in flight.
    place = (w.turn * (w.plan.fillings % LOW_TILES) + step) % LOW_TILES
    with w.nested() as inside:
        for low in w.plan.lows:
            _store_low_parts(w, low, axis(slot_by_key[low.tile.key]), place, group)
        w.emit(WarpgroupWait(0), ProxyFence(), Barrier(), *added)
        for product, sums, own in zip(products, lows, w.plan.rights, strict=True):
            left, right = (own, w.plan.left) if w.form.swapped else (w.plan.left, own)
            within_left = product.left_index - axis(slot_by_key[left.key]) * left.elements
            to_low_right = replace(product, accumulator=sums.name, right=w.lows[right.key].name, right_index=place * right.elements,
                                   term=step)
            to_low_left = replace(product, accumulator=sums.name, left=w.lows[left.key].name,
                                  left_index=place * left.elements + within_left, term=None)
            w.emit(product, to_low_right, to_low_left)
    return tuple(inside.statements)


def _store_low_parts(w: ProductState, low: LowParts, slot: Affine, place: Affine, group: Affine) -> None:
    """Low parts of a slot's tile: a warpgroup stores those of its own rows, all consumers together those of other operands."""
    tile, choice = low.tile, w.plan.choice
    each = SWIZZLE_CHUNK_BYTES // tile.operand.dtype.itemsize
    own = tile.operand.line == w.form.row_axis
    threads = WARPGROUP if own else choice.consumer_threads
    lines = choice.warpgroup_rows if own else tile.lines
    thread = axis("thread") % WARPGROUP if own and choice.warpgroups > 1 else axis("thread")
    first = group * (lines * tile.width) if own else number(0)
    chunks = lines * tile.width // each
    w.emit(Comment(f"%{tile.operand.value}: low parts of a slot"))
    for panel in range(tile.num_panels):
        with w.loop("turn", -(-chunks // threads), unroll=w.unroll) as turn, w.when(w.beyond(turn * threads + thread, chunks)):
            at = first + (turn * threads + thread) * each + panel * tile.panel_lines * tile.width
            loaded, parts = w.fresh(f"{tile.operand.value}_chunk"), w.fresh(f"{tile.operand.value}_rest")
            dtype = tile.operand.dtype
            w.emit(Declare(loaded, dtype, each), Declare(parts, dtype, each),
                   VectorLoad(loaded, number(0), w.slots[tile.key].name, w.simplified(slot * tile.elements + at), each),
                   *(Assign(Reg(parts, dtype, number(v)), Call("tf32_rest", (Reg(loaded, dtype, number(v)),))) for v in range(each)),
                   VectorStore(w.lows[tile.key].name, w.simplified(place * tile.elements + at), parts, number(0), each))


def finished_sum(total: Reg, part: Reg, low: Reg) -> KExpr:
    """A sum of the tile with the products of the last slot and those of low parts."""
    high = Call("add", (total, part))
    return Call("select", (Call("isfinite", (high,)), Call("add", (high, low)), high))
