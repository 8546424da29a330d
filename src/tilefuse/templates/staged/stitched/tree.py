"""The tree of stages of a stitched kernel, and its places in shared memory."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from math import prod

from tilefuse.domain.tile import Level
from tilefuse.target.capabilities import WARP
from tilefuse.templates.explained import LevelTile, SharedPlace, StageFacts, StagePiece, Staging, numbered
from tilefuse.templates.notation import Attr, Step, Worker
from tilefuse.templates.stage_tree import StageKind, StageTree, TreeLoop, TreeStage, TreeValue, moved_bytes
from tilefuse.templates.staged.stitched.plan import Piece, Stage, StitchPlan

KIND_BY_PIECE: dict[str, StageKind] = {"copy": "copy", "map": "map", "reduce": "reduce", "product": "product"}
TILES_AXIS = "tile"


def stitch_tree(plan: StitchPlan) -> StageTree:
    """The stages of a plan. Copies that are the same for every tile stand in front of the loop over tiles."""
    choice, num_tiles = plan.choice, prod(count for _, count in plan.grid)
    blocks = min(choice.groups, num_tiles) if choice.groups else num_tiles
    once = tuple(s for s in plan.stages if choice.groups and plan.is_once(s))
    of_tile = tuple(part for s in plan.stages if s not in once for part in _parts(plan, s))
    turns = -(-num_tiles // max(blocks, 1))
    body = (TreeLoop(TILES_AXIS, 1, turns, of_tile),) if choice.groups else of_tile
    largest = max((plan.graph.type_of(r) for r in plan.graph.results), key=lambda t: t.num_elements).shape
    elements = prod(choice.tiles)
    workers = (LevelTile("grid", numbered(largest)), LevelTile("block", numbered(choice.tiles)),
               LevelTile("warp", (("element", -(-elements // -(-choice.threads // WARP))),)),
               LevelTile("thread", (("element", -(-elements // choice.threads)),)))
    return StageTree(numbered(choice.tiles), blocks, num_tiles, (*(part for s in once for part in _parts(plan, s)), *body),
                     moved=moved_bytes(plan.work), workers=workers)


def staged_values(plan: StitchPlan) -> Iterator[TreeValue]:
    """The values that stages compute or copy, in the order of stages. Products that stay in registers are not among them."""
    return (_value(plan.pieces[key], stage) for stage in plan.stages for key in stage.pieces)


def _parts(plan: StitchPlan, stage: Stage) -> Iterator[TreeStage]:
    """The stages of the tree: neighbouring pieces of one kind, products that stay in registers first."""
    pieces = [plan.pieces[k] for k in dict.fromkeys((*stage.products, *stage.pieces))]
    barrier = stage.barrier
    for kind, together in groupby(pieces, key=lambda p: p.kind):
        yield TreeStage(KIND_BY_PIECE[kind], tuple(_value(p, stage) for p in together), _by(stage, kind), barrier)
        barrier = False
        if kind == "product" and stage.exchange_bytes and stage.tiling is not None:
            sums = replace(_value(plan.pieces[stage.products[0]], stage), level=Level.REGISTER, shared_bytes=stage.exchange_bytes, slots=1,
                           written=False, offset_bytes=stage.exchange_offset, spread=())
            yield TreeStage("reduce", (sums,), f"{stage.tiling.split} warps a tile", True)


def _by(stage: Stage, kind: str) -> str:
    """The unit that multiplies, or the lanes that share a row."""
    if kind == "product" and stage.tiling is not None:
        return "matrix instructions" if stage.tiling.unit == "mma" else "threads"
    return f"{stage.lanes} lanes a row" if kind == "reduce" and stage.lanes > 1 else ""


def _value(piece: Piece, stage: Stage) -> TreeValue:
    """A piece with its level: results of rows that several lanes reduce reach all of them by shuffles."""
    by_lanes = piece.kind == "reduce" and stage.lanes > 1
    level = Level.SHARED if piece.stored else Level.WARP if by_lanes else Level.REGISTER
    return TreeValue(piece.value, level, tuple(s.extent for s in piece.region), piece.num_bytes, piece.buffers, "", piece.written,
                     piece.offset_bytes, tuple(_spread(piece, stage)))


def _spread(piece: Piece, stage: Stage) -> Iterator[tuple[str, Attr]]:
    """(dimension, workers) of a piece; behind them the lanes that share a reduction or a product."""
    for n, span in enumerate(piece.region):
        inside = (Step(Worker.CTA, span.extent),) if span.extent > 1 else ()
        yield f"d{n}", (Step(Worker.GRID), *inside) if span.offset.terms else inside or (Step(Worker.THREAD),)
    t = stage.tiling
    if stage.kind == "reduce" or t is not None:
        by_thread = stage.lanes == 1 if stage.kind == "reduce" or t is None else t.unit != "mma" and t.split == 1
        yield "inner", (Step(Worker.THREAD if by_thread else Worker.WARP),)
    elif not piece.region:
        yield "d0", (Step(Worker.THREAD),)


def staging_of(plan: StitchPlan) -> Staging:
    """The stages in order and the place of each stored piece, as explanations show them."""
    return Staging(tuple(_stage_facts(plan, s) for s in plan.stages), _places(plan), plan.requested_bytes, plan.shared_bytes)


def _stage_facts(plan: StitchPlan, stage: Stage) -> StageFacts:
    pieces = (plan.pieces[k] for k in (*stage.products, *stage.pieces))
    return StageFacts(stage.kind, stage.barrier, tuple(
        StagePiece(p.value, p.kind, tuple(s.extent for s in p.region), p.stored, p.written) for p in pieces))


def _places(plan: StitchPlan) -> tuple[SharedPlace, ...]:
    """Place of every stored piece, and the stages from its first write to its last read."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, stage in enumerate(plan.stages):
        for key in (*stage.products, *stage.pieces):
            first.setdefault(key, number)
            last[key] = max(last.get(key, number), number)
            for source in plan.sources.get(key, ()):
                last[source] = max(last.get(source, number), number)
    end = len(plan.stages) - 1
    exchanged = (SharedPlace(plan.pieces[s.products[0]].value, s.exchange_offset, s.exchange_bytes, n, n)
                 for n, s in enumerate(plan.stages) if s.exchange_bytes)
    return (*(SharedPlace(p.value, p.offset_bytes, p.num_bytes, first.get(p.key, 0), last.get(p.key, end))
              for p in plan.pieces if p.stored), *exchanged)
