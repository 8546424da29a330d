"""Operands that a stitched kernel brings on chip: asynchronous copies, which all are under way together until the next barrier.

    copy x, copy w, copy bias  ->  wait, barrier  ->  product

Loads through registers would wait for memory once a loop of a copy; these are started and forgotten. Not so the tiles of blocks that walk
many: their copies stand alone between two barriers, other blocks compute meanwhile, and registers are 5 % faster (narrow layers and product
with softmax on an H200). Source: PTX ISA, cp.async.
"""
from __future__ import annotations

from tilefuse.domain.access import is_vector
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import axis, number, substitute
from tilefuse.kernel.asynchronous import AsyncCopy, AsyncGroup, AsyncWait
from tilefuse.kernel.ir import Barrier
from tilefuse.target.capabilities import ASYNC_COPY_BYTES
from tilefuse.templates.staged.stitched.plan import Piece
from tilefuse.templates.staged.stitched.values import Point, StitchValues


def copied_async(w: StitchValues, piece: Piece, local: Point, width: int) -> bool:
    """Starts the copy of `width` neighbouring elements of a boundary value to its tile; False, and nothing done, if they are no vector."""
    if w.walks or not w.device.copies_async or width * piece.dtype.itemsize not in ASYNC_COPY_BYTES:
        return False
    lane = w.fresh("v")
    w.frame.extents[lane] = width
    moving = w.start(piece.region, local, axis(lane) if width > 1 else number(0))
    source, target = w.global_offset(piece.value, moving), w.tile_offset(piece, moving)
    for offset in (source, target) if width > 1 else ():
        if not is_vector(offset, lane, width) or len(vector_parts(offset, lane, width, piece.dtype)) > 1:
            return False
    first = {lane: number(0)}
    w.emit(AsyncCopy(w.shared[piece.key].name, substitute(target, first, w.extents), w.buffers[piece.value].name,
                     substitute(source, first, w.extents), width))
    w.copying = True
    return True


def meet(w: StitchValues, always: bool = False) -> None:
    """A barrier of the block, behind which all that was copied lies in its tiles. `always`: there may be copies of the turn before."""
    if w.copying or always:
        w.emit(AsyncGroup(), AsyncWait())
        w.copying = False
    w.emit(Barrier())
