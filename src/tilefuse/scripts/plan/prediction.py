"""Predicted time of a fused kernel of routines: launch, overlapping transfers and computation, and the finish of its sums.

Each routine is timed alone on the device, in simulated fusion environments: threads per block, tiles per block, shared memory of the
fusion's other data. The table stores a ratio: time of its bytes at the device's best rate, over its measured time without the kernel start.
The paper sums whole running times. Each routine then brings its own kernel start, and fused kernels look slower than they are. Here the
bytes of all routines are added and pass the device's transfer curve once: one start, one ramp and one tail, at the rate that the loads in
flight allow. Ratios do not add up either: a routine alone has fewer loads in flight than one beside others, which hide its latency. The
slowest routine alone is a lower bound on the fused kernel's time. Compute times exclude index arithmetic, which routines share.
Source: Filipovic et al., sections 4.2 and 5.3. H200, 2026-11-22, 192 fused kernels: the logarithm of prediction over measurement has a
standard deviation of 0.17 with sums of ratios, and of 0.11 with the slowest routine as a bound.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log, log2

from tilefuse.domain.work import Work
from tilefuse.plan.price.roofline import price_work
from tilefuse.scripts.plan.facts import Facts
from tilefuse.target.device import DeviceSpec

# The constants below are fitted to 525 measured kernels: four scripts over vectors (2**16 to 2**24 words, f32 and f64) and four over
# matrices (1024 x 1024 to 16384 x 16384), H200, 2026-11-21. The logarithm of prediction over measurement has a standard deviation of 0.09
# (0.18 before the fit). In 3 of 32 scripts and sizes the best predicted program ran at less than 0.95 of the best speed (0.92 to 0.93).

# Saving of a kernel's start over that of calibration's copies: it becomes ready while its predecessor ends. Units: microseconds.
STANDING_READY_US = 0.95
# Exponent of the norm that combines transfers, computation and latency, which overlap almost completely.
COVER_POWER = 6
# Cost of an exchange within a block, for each group of tiles: barriers, shuffles, shared memory. Units: microseconds.
FLUSH_US = 0.3
# Latency of the first load of a group of tiles, on a busy device. Units: microseconds.
LATENCY_US = 1.0
# Cost of the final exchange of partial values for a thousand blocks, which load nothing meanwhile. Units: microseconds. Bytes per block at
# which other blocks hide half of it.
EXCHANGES_US, EXCHANGE_BYTES = 0.47, 16 << 10
# Largest load rate of one multiprocessor, as a multiple of its share when all load.
OWN_SHARES = 2.1
# Last block's work besides its loads; one of its loads, with many in flight; a thousand blocks' waits for their own arrivals.
# Units: microseconds. H200, z = a x + y and z.u of 2^26 f32: 242 us without arrivals, 251 us with 16384.
LAST_BLOCK_US, LAST_LOAD_US, ARRIVALS_US = 1.7, 0.008, 0.55
# Additional kernel in a graph before or after the main one; further cost of one that combines partial values instead of clearing words.
# Units: microseconds.
EXTRA_KERNEL_US, COMBINING_KERNEL_US = 0.7, 0.15
# Cost for each KiB that a block has in flight, in a grid of a single wave: no later block hides its loads, sums and exchange.
# Units: microseconds.
ONE_WAVE_US = 0.01
# Rate of atomic additions to distinct words, on all multiprocessors together. Units: updates per microsecond.
ATOMICS_PER_US = 400000.0
# Share of the bytes of a vector to count if every block reads it again: the caches serve the rest.
CACHED_SHARE = 0.02
# Time of loads, as a share of that of copies of as many bytes. H200, 1 GiB: read in 237 us, copied in 252 us.
READ_SHARE = 0.93
# Share of the best rate of loads word by word. Length of a tile's rows at which half of the best rate is reached, and length from which all
# of it is, in bytes: short rows change the DRAM page often.
# Assumed: the kernels measured beyond the caches had wide loads; rows of 512 bytes reached 0.74 to 0.95, those of 4096 all of it.
WORD_BY_WORD, ROW_BYTES, LONG_ROW_BYTES = 0.9, 64, 4096
# Relative cost of each doubling of a block's walk, since a block loads nothing while it computes: up to 0.02 in four scripts. Relative cost
# of each register beyond the free ones, which lowers occupancy; it decides between otherwise equal decisions.
WALK_SHARE, REGISTER_SHARE, FREE_REGISTERS = 0.008, 0.0004, 60
# Relative cost of uneven ends of a triangle's walks, per share of a side that one block walks. It decides between otherwise equal walks.
# H200, symmetric products: 8192 x 8192 f64 74.9 us with walks of a 32nd of a side, 83.4 us with a 16th; 16384 x 16384 f32 132.5 us with a
# 64th, 149.1 us with a 33rd.
RAGGED_SHARE = 0.4
# Upper bound on a probe's ratio. A larger one is a timing error.
MOST_RATIO = 1.1
# Loads in flight at which half of the best rate is reached, as a share of the device's saturating bytes.
HALF_FLIGHT = 0.19
# Multiple of the saturating bytes beyond which further loads in flight gain nothing.
ENOUGH_FLIGHT = 5.0


@dataclass(frozen=True)
class Environment:
    """A simulated fusion: instances per block, tiles per block and the direction of the walk over them, and shared memory besides the
    routine's own, in bytes."""

    instances: int
    iterations: int
    extra_shared_bytes: int
    direction: str = "x"


