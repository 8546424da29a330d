"""Measures a device for the planner: copy time by size, launch time, and the number of blocks that saturate the memory.

The figures are intervals between kernels of a running stream (a CUDA graph on a GPU), because planned kernels run in one. The `Bench`
measures; `calibrate` chooses the measurements, so that tests can pass a bench of their own.
"""
from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from tilefuse.base.errors import DeviceError
from tilefuse.runtime.calls.replay_times import replay_samples_us
from tilefuse.runtime.compilers.binaries import build_kernels
from tilefuse.runtime.compilers.host import load_host
from tilefuse.runtime.cuda_api import check, load_function, prepare_launch
from tilefuse.runtime.spec import KernelCode
from tilefuse.runtime.stores.cache import KernelCache
from tilefuse.target.calibration import Calibration
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch

SMALLEST_BYTES, LARGEST_BYTES = 1 << 12, 1 << 30
# Size of all buffer sets together as a multiple of the L2 cache, so that no copy hits the cache.
ROTATION = 4
MAX_SETS = 4096
REPEATS = 9
SATURATED = 0.9
# Bytes of loads in flight per block of the copy kernel: 1024 threads, four vectors of 16 bytes each.
WALK_BYTES = 1024 * 64
THREADS = 256

_CUDA_COPY = """extern "C" __global__ void __launch_bounds__({threads})
copy_{vectors}(const uint4* __restrict__ x, uint4* __restrict__ y) {{
  long long i = (long long)blockIdx.x * {threads} + threadIdx.x;
  if (i < {vectors}LL) y[i] = x[i];
}}
"""
_CUDA_WALK = """extern "C" __global__ void __launch_bounds__(1024) walk_{blocks}(const uint4* __restrict__ x, uint4* __restrict__ y) {{
  for (long long i = (long long)blockIdx.x * 4096 + threadIdx.x; i < {vectors}LL; i += {blocks}LL * 4096) {{
    uint4 a = x[i], b = x[i + 1024], c = x[i + 2048], d = x[i + 3072];
    y[i] = a; y[i + 1024] = b; y[i + 2048] = c; y[i + 3072] = d;
  }}
}}
"""
_CUDA_EMPTY = 'extern "C" __global__ void empty(const float* x, float* y) {}\n'
_CUDA_FMA = """extern "C" __global__ void __launch_bounds__(256) multiply_add(const float* __restrict__ x, float* __restrict__ y) {
  float a = x[threadIdx.x], b = a, c = a + 1.0f, d = a + 2.0f, e = a + 3.0f, f = a + 4.0f, g = a + 5.0f, h = a + 6.0f;
  #pragma unroll 1
  for (int n = 0; n < 4096; n++) {
    b = fmaf(b, a, a); c = fmaf(c, a, a); d = fmaf(d, a, a); e = fmaf(e, a, a);
    f = fmaf(f, a, a); g = fmaf(g, a, a); h = fmaf(h, a, a); b = fmaf(b, a, c);
  }
  if (b + c + d + e + f + g + h == 1.5f) y[threadIdx.x] = b;
}
"""
FMA_FLOPS_PER_THREAD = 4096 * 8 * 2

_HOST_HEAD = 'extern "C" int %(name)s(void* const* arguments, char* report, long report_size) {\n'
_HOST_COPY = _HOST_HEAD + """  const float* x = (const float*)arguments[0];
  float* y = (float*)arguments[1];
  const long count = *(const long*)arguments[2];
  #pragma omp parallel for schedule(static) num_threads(%(threads)d)
  for (long i = 0; i < count; i++) y[i] = x[i];
  return 0;
}
"""
_HOST_EMPTY = _HOST_HEAD + """  #pragma omp parallel
  { __asm__ volatile("" ::: "memory"); }
  return 0;
}
"""
_HOST_FMA = _HOST_HEAD + """  float* y = (float*)arguments[1];
  #pragma omp parallel for schedule(static)
  for (int block = 0; block < %(blocks)d; block++) {
    float v[64];
    for (int i = 0; i < 64; i++) v[i] = y[i];
    for (int n = 0; n < 4096; n++)
      for (int i = 0; i < 64; i++) v[i] = v[i] * 0.999f + 0.5f;
    y[block %% 64] = v[block %% 64];
  }
  return 0;
}
"""


class Bench(Protocol):
    """Times kernels on one device. Units: microseconds; the median of several repeats."""

    def copy_us(self, num_bytes: int, resident: bool) -> float:
        """Interval of copies of `num_bytes` (read plus written); `resident`: always the same buffers, so that they stay in cache."""
        ...

    def walk_us(self, num_bytes: int, num_blocks: int) -> float:
        """Interval of copies by `num_blocks` blocks, at most one per multiprocessor."""
        ...

    def empty_us(self, eager: bool) -> float:
        """Interval of empty kernels: launched one by one, or inside a recorded graph."""
        ...

    def flops_per_s(self) -> float:
        """Single-precision multiply-adds of all units together. Units: operations per second."""
        ...


