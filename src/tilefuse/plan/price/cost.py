"""Cost of a kernel, predicted from its traffic and arithmetic. Every number comes from the device's record.

`CostModel` is the interface; `AnalyticCost` is the cheap source that filters. Costs by execution come from outside through the same
interface. No scheduling decision is made here.
"""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tilefuse.domain.tile import TileProgram
from tilefuse.plan.pattern import Cost
from tilefuse.target.calibration import peak_bytes_per_s
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.levels import LevelTraffic, level_traffic, scattered_adds
from tilefuse.templates.staged_traffic import moved_bytes

STAGES_WITHIN = "; the time of a kernel of stages is part of its arithmetic time"
STAGES_ORIGIN = "issue slots and latencies of the kernel's stages, estimated by the scheduler"


class CostModel(Protocol):
    """Predicts the time of one kernel."""

    def cost(self, program: TileProgram) -> Cost:
        """Time of the kernel. Units: microseconds."""
        ...

    def limit_us(self, program: TileProgram) -> float:
        """Lower bound on the kernel's time. Units: microseconds. Source: the device's record, or a measurement; the model says which."""
        ...


def interpolated_us(num_bytes: int, curve: Sequence[tuple[int, float]], peak_bytes_per_s: float) -> float:
    """M(V) of FusionStitching 4.3: how long moving `num_bytes` takes, between the points of a measured curve.

    Units: bytes (read plus written) and bytes per second in, microseconds out. Below the first point the first; above the last its rate.
    Source: the curve's own origin, see DeviceSpec.origins.
    """
    if not num_bytes:
        return 0.0
    if not curve:
        return num_bytes / peak_bytes_per_s * 1e6
    place = bisect_left(curve, (num_bytes, 0.0))
    if place == 0:
        return curve[0][1]
    if place == len(curve):
        size, us = curve[-1]
        return num_bytes * us / size
    (low, short_us), (high, long_us) = curve[place - 1], curve[place]
    return short_us + (long_us - short_us) * (num_bytes - low) / (high - low)


