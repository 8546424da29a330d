"""Known devices by name, the host as a device, and how a device that no record names is described by what its driver tells.

Numbers of devices that were not measured here come from data sheets and say so; `tilefuse` plans with them but promises nothing.
"""
from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tilefuse.base.errors import OptionError, nearest
from tilefuse.target.capabilities import Capability, arch_of, capabilities_of
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.target.fitted.figures import H100_FIGURES

# A copy kernel reaches this part of the memory's rated bandwidth. Source: one H200, 4.264 of 4.8 TB/s at 1 GiB, 2026-11-21.
REACHED_FRACTION = 4.264 / 4.8

# A large product reaches this part of the data sheet's dense rate. Source: the fraction taken for the A100; one H200 reaches 0.7.
DENSE_FRACTION = 0.8

# Rows of 64 values a thread that are held as 16-bit pairs take 64 registers for sm_90a; for sm_100a and sm_120a up to 100, and with fewer
# they spill. Source: the assembler of NVRTC 13.5, batch normalisation and softmax by clusters of tests/golden.
BLACKWELL_REGISTERS = 100

_DATA_SHEET = "NVIDIA data sheet, bandwidth times the fraction that a copy reaches on an H200"
_PROPERTIES = "CUDA C++ Programming Guide, table of compute capabilities"
_AS_H200 = "taken over from the H200's measurement"


def _scaled_curve(global_bytes_per_s: float) -> tuple[tuple[int, float], ...]:
    """The H200's times scaled to another peak; what the smallest transfer takes is latency, which is alike on all of them."""
    factor = H200.global_bytes_per_s / global_bytes_per_s
    latency_us = H200.transfer_curve[0][1]
    return tuple((size, latency_us + (us - latency_us) * factor) for size, us in H200.transfer_curve)


H100 = replace(
    H200, name="h100", resident_clusters=(), l2_bytes=52428800, memory_bytes=85899345920, global_bytes_per_s=3.35e12 * REACHED_FRACTION,
    transfer_curve=_scaled_curve(3.35e12 * REACHED_FRACTION), saturating_bytes=int(H200.saturating_bytes * 3.35 / 4.8),
    fitted=H100_FIGURES,
    origins=(("global_bytes_per_s", _DATA_SHEET), ("shared_bytes_per_block", _PROPERTIES), ("launch_us", _AS_H200),
             ("transfer_curve", "the H200's, scaled"), ("matrix_flops_per_s", _AS_H200),
             ("graph_launch_us", _AS_H200), ("resident_curve", _AS_H200), ("saturating_bytes", "the H200's, scaled"),
             ("flops_per_s", _AS_H200), ("shared_bytes_per_s", _AS_H200)))

A100 = replace(
    H200, name="a100", arch=arch_of((8, 0)), capabilities=capabilities_of((8, 0)), resident_clusters=(),
    num_multiprocessors=108, shared_bytes_per_block=166912, shared_bytes_per_multiprocessor=167936,
    l2_bytes=41943040, memory_bytes=85899345920, max_cluster_blocks=1, global_bytes_per_s=2.039e12 * REACHED_FRACTION,
    flops_per_s=19.5e12, transfer_curve=_scaled_curve(2.039e12 * REACHED_FRACTION),
    saturating_bytes=int(H200.saturating_bytes * 2.039 / 4.8), shared_bytes_per_s=108 * 128 * 1.41e9,
    matrix_flops_per_s=(("bf16", 250.0e12), ("f16", 250.0e12), ("tf32", 125.0e12), ("f32", 19.5e12)),
    origins=(("num_multiprocessors", "NVIDIA data sheet, A100 80 GB SXM"), ("global_bytes_per_s", _DATA_SHEET),
             ("shared_bytes_per_block", f"{_PROPERTIES}, 8.0: 163 KB"), ("launch_us", _AS_H200), ("flops_per_s", "NVIDIA data sheet"),
             ("transfer_curve", "the H200's, scaled"), ("graph_launch_us", _AS_H200), ("resident_curve", _AS_H200),
             ("saturating_bytes", "the H200's, scaled"), ("shared_bytes_per_s", f"{_PROPERTIES}: 32 banks a clock, at 1.41 GHz"),
             ("matrix_flops_per_s", "NVIDIA data sheet, four fifths of it")))


