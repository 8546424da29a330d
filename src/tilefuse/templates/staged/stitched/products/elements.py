"""Elements of a product's tile that threads and warps read and finish: places in the tile, operands, and the stage's maps on the sums."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilefuse.domain.contraction import INNER, Contraction
from tilefuse.ir.affine import Affine, number, substitute
from tilefuse.ir.scalar import Call
from tilefuse.kernel.ir import Reg
from tilefuse.templates.staged.stitched.plan import Piece, Stage
from tilefuse.templates.staged.stitched.points import at_point
from tilefuse.templates.staged.stitched.products.row_sums import with_bias
from tilefuse.templates.staged.stitched.values import Point, StitchValues


def lead_place(w: StitchValues, piece: Piece, item: Affine, each: int) -> tuple[list[Affine], Affine]:
    """Local lead coordinates of an item, and its number among the `each` items (rows and columns, fastest) of one lead place."""
    extents = [s.extent for s in piece.region[:-2]]
    if prod(extents) == 1:
        return [number(0)] * len(extents), item
    coordinates: list[Affine] = []
    place = item // each
    for n, extent in reversed(list(enumerate(extents))):
        coordinates.append(number(0) if extent == 1 else w.let(f"lead{n}", place % extent if n else place, extent))
        place = place // extent if extent > 1 else place
    coordinates.reverse()
    return coordinates, item % each


def operand_at(w: StitchValues, contraction: Contraction, piece: Piece, lead: list[Affine], which: str, row: Affine, column: Affine,
             inner: Affine) -> Point:
    """Subscripts of an operand's element for local coordinates of the product's tile."""
    offsets = [w.index(s.offset) for s in piece.region]
    at = {a: o + x for a, o, x in zip(contraction.axes, offsets, [*lead, row, column], strict=True)} | {INNER: inner}
    index = contraction.left_index if which == "left" else contraction.right_index
    return tuple(substitute(e, at, w.extents) for e in index)


def finish(w: StitchValues, stage: Stage, products: Sequence[Piece], sums: dict[int, Reg], lead: list[Affine], row: Affine, column: Affine,
            width: int, element: Callable[[Affine], Affine]) -> None:
    """`width` neighbouring columns of the stage's pieces from the sums: `element(v)` is a column's place in the register tile."""
    pieces = [w.plan.pieces[k] for k in stage.pieces]
    local = (*lead, row, column)

    def sums_at(v: Affine) -> None:
        for p in products:
            at = tuple(w.simplified(w.index(s.offset) + x + (v if n == len(local) - 1 else 0))
                       for n, (s, x) in enumerate(zip(p.region, local, strict=True)))
            reg = Reg(sums[p.key].name, sums[p.key].dtype, element(v))
            value = with_bias(w, w.plan.contractions[p.value], reg, at)
            value = value if reg.dtype == p.dtype else Call(p.dtype.name, (value,))
            w.remember(p.value, at, w.register(value, p.dtype, p.value))

    w.before_lane, w.keep_at = sums_at, element
    at_point(w, pieces, local, width)
    w.before_lane = w.keep_at = None
