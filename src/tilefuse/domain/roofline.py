"""The one model of time: the time of a device for the `Work` of a kernel, of a library call or of a copy.

Roofline: parts that move data, compute or wait hide each other, and the slowest decides. Every rate comes from the device's record.
"""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, sqrt

import numpy as np
from numpy.typing import NDArray

from tilefuse.base.construction import quickly_built, replace
from tilefuse.domain.work import BlockWork, Ending, LeastBlocks, Unit, Waves, Work
from tilefuse.target.calibration import peak_bytes_per_s
from tilefuse.target.capabilities import LEAST_THREAD_REGISTERS
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.stages import OverlapFigures
from tilefuse.target.launch import Launch
from tilefuse.target.memory import RESERVED_SHARED_BYTES

# Relative difference of two ways to add up the same cycles, at most.
ROUNDING = 1e-9


def interpolated_us(num_bytes: int, curve: Sequence[tuple[int, float]], peak_bytes_per_s: float) -> float:
    """M(V) of FusionStitching 4.3: time to move `num_bytes`, interpolated between the points of a measured curve.

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


def resident_us(num_bytes: int, device: DeviceSpec) -> float:
    """The same for bytes that L2 holds; that of global memory where their rate was not measured.

    Units: bytes in, microseconds out. Source: DeviceSpec.resident_curve.
    """
    return interpolated_us(num_bytes, device.resident_curve or device.transfer_curve, device.global_bytes_per_s)


def streamed_us(num_bytes: float, device: DeviceSpec) -> float:
    """Time of a large stream of bytes through global memory. Units: bytes in, microseconds out. Source: DeviceSpec.global_bytes_per_s."""
    return num_bytes / device.global_bytes_per_s * 1e6


@quickly_built
@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a step's predicted time. The slowest of the `*_us` decides; launches, `serial_us` and `ending_us` come on top.

    chain_us           the latency chain of a kernel whose loads in flight are known
    overlap_power      exponent of the norm that joins traffic, arithmetic and chain; infinite: the slowest alone decides
    further_launch_us  part of `launch_us` that kernels behind the first take
    start_overlap_us   most time of the start that passes while the kernel before ends
    starts_early       the first launch passes while the kernel before ends
    time_factor        time of all of it over that of its parts
    ending_us          work of the last block after the traffic, where blocks split a sum

    Units: microseconds; bytes; `busy_multiprocessors` of the device's; `occupancy` and `share` are fractions (threads that fit a
    multiprocessor, and bandwidth that so many loads in flight can reach).
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
    serial_us: float = 0.0
    chain_us: float = 0.0
    further_launch_us: float = 0.0
    overlap_power: float = inf
    start_overlap_us: float = 0.0
    ending_us: float = 0.0
    starts_early: bool = False
    time_factor: float = 1.0

    @property
    def moved_us(self) -> float:
        """The slowest of the parts that move data. Units: microseconds. Source: the fields' own."""
        return max(self.global_us, self.l2_us, self.shared_us, self.scattered_us, self.partial_us, self.started_us)

    @property
    def overlapped_us(self) -> float:
        """Time of traffic, arithmetic and latency chain, which hide each other. Units: microseconds. Source: `FlightFigures.overlap_power`.

        Arithmetic below half of the traffic's time adds less than the spread of measured times of routines.
        """
        return self._overlapped_us(self.arithmetic_us)

    def _overlapped_us(self, arithmetic_us: float) -> float:
        moved_us, power = self.moved_us, self.overlap_power
        if power == inf:
            return max(moved_us, arithmetic_us, self.chain_us)
        arithmetic_us = arithmetic_us if arithmetic_us > moved_us / 2 else 0.0
        return float((moved_us**power + arithmetic_us**power + self.chain_us**power) ** (1 / power))

    @property
    def us(self) -> float:
        """Time of the step. Units: microseconds. Source: as the fields."""
        return self.us_with(self.arithmetic_us)

    def us_with(self, arithmetic_us: float) -> float:
        """Time of the step if its arithmetic took `arithmetic_us`. Units: microseconds. Source: as the other fields."""
        start_us = self.launch_us - self.further_launch_us
        first_us = start_us + self._overlapped_us(arithmetic_us)
        if self.start_overlap_us:
            first_us = max(first_us - self.start_overlap_us, first_us / 4)
        us = first_us + self.further_launch_us + self.serial_us + self.ending_us
        us = max(us - start_us, start_us) if self.starts_early else us
        return us * self.time_factor

    @property
    def decided_by(self) -> str:
        """The part that decides: "bandwidth", "flops", or "launch" where that is longer than both."""
        if max(self.moved_us, self.arithmetic_us) < self.launch_us:
            return "launch"
        return "bandwidth" if self.moved_us >= self.arithmetic_us else "flops"


