"""CUDA graphs of a program's calls: recording, the memory that the recordings of one stream share, and what a replay needs of torch.

Recordings made for one stream run one after the other, so those whose results are copied out at once use one pool of memory. A lock
keeps copying in, replaying and copying out together; another stream has a pool of its own. A recording that lends its results has
memory to itself: another's intermediate values would overwrite them.
"""
from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tilefuse.base.errors import CompilerError, UnsupportedError

if TYPE_CHECKING:
    from tilefuse.runtime.program import Program


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded call: `replay` runs it again on the memory of its inputs, and writes `results`. `kept` must stay alive."""

    replay: Callable[[], None]
    results: list[torch.Tensor]
    kept: object


class Pool:
    """Memory of recordings. `guard` is held from copying a call's inputs in until its results are out."""

    def __init__(self, device: torch.device) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.guard = threading.Lock()
        self.stream = torch.cuda.Stream(device)


_POOLS: weakref.WeakValueDictionary[tuple[int, int], Pool] = weakref.WeakValueDictionary()
_POOLS_GUARD = threading.Lock()


class CudaGraphs:
    """How a program's calls are recorded and replayed on one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        assert device.index is not None
        self._device = device
        self.stream: Callable[[], int] = functools.partial(torch._C._cuda_getCurrentRawStream, device.index)
        self.same_addresses: Callable[[list[Any], list[int], list[int]], bool] = (
            getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None) or have_addresses)

    def may_replay(self) -> bool:
        """Whether the device is torch's current one, and its current stream is not being recorded by the caller."""
        return torch._C._cuda_getDevice() == self._device.index and not torch._C._cuda_isCurrentStreamCapturing()

    def pool(self, stream: int, shared: bool) -> Pool:
        """The pool of a stream, or one for a single recording.

        A shared pool lives as long as a recording holds it: torch does not take a dead pool's handle again.
        """
        assert self._device.index is not None
        if not shared:
            return Pool(self._device)
        with _POOLS_GUARD:
            found = _POOLS.get((self._device.index, stream))
            if found is None:
                found = _POOLS[self._device.index, stream] = Pool(self._device)
            return found

    def clock(self) -> DeviceClock:
        """A clock for the device's time between two points of the current stream."""
        return DeviceClock()

    def record(self, program: Program, inputs: Sequence[torch.Tensor], pool: Any) -> Recorded:
        """A call of the program on these inputs as a graph. Nothing is computed yet.

        Requires: this thread has called the program before, because libraries set themselves up on first use; gradients off.
        Raises: UnsupportedError when a library call cannot be recorded; OutOfMemoryError.
        """
        frame = program.new_frame(pool.stream.cuda_stream)
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        # What the collector frees during a recording may be another graph.
        gc.disable()
        # The library's workspace must lie in the graph's own memory: calls outside use the one it has now.
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with torch.cuda.stream(pool.stream):
                # Other threads may allocate and launch meanwhile.
                graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
                try:
                    results = program.run_frame(frame, list(inputs))
                finally:
                    graph.capture_end()
        except CompilerError:
            free_generator(pool.stream)
            raise
        except RuntimeError as error:
            free_generator(pool.stream)
            raise cannot_be_recorded(program, error) from error
        finally:
            torch._C._cuda_clearCublasWorkspaces()
            if collecting:
                gc.enable()
        return Recorded(graph.replay, results, (graph, frame, pool))


class DeviceClock:
    """Two events of a stream. `elapsed_s` is None until the device has passed both. Units: seconds."""

    def __init__(self) -> None:
        self._begin, self._end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def start(self) -> None:
        """Marks the beginning on the current stream."""
        self._begin.record()

    def stop(self) -> None:
        """Marks the end on the current stream."""
        self._end.record()

    def elapsed_s(self) -> float | None:
        """Device time between the marks; None while the device is not there yet. Units: seconds."""
        return self._begin.elapsed_time(self._end) * 1e-3 if self._end.query() else None


def have_addresses(tensors: Sequence[torch.Tensor], addresses: Sequence[int], indices: Sequence[int]) -> bool:
    """Whether the tensors of these indices lie at their addresses (`addresses` has one for every tensor)."""
    return all(tensors[i].data_ptr() == addresses[i] for i in indices)


def cannot_be_recorded(program: Program, error: BaseException) -> UnsupportedError:
    """The error for a program whose recording broke off with `error`."""
    library = ", ".join(program.library_operators)
    return UnsupportedError(f"program {program.spec.name} cannot be captured: {str(error).splitlines()[0]}",
                            hint=f"one of its library calls may wait for the GPU: {library}" if library else None)


def free_generator(stream: torch.cuda.Stream) -> None:
    """Sets torch's generator free after a recording that broke off: it would count as being recorded, and every later draw would fail.

    A recording that succeeds does that.
    """
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            torch.zeros(1, device=stream.device)
    except RuntimeError:
        # Nothing is worse than before, and the first error is the one to report.
        pass


def library_settings() -> tuple[object, ...]:
    """Torch's settings that decide which kernels a library call starts: a recording keeps those of its own time."""
    c = torch._C
    return (c._get_cudnn_enabled(), c._get_cudnn_benchmark(), c._get_cudnn_deterministic(), c._get_flash_sdp_enabled(),
            c._get_mem_efficient_sdp_enabled(), c._get_math_sdp_enabled(), c._get_cudnn_sdp_enabled(), _convolution_precision())


def _convolution_precision() -> object:
    """Torch's setting of the arithmetic of f32 convolutions; the older name raises where a program has used the newer one."""
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    return torch._C._get_cudnn_allow_tf32() if newer is None else newer("cuda", "conv")
