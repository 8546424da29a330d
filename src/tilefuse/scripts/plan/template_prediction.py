"""How long kernels made from meanings take, in the terms in which fused routines are predicted, so that the two can be compared.

The planner's cost of a kernel compares kernels of one graph with each other: it counts every byte as a copy does and leaves out what all
ways to compute a sum have in common. Against routines these count.
"""
from __future__ import annotations

from tilefuse.plan.pattern import PlannedKernel
from tilefuse.scripts.plan.prediction import ARRIVALS_US, READ_SHARE, behind_another_us
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.template import Ending

# Rows that a persistent grid walks over: its first rows arrive before anything can be computed, its blocks end at different times, and
# the kernel behind finds no place beside it until then. Units: microseconds. Source: A'(A x) for 1024 x 1024 to 8192 x 8192 words on one
# H200, measured over the sum of its kernels' costs.
PERSISTENT_US = 2.9
# Time of a template's last block: of a sum, of sums down columns. Source: z = a x + y and z.u of 2^18 to 2^22 words (4.3, 7.2 and 19.1
# us); A'(A x) of 512 x 512 and 1024 x 1024, f32 4.0 and 5.9 us, f64 4.7 and 8.1, with sums down columns by routines and atomic additions
# 3.4, 4.8, 4.3 and 6.5, all in one process on one H200. Units: microseconds.
LAST_BLOCK_US, LAST_OF_COLUMNS_US = 2.3, 2.2


def template_us(kernel: PlannedKernel, device: DeviceSpec) -> float:
    """Predicted time of a planned kernel beside fused routines. Units: microseconds."""
    program = kernel.program
    us = kernel.cost.us
    moved = program.bytes_moved
    if device.kind != "cuda" or not moved:
        return us
    if kernel.cost.source == "bandwidth":
        us -= (us - device.graph_launch_us) * (1 - READ_SHARE) * program.bytes_read / moved
    return behind_another_us(us) + max(map(_ending_us, kernel_template(program.choice).endings(program)), default=0.0)


def _ending_us(ending: Ending) -> float:
    """Time that the end of a kernel's sums takes beyond its traffic. Units: microseconds."""
    match ending.kind:
        case "persistent":
            return PERSISTENT_US
        case "last block":
            return LAST_BLOCK_US + ARRIVALS_US * ending.arrivals / 1000
        case "last block of columns":
            return LAST_OF_COLUMNS_US + ARRIVALS_US * ending.arrivals / 1000
