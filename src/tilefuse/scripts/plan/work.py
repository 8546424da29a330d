"""Work of a script's kernels: of fused routines, and of kernels from meanings beside them. `domain/roofline.py` prices both.

Each routine is timed alone on the device, in simulated fusions (`routine_times.py`). The paper sums whole running times of routines. Each
routine then brings its own kernel start, and fused kernels look slower than they are. Here the bytes of all routines are added and pass the
device's transfer curve once: one start, one ramp and one tail, at the rate that the loads in flight allow. Ratios do not add up either: a
routine alone has fewer loads in flight than one beside others, which hide its latency. The slowest routine alone is a lower bound on the
fused kernel's time. Compute times exclude index arithmetic, which routines share.
Source: Filipovic et al., sections 4.2 and 5.3. H200, 2026-11-22, 192 fused kernels: the logarithm of prediction over measurement has a
standard deviation of 0.17 with sums of ratios, and of 0.11 with the slowest routine as a bound.
"""
from __future__ import annotations

from dataclasses import replace
from math import log2

from tilefuse.domain.roofline import price_work
from tilefuse.domain.work import LoadChain, Work
from tilefuse.plan.pattern import PlannedKernel
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.scripts.plan.facts import Facts, Moved
from tilefuse.scripts.plan.routine_times import Environment, RoutineTimes, interpolated_ratio, nearest_value
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.scripts import ScriptFigures
from tilefuse.target.launch import Launch


def routine_work(facts: Facts, device: DeviceSpec, times: RoutineTimes | None = None, environment: Environment | None = None) -> Work:
    """The work of a fused kernel of routines and of its additional kernels.

    times, environment: measured routines, and the kernel's place among their environments. A measured ratio of a load or store is a lower
    bound on the kernel's bytes; measured compute routines are its arithmetic.
    """
    figures = device.fitted.scripts
    num_bytes = _counted_bytes(facts, figures)
    if times is not None and environment is not None:
        num_bytes = max(num_bytes, _slowest_bytes(facts, figures, times, environment))
    num_bytes += facts.partial_bytes / 2
    groups = max(-(-facts.tiles // (facts.blocks * facts.unroll)), 1)
    wait_us = figures.load_latency_us + figures.exchange_us * (facts.exchanges + facts.remapped)
    return Work(
        launches=1 + facts.extra_kernels, grid=Launch(facts.blocks, facts.threads, 1, facts.shared_bytes), global_bytes=int(num_bytes),
        traffic_factor=_traffic_factor(facts, groups, figures),
        loads=LoadChain(facts.flight_bytes, facts.resident_blocks(device), groups, wait_us),
        stage_us=0.0 if times is None or environment is None else _measured_compute_us(facts, times, environment),
        serial_us=_finish_us(facts, num_bytes, device),
        serial_bytes=facts.partial_bytes // 2 if facts.extra_kernels else 0, follows_another=True)


def least_us(read_bytes: int, written_bytes: int, device: DeviceSpec) -> float:
    """Lower bound on the price of `routine_work` for a kernel that moves these bytes: its start and its traffic. Units: microseconds."""
    num_bytes = int(read_bytes * device.fitted.scripts.read_share + written_bytes)
    return price_work(Work(global_bytes=num_bytes, follows_another=True), device).us


def template_us(kernel: PlannedKernel, device: DeviceSpec) -> float:
    """Predicted time of a planned kernel beside fused routines. Units: microseconds."""
    return price_work(template_work(kernel, device), device).us


def template_work(kernel: PlannedKernel, device: DeviceSpec) -> Work:
    """The work of a planned kernel beside fused routines.

    The planner compares kernels of one graph with each other: it counts every byte as a copy does, and leaves out the start and end of a
    grid whose blocks take rows in turns. Against routines both count.
    """
    program = kernel.program
    work, moved = AnalyticCost(device).work(program), program.bytes_moved
    if device.kind != "cuda" or not moved:
        return work
    figures = device.fitted.scripts
    turns_us = figures.persistent_us if any(e.kind == "persistent" for e in work.endings) else 0.0
    return replace(work, traffic_factor=1 - (1 - figures.read_share) * program.bytes_read / moved, serial_us=work.serial_us + turns_us,
                   follows_another=True)


def _counted_bytes(facts: Facts, figures: ScriptFigures) -> float:
    """Bytes of a copy that takes as long as the kernel's loads and stores. Units: bytes.

    Short rows and accesses of words reach a share of the best rate; of vectors that every block reads again, few bytes miss the caches.
    """
    counted = 0.0
    for m in facts.moved:
        if m.resident:
            counted += m.num_bytes * figures.cached_share
            continue
        row_bytes = min(m.row_bytes, figures.long_row_bytes)
        rate = row_bytes / (row_bytes + figures.half_rate_row_bytes) * (1.0 if m.wide else figures.word_by_word_rate)
        counted += m.num_bytes * _read_share(m, figures) / rate
    return counted


def _read_share(moved: Moved, figures: ScriptFigures) -> float:
    """Time of a load or store, as a share of a copy's."""
    return figures.read_share if moved.routine.startswith("load") else 1.0


def _slowest_bytes(facts: Facts, figures: ScriptFigures, times: RoutineTimes, environment: Environment) -> float:
    """Bytes of a copy that takes as long as the slowest measured load or store alone; 0 without any. Units: bytes."""
    slowest = 0.0
    for m in facts.moved:
        rows = () if m.resident else times.transfers.get((m.function, m.implementation, m.routine), ())
        ratio = interpolated_ratio(rows, environment)
        if ratio is not None:
            slowest = max(slowest, m.num_bytes * _read_share(m, figures) / ratio)
    return slowest


def _measured_compute_us(facts: Facts, times: RoutineTimes, environment: Environment) -> float:
    """Time of all compute routines, from those measured. Units: microseconds."""
    us = 0.0
    for function, implementation in dict.fromkeys((m.function, m.implementation) for m in facts.moved):
        us_per_million = nearest_value(times.computes.get((function, implementation, "compute"), ()), environment) or 0.0
        us += us_per_million * max(m.num_bytes / m.word_bytes for m in facts.moved if m.function == function) / 1e6
    return us


def _traffic_factor(facts: Facts, groups: int, figures: ScriptFigures) -> float:
    """Time of the kernel's traffic over that of a copy: long walks, many registers and uneven ends of triangles slow it down."""
    registers = max(facts.registers - figures.free_registers, 0)
    return 1 + figures.walk_share * log2(groups) + figures.register_share * registers + figures.ragged_share * facts.ragged


def _finish_us(facts: Facts, num_bytes: float, device: DeviceSpec) -> float:
    """Waits for partial values behind the kernel's traffic, and starts of its additional kernels. Units: microseconds."""
    figures = device.fitted.scripts
    us = facts.extra_kernels * figures.extra_kernel_us + facts.atomics / figures.atomics_per_us
    if facts.exchanges or facts.extra_kernels or facts.partial_bytes:
        us += figures.final_exchange_us * facts.blocks / (1 + num_bytes / facts.blocks / figures.half_hidden_bytes)
    if facts.partial_bytes and facts.extra_kernels:
        return us + figures.combining_us
    if facts.partial_bytes:
        arrivals_us = device.fitted.endings.arrivals_us * facts.blocks
        us += figures.last_block_us + arrivals_us + figures.last_load_us * facts.finish_loads
    return us
