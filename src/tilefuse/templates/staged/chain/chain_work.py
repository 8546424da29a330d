"""Work of a chain of products: cycles of the tensor cores and of L2 for a tile, instructions of its maps, waits between its products.

Nothing here is a time; `domain/roofline.py` makes one of it.
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.work import BlockWork, StageWork, Work
from tilefuse.ir.ops import NARROW_FLOPS, SCALAR_OPS
from tilefuse.ir.scalar import Call, walk
from tilefuse.kernel.pipeline import WARPGROUP_ROWS
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.staged.chain.plan import DEPTH, INSTRUCTION_INNER, ITEM_BYTES, ChainPlan, PlannedLayer
from tilefuse.templates.staged.online.plan import padded
from tilefuse.templates.staged.pipeline_work import port_cycles, tensor_operations
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.stages import STAGE_COLUMNS


def with_work(plan: ChainPlan, boundary: Work, device: DeviceSpec) -> ChainPlan:
    """The plan with its operations and its work. boundary: the work of its boundary values."""
    choice, fitted = plan.choice, device.fitted.pipelined
    rights = sum(layer.right.elements * layer.fillings for layer in plan.layers) * ITEM_BYTES
    once = StageWork(((("l2", port_cycles(rights, choice.blocks, device)),),) if plan.stays else (), fitted.fill_cycles)
    blocks = BlockWork(choice.blocks, choice.num_threads, 1, -(-plan.num_tiles // choice.blocks), (_tile(plan, rights, device),), (once,),
                       fitted.overlap)
    rows = plan.form.first.num_leads * plan.form.rows
    products = sum(2 * rows * layer.form.inner * layer.form.columns for layer in plan.layers)
    power = tensor_operations(products, plan.left.operand.dtype.name, choice.blocks, device)
    lefts = plan.left.elements * plan.layers[0].fillings * ITEM_BYTES
    flight = (plan.left.elements * choice.left_slots + max(layer.right.elements for layer in plan.layers) * choice.slots) * ITEM_BYTES
    brought = plan.num_tiles * lefts + (choice.blocks if plan.stays else plan.num_tiles) * rights
    # Repeated reads through L2 are cycles of the tiles: tensor copies are faster than the loads that measured the device's curve.
    launch = Launch(choice.blocks, choice.num_threads, 1, plan.shared_bytes)
    work = replace(boundary, l2_bytes=boundary.global_bytes, grid=launch, blocks=(blocks,), operations=(power,),
                   flight_bytes=flight, shared_bytes=2 * brought)
    return replace(plan, work=work, flops=products + sum(rows * f.columns * _operations(f) for layer in plan.layers for f in _forms(layer)))


def _tile(plan: ChainPlan, rights: int, device: DeviceSpec) -> StageWork:
    """One tile through all layers. rights: bytes of the right operands.

    The products and maps of one warpgroup follow each other; those of the others fill its waits.
    """
    choice, fitted = plan.choice, device.fitted.pipelined
    tensor = sum(_products(plan, layer) for layer in plan.layers) / fitted.narrow_per_cycle
    lefts = plan.left.elements * plan.layers[0].fillings * ITEM_BYTES
    staged, direct = _stored_bytes(plan)
    l2 = port_cycles(lefts + staged + (0 if plan.stays else fitted.shared_reads * rights), choice.blocks, device)
    l2 += direct / fitted.stored_bytes_per_cycle
    instructions = sum(_instructions(plan, layer, device) for layer in plan.layers)
    issued = fitted.issued_per_cycle * choice.warpgroups
    threads = instructions / min(issued, device.fitted.stitch.multiply.fma_per_cycle)
    steps = sum(layer.fillings for layer in (plan.layers[:1] if plan.stays else plan.layers))
    step_cycles = fitted.step_cycles + (choice.warpgroups - 1) * fitted.further_step_cycles
    alone = max(tensor / choice.warpgroups, steps * step_cycles) + instructions / issued + len(plan.layers) * fitted.tile_cycles
    alone += sum(_load_wait(plan, layer, device) for layer in plan.layers)
    waits = max(alone - max(tensor, l2, threads), 0.0) + _copy_waits(plan, device)
    return StageWork(((("tensor", tensor),), (("l2", l2),), (("threads", threads),)), waits)


def _copy_waits(plan: ChainPlan, device: DeviceSpec) -> float:
    """Cycles of a tile in which no slot is full: a copy has the time of the products of all other slots.

    The first left operand has the time of all layers, but for fillings beyond its slots.
    """
    choice, fitted, first = plan.choice, device.fitted.pipelined, plan.layers[0]
    rings = [(choice.left_slots, max(first.fillings - choice.left_slots, 0), plan.left.elements)]
    if not plan.stays:
        rings.append((choice.slots, sum(layer.fillings for layer in plan.layers), first.right.elements))
    products = choice.rows * max(choice.columns) * DEPTH / fitted.narrow_per_cycle
    copies = [(slots, fillings, device.fitted.chains.copy_cycles + port_cycles(elements * ITEM_BYTES, choice.blocks, device))
              for slots, fillings, elements in rings]
    return sum(fillings * max(copy - (slots - 1) * products, 0.0) for slots, fillings, copy in copies)


def _forms(layer: PlannedLayer) -> list[ProductForm]:
    return [p.form for p in (layer.ahead, layer.results) if p is not None]


def _products(plan: ChainPlan, layer: PlannedLayer) -> int:
    """Multiply-adds of a tile, in whole instructions."""
    step = DEPTH if layer is plan.layers[0] else INSTRUCTION_INNER
    return plan.choice.rows * layer.columns * padded(layer.form.inner, step)


def _instructions(plan: ChainPlan, layer: PlannedLayer, device: DeviceSpec) -> float:
    """Instructions of all threads for the ends of a layer in one tile: maps, rounding, stores."""
    fitted, elements = device.fitted.pipelined, plan.choice.rows * layer.columns
    per_element = 0.0
    if layer.ahead is not None:
        per_element += _operations(layer.ahead.form) + device.fitted.chains.rounded_instructions
    if layer.results is not None:
        staged, results = len(layer.results.staged), len(layer.results.form.graph.results)
        stores = staged * fitted.staged_instructions + (results - staged) * fitted.stored_instructions
        per_element += _operations(layer.results.form) + stores
    return elements * per_element


def _load_wait(plan: ChainPlan, layer: PlannedLayer, device: DeviceSpec) -> float:
    """Cycles that a warpgroup waits for the operands of a layer's maps: a group of loads for each 64 rows and 64 columns.

    The latency is that of memory for values with an element for each sum, and of the caches for those that all rows share.
    """
    fitted, form = device.fitted.pipelined, layer.form
    operands = {o.value for o in form.operands}
    inputs = {v.name: v.type for f in _forms(layer) for v in f.graph.inputs if v.name not in (*operands, form.contraction.left)}
    if not inputs:
        return 0.0
    wide = max(t.num_elements for t in inputs.values()) >= form.num_leads * form.rows * form.columns
    groups = plan.rows // WARPGROUP_ROWS * max(layer.columns // STAGE_COLUMNS, 1)
    return groups * (fitted.result_load_cycles if wide else fitted.shared_load_cycles)


def _stored_bytes(plan: ChainPlan) -> tuple[int, int]:
    """Bytes of the results of a tile: by tensor stores, and from registers."""
    bytes_by_way = [0, 0]
    for layer in plan.layers:
        if layer.results is None:
            continue
        staged = {r.name for r in layer.results.staged}
        for r in layer.results.form.graph.results:
            bytes_by_way[r not in staged] += plan.choice.rows * layer.columns * layer.results.form.graph.type_of(r).dtype.itemsize
    return bytes_by_way[0], bytes_by_way[1]


def _operations(form: ProductForm) -> int:
    """Operations that maps do on one element of the product."""
    calls = [e for n in form.graph.nodes if n.body is not None for e in walk(n.body) if isinstance(e, Call) and e.fn in SCALAR_OPS]
    return sum(NARROW_FLOPS.get(e.fn, SCALAR_OPS[e.fn].flops) for e in calls)