def price_work(work: Work, device: DeviceSpec) -> Parts:
    """The parts of the time that a device needs for some work.

    Few blocks, or few threads on a multiprocessor, have too few loads in flight to saturate the memory. Work without a grid fills the
    device.
    Units: microseconds.
    Source: FusionStitching 4.3; roofline model, Williams, Waterman and Patterson 2009, CACM 52(4); Little's law for the loads in flight.
    """
    busy, num_threads, share, started_us = _occupied(work, device)
    busy_share = busy / device.num_multiprocessors
    shared_bytes_per_s = device.shared_bytes_per_s * (1.0 if work.blocks else busy_share)
    computed_us = max((o.count / (operations_per_s(o.unit, device) * busy_share * o.efficiency) * 1e6 for o in work.operations),
                      default=0.0)
    figures = device.fitted.flight
    return Parts(
        global_bytes=work.global_bytes, l2_bytes=work.l2_bytes, shared_bytes=work.shared_bytes,
        global_us=_global_us(work, share, device) + sum([s.alone_cycles for s in work.around]) / clock_hz(device) * 1e6,
        l2_us=_l2_us(work, share, device),
        shared_us=work.shared_bytes / shared_bytes_per_s * 1e6 if shared_bytes_per_s else 0.0,
        arithmetic_us=max(work.stage_us, computed_us, powered_us(_side_by_side_us(work.blocks, device), work.energy_pj, device)),
        launch_us=launches_us(work.launches, device),
        busy_multiprocessors=busy, occupancy=num_threads / device.max_threads_per_multiprocessor, share=share,
        scattered_us=_scattered_us(work, device),
        partial_us=_partial_us(work, device),
        started_us=started_us,
        serial_us=work.serial_us + streamed_us(work.serial_bytes, device) + _idle_start_us(work, device)
        + _waited_cycles(work, device) / clock_hz(device) * 1e6,
        chain_us=_chain_us(work, device), further_launch_us=max(work.launches - 1, 0) * device.graph_launch_us,
        overlap_power=_overlap_power(work, device),
        start_overlap_us=figures.start_overlap_us if work.follows_another else 0.0, ending_us=_ending_us(work.endings, device),
        starts_early=work.starts_early and not work.fetches_early, time_factor=work.time_factor)


def _scattered_us(work: Work, device: DeviceSpec) -> float:
    """Time of additions at places that data give: of all together, or of those that meet in one line. Units: microseconds.
    Source: DeviceSpec.scattered_adds_per_s, line_adds_per_s, line_requests_per_s."""
    counted = ((work.scattered_adds, device.scattered_adds_per_s), (work.line_adds, device.line_adds_per_s),
               (work.line_requests, device.line_requests_per_s))
    all_s, *line_s = (count / rate if rate else 0.0 for count, rate in counted)
    return max(all_s, sum(line_s)) * 1e6


def _overlap_power(work: Work, device: DeviceSpec) -> float:
    """Exponent of the norm that joins traffic, arithmetic and chain. Source: `FlightFigures.overlap_power`, `WalkFigures.overlap_power`."""
    if work.loads is not None:
        return device.fitted.flight.overlap_power
    return device.fitted.walks.overlap_power if work.around else inf


