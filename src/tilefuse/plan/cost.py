"""What a kernel costs, predicted from its traffic and arithmetic. Every number comes from the device's record.

`CostModel` is the interface; `AnalyticCost` is the cheap source that filters. Costs by execution come from outside through the same
interface. No scheduling decision is made here.
"""
from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from tilefuse.plan.pattern import Cost
from tilefuse.schedule.tile import TileProgram
from tilefuse.target.device import DeviceSpec

# Source: NVIDIA H200, streaming copy with a growing number of blocks, one a multiprocessor: beyond about 57 of 132 the memory is saturated.
SATURATING_FRACTION = 57 / 132


class CostModel(Protocol):
    """Predicts the time of one kernel."""

    def cost(self, program: TileProgram) -> Cost:
        """Time of the kernel. Units: microseconds."""
        ...

    def limit_us(self, program: TileProgram) -> float:
        """Lower bound on the kernel's time. Units: microseconds. Source: the device's record, or a measurement; the model says which."""
        ...


def bandwidth_at(num_bytes: int, device: DeviceSpec) -> float:
    """Bytes per second that a copy of `num_bytes` reaches, interpolated in the device's measured curve.

    Units: bytes (read plus written) in, bytes per second out. Below the first point the first, above the last the last.
    """
    curve = device.bandwidth_curve
    if not curve:
        return device.global_bytes_per_s
    place = bisect_left(curve, (num_bytes, 0.0))
    if place == 0:
        return curve[0][1]
    if place == len(curve):
        return curve[-1][1]
    (low, slow), (high, fast) = curve[place - 1], curve[place]
    return slow + (fast - slow) * (num_bytes - low) / (high - low)


class AnalyticCost:
    """The larger of transfer time and arithmetic time, plus one launch as it costs inside a running stream of kernels.

    Units: microseconds. Boundary tensors count once (ideal traffic). Few blocks reach only their share of the bandwidth and of the
    arithmetic. The launch is that of a captured graph: an eager launch is hidden behind the previous kernel on a busy device.
    Source: roofline model, Williams, Waterman and Patterson 2009, CACM 52(4).
    """

    def __init__(self, device: DeviceSpec) -> None:
        self.device = device
        self._saturating = max(device.num_multiprocessors * SATURATING_FRACTION, 1.0) if device.kind == "cuda" else 1.0

    def cost(self, program: TileProgram) -> Cost:
        """Time of the kernel. Units: microseconds. Source: the class's text."""
        device = self.device
        num_bytes = program.bytes_read + program.bytes_written
        blocks = max(program.launch.num_blocks, 1)
        # The measured curve contains the launch, so it bounds the whole time; the peak bounds the transfer alone.
        share = min(1.0, blocks / self._saturating)
        transfer_us = num_bytes / (device.global_bytes_per_s * share) * 1e6
        arithmetic_us = program.flops / (device.flops_per_s * min(1.0, blocks / device.num_multiprocessors)) * 1e6
        measured_us = num_bytes / (bandwidth_at(num_bytes, device) * share) * 1e6
        us = max(device.graph_launch_us + max(transfer_us, arithmetic_us), measured_us)
        if max(transfer_us, arithmetic_us) < device.graph_launch_us:
            return Cost(us, "launch")
        return Cost(us, "bandwidth" if transfer_us >= arithmetic_us else "flops")

    def limit_us(self, program: TileProgram) -> float:
        """The kernel's boundary bytes at full bandwidth, without launch.

        Units: microseconds. Source: DeviceSpec.global_bytes_per_s, a device copy of 1 GiB.
        """
        return (program.bytes_read + program.bytes_written) / self.device.global_bytes_per_s * 1e6
