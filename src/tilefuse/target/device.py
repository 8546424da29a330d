"""Devices as data. Every number names its unit in the field and its origin in `origins`.

Cost models and schedulers read only this record; no device number stands anywhere else.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from tilefuse.target.capabilities import NO_CAPABILITIES, Capabilities, capabilities_of
from tilefuse.target.fitted.figures import H200_FIGURES, FittedFigures


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Facts about a device that schedulers and cost models may know.

    kind                "cuda" or "host"
    arch                what the code is compiled for: "sm_90a", or the host's machine name
    capabilities        which instructions its kernels may use
    transfer_curve      (bytes read plus written, microseconds) points of a copy kernel beyond an empty one, ascending; data in global
                        memory; interpolated between
    resident_curve      the same for data that the L2 cache holds
    saturating_bytes    bytes of loads that must be under way together to reach 0.9 of the global bandwidth (0: no such limit)
    resident_clusters   (blocks a cluster, clusters that run at once with one block a multiprocessor), ascending: multiprocessors
                        come in groups of unequal size, and a cluster lies in one group
    shared_bytes_per_s  of all multiprocessors together
    matrix_flops_per_s  (dtype name, operations per second) of a large matrix product
    scattered_adds_per_s  elements a second that all threads together add to global memory at places that data give (0: no limit known)
    line_adds_per_s, line_requests_per_s  such elements a second in one line of 128 bytes, and the requests of warps in which they come:
                        both follow each other, and their times add up (0: no limit known)
    partial_sectors_per_s  sectors of 32 bytes that stores which write a part of each reach (0: no limit known)
    blocks_per_s        thread blocks a second that the device starts, where each does next to nothing (0: no limit known)
    bounded_registers   registers a thread that a bound on resident blocks must leave, for the assembler spills below it (0: no such limit)
    fitted              numbers of choices and estimates that were fitted to measurements, each with its evidence; those of an H200 where
                        nobody fitted others
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
    transfer_curve: tuple[tuple[int, float], ...] = ()
    resident_curve: tuple[tuple[int, float], ...] = ()
    saturating_bytes: int = 0
    resident_clusters: tuple[tuple[int, int], ...] = ()
    shared_bytes_per_s: float = 0.0
    matrix_flops_per_s: tuple[tuple[str, float], ...] = ()
    scattered_adds_per_s: float = 0.0
    line_adds_per_s: float = 0.0
    line_requests_per_s: float = 0.0
    partial_sectors_per_s: float = 0.0
    blocks_per_s: float = 0.0
    bounded_registers: int = 0
    capabilities: Capabilities = NO_CAPABILITIES
    fitted: FittedFigures = H200_FIGURES
    origins: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    @property
    def starts_early(self) -> bool:
        """Whether a kernel may stand ready before the one ahead of it has ended (programmatic dependent launch)."""
        return self.capabilities.early_start

    @property
    def copies_async(self) -> bool:
        """Whether kernels may hold asynchronous copies; the host's executor makes them at once."""
        return self.kind != "cuda" or self.capabilities.async_copies

    @property
    def has_matrix_unit(self) -> bool:
        """Whether kernels may hold the matrix instructions that stitched products are made of."""
        return self.kind == "cuda" and self.capabilities.matrix_16bit and self.capabilities.matrix_tf32

    def bounded_blocks(self, wanted: int, threads: int) -> int:
        """As many of the blocks wanted on one multiprocessor as leave each thread the registers that the assembler needs (0: no matter)."""
        if not self.bounded_registers:
            return wanted
        return min(wanted, max(self.registers_per_multiprocessor // (threads * self.bounded_registers), 1))

    def clusters_at_once(self, cluster: int) -> int:
        """Clusters of `cluster` blocks that run at once with one block a multiprocessor; a low guess where nobody measured."""
        told = dict(self.resident_clusters).get(cluster)
        if told is not None:
            return max(min(told, self.num_multiprocessors // cluster), 1)
        return max(self.num_multiprocessors // (cluster if cluster < 4 else cluster + 1), 1)


_CALIBRATED = "tilefuse calibrate on one H200, 2026-11-21"

H200 = DeviceSpec(
    name="h200", kind="cuda", arch="sm_90a",
    num_multiprocessors=132, warp_size=32, max_threads_per_block=1024, max_threads_per_multiprocessor=2048,
    max_blocks_per_multiprocessor=32, registers_per_multiprocessor=65536, max_registers_per_thread=255,
    shared_bytes_per_block=232448, shared_bytes_per_multiprocessor=233472, l2_bytes=62914560,
    memory_bytes=150754820096, max_cluster_blocks=16, vector_bytes=16,
    global_bytes_per_s=4.264e12, launch_us=3.037, graph_launch_us=0.504, flops_per_s=48.44e12,
    transfer_curve=(
        (1 << 12, 0.304), (1 << 13, 0.78), (1 << 14, 1.071), (1 << 15, 1.105), (1 << 16, 1.163), (1 << 17, 1.204), (1 << 18, 1.303),
        (1 << 19, 1.393), (1 << 20, 1.537), (1 << 21, 1.7), (1 << 22, 2.279), (1 << 23, 3.254), (1 << 24, 5.324), (1 << 25, 9.692),
        (1 << 26, 17.492), (1 << 27, 33.256), (1 << 28, 64.436), (1 << 29, 128.7), (1 << 30, 251.804)),
    resident_curve=(
        (1 << 12, 0.536), (1 << 13, 0.552), (1 << 14, 0.574), (1 << 15, 0.578), (1 << 16, 0.602), (1 << 17, 0.614), (1 << 18, 0.629),
        (1 << 19, 0.656), (1 << 20, 0.735), (1 << 21, 0.854), (1 << 22, 1.115), (1 << 23, 1.612), (1 << 24, 2.659)),
    saturating_bytes=48 * 1024 * 64,
    resident_clusters=((1, 132), (2, 66), (3, 39), (4, 30), (5, 22), (6, 17), (7, 15), (8, 15), (9, 9), (10, 7), (11, 7), (12, 7), (13, 7),
                       (14, 7), (15, 7), (16, 7)),
    shared_bytes_per_s=132 * 128 * 1.98e9,
    matrix_flops_per_s=(("bf16", 687.0e12), ("f16", 664.1e12), ("tf32", 360.1e12), ("f32", 50.9e12), ("f8e4m3", 1300.0e12),
                        ("f8e5m2", 1300.0e12), ("i8", 1300.0e12), ("u8", 1300.0e12)),
    scattered_adds_per_s=1.86e11, line_adds_per_s=2.0e9, line_requests_per_s=4.3e8,
    partial_sectors_per_s=6.8e10, blocks_per_s=1.65e9, capabilities=capabilities_of((9, 0)),
    origins=(
        ("num_multiprocessors", "cudaDeviceProp.multiProcessorCount read on an H200"),
        ("shared_bytes_per_block", "CUDA C++ Programming Guide, compute capability 9.0: 227 KB"),
        ("max_cluster_blocks", "CUDA C++ Programming Guide: 16 with the non-portable attribute, 8 portable"),
        ("global_bytes_per_s", f"{_CALIBRATED}: the curve's best rate, 1 GiB"),
        ("transfer_curve", f"{_CALIBRATED}: copy kernels inside a CUDA graph less an empty one, buffers rotated through 240 MiB"),
        ("resident_curve", f"{_CALIBRATED}: the same buffers again and again"),
        ("launch_us", f"{_CALIBRATED}: interval of empty kernels launched one by one"),
        ("graph_launch_us", f"{_CALIBRATED}: interval of empty kernels inside a CUDA graph"),
        ("saturating_bytes", f"{_CALIBRATED}: copies by few blocks of 1024 threads with 64 bytes each under way; 48 reach 0.93"),
        ("resident_clusters", "cuOccupancyMaxActiveClusters for blocks with 200 KB of shared memory, one H200, 2026-11-24"),
        ("flops_per_s", f"{_CALIBRATED}: chains of single-precision multiply-adds"),
        ("shared_bytes_per_s", "CUDA C++ Programming Guide: 32 banks of 4 bytes a clock a multiprocessor, at 1.98 GHz"),
        ("matrix_flops_per_s", "8192 x 8192 x 8192 products through cuBLAS, one H200, 2026-11-21; of bytes in e4m3, 2026-11-24"),
        ("partial_sectors_per_s", "tensors of 2 to 64 MiB, f16 and f32, stored across the lanes: 6.1e10 to 7.6e10, one H200, 2026-11-22"),
        ("blocks_per_s", "windows of 8 f32 by blocks of 128 threads with one result each: 4.19 million blocks in 2547 us, 6.29 million in "
                         "3818 us, one H200, 2026-11-22"),
        ("scattered_adds_per_s", "65536 rows of 32 f32 added to rows drawn from 100,000, 11.77 us, one H200, 2026-11-22"),
        ("line_adds_per_s", "8192 rows of 768 f32 added to two rows, 131,072 a line in 4096 requests, 76 us, one H200, November 2026"),
        ("line_requests_per_s", "12 x 512 x 512 f32 added to 32 x 12 at places drawn evenly, 262,144 a line one by one, about 745 of the "
                                "kernel's 793 us, one H200, 2026-11-30"),
    ),
)