# (function, implementation, routine): "load A", "compute", "store y".
RoutineName = tuple[str, str, str]


@dataclass(frozen=True)
class RoutineTimes:
    """Routines of a device, timed one by one. `scripts.calibrate` fills it.

    transfers  routine -> (environment, ratio): time of its bytes at the device's best rate, over their measured time
    computes   routine -> (environment, microseconds for a million words of the function's largest operand)
    start_us   time of an empty kernel in a CUDA graph; neither table includes it
    """

    device: str
    start_us: float
    transfers: Mapping[RoutineName, Sequence[tuple[Environment, float]]] = field(default_factory=dict)
    computes: Mapping[RoutineName, Sequence[tuple[Environment, float]]] = field(default_factory=dict)


def environments(nested: bool, threads: int, moves: bool = True) -> tuple[Environment, ...]:
    """The environments in which to time a routine whose instance has `threads` threads. moves: it loads or stores.

    A compute routine is timed in a single walk: its operands are on chip, so neither the walk nor other data's memory changes its work.
    """
    instances = (1,) if nested or threads > 256 else (1, 2)
    directions = ("x", "y") if nested else ("x",)
    walks = ((1, 0), (8, 0), (64, 0), (8, 48 << 10)) if moves else ((8, 0),)
    return tuple(Environment(i, n, extra, d) for d in directions for i in instances for n, extra in walks)


def transfer_ratio(num_bytes: int, us: float, start_us: float, device: DeviceSpec) -> float:
    """Table entry of a load or store, at most MOST_RATIO. Units: bytes moved; microseconds of the probe and of an empty kernel."""
    return min(num_bytes / device.global_bytes_per_s * 1e6 / max(us - start_us, 0.01), MOST_RATIO)


def compute_us(num_words: int, us: float, start_us: float) -> float:
    """Table entry of a compute routine: microseconds for a million words of the function's largest operand."""
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
        """Time of the kernel and of its additional kernels."""
        # Computation that takes less than half of the transfers adds less than the spread of the probes' times.
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
    # The curve includes the ramp of a copy with enough loads in flight. Fewer loads bound the rate.
    transfer_us = walked * max(price_work(Work(global_bytes=int(needed)), device).global_us,
                               needed / device.global_bytes_per_s * 1e6 / loads)
    if each <= resident:
        transfer_us += ONE_WAVE_US * facts.flight_bytes * facts.threads / 1024
    # Blocks of a multiprocessor run in waves. Each wave takes its bytes at the multiprocessor's own rate, or the latency that the other
    # blocks' bytes do not hide. The fullest multiprocessor has more blocks than the mean.
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
    """Lower bound on `predict` for a kernel that moves these bytes: its start and its transfers. Units: microseconds."""
    needed = int(read_bytes * READ_SHARE + written_bytes)
    return behind_another_us(price_work(Work(global_bytes=needed), device).us)


def behind_another_us(us: float) -> float:
    """Time that a kernel adds to a graph, from its time alone: part of its start overlaps the end of its predecessor."""
    return max(us - STANDING_READY_US, us / 4)


def last_block_us(blocks: int) -> float:
    """Time for the arrivals of `blocks` blocks and for the last one's work besides its loads. Units: microseconds."""
    return LAST_BLOCK_US + ARRIVALS_US * blocks / 1000


def flight_ratio(facts: Facts, device: DeviceSpec, blocks: int) -> float:
    """Share of the best rate that the loads in flight allow."""
    if not device.saturating_bytes:
        return 1.0
    under_way = min(blocks * facts.threads * max(facts.flight_bytes, 4) / device.saturating_bytes, ENOUGH_FLIGHT)
    return under_way / (under_way + HALF_FLIGHT) * (ENOUGH_FLIGHT + HALF_FLIGHT) / ENOUGH_FLIGHT


def between_walks(measured: Sequence[tuple[Environment, float]], environment: Environment) -> float | None:
    """The value for the environment's walk, interpolated between walks measured in the most similar environments; None without any.

    The interpolation is linear in the walk's logarithm: the first tiles of a block add most of the overlapping loads.
    """
    near = nearest(measured, environment)
    if near is None:
        return None
    like = min((e for e, _ in measured), key=lambda e: _distance(e, environment))
    walks = {e.iterations: value for e, value in measured
             if (e.instances, e.extra_shared_bytes, e.direction) == (like.instances, like.extra_shared_bytes, like.direction)}
    tiles = max(environment.iterations, 1)
    below, above = max((n for n in walks if n <= tiles), default=0), min((n for n in walks if n >= tiles), default=0)
    if not below or not above or below == above:
        return near
    part = log(tiles / below) / log(above / below)
    return walks[below] * (1 - part) + walks[above] * part


def nearest(measured: Sequence[tuple[Environment, float]], environment: Environment) -> float | None:
    """The value measured in the most similar environment; None if there is none."""
    return min(measured, key=lambda pair: _distance(pair[0], environment))[1] if measured else None


def _distance(e: Environment, environment: Environment) -> float:
    return (abs(log(e.instances / environment.instances)) + abs(log(e.iterations / max(environment.iterations, 1)))
            + abs(e.extra_shared_bytes - environment.extra_shared_bytes) / (32 << 10) + 4 * (e.direction != environment.direction))
