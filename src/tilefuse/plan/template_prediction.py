"""How long kernels made from meanings take, in the terms in which fused routines are predicted, so that the two can be compared.

The planner's cost of a kernel compares kernels of one graph with each other: it counts every byte as a copy does and leaves out what all
ways to compute a sum have in common. Against routines these count.
"""
from __future__ import annotations

from tilefuse.plan.pattern import PlannedKernel
from tilefuse.plan.routine_prediction import READ_SHARE, last_block_us
from tilefuse.schedule.template import Columns, Rows
from tilefuse.target.device import DeviceSpec

# Rows that a persistent grid walks over: its first rows arrive before anything can be computed, its blocks end at different times.
# Units: microseconds. Source: A'(A x) for 1024 x 1024 to 8192 x 8192 words on one H200, measured over the sum of its kernels' costs.
PERSISTENT_US = 1.0


def template_us(kernel: PlannedKernel, device: DeviceSpec) -> float:
    """Predicted time of a planned kernel beside fused routines. Units: microseconds."""
    program = kernel.program
    us = kernel.cost.us
    moved = program.bytes_read + program.bytes_written
    if device.kind != "cuda" or not moved:
        return us
    if kernel.cost.source == "bandwidth":
        us -= (us - device.graph_launch_us) * (1 - READ_SHARE) * program.bytes_read / moved
    match program.choice:
        case Rows(groups=groups) if groups:
            us += PERSISTENT_US
        case Rows(split=split) if split > 1:
            us += last_block_us(program.launch.num_blocks)
        case Columns(split=split) if split > 1:
            us += last_block_us(split)
    return us
