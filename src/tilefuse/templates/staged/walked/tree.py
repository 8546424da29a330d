"""The tree of stages of walks on warpgroup instructions: the rows' operands, a loop along the walked axis, values known at its end."""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.domain.tile import Level
from tilefuse.domain.work import Work
from tilefuse.templates.explained import LevelTile
from tilefuse.templates.notation import Step, Worker
from tilefuse.templates.stage_tree import Body, StageTree, TreeLoop, TreeStage, TreeValue, moved_bytes
from tilefuse.templates.staged.online.products import LEAD, ROW
from tilefuse.templates.staged.online.tree import WALKED_AXIS, ends, spread_of, turn_stages
from tilefuse.templates.staged.pipelined.plan import OperandTile
from tilefuse.templates.staged.pipelined.tree import TENSOR_COPIES, TENSOR_CORES, in_turns
from tilefuse.templates.staged.walked.operand import WalkOperand
from tilefuse.templates.staged.walked.plan import WalkPlan
from tilefuse.templates.staged.walked.stage import StagedResult
from tilefuse.templates.staged.walked.tiled import TiledWalk


def walk_tree(plan: WalkPlan) -> StageTree:
    """The tree of a walk between two products."""
    brought = tuple(ring_copy(plan, t, _copied_by(plan, t, of)) for t, of in zip(plan.tiles[1:], plan.brought[1:], strict=True))
    return tiled_tree(plan, plan.work, plan.staged, (ring_copy(plan, plan.left),), brought, plan.form.online.weighted[0].width)


def _copied_by(plan: WalkPlan, tile: OperandTile, of: WalkOperand) -> str:
    if of.pages is not None:
        return f"{TENSOR_COPIES} of {of.pages.rows_of_copy(plan.choice.columns)} rows of a page of {of.pages.size}"
    return "threads" if plan.is_loaded(tile) else TENSOR_COPIES


def tiled_tree(plan: TiledWalk, work: Work, staged: Sequence[StagedResult], own: Body, brought: tuple[TreeStage, ...],
               width: int) -> StageTree:
    """The tree of a walk. The loop has as many turns as the longest tile.

    own, brought: copies of the rows' operands, and of those that come each turn. staged, width: results that pass through shared memory,
    and the columns of results.
    """
    form, choice = plan.of.online, plan.tiling
    places = {r.name: (r.offset_bytes, r.end_bytes - r.offset_bytes) for r in staged}
    rows = spread_of(form, (Step(Worker.GRID), Step(Worker.CTA, choice.rows)))
    loop = (Step(Worker.LOOP, choice.columns),)
    in_registers = (None,) * len(form.weighted)
    turn = (*brought, *turn_stages(form, (choice.rows, choice.columns), rows, loop, loop, TENSOR_CORES, in_registers, places))
    times = plan.most_turns if plan.of.limit is None else 0
    walk = TreeLoop(WALKED_AXIS, choice.columns, times, turn, plan.turns_text())
    body: Body = (*own, walk, *ends(form, turn, choice.rows, width, places))
    columns, parts = ("walked axis, a turn", choice.columns), (("part", plan.parts),) if plan.parts > 1 else ()
    workers = (LevelTile("grid", ((LEAD, form.num_leads), (ROW, form.num_rows), *parts)), LevelTile("block", ((ROW, choice.rows), columns)),
               LevelTile("warpgroup", ((ROW, choice.rows // choice.warpgroups), columns), choice.warpgroups))
    return StageTree(((ROW, choice.rows),), choice.blocks, plan.num_tiles, in_turns(-(-plan.num_items // choice.blocks), body),
                     moved=moved_bytes(work), workers=workers)


def ring_copy(plan: TiledWalk, tile: OperandTile, by: str = TENSOR_COPIES) -> TreeStage:
    """The ring of one operand."""
    slots = plan.slots(tile)
    value = TreeValue(tile.operand.value, Level.SHARED, (tile.lines, tile.depth), tile.slot_bytes * slots, slots,
                      offset_bytes=tile.offset_bytes)
    return TreeStage("copy", (value,), by)
