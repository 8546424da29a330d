"""Work of products of few rows: weights that are read once from global memory, and elements that consumers expand.

    all blocks pull their tiles at once; the last turn takes as long as a full one
"""
from __future__ import annotations

from tilefuse.domain.roofline import clock_hz, transfer_us
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import reads
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.plan import OperandTile, ProductPlan
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.thread_work import bodies, operations


def streaming_cycles(plan: ProductPlan, device: DeviceSpec) -> tuple[float, ...]:
    """Cycles in which the weights of a tile, or of its part of the inner axis, come from global memory, while all other blocks pull theirs; none where operands are in L2.

    Weights that several tiles read come through L2.
    """
    if not plan.reads_weights_once:
        return ()
    items = plan.num_tiles * plan.choice.split
    num_bytes = sum(t.slot_bytes * plan.fillings * items for t in plan.rights)
    runs = max(_run_factor(t, device) for t in plan.rights)
    us = transfer_us(num_bytes, device) * runs * min(plan.choice.blocks, device.num_multiprocessors) / items
    return (us * clock_hz(device) / 1e6,)


def _run_factor(tile: OperandTile, device: DeviceSpec) -> float:
    """Time of the copies of a slot over that of the same bytes in one piece: neighbours in memory come in runs of a line's part."""
    length = tile.depth if tile.operand.inner_is_contiguous else tile.lines
    return 1.0 + device.fitted.pipelined.run_bytes / (length * tile.operand.dtype.itemsize)


def step_cycles_of(choice: Pipelined, device: DeviceSpec) -> float:
    """Least cycles of a filling, which all warpgroups of a tile wait for."""
    fitted = device.fitted.pipelined
    return fitted.step_cycles + (choice.rows // choice.warpgroup_rows - 1) * fitted.further_step_cycles


def last_filling_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Cycles from the arrival of the last weights to their products, where the weights decide the time; 0 where they do not."""
    if not streaming_cycles(plan, device):
        return 0.0
    return step_cycles_of(plan.choice, device) + expanding_cycles(plan, device) / plan.fillings


def expanding_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Cycles in which the consumers compute the left operands of a tile from narrow elements."""
    fitted, graph = device.fitted.pipelined, plan.form.graph
    instructions = 0.0
    for tile in plan.rights:
        if tile.expanded is not None and tile.expanded.element is not None:
            element = tile.expanded.element
            own = operations([element, *bodies(graph, reads(element))], tile.expanded.dtype != F32)
            instructions += tile.elements * tile.packing * (fitted.expanded_instructions + own)
    return plan.fillings * instructions / (fitted.issued_per_cycle * (plan.choice.rows // plan.choice.warpgroup_rows))
