"""How long a fused kernel of routines takes: launch + max(transfers, compute), from routines timed one by one on the device.

A routine is timed by itself in simulated fusion environments: threads a block, tiles a block, shared memory that other data of a fusion
would take. What is kept is a ratio: the time its bytes need at the device's best over the time it took, start of the kernel left out.
The paper sums whole running times, so that each routine of a fusion brings its own start of a kernel along, and fused kernels look
slower than they are. Here the bytes of all routines, each divided by its ratio, are added first and pass the device's transfer curve
once: one start, one ramp, one tail. Index arithmetic that routines share is left out of their compute times for the same reason.
Where a device was not calibrated, the ratio is estimated from the loads under way. Source: Filipovic et al., sections 4.2 and 5.3.
"""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

from tilefuse.plan.routine_facts import Facts
from tilefuse.target.device import DeviceSpec

# What an exchange over a block costs each group of tiles, beside its loads: barriers, shuffles, shared memory. Units: microseconds.
FLUSH_US = 0.35
# From the first load of a group of tiles to the last word of the first load, under load. Units: microseconds.
LATENCY_US = 0.9
# Arrival of the last block and what it does beside its loads; one of its loads, many under way. Units: microseconds.
LAST_BLOCK_US, LAST_LOAD_US = 2.6, 0.011
# A kernel before or behind, that the next one of a graph follows closely. Units: microseconds.
EXTRA_KERNEL_US = 0.6
# Atomic additions to distinct words, all multiprocessors together. Units: updates a microsecond.
# Source of these five: scripts of two products and of vector updates with 2048 x 2048 and 2**20 words, one H200, 2026-11-21.
ATOMICS_PER_US = 60000.0
# What of a vector's bytes counts that every block reads again: the caches serve it.
CACHED_SHARE = 0.25


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
    """Routines of a device, timed one by one. `runtime.calibrate_routines` fills it.

    transfers  routine -> (environment, ratio): the time that its bytes need at the device's best rate, over the time they took
    computes   routine -> (environment, microseconds for a million words of the function's largest operand)
    start_us   of a kernel that does nothing, in a CUDA graph; it is left out of both
    """

    device: str
    start_us: float
    transfers: Mapping[RoutineName, Sequence[tuple[Environment, float]]] = field(default_factory=dict)
    computes: Mapping[RoutineName, Sequence[tuple[Environment, float]]] = field(default_factory=dict)


def environments(nested: bool, threads: int) -> tuple[Environment, ...]:
    """The environments in which a routine of instances with so many threads is timed."""
    instances = (1,) if nested or threads > 256 else (1, 2)
    directions = ("x", "y") if nested else ("x",)
    return tuple(Environment(i, n, extra, d) for d in directions for i in instances for n in (1, 8, 64) for extra in (0, 48 << 10))


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
        return self.launch_us + max(self.transfer_us, self.compute_us, self.serial_us) + self.finish_us

    def __str__(self) -> str:
        return (f"{self.us:.2f} us: launch {self.launch_us:.2f} + max(transfers {self.transfer_us:.2f}, compute {self.compute_us:.2f}, "
                f"serial {self.serial_us:.2f}) + finish {self.finish_us:.2f}")


def predict(facts: Facts, device: DeviceSpec, times: RoutineTimes | None = None, decision: Environment | None = None) -> Prediction:
    """The predicted time of a fused kernel; `decision` is its environment in terms of the table."""
    resident = facts.resident_blocks(device)
    groups = max(-(-facts.tiles // (facts.blocks * facts.unroll)), 1)
    each = -(-facts.blocks // device.num_multiprocessors)
    together = min(resident, each)
    loads = flight_ratio(facts, device, min(facts.blocks, resident * device.num_multiprocessors))
    needed = compute_us = 0.0
    for m in facts.moved:
        ratio = 1.0
        if times is not None and decision is not None:
            ratio = nearest(times.transfers.get((m.function, m.implementation, m.routine), ()), decision) or 1.0
        needed += m.num_bytes * (CACHED_SHARE if m.resident else 1.0) / ratio
    if times is not None and decision is not None:
        for function, implementation in dict.fromkeys((m.function, m.implementation) for m in facts.moved):
            us = nearest(times.computes.get((function, implementation, "compute"), ()), decision)
            largest = max(m.num_bytes for m in facts.moved if m.function == function)
            compute_us += (us or 0.0) * largest / 4e6
    needed += facts.partial_bytes / 2
    # The multiprocessor with most blocks is done last.
    balance = each * device.num_multiprocessors / facts.blocks
    transfer_us = max(needed / device.global_bytes_per_s * 1e6 * balance, needed / loads / device.global_bytes_per_s * 1e6)
    # Blocks of a multiprocessor take turns: a group's bytes, or its latency where the others' bytes do not cover it.
    turns = each * groups / together
    bytes_us = transfer_us / turns / together
    serial_us = turns * max(together * bytes_us, LATENCY_US + FLUSH_US * (facts.flushes + facts.passed) + bytes_us)
    finish_us = facts.extra_kernels * (device.graph_launch_us + EXTRA_KERNEL_US) + facts.atomics / ATOMICS_PER_US
    if facts.partial_bytes and facts.extra_kernels:
        finish_us += facts.partial_bytes / 2 / device.global_bytes_per_s * 1e6
    elif facts.partial_bytes:
        finish_us += LAST_BLOCK_US + LAST_LOAD_US * facts.finish_loads
    return Prediction(device.graph_launch_us + LATENCY_US, transfer_us, compute_us, serial_us, finish_us)


def flight_ratio(facts: Facts, device: DeviceSpec, blocks: int) -> float:
    """What of the best rate the loads under way allow: 0.9 with `saturating_bytes` of them."""
    if not device.saturating_bytes:
        return 1.0
    under_way = blocks * facts.threads * max(facts.flight_bytes, 4) / device.saturating_bytes
    return under_way / (under_way + 1 / 9) if under_way < 4 else 0.975


def transfer_time(num_bytes: float, device: DeviceSpec) -> float:
    """Time that a copy of so many bytes needs, by the device's curve. Units: bytes, microseconds."""
    curve = device.transfer_curve
    if not curve:
        return num_bytes / device.global_bytes_per_s * 1e6
    if num_bytes <= curve[0][0]:
        return curve[0][1]
    if num_bytes >= curve[-1][0]:
        return curve[-1][1] * num_bytes / curve[-1][0]
    n = bisect_right([b for b, _ in curve], num_bytes)
    (low, low_us), (high, high_us) = curve[n - 1], curve[n]
    return low_us + (high_us - low_us) * (num_bytes - low) / (high - low)


def nearest(measured: Sequence[tuple[Environment, float]], wanted: Environment) -> float | None:
    """The value measured in the environment most like the wanted one; None if there is none."""
    def distance(e: Environment) -> float:
        return (abs(log(e.instances / wanted.instances)) + abs(log(e.iterations / max(wanted.iterations, 1)))
                + abs(e.extra_shared_bytes - wanted.extra_shared_bytes) / (32 << 10) + 4 * (e.direction != wanted.direction))

    return min(measured, key=lambda pair: distance(pair[0]))[1] if measured else None