def _from_data_sheet(name: str, capability: Capability, bandwidth: float, clock: float, flops: float, matrix_flops: tuple[float, float],
                     sheet: str, **limits: Any) -> DeviceSpec:
    """A record of published figures: the H200's times scaled to the bandwidth, the rest from data sheets.

    matrix_flops: dense products of 16-bit operands and of tf32. Units: bytes a second, hertz, operations a second.
    """
    reached = bandwidth * REACHED_FRACTION
    flops_16bit, flops_tf32 = (DENSE_FRACTION * rate for rate in matrix_flops)
    return replace(
        H200, name=name, arch=arch_of(capability), capabilities=capabilities_of(capability), resident_clusters=(),
        global_bytes_per_s=reached, flops_per_s=flops, transfer_curve=_scaled_curve(reached),
        saturating_bytes=int(H200.saturating_bytes * bandwidth / 4.8e12),
        shared_bytes_per_s=limits["num_multiprocessors"] * 128 * clock,
        matrix_flops_per_s=(("bf16", flops_16bit), ("f16", flops_16bit), ("tf32", flops_tf32), ("f32", flops)),
        scattered_adds_per_s=H200.scattered_adds_per_s * bandwidth / 4.8e12,
        line_adds_per_s=H200.line_adds_per_s * clock / 1.98e9, line_requests_per_s=H200.line_requests_per_s * clock / 1.98e9,
        partial_sectors_per_s=H200.partial_sectors_per_s * bandwidth / 4.8e12,
        origins=(("num_multiprocessors", sheet), ("memory_bytes", sheet), ("l2_bytes", sheet), ("flops_per_s", sheet),
                 ("global_bytes_per_s", _DATA_SHEET), ("max_threads_per_multiprocessor", _PROPERTIES),
                 ("shared_bytes_per_block", _PROPERTIES), ("max_blocks_per_multiprocessor", _PROPERTIES),
                 ("bounded_registers", "assembler of NVRTC 13.5, kernels of tests/golden (0: as the H200)"),
                 ("launch_us", _AS_H200), ("graph_launch_us", _AS_H200), ("resident_curve", _AS_H200),
                 ("transfer_curve", "the H200's, scaled"), ("saturating_bytes", "the H200's, scaled"),
                 ("scattered_adds_per_s", "the H200's, scaled"), ("line_adds_per_s", "the H200's, scaled by the clock"),
                 ("line_requests_per_s", "the H200's, scaled by the clock"),
                 ("partial_sectors_per_s", "the H200's, scaled"),
                 ("shared_bytes_per_s", f"{_PROPERTIES}: 32 banks of 4 bytes a clock, at the data sheet's boost clock"),
                 ("matrix_flops_per_s", f"{sheet}, four fifths of it")), **limits)


B200 = _from_data_sheet(
    "b200", (10, 0), 8.0e12, 1.965e9, 75e12, (2250e12, 1125e12), "NVIDIA data sheet, HGX B200; Blackwell tuning guide (L2)",
    num_multiprocessors=148, bounded_registers=BLACKWELL_REGISTERS, l2_bytes=126 << 20, memory_bytes=180 * 10**9)

L40S = _from_data_sheet(
    "l40s", (8, 9), 864e9, 2.52e9, 91.6e12, (362.05e12, 183e12), "NVIDIA data sheet, L40S; Ada architecture white paper",
    num_multiprocessors=142, max_threads_per_multiprocessor=1536, max_blocks_per_multiprocessor=24, shared_bytes_per_block=101376,
    shared_bytes_per_multiprocessor=102400, l2_bytes=96 << 20, memory_bytes=48 * 10**9, max_cluster_blocks=1)

RTX_5090 = _from_data_sheet(
    "rtx-5090", (12, 0), 1792e9, 2.407e9, 104.8e12, (209.5e12, 104.8e12), "NVIDIA RTX Blackwell architecture white paper, GeForce 5090",
    num_multiprocessors=170, bounded_registers=BLACKWELL_REGISTERS, max_threads_per_multiprocessor=1536, max_blocks_per_multiprocessor=24,
    shared_bytes_per_block=101376,
    shared_bytes_per_multiprocessor=102400, l2_bytes=96 << 20, memory_bytes=32 * 10**9, max_cluster_blocks=8)