def powered_us(blocks_us: float, energy_pj: float, device: DeviceSpec) -> float:
    """Time of blocks at the clock that their power leaves.

        energy ~ clock ^ a,  time ~ 1 / clock,  energy / time = the limit:      time = cycles ^ w * energy ^ (1 - w),  w = a / (1 + a)

    blocks_us: their time at the usual clock. energy_pj: their energy at that clock, whose voltage sinks with it.
    Units: microseconds; picojoules. Source: `PowerFigures`.
    """
    figures = device.fitted.power
    limited_us = energy_pj / (figures.limit_w - figures.idle_w) / 1e6
    if limited_us <= blocks_us:
        return blocks_us
    return float(blocks_us**figures.cycle_share * limited_us ** (1.0 - figures.cycle_share))


def _ending_us(endings: Sequence[Ending], device: DeviceSpec) -> float:
    """Time of the last block of split sums; those of a kernel's parts pass side by side. Units: microseconds. Source: `EndingFigures`."""
    figures = device.fitted.endings
    first_us = {"last block": figures.last_block_us, "last block of columns": figures.last_columns_us}
    if device.kind != "cuda":
        return 0.0
    return max((first_us[e.kind] + figures.arrivals_us * e.arrivals for e in endings if e.kind in first_us), default=0.0)


def price_candidate(work: Work, device: DeviceSpec) -> Parts:
    """The price by which candidates for one pattern are compared: threads of the grid do not limit the copies of stages in flight.

    Units: microseconds. Source: as `price_work`.
    """
    return price_work(replace(work, grid=None) if work.blocks else work, device)


def price_stages(boundary: Parts, blocks: BlockWork, device: DeviceSpec) -> tuple[float, float]:
    """`us` and `arithmetic_us` of `price_candidate` for work that adds blocks of stages to a boundary's, without the other parts.

    boundary: the parts of the work without blocks and without a grid. Units: microseconds. Source: as `price_work`.
    """
    arithmetic_us = max(boundary.arithmetic_us, _side_by_side_us((blocks,), device))
    return boundary.us_with(arithmetic_us), arithmetic_us


def _global_us(work: Work, share: float, device: DeviceSpec) -> float:
    """Time of the global traffic. Units: microseconds. Source: DeviceSpec.transfer_curve, whose copies have enough loads in flight."""
    if work.waves is not None:
        return work.traffic_factor * _waves_us(work.waves, streamed_us(work.global_bytes, device), device)
    us = resident_us(work.global_bytes, device) if work.resident else transfer_us(work.global_bytes, device)
    if work.starts_early and work.fetches_early:  # the latency of the first bytes passes ahead, in place of the launch
        us = min(us, streamed_us(work.global_bytes, device))
    launch, loads = work.grid, work.loads
    if launch is None:
        return work.traffic_factor * us
    # Stores wait for nothing, so that only reads ask for bytes in flight; rings of slots are counted with all bytes.
    only_reads = loads is None and not work.flight_bytes
    waiting_us = (work.read_bytes if only_reads else work.global_bytes) / (device.global_bytes_per_s * share) * 1e6
    us = work.traffic_factor * max(us, waiting_us * (_cached_share(device) if only_reads and work.resident else 1.0))
    us += work.global_bytes / device.global_bytes_per_s * (1.0 / _reached(work, device) - 1.0) * 1e6
    if loads is not None and launch.num_blocks <= loads.resident_blocks * device.num_multiprocessors:
        us += device.fitted.flight.single_wave_us * loads.flight_bytes * launch.num_threads / 1024
    return us


