"""Registers that the threads of a stitched kernel need, and its blocks that fit a multiprocessor: estimated before it is compiled."""
from __future__ import annotations

from tilefuse.domain.roofline import blocks_at_once
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.stages import StitchFigures
from tilefuse.templates.staged.stitch_plan import Stage, StitchPlan


def registers_of(plan: StitchPlan, device: DeviceSpec) -> int:
    """Registers assumed for a thread of the stage with the largest register tile. Units: registers of 32 bits."""
    fitted = device.fitted.stitch
    most = max([fitted.least_registers, *(fitted.base_registers + _register_tile(plan, s, fitted) for s in plan.stages if s.tiling)])
    return min(-(-most // 8) * 8, device.max_registers_per_thread)


def _register_tile(plan: StitchPlan, stage: Stage, fitted: StitchFigures) -> int:
    """Registers of a product's sums and operands."""
    tiling = stage.tiling
    assert tiling is not None, "products have a tiling"
    m, n = tiling.rows, tiling.columns
    if tiling.unit == "mma" and (stage.columns or tiling.arithmetic):
        # Left fragments with their halves, four right ones with theirs, addresses.
        row_values = fitted.row_value_registers if stage.columns else 0
        return 4 * len(stage.products) * m * n + fitted.left_fragment_registers * m + fitted.right_fragment_registers + row_values
    if tiling.unit == "mma":
        held, values = (2, fitted.held_operand_registers) if plan.held else (0, 0)
        return (4 * len(stage.products) + held) * m * n + 4 * m + 2 * n + values
    return m * n * len(stage.products) + (m + n) * tiling.step


def resident_blocks(plan: StitchPlan, threads: int, device: DeviceSpec) -> int:
    """Blocks that fit a multiprocessor together."""
    return max(1, blocks_at_once(threads, registers_of(plan, device), plan.shared_bytes, device))