def transfer_us(num_bytes: int, device: DeviceSpec) -> float:
    """Time to move bytes between global memory and a kernel on the whole device, beyond what an empty kernel takes.

    Units: bytes (read plus written) in, microseconds out. Source: DeviceSpec.transfer_curve.
    """
    return interpolated_us(num_bytes, device.transfer_curve, device.global_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number behind a cost. `unit` as in "us", "bytes", "1"; `origin` says where the number comes from."""

    name: str
    value: float
    unit: str
    origin: str


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a kernel's predicted time. The slowest of the `*_us` decides; the launch comes on top.

    Units: microseconds; bytes; `busy_multiprocessors` of the device's; `occupancy` and `share` are fractions (threads that fit a
    multiprocessor, and bandwidth that so many loads under way can reach).
    """

    global_bytes: int
    l2_bytes: int
    shared_bytes: int
    global_us: float
    l2_us: float
    shared_us: float
    arithmetic_us: float
    launch_us: float
    busy_multiprocessors: int
    occupancy: float
    share: float
    scattered_us: float = 0.0
    partial_us: float = 0.0
    started_us: float = 0.0

    @property
    def moved_us(self) -> float:
        """The slowest of what moves data. Units: microseconds. Source: the fields' own."""
        return max(self.global_us, self.l2_us, self.shared_us, self.scattered_us, self.partial_us, self.started_us)

    @property
    def us(self) -> float:
        return self.launch_us + max(self.moved_us, self.arithmetic_us)

    @property
    def decided_by(self) -> str:
        """The part that decides: "bandwidth", "flops", or "launch" where that is longer than both."""
        if max(self.moved_us, self.arithmetic_us) < self.launch_us:
            return "launch"
        return "bandwidth" if self.moved_us >= self.arithmetic_us else "flops"


class AnalyticCost:
    """K(P) + phi: the slowest of the traffic at each memory level and the arithmetic, plus one launch inside a stream of kernels.

    Units: microseconds. Boundary tensors count once in global memory; what blocks read again comes from L2. Few blocks, or few threads
    on a multiprocessor, have too few loads under way to fill the memory. The launch is that of a captured graph: an eager launch is
    hidden behind the previous kernel on a busy device.
    Source: FusionStitching 4.3; roofline model, Williams, Waterman and Patterson 2009, CACM 52(4); Little's law for the loads under way.
    """

    def __init__(self, device: DeviceSpec) -> None:
        self.device = device
        self._l2_bytes_per_s = peak_bytes_per_s(device.resident_curve) if device.resident_curve else 0.0

    def cost(self, program: TileProgram) -> Cost:
        """Time of the kernel. Units: microseconds. Source: the class's text."""
        parts = self.parts(program)
        return Cost(parts.us, parts.decided_by)

    def limit_us(self, program: TileProgram) -> float:
        """The kernel's boundary bytes at full bandwidth, without launch.

        Units: microseconds. Source: DeviceSpec.global_bytes_per_s, a device copy of 1 GiB.
        """
        return program.bytes_moved / self.device.global_bytes_per_s * 1e6

    def parts(self, program: TileProgram, traffic: LevelTraffic | None = None) -> Parts:
        """The time's parts. Source: as the class; traffic by `templates.levels.level_traffic` where none is named."""
        device, launch = self.device, program.launch
        num_bytes = program.bytes_moved
        blocks = max(launch.num_blocks, 1)
        busy = min(blocks, device.num_multiprocessors)
        resident = resident_blocks(launch, device)
        held = min(resident, -(-blocks // device.num_multiprocessors)) * launch.num_threads
        per_thread = max(16, min(device.fitted.cost.loads_bytes, program.bytes_read // max(blocks * launch.num_threads, 1)))
        share = min(1.0, busy * held * per_thread / device.saturating_bytes) if device.saturating_bytes else 1.0
        moved = traffic or level_traffic(program, device, device.shared_bytes_per_multiprocessor)
        busy_share = busy / device.num_multiprocessors
        return Parts(
            global_bytes=num_bytes, l2_bytes=moved.l2_bytes, shared_bytes=moved.shared_bytes,
            global_us=max(transfer_us(num_bytes, device), num_bytes / (device.global_bytes_per_s * share) * 1e6),
            l2_us=moved.l2_bytes / (self._l2_bytes_per_s * share) * 1e6 if self._l2_bytes_per_s else 0.0,
            shared_us=moved.shared_bytes / (device.shared_bytes_per_s * busy_share) * 1e6 if device.shared_bytes_per_s else 0.0,
            arithmetic_us=program.work_us or program.flops / (device.flops_per_s * busy_share) * 1e6, launch_us=device.graph_launch_us,
            busy_multiprocessors=busy, occupancy=held / device.max_threads_per_multiprocessor, share=share,
            scattered_us=scattered_adds(program) / device.scattered_adds_per_s * 1e6 if device.scattered_adds_per_s else 0.0,
            partial_us=moved.partial_sectors / device.partial_sectors_per_s * 1e6 if device.partial_sectors_per_s else 0.0,
            started_us=_started_us(launch, device))

    def figures(self, program: TileProgram) -> tuple[Figure, ...]:
        """The parts as numbers with unit and origin, for `explain`. Source: each figure's own `origin`."""
        parts, device = self.parts(program, moved_bytes(program, self.device)), self.device
        told = dict(device.origins)

        def rate(field: str) -> str:
            return told.get(field, "not measured")

        within = STAGES_WITHIN if program.work_us else ""
        work = STAGES_ORIGIN if program.work_us else f"flops_per_s: {rate('flops_per_s')}"
        return (
            Figure("global bytes", parts.global_bytes, "bytes", "boundary tensors, each once"),
            Figure("L2 bytes", parts.l2_bytes, "bytes", "what each block reads and writes, summed over blocks" + within),
            Figure("shared bytes", parts.shared_bytes, "bytes", "tiles staged in shared memory, written and read" + within),
            Figure("global time", parts.global_us, "us", f"transfer_curve: {rate('transfer_curve')}"),
            Figure("L2 time", parts.l2_us, "us", f"resident_curve: {rate('resident_curve')}"),
            Figure("shared time", parts.shared_us, "us", f"shared_bytes_per_s: {rate('shared_bytes_per_s')}"),
            Figure("scattered time", parts.scattered_us, "us", f"scattered_adds_per_s: {rate('scattered_adds_per_s')}"),
            Figure("time of partial sectors", parts.partial_us, "us", f"partial_sectors_per_s: {rate('partial_sectors_per_s')}"),
            Figure("time to start blocks", parts.started_us, "us", f"blocks_per_s: {rate('blocks_per_s')}"),
            Figure("arithmetic time", parts.arithmetic_us, "us", work),
            Figure("launch", parts.launch_us, "us", f"graph_launch_us: {rate('graph_launch_us')}"),
            Figure("busy multiprocessors", parts.busy_multiprocessors, "1", f"blocks of the launch, at most {device.num_multiprocessors}"),
            Figure("occupancy", parts.occupancy, "1", "threads of the blocks that fit a multiprocessor over its most"),
            Figure("bandwidth share", parts.share, "1", f"loads under way over saturating_bytes: {rate('saturating_bytes')}"),
        )


def _started_us(launch: Launch, device: DeviceSpec) -> float:
    """Time to start the blocks behind the first wave, which finds an empty device. Units: microseconds. Source: DeviceSpec.blocks_per_s."""
    behind = launch.num_blocks - resident_blocks(launch, device) * device.num_multiprocessors
    return max(behind, 0) / device.blocks_per_s * 1e6 if device.blocks_per_s else 0.0


def resident_blocks(launch: Launch, device: DeviceSpec) -> int:
    """Blocks that fit a multiprocessor at once, by threads and shared memory (registers are not known before compilation)."""
    fit = min(device.max_blocks_per_multiprocessor, device.max_threads_per_multiprocessor // max(launch.num_threads, 1))
    if launch.shared_bytes:
        fit = min(fit, device.shared_bytes_per_multiprocessor // launch.shared_bytes)
    return max(fit, 1)


def gain_us(alone: Sequence[Cost], together: Cost) -> float:
    """f(P): what one kernel saves over one a node. Each cost contains its launch, so N launches stand against one.

    Units: microseconds. Source: FusionStitching 4.3, f(P) = sum K(op) + (N - 1) phi - K(P).
    """
    return sum(c.us for c in alone) - together.us
