"""Work of a pipelined product: cycles of the tensor cores and of L2 for a tile, instructions of its results, waits at the beginning.

Nothing here is a time; `domain/roofline.py` makes one of it.
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.work import BlockWork, StageWork, Unit, Work
from tilefuse.ir.dtype import F32
from tilefuse.ir.ops import NARROW_FLOPS, SCALAR_OPS
from tilefuse.ir.scalar import Call, walk
from tilefuse.kernel.pipeline import WARPGROUP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.staged.pipelined.operands import CHUNKS_IN_FLIGHT, copies_by_map
from tilefuse.templates.staged.pipelined.plan import CHUNK_BYTES, ProductPlan


def with_work(plan: ProductPlan, boundary: Work, device: DeviceSpec) -> ProductPlan:
    """The plan with its operations and its work. boundary: the work of its boundary values."""
    choice, form, fitted = plan.choice, plan.form, device.fitted.pipelined
    main, ending = _main_loop(plan, device), _ending(plan, device)
    stages: tuple[StageWork, ...] = (main, ending)
    once = fitted.fill_cycles
    if choice.pingpong:
        # Nothing hides the results of the last tile.
        stages, once = (_in_turn(main, ending),), once + _alone(ending)
    blocks = BlockWork(choice.blocks, choice.num_threads, 1, -(-plan.num_tiles // choice.blocks), stages, (StageWork((), once),),
                       fitted.overlap)
    # Bytes from L2 are cycles of the tiles: tensor copies are faster than the loads that measured the device's curve.
    work = replace(boundary, grid=Launch(choice.blocks, choice.num_threads, 1, plan.shared_bytes), blocks=(blocks,),
                   shared_bytes=2 * plan.num_tiles * _operand_bytes(plan))
    product_flops = 2 * len(form.products) * form.num_leads * form.rows * form.columns * form.inner
    return replace(plan, work=work, flops=product_flops + plan.num_tiles * choice.rows * choice.columns * _operations(plan))


def _operand_bytes(plan: ProductPlan) -> int:
    """Bytes of the operands that fill the slots for one tile."""
    choice = plan.choice
    return (choice.rows + len(plan.form.products) * choice.columns) * plan.fillings * choice.depth * plan.form.left.dtype.itemsize


def _main_loop(plan: ProductPlan, device: DeviceSpec) -> StageWork:
    """The products of one tile beside the copies of their operands."""
    choice, fitted = plan.choice, device.fitted.pipelined
    products = len(plan.form.products) * choice.rows * choice.columns * plan.fillings * choice.depth
    rate = fitted.tf32_per_cycle if plan.form.left.dtype == F32 else fitted.narrow_per_cycle
    return StageWork(((("tensor", products / rate),), (("l2", _operand_bytes(plan) / fitted.l2_bytes_per_cycle),)),
                     _loading_cycles(plan, device))


def _ending(plan: ProductPlan, device: DeviceSpec) -> StageWork:
    """Results of one tile from its sums."""
    graph, fitted = plan.form.graph, device.fitted.pipelined
    elements, staged = plan.choice.rows * plan.choice.columns, len(plan.staged)
    stored = staged * fitted.staged_instructions + (len(graph.results) - staged) * fitted.stored_instructions
    moved = sum(graph.type_of(r).dtype.itemsize for r in graph.results) * elements
    instructions = elements * (_operations(plan) + stored)
    return StageWork(((("threads", instructions / device.fitted.stitch.multiply.fma_per_cycle),),
                      (("l2", moved / fitted.l2_bytes_per_cycle),)), fitted.tile_cycles)


def _in_turn(main: StageWork, ending: StageWork) -> StageWork:
    """A tile of two warpgroups that take turns: its results beside the main loop of the next tile, which is the other warpgroup's.

        warpgroup 0    |--- main 0 ---|- results 0 -|    |--- main 2 ---|
        warpgroup 1                   |--- main 1 ---|- results 1 -|

    Results that take longer than a main loop keep their warpgroup from its next turn, once for two tiles.
    """
    cycles: dict[Unit, float] = {}
    for unit, each in (pair for stage in (main, ending) for path in stage.paths for pair in path):
        cycles[unit] = cycles.get(unit, 0.0) + each
    late = max(_alone(ending) - _alone(main), 0.0)
    return StageWork(tuple(((unit, each),) for unit, each in cycles.items()), main.wait_cycles + late / 2)


def _alone(stage: StageWork) -> float:
    return stage.busy_cycles + stage.wait_cycles


def _loading_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Cycles that consumers wait for producers which load by themselves: the latency of each group of loads, all groups of a tile."""
    if copies_by_map(plan):
        return 0.0
    chunks = sum(t.elements * t.operand.dtype.itemsize // CHUNK_BYTES // WARPGROUP for t in plan.operands)
    return plan.fillings * -(-chunks // CHUNKS_IN_FLIGHT) * device.fitted.pipelined.load_cycles


def _operations(plan: ProductPlan) -> int:
    """Operations that maps do on one element of the product."""
    graph = plan.form.graph
    narrow = plan.form.left.dtype != F32
    calls = [e for n in graph.nodes if n.body is not None for e in walk(n.body) if isinstance(e, Call) and e.fn in SCALAR_OPS]
    return sum(NARROW_FLOPS.get(e.fn, SCALAR_OPS[e.fn].flops) if narrow else SCALAR_OPS[e.fn].flops for e in calls)
