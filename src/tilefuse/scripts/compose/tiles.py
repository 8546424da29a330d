"""Tiles of a walk in the order in which a block takes them: groups, single tiles, the tile that reaches over the edge of the data.

    block b of c, groups of u    b, b + c, ..., b + (u - 1) c  |  b + u c, ...  |  single ones  |  the edge
"""
from __future__ import annotations

from tilefuse.ir.affine import Affine
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Comment, If, Let, Stmt
from tilefuse.scripts.compose.writer import RoutineWriter


def may_be_larger(e: Affine, least: Affine) -> bool:
    """Whether a number of tiles may be larger than another one; False only if both are constants and it is not."""
    return not (e.is_const and least.is_const) or e.const > least.const


def most_tiles_of_a_block(w: RoutineWriter) -> int:
    """Most tiles of a block where calls give the sizes and the decision limits them; else 0. (With constant sizes it follows from them.)"""
    sized = w.fused.sized
    return 0 if sized is None or sized.walks_all else w.fused.decision.iterations


def up_to_multiple(w: RoutineWriter, name: str, e: Affine, by: Affine) -> tuple[tuple[Stmt, ...], Affine]:
    """e // by * by, for a number of tiles that is not negative."""
    sizes, most = w.sizes, w.sizes.most(w.sizes.tiles(w.walk)) + 1
    first, quotient = sizes.quotient(f"{name}_turns", e, by, most)
    second, whole = sizes.product(f"{name}_taken", quotient, by, 2 * most)
    return (*first, *second), whole


def first_after_groups(w: RoutineWriter, start: Affine, stop: Affine, group_tiles: Affine) -> tuple[tuple[Stmt, ...], Affine]:
    """The first tile before `stop` that no group takes; groups have `group_tiles` tiles, and the first begins at `start`."""
    lets, taken = up_to_multiple(w, "groups", stop + w.sizes.chunks - 1 - start, group_tiles)
    return lets, start + taken


def edge_tile(w: RoutineWriter, body: tuple[Stmt, ...], whole: Affine, tiles: Affine, reached: tuple[Bound, ...] = ()) -> tuple[Stmt, ...]:
    """The partial tile after the whole ones, in the block that takes it, if there is one. `reached`: further bounds."""
    sizes, d = w.sizes, w.walk
    comment = Comment(f"the tile that reaches over the edge of {sizes.extent(d)} words")
    edge = (Let("tile", whole, sizes.most(whole) + 1), *body)
    if most_tiles_of_a_block(w) == 1:  # as many blocks as tiles
        return comment, If((sizes.equal(w.block(d), whole), *reached), edge)
    lets, last = sizes.remainder("last_turn", whole, sizes.chunks, max(sizes.most(sizes.chunks) - 1, 0))
    there = () if tiles.is_const else (Bound(tiles - whole, 1, sizes.most(tiles) + 1),)
    return comment, *lets, If((sizes.equal(w.block(d), last), *there, *reached), edge)
