"""Devices as data. Every number names its unit in the field and its origin in `origins`.

Cost models and schedulers read only this record; no device number stands anywhere else.
"""
from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """What schedulers and cost models may know of a device.

    kind                "cuda" or "host"
    arch                what the code is compiled for: "sm_90a", or the host's machine name
    bandwidth_curve     (bytes moved, bytes per second) points of a copy kernel, ascending; interpolated between
    matrix_flops_per_s  (dtype name, operations per second) of a large matrix product
    origins             (field, where its number comes from)
    """

    name: str
    kind: str
    arch: str
    num_multiprocessors: int
    warp_size: int
    max_threads_per_block: int
    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    registers_per_multiprocessor: int
    max_registers_per_thread: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    l2_bytes: int
    memory_bytes: int
    max_cluster_blocks: int
    vector_bytes: int
    global_bytes_per_s: float
    launch_us: float
    graph_launch_us: float
    flops_per_s: float
    bandwidth_curve: tuple[tuple[int, float], ...] = ()
    matrix_flops_per_s: tuple[tuple[str, float], ...] = ()
    origins: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)


H200 = DeviceSpec(
    name="h200", kind="cuda", arch="sm_90a",
    num_multiprocessors=132, warp_size=32, max_threads_per_block=1024, max_threads_per_multiprocessor=2048,
    max_blocks_per_multiprocessor=32, registers_per_multiprocessor=65536, max_registers_per_thread=255,
    shared_bytes_per_block=232448, shared_bytes_per_multiprocessor=233472, l2_bytes=62914560,
    memory_bytes=150754820096, max_cluster_blocks=16, vector_bytes=16,
    global_bytes_per_s=4.24e12, launch_us=6.68, graph_launch_us=1.02, flops_per_s=50.9e12,
    bandwidth_curve=((1 << 20, 1.773e12), (1 << 22, 3.756e12), (1 << 24, 3.9e12), (1 << 26, 3.9e12), (1 << 28, 4.138e12),
                     (1 << 30, 4.242e12)),
    matrix_flops_per_s=(("bf16", 687.0e12), ("f16", 664.1e12), ("tf32", 360.1e12), ("f32", 50.9e12)),
    origins=(
        ("num_multiprocessors", "cudaDeviceProp.multiProcessorCount read on an H200"),
        ("shared_bytes_per_block", "CUDA C++ Programming Guide, compute capability 9.0: 227 KB"),
        ("max_cluster_blocks", "CUDA C++ Programming Guide: 16 with the non-portable attribute, 8 portable"),
        ("global_bytes_per_s", "1 GiB device copy, bytes read and written, one H200, 2026-11-21"),
        ("launch_us", "empty-kernel interval, eager and inside a CUDA graph, one H200, 2026-11-21"),
        ("matrix_flops_per_s", "8192 x 8192 x 8192 products through cuBLAS, one H200, 2026-11-21"),
    ),
)
