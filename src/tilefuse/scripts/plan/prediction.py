"""How long a fused kernel of routines takes: launch, transfers and computing that cover for each other, and what ends its sums, from
routines timed one by one on the device.

A routine is timed by itself in simulated fusion environments: threads a block, tiles a block, shared memory that other data of a fusion
would take. What is kept is a ratio: the time its bytes need at the device's best over the time it took, start of the kernel left out.
The paper sums whole running times, so that each routine of a fusion brings its own start of a kernel along, and fused kernels look
slower than they are. Here the bytes of all routines are added first and pass the device's transfer curve once: one start, one ramp, one
tail, at the rate that the loads under way allow. Nor do ratios add up: a routine alone keeps fewer loads under way than beside others,
which cover for it. The slowest one by itself is what the fused kernel takes at least. Index arithmetic that routines share is left out of
their compute times. Source: Filipovic et al., sections 4.2 and 5.3. Of 192 fused kernels measured on one H200, 2026-11-22, predictions from
sums of ratios had a standard deviation of 0.17 in their logarithm, with the slowest routine as a bound 0.11.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log, log2

from tilefuse.domain.work import Work
from tilefuse.plan.price.roofline import price_work
from tilefuse.scripts.plan.facts import Facts
from tilefuse.target.device import DeviceSpec

# The constants below were fitted to 525 measured kernels: of four scripts over vectors (2**16 to 2**24 words, f32 and f64) and four over
# matrices (1024 x 1024 to 16384 x 16384), on one H200, 2026-11-21. The logarithm of prediction over measurement has a standard deviation
# of 0.09 (0.18 before that), and of 32 scripts and sizes the first predicted ran at less than 0.95 of the best in three (0.92 to 0.93).
# Time that a kernel's start costs less than that of calibration's copies: it stands ready while the one ahead ends. Units: microseconds.
STANDING_READY_US = 0.95
# Transfers, computing and latency cover for each other but for what the sum of these powers leaves.
COVER_POWER = 6
# Cost of an exchange over a block for each group of tiles, beside its loads: barriers, shuffles, shared memory. Units: microseconds.
FLUSH_US = 0.3
# From the first load of a group of tiles to the last word of the first load, under load. Units: microseconds.
LATENCY_US = 1.0
# A thousand blocks that exchange partial values at their end: each loads nothing meanwhile. Units: microseconds; bytes of a block with
# which the others hide half of it.
EXCHANGES_US, EXCHANGE_BYTES = 0.47, 16 << 10
# Rate at which one multiprocessor can load, in shares of the rate of each when all load.
OWN_SHARES = 2.1
# Arrival of the last block and what it does beside its loads; one of its loads, many under way; each block's wait for its own arrival,
# a thousand of them (z = a x + y and z.u of 2^26 f32: 242 us without arrivals, 251 with 16384). Units: microseconds.
LAST_BLOCK_US, LAST_LOAD_US, ARRIVALS_US = 1.7, 0.008, 0.55
# A kernel before or behind, that the next one of a graph follows closely; what one that combines partial values takes beyond one that
# clears words. Units: microseconds.
EXTRA_KERNEL_US, COMBINING_KERNEL_US = 0.7, 0.15
# Where all blocks run at once, one's loads, sums and exchange are not hidden behind another's: for each KiB that a block has under way.
# Units: microseconds.
ONE_WAVE_US = 0.01
# Atomic additions to distinct words, all multiprocessors together. Units: updates a microsecond.
ATOMICS_PER_US = 400000.0
# Share of a vector's bytes that counts where every block reads it again: the caches serve it.
CACHED_SHARE = 0.02
# Time of loads, as a share of the device's copies of as many bytes: 1 GiB is read in 237 us, copied in 252.
READ_SHARE = 0.93
# Share of the best rate that loads word by word reach, and rows of a tile so short that memory turns to another row: half at so many bytes.
# Assumed: the kernels measured at sizes beyond the caches had wide loads; rows of 512 bytes reached 0.74 to 0.95, those of 4096 all of it.
WORD_BY_WORD, ROW_BYTES, LONG_ROW_BYTES = 0.9, 64, 4096
# Share that each doubling of a block's walk adds, since a block loads nothing while it computes: up to 0.02 in four scripts.
# Share that a register beyond some adds: fewer warps cover for each other; it decides between decisions that are alike otherwise.
WALK_SHARE, REGISTER_SHARE, FREE_REGISTERS = 0.008, 0.0004, 60
# Time that the uneven ends of a triangle's walks add: so much times the part of a side that one block walks. It decides
# between walks that are alike otherwise. Source: symmetric products on one H200: 8192 x 8192 f64 took 74.9 us with walks of a 32nd of a
# side and 83.4 of a 16th, 16384 x 16384 f32 132.5 with a 64th and 149.1 with a 33rd.
RAGGED_SHARE = 0.4
# Probes that seem to be faster than the device's best by more than this were timed wrongly.
MOST_RATIO = 1.1
# Loads under way, in parts of the device's saturating bytes, with which half of the best rate is reached.
HALF_FLIGHT = 0.19
# More than this many times the saturating bytes under way gain nothing.
ENOUGH_FLIGHT = 5.0


@dataclass(frozen=True)
class Environment:
    """A simulated fusion: instances a block, tiles a block and the direction of the walk over them, shared memory beside the routine's
    own. Units: bytes."""

    instances: int
    iterations: int
    extra_shared_bytes: int
    direction: str = "x"


# (function, implementation, routine): "load A", "compute", "store y".
RoutineName = tuple[str, str, str]


@dataclass(frozen=True)
class RoutineTimes:
    """Routines of a device, timed one by one. `scripts.calibrate` fills it.

    transfers  routine -> (environment, ratio): the time that its bytes need at the device's best rate, over the time they took
    computes   routine -> (environment, microseconds for a million words of the function's largest operand)
    start_us   of a kernel that does nothing, in a CUDA graph; it is left out of both
    """

    device: str
    start_us: float
    transfers: Mapping[RoutineName, Sequence[tuple[Environment, float]]] = field(default_factory=dict)
    computes: Mapping[RoutineName, Sequence[tuple[Environment, float]]] = field(default_factory=dict)


def environments(nested: bool, threads: int, moves: bool = True) -> tuple[Environment, ...]:
    """The environments in which a routine of instances with so many threads is timed; `moves`: it loads or stores.

    What computes is timed in one walk: its operands stay on chip, and neither a block's walk nor other data's memory changes its work.
    """
    instances = (1,) if nested or threads > 256 else (1, 2)
    directions = ("x", "y") if nested else ("x",)
    walks = ((1, 0), (8, 0), (64, 0), (8, 48 << 10)) if moves else ((8, 0),)
    return tuple(Environment(i, n, extra, d) for d in directions for i in instances for n, extra in walks)


def transfer_ratio(num_bytes: int, us: float, start_us: float, device: DeviceSpec) -> float:
    """Entry of the table from a probe of a load or store, at most MOST_RATIO. Units: bytes moved, microseconds of the probe, of an empty
    kernel."""
    return min(num_bytes / device.global_bytes_per_s * 1e6 / max(us - start_us, 0.01), MOST_RATIO)


def compute_us(num_words: int, us: float, start_us: float) -> float:
    """Entry of the table from a probe of a compute routine: microseconds for a million words of the function's largest operand."""
    return max(us - start_us, 0.0) / num_words * 1e6


@dataclass(frozen=True)
class Prediction:
    """The parts of a predicted time. Units: microseconds."""

    launch_us: float
    transfer_us: float
    compute_us: float
    serial_us: float
    finish_us: float

    @property
    def us(self) -> float:
        """The time of the kernel, and of those before and behind it."""
        # Computing that takes less than half of the transfers would add less than timings of probes differ by.
        computing_us = self.compute_us if self.compute_us > self.transfer_us / 2 else 0.0
        parts = (self.transfer_us, computing_us, self.serial_us)
        covered = sum(part**COVER_POWER for part in parts) ** (1 / COVER_POWER)
        return behind_another_us(self.launch_us + covered) + self.finish_us

    def __str__(self) -> str:
        return (f"{self.us:.2f} us: launch {self.launch_us:.2f} and transfers {self.transfer_us:.2f}, compute {self.compute_us:.2f}, "
                f"serial {self.serial_us:.2f}, which cover for each other, + finish {self.finish_us:.2f}")


def predict(facts: Facts, device: DeviceSpec, times: RoutineTimes | None = None, decision: Environment | None = None) -> Prediction:
    """The predicted time of a fused kernel; `decision` is its environment in terms of the table."""
    resident = facts.resident_blocks(device)
    groups = max(-(-facts.tiles // (facts.blocks * facts.unroll)), 1)
    each = -(-facts.blocks // device.num_multiprocessors)
    together = min(resident, each)
    loads = flight_ratio(facts, device, min(facts.blocks, resident * device.num_multiprocessors))
    needed = slowest = computing_us = 0.0
    for m in facts.moved:
        share, row = READ_SHARE if m.routine.startswith("load") else 1.0, min(m.row_bytes, LONG_ROW_BYTES)
        if m.resident:
            needed += m.num_bytes * CACHED_SHARE
            continue
        needed += m.num_bytes * share / (row / (row + ROW_BYTES) * (1.0 if m.wide else WORD_BY_WORD))
        measured = None if times is None or decision is None else between_walks(
            times.transfers.get((m.function, m.implementation, m.routine), ()), decision)
        if measured is not None:
            slowest = max(slowest, m.num_bytes * share / measured)
    needed = max(needed, slowest)
    if times is not None and decision is not None:
        for function, implementation in dict.fromkeys((m.function, m.implementation) for m in facts.moved):
            us = nearest(times.computes.get((function, implementation, "compute"), ()), decision)
            largest = max(m.num_bytes for m in facts.moved if m.function == function)
            computing_us += (us or 0.0) * largest / 4e6
    needed += facts.partial_bytes / 2
    walked = 1 + WALK_SHARE * log2(groups) + REGISTER_SHARE * max(facts.registers - FREE_REGISTERS, 0) + RAGGED_SHARE * facts.ragged
    # The curve has the ramp of a copy with loads enough under way; fewer of them bound the rate.
    transfer_us = walked * max(price_work(Work(global_bytes=int(needed)), device).global_us,
                               needed / device.global_bytes_per_s * 1e6 / loads)
    if each <= resident:
        transfer_us += ONE_WAVE_US * facts.flight_bytes * facts.threads / 1024
    # Blocks of a multiprocessor take turns: their bytes as fast as it can load alone, or the latency that the others' bytes do not cover.
    # The fullest multiprocessor has more blocks than the mean, but all share one memory: it is not done later than that.
    turns = each * groups / together
    fullest = max(each * device.num_multiprocessors / facts.blocks, 1.0)
    bytes_us = needed / device.global_bytes_per_s * 1e6 / (turns * together) * fullest / OWN_SHARES
    serial_us = turns * max(together * bytes_us, LATENCY_US + FLUSH_US * (facts.flushes + facts.passed) + bytes_us)
    finish_us = facts.extra_kernels * (device.graph_launch_us + EXTRA_KERNEL_US) + facts.atomics / ATOMICS_PER_US
    if facts.flushes or facts.extra_kernels or facts.partial_bytes:
        finish_us += EXCHANGES_US * facts.blocks / 1000 / (1 + needed / facts.blocks / EXCHANGE_BYTES)
    if facts.partial_bytes and facts.extra_kernels:
        finish_us += COMBINING_KERNEL_US + facts.partial_bytes / 2 / device.global_bytes_per_s * 1e6
    elif facts.partial_bytes:
        finish_us += last_block_us(facts.blocks) + LAST_LOAD_US * facts.finish_loads
    return Prediction(device.graph_launch_us, transfer_us, computing_us, serial_us, finish_us)


def least_us(read_bytes: int, written_bytes: int, device: DeviceSpec) -> float:
    """Lower bound on `predict` where a kernel moves so many bytes: its start and its transfers alone. Units: microseconds."""
    needed = int(read_bytes * READ_SHARE + written_bytes)
    return behind_another_us(price_work(Work(global_bytes=needed), device).us)


def behind_another_us(us: float) -> float:
    """Time that a kernel adds to a program in a graph, given its time by itself: some of its start passes while the one ahead ends."""
    return max(us - STANDING_READY_US, us / 4)


def last_block_us(blocks: int) -> float:
    """Time in which so many blocks count their arrivals and the last one combines their partial results. Units: microseconds."""
    return LAST_BLOCK_US + ARRIVALS_US * blocks / 1000


def flight_ratio(facts: Facts, device: DeviceSpec, blocks: int) -> float:
    """Share of the best rate that the loads in flight allow."""
    if not device.saturating_bytes:
        return 1.0
    under_way = min(blocks * facts.threads * max(facts.flight_bytes, 4) / device.saturating_bytes, ENOUGH_FLIGHT)
    return under_way / (under_way + HALF_FLIGHT) * (ENOUGH_FLIGHT + HALF_FLIGHT) / ENOUGH_FLIGHT


def between_walks(measured: Sequence[tuple[Environment, float]], wanted: Environment) -> float | None:
    """The value of the walk that a block makes, between those measured in the environments most like the wanted one; None without any.

    Along the walk's logarithm: the first tiles of a block bring most of the loads that cover for each other.
    """
    near = nearest(measured, wanted)
    if near is None:
        return None
    like = min((e for e, _ in measured), key=lambda e: _distance(e, wanted))
    walks = {e.iterations: value for e, value in measured
             if (e.instances, e.extra_shared_bytes, e.direction) == (like.instances, like.extra_shared_bytes, like.direction)}
    tiles = max(wanted.iterations, 1)
    below, above = max((n for n in walks if n <= tiles), default=0), min((n for n in walks if n >= tiles), default=0)
    if not below or not above or below == above:
        return near
    part = log(tiles / below) / log(above / below)
    return walks[below] * (1 - part) + walks[above] * part


def nearest(measured: Sequence[tuple[Environment, float]], wanted: Environment) -> float | None:
    """The value measured in the environment most like the wanted one; None if there is none."""
    return min(measured, key=lambda pair: _distance(pair[0], wanted))[1] if measured else None


def _distance(e: Environment, wanted: Environment) -> float:
    return (abs(log(e.instances / wanted.instances)) + abs(log(e.iterations / max(wanted.iterations, 1)))
            + abs(e.extra_shared_bytes - wanted.extra_shared_bytes) / (32 << 10) + 4 * (e.direction != wanted.direction))
