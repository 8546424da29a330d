"""The tree of stages of a chain of products: one main loop a product, sums handed on in registers."""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.contraction import COLUMN, INNER, ROW
from tilefuse.domain.tile import Level
from tilefuse.templates.explained import LevelTile
from tilefuse.templates.notation import Step, Worker
from tilefuse.templates.stage_tree import StageTree, TreeLoop, TreeStage, TreeValue, moved_bytes
from tilefuse.templates.staged.chain.plan import DEPTH, ChainPlan, PlannedLayer
from tilefuse.templates.staged.pipelined.tree import TENSOR_CORES, in_turns, operand_copy, sums_stages, value_on_sums


def chain_tree(plan: ChainPlan) -> StageTree:
    """The tree of a plan. Right operands that stay on chip are loaded in front of the loop over tiles."""
    choice = plan.choice
    ahead = tuple(operand_copy(layer.form, layer.right, layer.fillings) for layer in plan.layers) if plan.stays else ()
    body = tuple(part for n, layer in enumerate(plan.layers) for part in _layer(plan, n, layer))
    turns = -(-plan.num_tiles // choice.blocks)
    beside = ((COLUMN, max(choice.columns)), (INNER, DEPTH))
    workers = (LevelTile("grid", (("lead", plan.form.first.num_leads), (ROW, plan.form.rows))),
               LevelTile("block", ((ROW, choice.rows), *beside)), LevelTile("warpgroup", ((ROW, plan.rows), *beside), choice.warpgroups))
    return StageTree(((ROW, choice.rows),), choice.blocks, plan.num_tiles, (*ahead, *in_turns(turns, body)),
                     moved=moved_bytes(plan.work), workers=workers)


def _layer(plan: ChainPlan, number: int, layer: PlannedLayer) -> tuple[TreeStage | TreeLoop, ...]:
    choice = plan.choice
    copies = [operand_copy(layer.form, plan.left, choice.left_slots)] if number == 0 else []
    if not plan.stays:
        ring = operand_copy(layer.form, layer.right, choice.slots)
        # All layers share one ring: its memory is counted with the first.
        copies.append(ring if number == 0 else _in_place_of(ring, plan.layers[0].right.operand.value))
    product = layer.form.product.name
    tile = (choice.rows, layer.columns)
    value = TreeValue(product, Level.REGISTER, tile) if layer.results is None else value_on_sums(layer.results, product, tile)
    spread = (*((a, (Step(Worker.GRID),)) for a in layer.form.leads), (ROW, (Step(Worker.GRID), Step(Worker.CTA, choice.rows))),
              (COLUMN, (Step(Worker.CTA, layer.columns),)), (INNER, (Step(Worker.LOOP, DEPTH),)))
    loop = TreeLoop(INNER, DEPTH, layer.fillings, (*copies, TreeStage("product", (replace(value, spread=spread),), TENSOR_CORES)))
    handed = tuple(TreeStage("map", (TreeValue(name, Level.REGISTER, tile),))
                   for name in (layer.ahead.form.graph.results if layer.ahead is not None else ()) if name != product)
    return (loop, *handed, *(sums_stages(layer.results) if layer.results is not None else ()))


def _in_place_of(stage: TreeStage, ring: str) -> TreeStage:
    value, = stage.values
    return replace(stage, values=(replace(value, shared_bytes=0, place=ring),))
