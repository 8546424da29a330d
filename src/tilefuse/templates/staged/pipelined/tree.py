"""The tree of stages of a pipelined product: tiles in turn, the main loop with its ring, then maps and reductions on the sums."""
from __future__ import annotations

from dataclasses import replace

from tilefuse.base.memo import remembered_for_last
from tilefuse.domain.contraction import COLUMN, INNER, ROW
from tilefuse.domain.tile import Level
from tilefuse.templates.explained import LevelTile
from tilefuse.templates.notation import Attr, Step, Worker
from tilefuse.templates.stage_tree import Body, StageTree, TreeLoop, TreeStage, TreeValue, moved_bytes
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.plan import OperandTile, ProductPlan, why_no_copies

TENSOR_COPIES, TENSOR_CORES = "tensor copies", "tensor cores"
TILES_AXIS = "tile"


@remembered_for_last
def product_tree(plan: ProductPlan) -> StageTree:
    """The tree of a plan."""
    choice, form = plan.choice, plan.form
    copies = tuple(operand_copy(form, tile, choice.slots) for tile in plan.operands)
    tile = (choice.rows, choice.columns)
    spread = _spread(plan)
    products = TreeStage("product", tuple(replace(value_on_sums(plan, n.name, tile), spread=spread) for n in form.nodes), TENSOR_CORES)
    loop = TreeLoop(INNER, choice.depth, plan.fillings, (*copies, products))
    body: Body = (*_fetched(plan), loop, *_sums_of_parts(plan), *sums_stages(plan))
    extents = ((form.row_axis, choice.rows), (form.column_axis, choice.columns))
    return StageTree(extents, choice.blocks, plan.num_tiles, in_turns(plan.turns, body), choice.cluster, moved_bytes(plan.work),
                     _workers(plan))


def _spread(plan: ProductPlan) -> tuple[tuple[str, Attr], ...]:
    """How the axes of the products are spread: over blocks, clusters and parts of the inner axis."""
    choice, form = plan.choice, plan.form
    rows: Attr = (Step(Worker.GRID), Step(Worker.CTA, choice.rows))
    columns: Attr = (Step(Worker.GRID), *_shared(Worker.CLUSTER, choice.cluster_columns), Step(Worker.CTA, choice.columns))
    inner: Attr = (*_shared(Worker.GRID, choice.memory_parts), *_shared(Worker.CLUSTER, choice.cluster_parts),
                   Step(Worker.LOOP, choice.depth))
    attr_by_axis = {form.row_axis: rows, form.column_axis: columns}
    return (*((a, (Step(Worker.GRID),)) for a in form.leads), *((a, attr_by_axis[a]) for a in (ROW, COLUMN)), (INNER, inner))


def _shared(worker: Worker, count: int) -> Attr:
    """A step that several workers share; none for a single one."""
    return (Step(worker, count),) if count > 1 else ()


def _workers(plan: ProductPlan) -> tuple[LevelTile, ...]:
    """The product, the tiles of a cluster, a block's tile with the inner elements of a slot, a warpgroup's rows of it."""
    c, form = plan.choice, plan.form
    of_cluster = ((ROW, c.rows), (COLUMN, c.columns * c.cluster_columns), (INNER, c.depth * c.cluster_parts))
    together = (LevelTile("cluster", of_cluster),) if c.cluster > 1 else ()
    beside = ((COLUMN, c.columns), (INNER, c.depth))
    return (LevelTile("grid", (("lead", form.num_leads), (ROW, form.rows), (COLUMN, form.columns))), *together,
            LevelTile("block", ((ROW, c.rows), *beside)), LevelTile("warpgroup", ((ROW, c.warpgroup_rows), *beside), c.warpgroups))


def _sums_of_parts(plan: ProductPlan) -> tuple[TreeStage, ...]:
    """The sums of a tile from those of parts of its inner axis: through the shared memory of a cluster, then through global memory."""
    choice, stages = plan.choice, []
    tile = (choice.rows, choice.result_columns)
    if plan.received is not None:
        first, *others = (TreeValue(n.name, Level.CLUSTER, tile) for n in plan.form.nodes)
        first = replace(first, shared_bytes=plan.received.num_bytes, slots=plan.received.copies, offset_bytes=plan.received.offset_bytes)
        stages.append(TreeStage("reduce", (first, *others)))
    if choice.memory_parts > 1:
        stages.append(TreeStage("reduce", tuple(TreeValue(n.name, Level.GLOBAL, tile) for n in plan.form.nodes)))
    return tuple(stages)


