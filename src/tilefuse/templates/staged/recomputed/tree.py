"""The tree of stages of a walk between several products: that of `walked/tree.py`, with vectors beside the walked operands."""
from __future__ import annotations

from tilefuse.domain.tile import Level
from tilefuse.templates.stage_tree import StageTree, TreeStage, TreeValue
from tilefuse.templates.staged.pipelined.tree import TENSOR_COPIES
from tilefuse.templates.staged.recomputed.plan import BackPlan
from tilefuse.templates.staged.walked.tree import ring_copy, tiled_tree


def back_tree(plan: BackPlan) -> StageTree:
    """The tree of a plan."""
    slots = plan.choice.slots
    vectors = tuple(TreeStage("copy", (TreeValue(v.read.value, Level.SHARED, (v.columns,), v.slot_bytes * slots, slots,
                                                 offset_bytes=v.offset_bytes),), TENSOR_COPIES) for v in plan.vectors)
    brought = (*(ring_copy(plan, t) for t in (*plan.walked, *(b.tile for b in plan.biases))), *vectors)
    return tiled_tree(plan, plan.work, plan.staged, tuple(ring_copy(plan, t) for t in plan.own), brought, plan.form.width)
