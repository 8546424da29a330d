"""The tree of stages of a streamed product: rows and their reductions on chip, then a loop along the inner axis with each thread's ring."""
from __future__ import annotations

from tilefuse.domain.contraction import COLUMN, INNER, ROW
from tilefuse.domain.tile import Level
from tilefuse.templates.stage_tree import StageTree, TreeLoop, TreeStage, TreeValue, moved_bytes
from tilefuse.templates.staged.streamed.plan import StreamPlan


def stream_tree(plan: StreamPlan) -> StageTree:
    """The tree of a plan."""
    form, choice = plan.form, plan.choice
    graph, rows, left = form.graph, form.rows, form.contraction.left
    reductions = tuple(TreeStage("reduce", (TreeValue(n.name, Level.SHARED, (rows,), rows * n.type.dtype.itemsize),))
                       for n in plan.reductions)
    held = TreeValue(left, Level.SHARED, (plan.held_rows, plan.share), plan.held_rows * plan.row_elements * form.left_dtype.itemsize)
    loop = TreeLoop(INNER, plan.step, plan.steps, (*_rings(plan), _products(plan)))
    products = {s.product.name for s in form.streams}
    results = tuple(TreeValue(r, Level.REGISTER, (rows, plan.columns), written=True) for r in graph.results if r not in products)
    body = (*reductions, TreeStage("map" if left in graph.node_by_name else "copy", (held,), "threads"), loop,
            *((TreeStage("map", results),) if results else ()))
    return StageTree(((ROW, rows), (COLUMN, plan.columns)), plan.num_blocks, plan.num_blocks, body, choice.cluster,
                     moved_bytes(plan.work))


def _rings(plan: StreamPlan) -> tuple[TreeStage, ...]:
    """Each product's weights: every thread copies those that it multiplies."""
    tile = (plan.step, plan.columns)
    return tuple(TreeStage("copy", (TreeValue(s.value, Level.SHARED, tile, plan.ring_bytes(s), plan.choice.slots),), "asynchronous copies")
                 for s in plan.form.streams)


def _products(plan: StreamPlan) -> TreeStage:
    form, tile = plan.form, (plan.form.rows, plan.columns)
    names = dict.fromkeys(s.product.name for s in form.streams)
    return TreeStage("product", tuple(TreeValue(n, Level.REGISTER, tile, written=n in form.graph.results) for n in names),
                     "matrix instructions" if form.unit == "mma" else "threads")
