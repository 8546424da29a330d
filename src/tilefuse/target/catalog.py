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
from tilefuse.target.device import H200, DeviceSpec

# A copy kernel reaches this part of the memory's rated bandwidth. Source: one H200, 4.264 of 4.8 TB/s at 1 GiB, 2026-11-21.
REACHED_FRACTION = 4.264 / 4.8

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
    origins=(("global_bytes_per_s", _DATA_SHEET), ("shared_bytes_per_block", _PROPERTIES), ("launch_us", _AS_H200),
             ("transfer_curve", "the H200's, scaled"), ("matrix_flops_per_s", _AS_H200),
             ("graph_launch_us", _AS_H200), ("resident_curve", _AS_H200), ("saturating_bytes", "the H200's, scaled"),
             ("flops_per_s", _AS_H200), ("shared_bytes_per_s", _AS_H200)))

A100 = replace(
    H200, name="a100", arch="sm_80", resident_clusters=(),
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
    return {spec.name: spec for spec in (H200, H100, A100, host_device())}


def device_by_name(name: str) -> DeviceSpec:
    """The record of a device, which need not be present.

    Raises: OptionError for an unknown name, with the nearest known ones.
    """
    known = known_devices()
    found = known.get(name.strip().lower())
    if found is None:
        raise OptionError(f"unknown target {name!r}", hint=nearest(name, known) or f"one of {', '.join(known)}")
    return found


def describe_device(name: str, arch: str, memory_bytes: int, facts: Mapping[str, int]) -> DeviceSpec:
    """The record of a present CUDA device from what its driver tells; measured numbers come from the nearest known device.

    facts: driver attributes by the field names of DeviceSpec; names that are no field are not looked at.
    Units: bytes.
    """
    known = [s for s in known_devices().values() if s.kind == "cuda"]
    exact = next((s for s in known if s.name in name.lower().replace("-", " ").split()), None)
    alike = exact or next((s for s in known if s.arch == arch), H200)
    told: dict[str, Any] = {k: v for k, v in facts.items() if k in DeviceSpec.__dataclass_fields__ and v > 0}
    if exact is not None:
        # Limits may be smaller than the record's (a partition of the device); what was measured on it stays.
        return replace(exact, memory_bytes=memory_bytes, **told)
    multiprocessors = told.get("num_multiprocessors", alike.num_multiprocessors)
    return replace(
        alike, name=name.lower().replace(" ", "-"), arch=arch, memory_bytes=memory_bytes, **told,
        max_cluster_blocks=alike.max_cluster_blocks if arch >= "sm_90" else 1,
        flops_per_s=alike.flops_per_s * multiprocessors / alike.num_multiprocessors,
        origins=(*alike.origins, ("name", f"driver; bandwidths as of {alike.name}")))
