"""Work of a pipelined product: cycles of the tensor cores and of L2 for a tile, instructions of its results, waits at the beginning.

Nothing here is a time; `domain/roofline.py` makes one of it.
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.work import BlockWork, StageWork, Work
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
    itemsize = form.left.dtype.itemsize
    padded = plan.fillings * choice.depth
    products = len(form.products) * choice.rows * choice.columns * padded
    rate = fitted.tf32_per_cycle if form.left.dtype == F32 else fitted.narrow_per_cycle
    operand_bytes = (choice.rows + len(form.products) * choice.columns) * padded * itemsize
    elements = choice.rows * choice.columns
    flops = _operations(plan)
    staged = len(plan.staged)
    stored = staged * fitted.staged_instructions + (len(form.graph.results) - staged) * fitted.stored_instructions
    moved = sum(form.graph.type_of(r).dtype.itemsize for r in form.graph.results) * elements
    main = StageWork(((("tensor", products / rate),), (("l2", operand_bytes / fitted.l2_bytes_per_cycle),)), _loading_cycles(plan, device))
    ending = StageWork(((("threads", elements * (flops + stored) / device.fitted.stitch.multiply.fma_per_cycle),),
                        (("l2", moved / fitted.l2_bytes_per_cycle),)), fitted.tile_cycles)
    turns = -(-plan.num_tiles // choice.blocks)
    blocks = BlockWork(choice.blocks, choice.num_threads, 1, turns, (main, ending), (StageWork((), fitted.fill_cycles),), fitted.overlap)
    # Bytes from L2 are cycles of the tiles: tensor copies are faster than the loads that measured the device's curve.
    work = replace(boundary, grid=Launch(choice.blocks, choice.num_threads, 1, plan.shared_bytes), blocks=(blocks,),
                   shared_bytes=2 * plan.num_tiles * operand_bytes)
    product_flops = 2 * len(form.products) * form.num_leads * form.rows * form.columns * form.inner
    return replace(plan, work=work, flops=product_flops + plan.num_tiles * elements * flops)


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
