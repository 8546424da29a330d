"""The tree of stages of a walk between products: left operands, then a loop along the walked axis, then values known at its end."""
from __future__ import annotations

from tilefuse.domain.tile import Level
from tilefuse.templates.stage_tree import Body, StageTree, TreeLoop, TreeStage, TreeValue, moved_bytes
from tilefuse.templates.staged.online.plan import OnChip, OnlinePlan

WALKED_AXIS = "walked"


def online_tree(plan: OnlinePlan) -> StageTree:
    """The tree of a plan: scores and running reductions of each turn, products along the walked axis added up over all turns."""
    form, choice = plan.form, plan.choice
    unit = "matrix instructions" if plan.unit == "mma" else "threads"
    turns = -(-form.length // choice.columns)
    results = set(form.graph.results)
    sums = tuple(TreeStage("product", (TreeValue(w.value, Level.REGISTER, (choice.rows, w.width), written=w.value in results),), unit)
                 for w in form.weighted)
    totals = tuple(TreeStage("reduce", (TreeValue(t.value, Level.WARP, (choice.rows,), written=t.value in results),)) for t in form.totals)
    turn = (*(_copy(plan, t) for t in plan.tiles if t.role in ("right", "weight")),
            *(TreeStage("product", (TreeValue(s.value, Level.REGISTER, (choice.rows, choice.columns)),), unit) for s in form.scores),
            *totals, *_powers(plan), *sums)
    written = tuple(TreeStage("map", (TreeValue(name, Level.REGISTER, tile, written=True),))
                    for name, tile in _written(plan) if name not in {v.value for s in turn for v in s.values})
    body: Body = (*(_copy(plan, t) for t in plan.tiles if t.role == "left"), TreeLoop(WALKED_AXIS, choice.columns, turns, turn), *written)
    return StageTree((("row", choice.rows),), plan.num_blocks, plan.num_blocks, body, moved=moved_bytes(plan.work))


def _copy(plan: OnlinePlan, tile: OnChip) -> TreeStage:
    assert tile.operand is not None, "tiles of powers are computed"
    by = "asynchronous copies" if tile.stages > 1 else "threads"
    return TreeStage("copy", (TreeValue(tile.operand.value, Level.SHARED, (tile.rows, tile.columns), tile.num_bytes, tile.stages),), by)


def _powers(plan: OnlinePlan) -> tuple[TreeStage, ...]:
    """Elements of the weighted products' left operands: in shared memory where threads multiply, else in the registers that scores had."""
    shared = {t.number: t for t in plan.tiles if t.role == "powers"}
    stages: list[TreeStage] = []
    for number, w in enumerate(plan.form.weighted):
        tile = shared.get(number)
        extents = (plan.choice.rows, plan.choice.columns)
        value = TreeValue(w.total.value, Level.REGISTER, extents) if tile is None else \
            TreeValue(w.total.value, Level.SHARED, (tile.rows, tile.columns), tile.num_bytes)
        stages.append(TreeStage("map", (value,)))
    return tuple(stages)


def _written(plan: OnlinePlan) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Results behind the walk with their tiles."""
    form, rows = plan.form, plan.choice.rows
    width = max((w.width for w in form.weighted), default=1)
    return (*((name, (rows,)) for name, _ in form.row_results), *((name, (rows, width)) for name, _ in form.width_results))
