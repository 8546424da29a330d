"""The tree of stages of a pipelined walk: the rows' operand, then a loop along the walked axis, then values known at its end."""
from __future__ import annotations

from tilefuse.domain.tile import Level
from tilefuse.templates.stage_tree import Body, StageTree, TreeLoop, TreeStage, TreeValue, moved_bytes
from tilefuse.templates.staged.online.tree import WALKED_AXIS
from tilefuse.templates.staged.pipelined.plan import OperandTile
from tilefuse.templates.staged.pipelined.tree import TENSOR_CORES, in_turns
from tilefuse.templates.staged.walked.plan import WalkPlan


def walk_tree(plan: WalkPlan) -> StageTree:
    """The tree of a plan. The loop has as many turns as the longest tile."""
    form, choice = plan.form.online, plan.choice
    results = set(form.graph.results)
    stage_bytes = {r.name: r.end_bytes - r.offset_bytes for r in plan.staged}
    score, weighted = form.scores[0], form.weighted[0]
    scores, sums = (choice.rows, choice.columns), (choice.rows, weighted.width)
    totals = tuple(TreeStage("reduce", (TreeValue(t.value, Level.WARP, (choice.rows,), written=t.value in results),)) for t in form.totals)
    result = TreeValue(weighted.value, Level.REGISTER, sums, stage_bytes.get(weighted.value, 0), written=weighted.value in results)
    turn = (_copy(plan, plan.keys), _copy(plan, plan.values), *(_copy(plan, t) for t in plan.biases),
            TreeStage("product", (TreeValue(score.value, Level.REGISTER, scores),), TENSOR_CORES), *totals,
            TreeStage("map", (TreeValue(weighted.total.value, Level.REGISTER, scores),)),
            TreeStage("product", (result,), TENSOR_CORES))
    known = {v.value for s in turn for v in s.values}
    written = tuple(TreeStage("map", (TreeValue(name, Level.REGISTER, tile, stage_bytes.get(name, 0), written=True),))
                    for values, tile in ((form.row_results, (choice.rows,)), (form.width_results, sums))
                    for name, _ in values if name not in known)
    times = plan.most_turns if plan.form.limit is None else 0
    body: Body = (_copy(plan, plan.left), TreeLoop(WALKED_AXIS, choice.columns, times, turn, plan.turns_text()), *written)
    turns = -(-plan.num_items // choice.blocks)
    return StageTree((("row", choice.rows),), choice.blocks, plan.num_tiles, in_turns(turns, body), moved=moved_bytes(plan.work))


def _copy(plan: WalkPlan, tile: OperandTile) -> TreeStage:
    slots = plan.slots(tile)
    value = TreeValue(tile.operand.value, Level.SHARED, (tile.lines, tile.depth), tile.slot_bytes * slots, slots)
    return TreeStage("copy", (value,), "threads" if plan.is_loaded(tile) else "tensor copies")