@cache
def host_device() -> DeviceSpec:
    """The machine's processor as a device: a block is a task of one core, "shared" memory is the core's own cache.

    Units: as DeviceSpec. A core moves about 10 GB/s and all together at most about 40 in streaming loops; a parallel region costs
    about 5 microseconds to enter. Source: order of magnitude of small servers; plans only need the ratios.
    """
    cores = max(os.cpu_count() or 1, 1)
    return DeviceSpec(
        name="host", kind="host", arch=platform.machine() or "unknown", num_multiprocessors=cores, warp_size=32,
        max_threads_per_block=1024, max_threads_per_multiprocessor=1024, max_blocks_per_multiprocessor=1,
        registers_per_multiprocessor=65536, max_registers_per_thread=255, shared_bytes_per_block=1 << 20,
        shared_bytes_per_multiprocessor=1 << 20, l2_bytes=1 << 25, memory_bytes=1 << 34, max_cluster_blocks=1, vector_bytes=64,
        global_bytes_per_s=min(10e9 * cores, 40e9), launch_us=5.0, graph_launch_us=5.0, flops_per_s=8e9 * cores,
        origins=(("num_multiprocessors", "os.cpu_count()"), ("global_bytes_per_s", "order of magnitude; tilefuse calibrate measures it"),
                 ("launch_us", "order of magnitude of an OpenMP parallel region; tilefuse calibrate measures it"),
                 ("graph_launch_us", "order of magnitude of an OpenMP parallel region; tilefuse calibrate measures it"),
                 ("transfer_curve", "global_bytes_per_s at every size; tilefuse calibrate measures it"),
                 ("flops_per_s", "order of magnitude; tilefuse calibrate measures it")))


def known_devices() -> dict[str, DeviceSpec]:
    """All records by name."""
    return {spec.name: spec for spec in (H200, H100, A100, B200, L40S, RTX_5090, host_device())}


def device_by_name(name: str) -> DeviceSpec:
    """The record of a device, which need not be present.

    Raises: OptionError for an unknown name, with the nearest known ones.
    """
    known = known_devices()
    found = known.get(name.strip().lower())
    if found is None:
        raise OptionError(f"unknown target {name!r}", hint=nearest(name, known) or f"one of {', '.join(known)}")
    return found


def describe_device(name: str, capability: Capability, memory_bytes: int, facts: Mapping[str, int]) -> DeviceSpec:
    """The record of a present CUDA device from what its driver tells; measured numbers come from the nearest known device.

    The nearest device is the one of this name, else one of this compute capability or of the next lower one that is known.

    facts: driver attributes by the field names of DeviceSpec; names that are no field are not looked at.
    Units: bytes.
    """
    known = [s for s in known_devices().values() if s.kind == "cuda"]
    words = f" {name.lower().replace('-', ' ')} "
    exact = next((s for s in known if f" {s.name.replace('-', ' ')} " in words), None)
    alike = exact or max(known, key=lambda s: _nearness(s.capabilities.compute_capability, capability))
    told: dict[str, Any] = {k: v for k, v in facts.items() if k in DeviceSpec.__dataclass_fields__ and v > 0}
    if exact is not None:
        # Limits may be smaller than the record's (a partition of the device); what was measured on it stays.
        return replace(exact, memory_bytes=memory_bytes, **told)
    multiprocessors = told.get("num_multiprocessors", alike.num_multiprocessors)
    return replace(
        alike, name=name.lower().replace(" ", "-"), arch=arch_of(capability), capabilities=(able := capabilities_of(capability)),
        memory_bytes=memory_bytes, **told, max_cluster_blocks=alike.max_cluster_blocks if able.clusters else 1,
        flops_per_s=alike.flops_per_s * multiprocessors / alike.num_multiprocessors,
        origins=(*alike.origins, ("name", f"driver; bandwidths as of {alike.name}")))


def _nearness(known: Capability, wanted: Capability) -> tuple[bool, bool, Capability]:
    """A key that is largest for the same compute capability, else for the next lower one, else for the next higher one."""
    lower = known <= wanted
    return known == wanted, lower, known if lower else (-known[0], -known[1])
