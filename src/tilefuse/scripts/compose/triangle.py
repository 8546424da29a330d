"""Walks over the tiles of a triangle: tiles entirely on the other side of the diagonal are neither loaded nor computed.

    lower, along x    t . . .      lower, along y    t . . .        strip across the walk | walk
                      t t . .                        t t . .        along x a walk ends early, along y it starts late
                      t t t .                        t t t .        (upper: the other way round)
                      t t t t                        t t t t
A block keeps the tile numbers that it has in a full grid, so the same block completes each word. Tiles that contain part of the diagonal
are computed whole, and their routines skip the words beyond it. A skipped tile would write its own row of the workspace; the block writes
the neutral element there instead.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.kernel.ir import Declare, For, Let, OfTwo, Reg, RoutineCall, Stmt, Touched
from tilefuse.scripts.compose.partials import deliver
from tilefuse.scripts.compose.tiles import edge_tile, first_after_groups, may_be_larger, up_to_multiple
from tilefuse.scripts.compose.writer import RoutineWriter
from tilefuse.scripts.schedule.elements import LAST_BLOCK, SECOND_KERNEL, Element
from tilefuse.scripts.schedule.routines import FusedRoutines
from tilefuse.scripts.schedule.steps import Step

Body = Callable[[Sequence[Step], Affine, bool], tuple[Stmt, ...]]


def ends_early(fused: FusedRoutines) -> bool:
    """Whether the triangle ends walks early; otherwise it starts them late, or there is no triangle."""
    return bool(fused.grid.triangle) and (fused.walk == "x") == (fused.grid.triangle == "lower")


def triangle_walk(w: RoutineWriter, body: Body, inside_across: bool) -> tuple[Stmt, ...]:
    """The loops over a block's tiles of the triangle; `inside_across`: its strip lies inside the data across the walk."""
    fused, d, o, sizes = w.fused, w.walk, w.across, w.sizes
    assert o is not None
    chunks, unroll, tiles = sizes.chunks, fused.decision.unroll, sizes.tiles(d)
    block, tile = w.block(d), axis("tile")
    strip, along = fused.tiles[o], fused.tiles[d]
    early = ends_early(fused)
    whole = sizes.whole(d) if inside_across else tiles
    # Tiles from `begins` on and before `ends` hold words of the triangle. The last strip meets all tiles.
    statements: list[Stmt] = []
    ends, begins, stop, start = tiles, number(0), whole, block
    if early and inside_across:
        statements.append(Let("ends", (w.block(o) * strip + (strip - 1)) // along + 1, sizes.most(tiles) + 1))
        ends = axis("ends")
        stop = ends
        if whole not in (tiles, number(0)):
            statements.append(Let("stop", OfTwo("least", ends, whole), sizes.most(whole) + 1))
            stop = axis("stop")
    elif not early:
        statements.append(Let("begins", w.block(o) * strip // along, sizes.most(tiles) + 1))
        begins = axis("begins")
        lets, start = _first_of_block(w, "begin", block, begins)
        statements += lets
    if not inside_across:
        statements.append(_for(start, tiles, chunks, body(fused.edge, tile, False)))
    else:
        if unroll > 1 and may_be_larger(whole, chunks * (unroll - 1)):
            statements.append(_for(start, stop - chunks * (unroll - 1), chunks * unroll, body(fused.group, tile, True)))
            lets, start = first_after_groups(w, start, stop, chunks * unroll)
            statements += lets
        if whole != number(0):
            statements.append(_for(start, stop, chunks, body(fused.single, tile, True)))
        if tiles != whole:
            statements += edge_tile(w, body(fused.edge, tile, False), whole, tiles, (sizes.equal(ends, whole + 1),) if early else ())
    if early:
        if not inside_across:
            return tuple(statements)
        lets, start = _first_of_block(w, "end", block, ends)
        return (*statements, *lets, *_neutral(w, start, tiles))
    return (*statements, *_neutral(w, block, begins))


def _for(start: Affine, stop: Affine, step: Affine, body: tuple[Stmt, ...]) -> For:
    """The body for each tile from `start` on, `step` apart."""
    return For("tile", start, stop, step.const if step.is_const else step, body)


def _first_of_block(w: RoutineWriter, name: str, block: Affine, least: Affine) -> tuple[tuple[Stmt, ...], Affine]:
    """The block's first tile from `least` on."""
    chunks = w.sizes.chunks
    lets, taken = up_to_multiple(w, name, least + chunks - 1 - block, chunks)
    return lets, block + taken


def _neutral(w: RoutineWriter, start: Affine, stop: Affine) -> tuple[Stmt, ...]:
    """The rows of the workspace that belong to skipped tiles get the neutral element."""
    fused, statements = w.fused, []
    for variable, reduction in fused.reductions.items():
        if reduction.accumulated or reduction.finish not in (LAST_BLOCK, SECOND_KERNEL):
            continue
        e = next(e for e in fused.elements.values() if e.variable == variable and e.partial)
        statements.append(_for(start, stop, w.sizes.chunks, _neutral_words(w, e)))
    return tuple(statements)


def _neutral_words(w: RoutineWriter, e: Element) -> tuple[Stmt, ...]:
    function, implementation, _ = w.role(*e.owner)
    name = w.namespaces.clear(function, implementation, 1)
    array = f"{e.variable}_left_out"
    value = Reg(array, e.unit, number(0))

    def one(word: Affine) -> tuple[Stmt, ...]:
        return deliver(w, e, value, word, [axis("tile")])

    cleared = RoutineCall(name, (value,), (Touched(array, axis("tf_w"), (("tf_w", 1),), True, True),))
    return (Declare(array, e.unit, 1), cleared, *w.spread_over_threads(e.words, one))