def _waves_us(work: Waves, bytes_us: float, device: DeviceSpec) -> float:
    """Time of waves of blocks whose bytes take `bytes_us` at the memory's pace. Units: microseconds. Source: `ColumnFigures`."""
    slots = device.num_multiprocessors * work.resident
    full, rest = divmod(work.blocks, slots)
    us = full * bytes_us * slots / work.blocks + (max(bytes_us * rest / work.blocks, work.last_us) if rest else 0.0)
    if not full:
        each = work.blocks / device.num_multiprocessors
        us *= 1 + work.uneven_share * (ceil(each) / each - 1)
    under_way = min(work.blocks, slots) * work.flight_bytes
    return us * max(1.0, device.saturating_bytes / under_way, device.num_multiprocessors / work.blocks)


def _cached_share(device: DeviceSpec) -> float:
    """Latency of a load from L2 over that of one from global memory. Source: `StitchFigures.cached_cycles`."""
    return device.fitted.stitch.cached_cycles / device.fitted.stitch.global_cycles


def _reached(work: Work, device: DeviceSpec) -> float:
    """Share of the device's rate of memory that a walk's multiprocessors reach: each has more than its share of it alone, not all.

    Source: `FlightFigures.multiprocessor_shares`. Stages count the port of their multiprocessor themselves.
    """
    if work.grid is None or work.blocks or work.loads is not None:
        return 1.0
    return min(max(work.grid.num_blocks, 1) * device.fitted.flight.multiprocessor_shares / device.num_multiprocessors, 1.0)


def _partial_us(work: Work, device: DeviceSpec) -> float:
    """Time of sectors that stores write a part of. Units: microseconds. Source: DeviceSpec.partial_sectors_per_s."""
    rate = device.partial_sectors_per_s * _reached(work, device)
    return work.partial_sectors / rate * 1e6 if rate else 0.0


def _waited_cycles(work: Work, device: DeviceSpec) -> float:
    """Cycles behind all traffic: stages of the last blocks, and waits of the threads of a walk. Source: `WaitFigures.operation_cycles`."""
    cycles = sum([s.alone_cycles for s in work.behind])
    if device.kind == "cuda":  # the threads of a processor's block are iterations of one loop
        cycles += work.exchange.alone_cycles + work.item_operations * device.fitted.waits.operation_cycles
    return cycles


def _l2_us(work: Work, share: float, device: DeviceSpec) -> float:
    """Time of the bytes between L2 and the multiprocessors. Units: microseconds. Source: DeviceSpec.resident_curve.

    Stages count the waits for their own loads and the rate of their multiprocessor; walks reach the rate of their loads in flight.
    """
    rate = _l2_bytes_per_s(device.resident_curve)
    if not rate:
        return 0.0
    us = work.l2_bytes / rate * 1e6
    if not work.blocks:
        read_bytes = max(work.l2_bytes - work.global_bytes + work.read_bytes, 0)
        us = max(us, read_bytes / (device.global_bytes_per_s * share) * _cached_share(device) * 1e6)
    return work.traffic_factor * us


