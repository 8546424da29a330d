"""Prices of kernels as the suite `planner` times them: behind themselves, on operands that come from memory or stay in L2."""
from __future__ import annotations

from dataclasses import replace

from benchmarks.timing import L2_ROTATION
from tilefuse.domain.roofline import Parts, price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.driver.measure.measure import num_input_sets
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.target.device import DeviceSpec

# Shares of L2 that rotating sets of operands take: up to the first all of them stay, from the second on none. Each half of the cache keeps
# what its multiprocessors read, so that a tensor read by all takes its bytes twice.
# One H200, maps of 8192 to 65536 f32 (planner-h200-20261124-172723): 16 MiB of sets 0.68 us, 23 MiB 0.92, 33 MiB 0.88 to 1.06, 128 MiB
# 1.28.
ALL_STAY, NONE_STAYS = 0.25, 0.75


def resident_share(bytes_moved: int, device: DeviceSpec) -> float:
    """Share of a kernel's operands that L2 still holds when it runs again on the same set. Units: bytes."""
    rotated = num_input_sets(L2_ROTATION * device.l2_bytes, bytes_moved) * bytes_moved / device.l2_bytes
    return min(max((NONE_STAYS - rotated) / (NONE_STAYS - ALL_STAY), 0.0), 1.0)


def measured_parts(program: TileProgram, device: DeviceSpec) -> tuple[float, Parts, Work]:
    """A kernel's price under the conditions of its measurement, its parts in the condition that weighs most, and its work.

    The launch passes while the same kernel ahead ends. Units: microseconds.
    """
    work, share = AnalyticCost(device).work(program), resident_share(program.bytes_moved, device)
    cold, near = (price_work(replace(work, resident=resident), device) for resident in (False, True))
    return share * near.us + (1.0 - share) * cold.us, near if share > 0.5 else cold, work