def sizes(smallest: int = SMALLEST_BYTES, largest: int = LARGEST_BYTES) -> tuple[int, ...]:
    """The sizes at which the curve is measured: powers of two. Units: bytes read plus written."""
    return tuple(1 << n for n in range(smallest.bit_length() - 1, largest.bit_length()))


def calibrate(device: DeviceSpec, bench: Bench, *, largest: int = LARGEST_BYTES,
              progress: Callable[[str], None] | None = None) -> Calibration:
    """The device's measured figures. `progress` gets the name of each measurement.

    Cost: about ten seconds on a GPU.
    """
    tell = progress or (lambda _: None)
    tell("launches")
    graph_us, eager_us = bench.empty_us(eager=False), bench.empty_us(eager=True)
    curves: list[tuple[tuple[int, float], ...]] = []
    for resident in (False, True):
        points: list[tuple[int, float]] = []
        for num_bytes in sizes(largest=largest if not resident else min(largest, device.l2_bytes // 2)):
            tell(f"copies of {num_bytes >> 10} KiB{' in cache' if resident else ''}")
            points.append((num_bytes, round(max(bench.copy_us(num_bytes, resident) - graph_us, 0.01), 4)))
        curves.append(rising(points))
    cold, resident_curve = curves
    tell("loads that fill the memory")
    filling = _filling_blocks(device, bench, cold, graph_us) * WALK_BYTES if device.kind == "cuda" else 0
    tell("arithmetic")
    return Calibration(
        device=device.name, num_multiprocessors=device.num_multiprocessors, when=time.strftime("%Y-%m-%d"),
        launch_us=round(eager_us, 3), graph_launch_us=round(graph_us, 3), transfer_curve=cold, resident_curve=resident_curve,
        saturating_bytes=filling, flops_per_s=float(f"{bench.flops_per_s():.4g}"))


def _filling_blocks(device: DeviceSpec, bench: Bench, curve: tuple[tuple[int, float], ...], launch_us: float) -> int:
    """The smallest number of blocks, one per multiprocessor, whose copy reaches `SATURATED` of the curve's last rate."""
    num_bytes = min(curve[-1][0], 1 << 28)
    best_us = num_bytes * curve[-1][1] / curve[-1][0]
    counts = block_counts(device.num_multiprocessors)
    return next((n for n in counts if best_us >= SATURATED * (bench.walk_us(num_bytes, n) - launch_us)), device.num_multiprocessors)


def rising(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The points without those that take longer than a larger size: disturbances only lengthen measurements."""
    lowest: list[tuple[int, float]] = []
    least = math.inf
    for size, us in reversed(points):
        least = min(least, us)
        lowest.append((size, least))
    return tuple(reversed(lowest))


def block_counts(num_multiprocessors: int) -> tuple[int, ...]:
    """Numbers of blocks to try, ascending: about sixteen, up to one block on every multiprocessor."""
    step = max(1, num_multiprocessors // 16)
    return tuple(dict.fromkeys((*range(step, num_multiprocessors, step), num_multiprocessors)))


def bench_of(device: DeviceSpec, index: int = 0) -> Bench:
    """Object that measures the device: the GPU of that index, or this machine's processor."""
    return _Gpu(device, index) if device.kind == "cuda" else _Host(device)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A kernel ready to run on pairs of addresses."""

    code: KernelCode
    function: Any


class _Gpu:
    """CUDA graphs of many launches, replayed between events."""

    def __init__(self, device: DeviceSpec, index: int) -> None:
        if not torch.cuda.is_available():
            raise DeviceError("calibration needs the GPU itself, and torch sees none")
        self._device, self._index = device, index
        self._cache = KernelCache(None)
        self._memory: torch.Tensor | None = None

    def _load(self, entry: str, source: str, launch: Launch) -> _Loaded:
        code = KernelCode(entry, entry, source, "cuda", self._device.arch, launch, ())
        built = build_kernels([code], self._cache)[0]
        return _Loaded(code, load_function(built.payload, entry, launch, self._index))

    def _addresses(self, half: int, sets: int) -> list[tuple[int, int]]:
        num_bytes = 2 * half * sets
        if self._memory is None or self._memory.numel() < num_bytes:
            self._memory = None
            self._memory = torch.zeros(num_bytes, dtype=torch.uint8, device=f"cuda:{self._index}")
        start = self._memory.data_ptr()
        return [(start + 2 * half * n, start + 2 * half * n + half) for n in range(sets)]

    def _calls(self, loaded: _Loaded, addresses: Sequence[tuple[int, int]], stream: int) -> list[tuple[Callable[[], int], object]]:
        calls: list[tuple[Callable[[], int], object]] = []
        for pair in addresses:
            values = (ctypes.c_void_p * 2)(*pair)
            pointers = (ctypes.c_void_p * 2)(ctypes.addressof(values), ctypes.addressof(values) + 8)
            call, alive = prepare_launch(loaded.function, loaded.code.launch, stream, ctypes.addressof(pointers))
            calls.append((call, (values, pointers, alive)))
        return calls

    def _interval_us(self, loaded: _Loaded, addresses: Sequence[tuple[int, int]]) -> float:
        def calls_on(stream: int) -> list[Callable[[], object]]:
            return [partial(_launch, call, alive) for call, alive in self._calls(loaded, addresses, stream)]

        return statistics.median(replay_samples_us(calls_on, self._index, REPEATS))

    def copy_us(self, num_bytes: int, resident: bool) -> float:
        half = num_bytes // 2
        vectors = half // 16
        loaded = self._load(f"copy_{vectors}", _CUDA_COPY.format(vectors=vectors, threads=THREADS), Launch(-(-vectors // THREADS), THREADS))
        least = 256 if num_bytes <= 1 << 24 else 8
        if resident:
            return self._interval_us(loaded, self._addresses(half, 1) * least)
        sets = max(2, min(MAX_SETS, math.ceil(ROTATION * self._device.l2_bytes / num_bytes)))
        return self._interval_us(loaded, self._addresses(half, sets) * max(1, least // sets))

    def walk_us(self, num_bytes: int, num_blocks: int) -> float:
        half = num_bytes // 2
        loaded = self._load(f"walk_{num_blocks}", _CUDA_WALK.format(vectors=half // 16, blocks=num_blocks), Launch(num_blocks, 1024))
        return self._interval_us(loaded, self._addresses(half, 2) * 2)

    def empty_us(self, eager: bool) -> float:
        loaded = self._load("empty", _CUDA_EMPTY, Launch(1, 32))
        addresses = self._addresses(256, 1) * 1000
        if not eager:
            return self._interval_us(loaded, addresses)
        with torch.cuda.device(self._index):
            calls = self._calls(loaded, addresses, torch.cuda.current_stream().cuda_stream)
            samples = []
            for _ in range(REPEATS):
                torch.cuda.synchronize()
                started = time.perf_counter()
                for call, _alive in calls:
                    call()
                torch.cuda.synchronize()
                samples.append((time.perf_counter() - started) * 1e6 / len(calls))
        return statistics.median(samples)

    def flops_per_s(self) -> float:
        blocks = self._device.num_multiprocessors * 8 * 16
        loaded = self._load("multiply_add", _CUDA_FMA, Launch(blocks, 256))
        us = self._interval_us(loaded, self._addresses(4096, 1) * 4)
        return float(blocks * 256 * FMA_FLOPS_PER_THREAD / us * 1e6)


def _launch(call: Callable[[], int], alive: object) -> None:
    """Starts a kernel; `alive` holds the objects that the prepared call refers to."""
    check(call(), "cuLaunchKernelEx")


class _Host:
    """Calls of host kernels, timed by the clock; the minimum, because other work on the machine only lengthens them."""

    def __init__(self, device: DeviceSpec) -> None:
        self._device = device
        self._cache = KernelCache(None)

    def _call(self, entry: str, source: str, tensors: Sequence[torch.Tensor]) -> Callable[[], object]:
        code = KernelCode(entry, entry, source % {"name": entry}, "host", self._device.arch, Launch(1, 1), ())
        function = load_host(build_kernels([code], self._cache)[0])
        pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))

        def call(alive: object = tensors) -> object:
            return function(ctypes.addressof(pointers), None, 0)

        return call

    def _interval_us(self, calls: Sequence[Callable[[], object]], many: int) -> float:
        samples = []
        for run in range(REPEATS + 2):
            started = time.perf_counter()
            for _ in range(many):
                for call in calls:
                    call()
            if run >= 2:
                samples.append((time.perf_counter() - started) * 1e6 / (many * len(calls)))
        return min(samples)

    def _copy(self, num_bytes: int, threads: int) -> Callable[[], object]:
        count = num_bytes // 8
        source = _HOST_COPY.replace("%(threads)d", str(threads))
        return self._call(f"copy_by_{threads}", source, (torch.zeros(count), torch.zeros(count), torch.tensor([count])))

    def copy_us(self, num_bytes: int, resident: bool) -> float:
        sets = 1 if resident else max(1, min(64, math.ceil(ROTATION * self._device.l2_bytes / num_bytes)))
        calls = [self._copy(num_bytes, self._device.num_multiprocessors) for _ in range(sets)]
        return self._interval_us(calls, max(1, (1 << 20) // (num_bytes * sets)))

    def walk_us(self, num_bytes: int, num_blocks: int) -> float:
        return self._interval_us([self._copy(num_bytes, num_blocks)], 1)

    def empty_us(self, eager: bool) -> float:
        return self._interval_us([self._call("empty", _HOST_EMPTY, (torch.zeros(1), torch.zeros(1)))], 200)

    def flops_per_s(self) -> float:
        blocks = self._device.num_multiprocessors * 8
        source = _HOST_FMA.replace("%(blocks)d", str(blocks))
        us = self._interval_us([self._call("multiply_add", source, (torch.zeros(64), torch.zeros(64)))], 1)
        return blocks * 64 * 4096 * 2 / us * 1e6