def _chain_us(work: Work, device: DeviceSpec) -> float:
    """Time of the iterations of a multiprocessor's blocks, one after the other; of rounds of blocks, where a thread's cycles are known.

    An iteration of all concurrent blocks takes the time of their bytes at the multiprocessor's own rate, or the latency that the other
    blocks' bytes do not hide, whichever is longer. The fullest multiprocessor has more blocks than the mean. Units: microseconds.
    """
    launch, loads = work.grid, work.loads
    if launch is None:
        return 0.0
    if loads is None:
        rounds = ceil(launch.num_blocks / (resident_blocks(launch, device) * device.num_multiprocessors))
        return rounds * work.thread_cycles / clock_hz(device) * 1e6 if work.thread_cycles and device.kind == "cuda" else 0.0
    each = -(-launch.num_blocks // device.num_multiprocessors)
    together = min(loads.resident_blocks, each)
    iterations = each * loads.iterations / together
    fullest = max(each * device.num_multiprocessors / launch.num_blocks, 1.0)
    mean_us = work.global_bytes / device.global_bytes_per_s * 1e6 / (iterations * together)
    own_us = mean_us * fullest / device.fitted.flight.multiprocessor_shares
    return iterations * max(together * own_us, loads.wait_us + own_us)


def _idle_start_us(work: Work, device: DeviceSpec) -> float:
    """Part of the latency before a kernel's first use of a loaded element that its loads in flight do not hide. Units: microseconds.

    Source: Little's law.
    """
    launch, loads = work.grid, work.loads
    if launch is None or loads is None or not loads.start_us:
        return 0.0
    blocks = min(launch.num_blocks, loads.resident_blocks * device.num_multiprocessors)
    return max(loads.start_us - blocks * launch.num_threads * loads.flight_bytes / device.global_bytes_per_s * 1e6, 0.0)


def launches_us(launches: int, device: DeviceSpec) -> float:
    """Time of kernel launches inside a captured graph. Units: microseconds. Source: DeviceSpec.graph_launch_us."""
    return launches * device.graph_launch_us


def early_start_us(num_bytes: int, device: DeviceSpec) -> float:
    """Time that a kernel of one wave gains by beginning before the kernel ahead of it ends; negative where it loses.

    num_bytes: its traffic. Units: microseconds. Source: `PipelinedFigures.early_gain_us`, `PipelinedFigures.early_byte_us`.
    """
    fitted = device.fitted.pipelined
    return fitted.early_gain_us - fitted.early_byte_us * num_bytes


def crowding_us(num_bytes: int, num_threads: int, enough_threads: int, device: DeviceSpec) -> float:
    """Time that traffic loses where fewer threads of a multiprocessor are resident than keep the memory busy.

    Units: bytes; threads a multiprocessor; microseconds. Source: DeviceSpec.global_bytes_per_s, in proportion to the threads.
    """
    return num_bytes / device.global_bytes_per_s * 1e6 * (1 - num_threads / enough_threads)


def clock_hz(device: DeviceSpec) -> float:
    """Cycles a second at which threads reach the device's rate. Source: DeviceSpec.flops_per_s."""
    return device.flops_per_s / (device.num_multiprocessors * 2 * device.fitted.stitch.multiply.fma_per_cycle)


def blocks_us(work: BlockWork, device: DeviceSpec) -> float:
    """Time of blocks of stages, beside launch and traffic that is counted in bytes. Units: microseconds. Source: `OverlapFigures`.

    A multiprocessor is busy for every block that it holds; a part of each block's own waits is hidden by the others.
    """
    overlap, together = work.overlap, min(work.resident, -(-work.blocks // device.num_multiprocessors))
    busy = sum([s.busy_cycles for s in work.tile])
    once = sum([s.alone_cycles for s in work.once])
    waves = work.blocks / (device.num_multiprocessors * together)
    waves = ceil(waves) - (1.0 - overlap.last_wave) * (ceil(waves) - waves)
    waiting = _waiting(work, busy) / (together if overlap.waits_hidden else 1)
    cycles = waves * (work.turns * (sum([s.cycles(together) for s in work.tile]) + waiting) + once)
    return overlap.least_us + overlap.counted_share * cycles / clock_hz(device) * 1e6


def busy_us_by_unit(work: Work, device: DeviceSpec) -> dict[Unit, float]:
    """Time that stages keep each unit busy, spread over all multiprocessors. Units: microseconds. Source: the cycles of `Work.blocks`."""
    busy: dict[Unit, float] = {}
    for part in work.blocks:
        for unit, cycles in part.cycles_by_unit().items():
            busy[unit] = busy.get(unit, 0.0) + cycles / device.num_multiprocessors / clock_hz(device) * 1e6
    return busy


def _side_by_side_us(parts: Sequence[BlockWork], device: DeviceSpec) -> float:
    """Time of the blocks of all parts of a kernel: the longest part, and no less than a share of what they keep the device busy together.

    Units: microseconds. Source: `WaitFigures.side_by_side`.
    """
    longest = total = 0.0
    for part in parts:
        us = blocks_us(part, device)
        longest = max(longest, us)
        total += us * min(part.blocks / device.num_multiprocessors, 1.0)
    return max(longest, device.fitted.waits.side_by_side * total)


def least_blocks_us(work: LeastBlocks, device: DeviceSpec) -> float:
    """Lower bound on `blocks_us` of every work whose blocks do at least this and of which no more fit a multiprocessor: the least of all
    numbers of blocks that may share one. The bound holds for blocks that take several turns too.

    Units: microseconds.
    """
    overlap, cycles = work.overlap, inf
    waiting = work.waits + _alone(work.tile, work.threads, overlap)
    for together in range(1, min(work.resident, -(-work.blocks // device.num_multiprocessors)) + 1):
        waves = work.blocks / (device.num_multiprocessors * together)
        waves = ceil(waves) - (1.0 - overlap.last_wave) * (ceil(waves) - waves)
        cycles = min(cycles, waves * (together * work.tile + waiting / (together if overlap.waits_hidden else 1)))
    cycles += overlap.last_wave * work.once
    return (1 - ROUNDING) * (overlap.least_us + overlap.counted_share * cycles / clock_hz(device) * 1e6)


def least_around_us(boundary: Parts, blocks_us: float, device: DeviceSpec) -> float:
    """Lower bound on the price of walks with stages around their traffic (`Work.around`), whose blocks take `blocks_us` at least.

    boundary: the parts of the boundary's work, without blocks and without a grid. More traffic may hide the blocks, where it takes twice as
    long. Units: microseconds. Source: as `price_candidate`.
    """
    beside = replace(boundary, overlap_power=device.fitted.walks.overlap_power)
    return (1 - ROUNDING) * min(beside.us_with(blocks_us), boundary.us_with(2 * blocks_us))


def least_tiles_us(blocks: NDArray[np.int64], threads: int, resident: int, busy: NDArray[np.float64], waits: float,
                   once: NDArray[np.float64], device: DeviceSpec) -> NDArray[np.float64]:
    """`least_blocks_us` of stitched kernels of many numbers of blocks, whose tiles keep a multiprocessor busy for so many cycles at least.

    blocks, busy, once: of each. threads, resident, waits: of all. Units: cycles; microseconds. Source: as `least_blocks_us`.
    """
    overlap = device.fitted.stitch.overlap
    waiting = waits + _alone(1.0, threads, overlap) * busy
    together = np.arange(1, resident + 1).reshape(-1, 1)
    waves = blocks / (device.num_multiprocessors * together)
    waves = np.ceil(waves) - (1.0 - overlap.last_wave) * (np.ceil(waves) - waves)
    cycles = waves * (together * busy + waiting / (together if overlap.waits_hidden else 1))
    least: NDArray[np.float64] = np.where(together <= -(-blocks // device.num_multiprocessors), cycles, inf).min(axis=0)
    least = least + overlap.last_wave * once
    return (1 - 2 * ROUNDING) * (overlap.least_us + overlap.counted_share * least / clock_hz(device) * 1e6)


def _waiting(work: BlockWork, busy: float) -> float:
    """Cycles that one block waits for a tile, its instructions that cannot overlap with each other included."""
    return sum([s.wait_cycles for s in work.tile]) + _alone(busy, work.threads, work.overlap)


def _alone(busy: float, threads: int, overlap: OverlapFigures) -> float:
    """Cycles of instructions that one block cannot overlap with each other."""
    return overlap.alone_share * busy * sqrt(overlap.alone_threads / threads)


def operations_per_s(unit: str, device: DeviceSpec) -> float:
    """Rate of a unit on the whole device: of "threads", of large products by dtype name.

    Units: operations per second. Source: DeviceSpec.flops_per_s, matrix_flops_per_s.
    """
    if unit == "threads":
        return device.flops_per_s
    return dict(device.matrix_flops_per_s).get(unit, device.flops_per_s if unit != "f64" else device.flops_per_s / 2)


def _occupied(work: Work, device: DeviceSpec) -> tuple[int, int, float, float]:
    """(busy multiprocessors, threads on each, share of the bandwidth that their loads reach, microseconds to start the blocks)."""
    if work.grid is None:
        return device.num_multiprocessors, device.max_threads_per_multiprocessor, 1.0, 0.0
    launch = work.grid
    blocks = max(launch.num_blocks, 1)
    busy = min(blocks, device.num_multiprocessors)
    resident = work.loads.resident_blocks if work.loads is not None else resident_blocks(launch, device)
    num_threads = min(resident, -(-blocks // device.num_multiprocessors)) * launch.num_threads
    if work.loads is not None:
        running = min(blocks, resident * device.num_multiprocessors) * launch.num_threads
        return busy, num_threads, _flight_share(running * max(work.loads.flight_bytes, 4), device), _started_us(launch, resident, device)
    per_thread = max(16, min(device.fitted.cost.loads_bytes, work.read_bytes // max(blocks * launch.num_threads, 1)))
    flight_bytes = busy * resident * work.flight_bytes if work.flight_bytes else busy * num_threads * per_thread
    share = min(1.0, flight_bytes / device.saturating_bytes) if device.saturating_bytes else 1.0
    return busy, num_threads, share, _started_us(launch, resident, device)


def _flight_share(flight_bytes: int, device: DeviceSpec) -> float:
    """Share of the best rate that this many bytes of loads in flight reach. Units: bytes of all threads. Source: `FlightFigures`."""
    if not device.saturating_bytes:
        return 1.0
    half, enough = device.fitted.flight.half_share, device.fitted.flight.enough_share
    in_flight = min(flight_bytes / device.saturating_bytes, enough)
    return in_flight / (in_flight + half) * (enough + half) / enough


@lru_cache(maxsize=16)
def _l2_bytes_per_s(curve: tuple[tuple[int, float], ...]) -> float:
    """The best rate of data in L2; 0 where it was not measured. Units: bytes per second."""
    return peak_bytes_per_s(curve) if curve else 0.0


def starts_us(launch: Launch, device: DeviceSpec) -> float:
    """Time to start a kernel's blocks, of which as many are resident as threads leave room for. Units: microseconds.

    Source: DeviceSpec.blocks_per_s.
    """
    return _started_us(launch, resident_blocks(launch, device), device)


def _started_us(launch: Launch, resident: int, device: DeviceSpec) -> float:
    """Time to start the blocks after the first wave, which starts on an empty device. Units: microseconds. Source:
    DeviceSpec.blocks_per_s."""
    behind = launch.num_blocks - resident * device.num_multiprocessors
    return max(behind, 0) / device.blocks_per_s * 1e6 if device.blocks_per_s else 0.0


def blocks_at_once(threads: int, registers: int, shared_bytes: int, device: DeviceSpec) -> int:
    """Blocks that fit a multiprocessor at once, by threads, registers a thread and shared memory; 0 where not even one does."""
    blocks = min(device.max_threads_per_multiprocessor // threads,
                 device.registers_per_multiprocessor // (max(registers, LEAST_THREAD_REGISTERS) * threads))
    return min(blocks, device.shared_bytes_per_multiprocessor // (shared_bytes + RESERVED_SHARED_BYTES)) if shared_bytes else blocks


def resident_blocks(launch: Launch, device: DeviceSpec) -> int:
    """Blocks that fit a multiprocessor at once, by threads and shared memory (registers are not known before compilation)."""
    fit = min(device.max_blocks_per_multiprocessor, device.max_threads_per_multiprocessor // max(launch.num_threads, 1))
    if launch.shared_bytes:
        fit = min(fit, device.shared_bytes_per_multiprocessor // launch.shared_bytes)
    return max(fit, 1)
