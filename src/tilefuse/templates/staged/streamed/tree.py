"""The tree of stages of a streamed product: rows and their reductions on chip, then a loop along the inner axis with each thread's ring."""
from __future__ import annotations

from tilefuse.domain.contraction import COLUMN, INNER, ROW
from tilefuse.domain.tile import Level
from tilefuse.templates.stage_tree import StageTree, TreeLoop, TreeStage, TreeValue, moved_bytes
from tilefuse.templates.staged.streamed.plan import StreamPlan


def stream_tree(plan: StreamPlan) -> StageTree:
    """The tree of a plan."""
    form, choice = plan.form, plan.choice
    graph, rows = form.graph, form.rows
    reductions = tuple(TreeStage("reduce", (TreeValue(n.name, Level.SHARED, (rows,), plan.form.rows * n.type.dtype.itemsize),))
                       for n in plan.reductions)
    left = TreeValue(form.contraction.left, Level.REGISTER if _is_product(plan, form.contraction.left) else Level.SHARED,
                     (plan.held_rows, plan.share), plan.held_rows * plan.row_elements * form.left_dtype.itemsize)
    copies = tuple(TreeStage("copy", (TreeValue(s.value, Level.SHARED, (plan.step, plan.columns), plan.ring_bytes(s), choice.slots),),
                             "asynchronous copies") for s in form.streams)
    unit = "matrix instructions" if form.unit == "mma" else "threads"
    names = tuple(dict.fromkeys(s.product.name for s in form.streams))
    products = TreeStage("product", tuple(TreeValue(n, Level.REGISTER, (rows, plan.columns), written=n in graph.results) for n in names), unit)
    results = tuple(TreeValue(r, Level.REGISTER, (rows, plan.columns), written=True) for r in graph.results if r not in names)
    kind = "map" if form.contraction.left in graph.node_by_name else "copy"
    body = (*reductions, TreeStage(kind, (left,), "threads"), TreeLoop(INNER, plan.step, plan.steps, (*copies, products)),
            *((TreeStage("map", results),) if results else ()))
    return StageTree(((ROW, rows), (COLUMN, plan.columns)), plan.num_blocks, plan.num_blocks // choice.cluster, body, choice.cluster,
                     moved_bytes(plan.work))


def _is_product(plan: StreamPlan, value: str) -> bool:
    node = plan.form.graph.node_by_name.get(value)
    return node is not None and node.category == "library"
