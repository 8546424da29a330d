"""CUDA graphs of a program's calls: recording, the memory shared by the recordings of one stream, and torch's state for a replay.

Recordings for one stream run one after the other, so those whose results are copied out at once share one pool of memory. A lock covers
copying in, replaying and copying out; another stream has its own pool. A recording that lends its results has a pool to itself: another's
intermediate values would overwrite them.
"""
from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefuse.base.errors import CompilerError, UnsupportedError
from tilefuse.runtime.calls.callable_program import CallableProgram
from tilefuse.runtime.cuda_api import create_stream


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded call: `replay` runs it again on the memory of its inputs, and writes `results`. `kept` must stay alive."""

    replay: Callable[[], None]
    results: list[torch.Tensor]
    kept: object


class Recorder:
    """The stream that records calls for one of the caller's streams, with cuBLAS's workspace on it.

    A recorded product uses the address of cuBLAS's workspace for its stream and thread. No other code uses this stream, so that no other
    product uses the workspace at the same time. The workspace lies in a pool that stays alive: torch may free workspaces (other recordings
    make it clear them all), and the memory must not be reused for a tensor.
    """

    def __init__(self, device: torch.device) -> None:
        assert device.index is not None
        self.stream = torch.cuda.ExternalStream(create_stream(device.index), device)
        self._memory = keep_to_the_end(torch.cuda.MemPool())
        self._device = device

    def prepare(self) -> None:
        """Makes this thread's cuBLAS allocate its workspace for the stream, if it has none."""
        with torch.cuda.stream(self.stream), torch.cuda.use_mem_pool(self._memory, self._device):
            square = torch.zeros(16, 16, device=self._device)
            torch.mm(square, square)


class Pool:
    """Memory of recordings. `guard` is held from copying a call's inputs in until its results are copied out."""

    def __init__(self, recorder: Recorder) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.guard = threading.Lock()
        self.recorder = recorder


def keep_to_the_end(memory: Any) -> Any:
    """`memory` with one more reference, which is never released: it lives until the process ends.

    At exit the interpreter destroys the contents of modules. The destructor of torch's memory pool throws while a graph is alive or after a
    kernel failed, which aborts the process. The system reclaims the memory anyway.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return memory


_ALIVE: weakref.WeakSet[Any] = weakref.WeakSet()


def destroy_graphs() -> None:
    """Destroys the graphs that are still alive while torch can do so: a user's compiled model often lives until exit."""
    for graph in list(_ALIVE):
        try:
            graph.reset()
        except RuntimeError:
            # After a failed kernel CUDA refuses every call, and the process is ending anyway.
            pass
    _ALIVE.clear()


atexit.register(destroy_graphs)

_RECORDERS: dict[tuple[int, int], Recorder] = {}
_POOLS: weakref.WeakValueDictionary[tuple[int, int], Pool] = weakref.WeakValueDictionary()
_POOLS_GUARD = threading.Lock()


class CudaGraphs:
    """Records and replays a program's calls on one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        assert device.index is not None
        self._device = device
        self.stream: Callable[[], int] = functools.partial(torch._C._cuda_getCurrentRawStream, device.index)
        self.same_addresses = SAME_ADDRESSES

    def may_replay(self) -> bool:
        """Whether the device is torch's current one, and the caller is not recording its current stream."""
        return torch._C._cuda_getDevice() == self._device.index and not torch._C._cuda_isCurrentStreamCapturing()

    def pool(self, stream: int, shared: bool) -> Pool:
        """The pool of a stream, or one for a single recording.

        A shared pool lives as long as a recording uses it: torch does not accept the handle of a freed pool again.
        """
        assert self._device.index is not None
        place = (self._device.index, stream)
        with _POOLS_GUARD:
            recorder = _RECORDERS.get(place)
            if recorder is None:
                recorder = _RECORDERS[place] = Recorder(self._device)
            if not shared:
                return Pool(recorder)
            pool = _POOLS.get(place)
            if pool is None:
                pool = _POOLS[place] = Pool(recorder)
            return pool

    def clock(self) -> DeviceClock:
        """A clock for the device's time between two points of the current stream."""
        return DeviceClock()

    def record(self, program: CallableProgram, inputs: Sequence[torch.Tensor], pool: Any) -> Recorded:
        """A call of the program on these inputs as a graph. Nothing is computed yet.

        Requires: this thread has called the program before, because libraries initialise at first use; gradients off.
        Raises: UnsupportedError when a library call cannot be recorded; OutOfMemoryError.
        """
        stream = pool.recorder.stream
        frame = program.new_frame(stream.cuda_stream)
        graph = torch.cuda.CUDAGraph()
        _ALIVE.add(graph)
        collecting = gc.isenabled()
        # The garbage collector could free another graph during a recording, which breaks it off.
        gc.disable()
        try:
            pool.recorder.prepare()
            with torch.cuda.stream(stream):
                # Other threads may allocate and launch meanwhile.
                graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
                try:
                    results = program.run_frame(frame, list(inputs))
                finally:
                    graph.capture_end()
        except CompilerError:
            free_generator(stream)
            raise
        except RuntimeError as error:
            free_generator(stream)
            raise cannot_be_recorded(program, error) from error
        finally:
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
        """Device time between the marks; None until the device has passed them. Units: seconds."""
        return self._begin.elapsed_time(self._end) * 1e-3 if self._end.query() else None


def have_addresses(tensors: Sequence[torch.Tensor], addresses: Sequence[int], indices: Sequence[int]) -> bool:
    """Whether the tensors of these indices have the given addresses (`addresses` has one for every tensor)."""
    return all(tensors[i].data_ptr() == addresses[i] for i in indices)


# Torch's own check, in one call, where torch was built for CUDA.
SAME_ADDRESSES: Callable[[list[Any], list[int], list[int]], bool] = (
    getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None) or have_addresses)


def cannot_be_recorded(program: CallableProgram, error: BaseException) -> UnsupportedError:
    """The error for a program whose recording broke off with `error`."""
    library = ", ".join(program.library_operators)
    return UnsupportedError(f"program {program.spec.name} cannot be captured: {str(error).splitlines()[0]}",
                            hint=f"one of its library calls may wait for the GPU: {library}" if library else None)


def free_generator(stream: torch.cuda.Stream) -> None:
    """Resets torch's generator after a recording that broke off: it would count as being recorded, and every later draw would fail.

    A recording that succeeds does that.
    """
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            torch.zeros(1, device=stream.device)
    except RuntimeError:
        # The state is no worse than before, and the first error is the one to report.
        pass


def library_settings() -> tuple[object, ...]:
    """Torch's settings that decide which kernels a library call starts: a recording has the settings of its creation."""
    c = torch._C
    # A tensor made in inference mode must not be written outside.
    return (torch.is_inference_mode_enabled(), c._get_cudnn_enabled(), c._get_cudnn_benchmark(), c._get_cudnn_deterministic(),
            c._get_flash_sdp_enabled(), c._get_mem_efficient_sdp_enabled(), c._get_math_sdp_enabled(), c._get_cudnn_sdp_enabled(),
            *_precisions())


def _precisions() -> tuple[object, ...]:
    """Torch's settings of f32 arithmetic; the older names raise where a program has used the newer ones."""
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    if newer is None:
        return torch._C._get_cudnn_allow_tf32(), torch._C._get_cublas_allow_tf32()
    return newer("cuda", "conv"), newer("cuda", "matmul")
