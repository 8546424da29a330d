"""The tree of stages of a stitched kernel: its stages in order, inside a loop over tiles where blocks take several."""
from __future__ import annotations

from math import prod

from tilefuse.domain.tile import Level
from tilefuse.templates.explained import numbered
from tilefuse.templates.stage_tree import StageKind, StageTree, TreeLoop, TreeStage, TreeValue, moved_bytes
from tilefuse.templates.staged.record import Stitched
from tilefuse.templates.staged.stitch_plan import Piece, Stage, StitchPlan

KIND_BY_STAGE: dict[str, StageKind] = {"copy": "copy", "map": "map", "reduce": "reduce", "product": "product"}
TILES_AXIS = "tile"


def stitch_tree(plan: StitchPlan, choice: Stitched) -> StageTree:
    """The stages of a plan. Copies that are the same for every tile stand in front of the loop over tiles."""
    num_tiles = prod(count for _, count in plan.grid)
    blocks = min(choice.groups, num_tiles) if choice.groups else num_tiles
    once = tuple(s for s in plan.stages if choice.groups and plan.is_once(s))
    of_tile = tuple(part for s in plan.stages if s not in once for part in _parts(plan, s))
    turns = -(-num_tiles // max(blocks, 1))
    body = (TreeLoop(TILES_AXIS, 1, turns, of_tile),) if choice.groups else of_tile
    return StageTree(numbered(choice.tiles), blocks, num_tiles, (*(part for s in once for part in _parts(plan, s)), *body),
                     moved=moved_bytes(plan.work))


def _parts(plan: StitchPlan, stage: Stage) -> list[TreeStage]:
    """The stages of the tree: products that a stage computes in registers as it goes stand in front of it."""
    unit = "" if stage.tiling is None else "matrix instructions" if stage.tiling.unit == "mma" else "threads"
    ahead = [TreeStage("product", (_value(plan.pieces[k], stage),), unit, stage.barrier and n == 0) for n, k in enumerate(stage.products)]
    barrier = stage.barrier and not ahead
    if stage.kind == "rows":
        each = [TreeStage(KIND_BY_STAGE.get(plan.pieces[k].kind, "map"), (_value(plan.pieces[k], stage),), _lanes(stage), barrier and n == 0)
                for n, k in enumerate(stage.pieces)]
        return [*ahead, *each]
    by = _lanes(stage) if stage.kind == "reduce" else unit
    return [*ahead, TreeStage(KIND_BY_STAGE[stage.kind], tuple(_value(plan.pieces[k], stage) for k in stage.pieces), by, barrier)]


def _lanes(stage: Stage) -> str:
    return f"{stage.lanes} lanes a row" if stage.lanes > 1 else ""


def _value(piece: Piece, stage: Stage) -> TreeValue:
    """A piece with its level: results of rows that several lanes reduce reach all of them by shuffles."""
    by_lanes = piece.kind == "reduce" and stage.lanes > 1
    level = Level.SHARED if piece.stored else Level.WARP if by_lanes else Level.REGISTER
    return TreeValue(piece.value, level, tuple(s.extent for s in piece.region), piece.num_bytes, piece.buffers, "", piece.written)
