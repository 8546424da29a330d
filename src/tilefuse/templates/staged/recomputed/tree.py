"""The tree of stages of a walk between several products: the rows' operands, then a loop along the walked axis, then results."""
from __future__ import annotations

from tilefuse.domain.tile import Level
from tilefuse.templates.stage_tree import Body, StageTree, TreeLoop, TreeStage, TreeValue, moved_bytes
from tilefuse.templates.staged.online.tree import WALKED_AXIS
from tilefuse.templates.staged.pipelined.plan import OperandTile
from tilefuse.templates.staged.pipelined.tree import TENSOR_COPIES, TENSOR_CORES, in_turns
from tilefuse.templates.staged.recomputed.plan import BackPlan


def back_tree(plan: BackPlan) -> StageTree:
    """The tree of a plan. The loop has as many turns as the longest tile."""
    form, choice = plan.form.online, plan.choice
    results = set(form.graph.results)
    stage_bytes = {r.name: r.end_bytes - r.offset_bytes for r in plan.staged}
    scores, rows = (choice.rows, choice.columns), choice.rows
    vectors = tuple(TreeStage("copy", (TreeValue(v.read.value, Level.SHARED, (v.columns,), v.slot_bytes * choice.slots, choice.slots),),
                              TENSOR_COPIES) for v in plan.vectors)
    elements = dict.fromkeys(w.total.value for w in form.weighted)
    products = tuple(TreeValue(w.value, Level.REGISTER, (rows, w.width), stage_bytes.get(w.value, 0), written=w.value in results)
                     for w in form.weighted)
    turn = (*(_copy(plan, t) for t in plan.walked), *vectors,
            *(TreeStage("product", (TreeValue(s.value, Level.REGISTER, scores),), TENSOR_CORES) for s in form.scores),
            *(TreeStage("map", (TreeValue(e, Level.REGISTER, scores),)) for e in elements),
            *(TreeStage("product", (p,), TENSOR_CORES) for p in products))
    known = {v.value for s in turn for v in s.values}
    written = tuple(TreeStage("map", (TreeValue(name, Level.REGISTER, (rows, plan.form.width), stage_bytes.get(name, 0), written=True),))
                    for name, _ in form.width_results if name not in known)
    times = plan.most_turns if plan.form.limit is None else 0
    body: Body = (*(_copy(plan, t) for t in plan.own), TreeLoop(WALKED_AXIS, choice.columns, times, turn, plan.turns_text()), *written)
    turns = -(-plan.num_tiles // choice.blocks)
    return StageTree((("row", rows),), choice.blocks, plan.num_tiles, in_turns(turns, body), moved=moved_bytes(plan.work))


def _copy(plan: BackPlan, tile: OperandTile) -> TreeStage:
    slots = plan.slots(tile)
    value = TreeValue(tile.operand.value, Level.SHARED, (tile.lines, tile.depth), tile.slot_bytes * slots, slots)
    return TreeStage("copy", (value,), TENSOR_COPIES)
