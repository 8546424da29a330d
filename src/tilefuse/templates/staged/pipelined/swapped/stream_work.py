"""Work of products of few rows: weights that are read once from global memory, and elements that consumers expand.

    all blocks pull their tiles at once; the last turn takes as long as a full one
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.domain.roofline import clock_hz, transfer_us
from tilefuse.domain.work import Unit
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import reads
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, WARPGROUP_INNER_BYTES, WARPGROUP_ROWS
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.bodies import bodies, operations
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.plan import REGISTER_TYPES, ProductPlan
from tilefuse.templates.staged.pipelined.record import Pipelined

# Slots that products in flight read: that of the step at hand, and that of the step before.
IN_USE = 2


@dataclass(frozen=True, slots=True)
class Weights:
    """Right operands of a product, whichever tiles read them.

    us: time of a copy of so many bytes. runs: bytes of an element of each, and whether its runs in memory go along the inner axis.
    Units: microseconds.
    """

    us: float
    runs: tuple[tuple[float, bool], ...]

    @classmethod
    def of(cls, form: ProductForm, device: DeviceSpec) -> Weights:
        """Those of a form, in its order of operands."""
        num_bytes, runs = 0.0, []
        for p in form.products:
            stored = p.right.stored if form.swapped and p.right.dtype in REGISTER_TYPES else None
            itemsize = p.right.dtype.itemsize if stored is None else stored.dtype.itemsize / stored.packing
            num_bytes += form.num_leads * p.right.lines * form.inner * itemsize
            runs.append((itemsize, p.right.inner_is_contiguous or stored is not None))
        return cls(transfer_us(int(num_bytes), device), tuple(runs))


def stream_us(form: ProductForm, choice: Pipelined, device: DeviceSpec, weights: Weights | None = None) -> float:
    """Time in which all weights come from global memory; 0 where several tiles read them, through L2.

    weights: those of the form. Units: microseconds. Source: `transfer_curve`, `PipelinedFigures.run_bytes`.
    """
    if (form.columns > choice.columns) if choice.swapped else (form.rows > choice.rows):
        return 0.0
    weights, longest = weights or Weights.of(form, device), 0.0
    for itemsize, along_inner in weights.runs:
        run = choice.depth if along_inner else choice.rows if choice.swapped else choice.columns
        longest = max(longest, 1.0 + device.fitted.pipelined.run_bytes / (run * itemsize))
    lines, tile = (form.rows, choice.rows) if choice.swapped else (form.columns, choice.columns)
    items = form.num_leads * -(-lines // tile) * choice.split
    idle = 1.0 - min(choice.blocks, device.num_multiprocessors) / device.num_multiprocessors
    longest *= 1.0 + device.fitted.pipelined.idle_stream * idle
    # The last turn takes as long as a full one.
    return weights.us * longest * -(-items // choice.blocks) * choice.blocks / items


def streaming_cycles(plan: ProductPlan, device: DeviceSpec) -> tuple[float, ...]:
    """Cycles in which the weights of a tile, or of its part of the inner axis, come while all other blocks pull theirs."""
    us = stream_us(plan.form, plan.choice, device)
    if not us:
        return ()
    return (us * clock_hz(device) / 1e6 / plan.turns,)


def stream_latency_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Latency of the weights of a tile: a slot is filled again once products have read it, and few slots ahead keep memory waiting."""
    if not streaming_cycles(plan, device):
        return 0.0
    return plan.fillings * device.fitted.pipelined.fill_cycles / max(plan.choice.slots - IN_USE, 1)


def refill_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Cycles in which consumers wait for memory because no slot is filled while they work: products in flight read all of them."""
    return plan.fillings * device.fitted.pipelined.load_cycles if plan.choice.slots <= IN_USE else 0.0


def step_cycles_of(choice: Pipelined, device: DeviceSpec) -> float:
    """Least cycles of a filling, which all warpgroups of a tile wait for."""
    fitted = device.fitted.pipelined
    return fitted.step_cycles + (choice.rows // choice.warpgroup_rows - 1) * fitted.further_step_cycles


def stepping_cycles(plan: ProductPlan, further_panels: float, device: DeviceSpec) -> float:
    """Cycles of the consumers' own steps for a tile, or for its part. One warpgroup expands elements while another waits for its step.

    further_panels: cycles of a step beside those for its first panel.
    """
    steps, expanding = plan.fillings * (step_cycles_of(plan.choice, device) + further_panels), expanding_cycles(plan, device)
    return steps / plan.choice.warpgroups + expanding if expanding else steps


def last_filling_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Cycles from the arrival of the last weights to their products, where the weights decide the time; 0 where they do not."""
    if not streaming_cycles(plan, device):
        return 0.0
    return step_cycles_of(plan.choice, device) + expanding_cycles(plan, device) / plan.fillings


def lane_paths(plan: ProductPlan, device: DeviceSpec) -> tuple[tuple[tuple[Unit, float], ...], ...]:
    """Main loop of a tile whose lanes expand 16 neighbours at once, or whose warps multiply: products with left operands in registers,
    and the chain of one warpgroup. Products of warpgroups have a least time, and take longer where one register array serves all parts."""
    fitted, choice = device.fitted.pipelined, plan.choice
    line_bytes = choice.depth * plan.left.operand.dtype.itemsize
    products = choice.rows // WARPGROUP_ROWS * (line_bytes // WARPGROUP_INNER_BYTES)
    parts = choice.warpgroup_rows // WARPGROUP_ROWS * (line_bytes // SWIZZLE_LINE_BYTES)
    if choice.by_warps:
        fillings, eights = plan.fillings * len(plan.rights), choice.columns // MMA_COLUMNS
        together = fitted.warp_part_cycles + eights * fitted.warp_columns_cycles
        # Tiles of one warp hide each other's waits.
        alone = together + fitted.lone_warp_cycles * WARPGROUP_ROWS / choice.warpgroup_rows
        return ((("shared", fillings * (fitted.warp_step_cycles + choice.warpgroups * parts * together)),),
                (("threads", fillings * (fitted.warp_step_cycles + parts * alone)),))
    if not plan.in_pieces:
        return ()
    longer = (fitted.lone_array if choice.split > 1 else 1.0) * plan.fillings * len(plan.rights)
    product = max(fitted.register_product_cycles, fitted.register_base_cycles + choice.columns)
    return ((("tensor", longer * products * product),), (("threads", longer * parts * fitted.lane_part_cycles),))


def expanding_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Cycles in which the consumers compute the left operands of a tile from narrow elements."""
    fitted, graph = device.fitted.pipelined, plan.form.graph
    instructions = 0.0
    moving = fitted.lane_instructions if plan.in_pieces else fitted.expanded_instructions
    for tile in plan.rights:
        if tile.expanded is not None and tile.expanded.element is not None:
            element = tile.expanded.element
            own = operations([element, *bodies(graph, reads(element))], tile.expanded.dtype != F32)
            paired = fitted.paired_operations if tile.packing > 1 and plan.in_pieces else 0
            instructions += tile.elements * tile.packing * (moving + max(own - paired, 0))
    alone = fitted.lone_array if plan.choice.split > 1 and not plan.choice.by_warps else 1.0
    return plan.fillings * instructions * alone / fitted.integers_per_cycle