def in_turns(turns: int, body: Body) -> Body:
    """The stages of a tile, in a loop where a block takes several tiles one after another."""
    return (TreeLoop(TILES_AXIS, 1, turns, body),) if turns > 1 else body


def operand_copy(form: ProductForm, tile: OperandTile, slots: int) -> TreeStage:
    """The ring of one operand, filled by tensor copies, or by producing threads where these compute it or no tensor map describes it."""
    operand = tile.operand
    by = "threads" if why_no_copies(form, tile) else TENSOR_COPIES
    num_bytes = tile.elements * operand.dtype.itemsize * slots
    value = TreeValue(operand.value, Level.SHARED, (tile.lines, tile.depth), num_bytes, slots,
                      offset_bytes=tile.offset_bytes + tile.first * operand.dtype.itemsize)
    return TreeStage("copy", (value,), by)


def sums_stages(plan: ProductPlan) -> tuple[TreeStage, ...]:
    """Reductions of whole rows in their order, maps with one value a row, then the results."""
    rows, choice = plan.form.reduced, plan.choice
    exchanged = Level.CLUSTER if choice.cluster > 1 else Level.WARP
    stages: list[TreeStage] = []
    for n, stage in enumerate(rows.stages):
        first, *others = (value_on_sums(plan, r, (choice.rows,), exchanged) for r in stage.reductions)
        # The parts of all reductions of a stage arrive in one place, which is counted with the first.
        parts = plan.exchanges[n] if plan.exchanges else None
        if parts is not None:
            first = replace(first, shared_bytes=parts.num_bytes, slots=parts.copies, offset_bytes=parts.offset_bytes)
        stages.append(TreeStage("reduce", (first, *others)))
        if stage.values:
            stages.append(TreeStage("map", tuple(value_on_sums(plan, v, (choice.rows,)) for v in stage.values)))
    sums = tuple(value_on_sums(plan, r, (choice.columns,), Level.WARP) for r in plan.form.down.points)
    told = {v.value for s in stages for v in s.values} | {n.name for n in plan.form.nodes}
    results = tuple(value_on_sums(plan, r, (choice.rows, choice.columns)) for r in plan.form.graph.results
                    if r not in told and r not in plan.form.down.points)
    behind = (TreeStage("reduce", sums),) if sums else ()
    return (*stages, TreeStage("map", results), *behind) if results else (*stages, *behind)


def value_on_sums(plan: ProductPlan, name: str, tile: tuple[int, ...], level: Level = Level.REGISTER) -> TreeValue:
    """A value on the sums; one that leaves by tensor stores has stages in shared memory on its way."""
    staged = next((t for t in plan.beside.tiles if t.name == name), None)
    warpgroups = plan.choice.warpgroups
    num_bytes, slots, offset = (0, 1, 0) if staged is None else (staged.num_bytes(warpgroups), staged.count * warpgroups,
                                                                 staged.offset_bytes)
    return TreeValue(name, level, tile, num_bytes, slots, "", name in plan.form.graph.results, offset)


def _fetched(plan: ProductPlan) -> tuple[TreeStage, ...]:
    """Boundary values that maps read beside the sums, brought by tensor copies while the products are computed."""
    stages: list[TreeStage] = []
    tile = (plan.choice.rows, plan.choice.columns)
    for f in plan.fetched:
        own = f.tile.name == f.source.name
        num_bytes = f.tile.num_bytes(plan.choice.warpgroups) if own else 0
        value = TreeValue(f.source.name, Level.SHARED, tile, num_bytes, 1, "" if own else f.tile.name, offset_bytes=f.tile.offset_bytes)
        stages.append(TreeStage("copy", (value,), TENSOR_COPIES))
    return tuple(stages)
