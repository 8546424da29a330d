"""The CUDA driver, called directly: devices, loading of machine code, and prepared launches.

A launch is one foreign call with four prepared pointers, a few hundred nanoseconds of Python; a wrapper that decodes the launch on every
call costs several times that. The structures are the driver's documented binary interface, which is stable.
"""
from __future__ import annotations

import ctypes
import functools
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilefuse.base.errors import DeviceError, OutOfMemoryError
from tilefuse.target.capabilities import Capability, arch_of
from tilefuse.target.launch import Launch
from tilefuse.target.tensor_map import SWIZZLES, MapParameter

OUT_OF_MEMORY = 2
INVALID_CONTEXT = 201
ASSERT = 710
ASSERT_HINT = "a kernel met an index out of range; standard error names it, and device='host' tells its place"

COOPERATIVE = 2
_CLUSTER_DIMENSION = 4
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_MAX_DYNAMIC_SHARED_BYTES = 8
_NON_PORTABLE_CLUSTER = 14
_PORTABLE_CLUSTER_BLOCKS = 8
_NON_BLOCKING = 1

_ATTRIBUTES = {
    "max_threads_per_block": 1, "warp_size": 10, "num_multiprocessors": 16, "l2_bytes": 38, "max_threads_per_multiprocessor": 39,
    "major": 75, "minor": 76, "shared_bytes_per_multiprocessor": 81, "registers_per_multiprocessor": 82, "shared_bytes_per_block": 97,
    "max_blocks_per_multiprocessor": 106,
}


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an identifier and 64 bytes of value. Source: CUDA driver interface, cuda.h."""

    _fields_ = [("id", ctypes.c_uint), ("_pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig. Source: CUDA driver interface, cuda.h; a test compares it with the layout of cuda.bindings."""

    _fields_ = [("grid_x", ctypes.c_uint), ("grid_y", ctypes.c_uint), ("grid_z", ctypes.c_uint),
                ("block_x", ctypes.c_uint), ("block_y", ctypes.c_uint), ("block_z", ctypes.c_uint),
                ("shared_bytes", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.c_void_p), ("num_attributes", ctypes.c_uint)]


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A CUDA device as described by the driver. `facts`: driver attributes under our names; bytes where the name says so."""

    index: int
    name: str
    arch: str
    memory_bytes: int
    facts: tuple[tuple[str, int], ...]

    @property
    def capability(self) -> Capability:
        """The compute capability."""
        facts = dict(self.facts)
        return facts["major"], facts["minor"]


@functools.cache
def driver() -> Any:
    """The initialised driver library. Raises: DeviceError when there is no driver or no device."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"no CUDA driver: {error}", hint="install the NVIDIA driver, or compile with device='host'") from error
    code = library.cuInit(0)
    if code:
        raise DeviceError(f"cuInit failed with code {code} ({_name(library, code)})", hint="is a GPU visible? see CUDA_VISIBLE_DEVICES")
    return library


def _name(library: Any, code: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(text))
    return text.value.decode() if text.value else "unknown error"


def check(code: int, call: str, note: str = "") -> None:
    """Returns for code 0. Raises: OutOfMemoryError or DeviceError with call, code, its name and `note`."""
    if code:
        kind = OutOfMemoryError if code == OUT_OF_MEMORY else DeviceError
        raise kind(f"{call} failed with code {code} ({_name(driver(), code)}){f': {note}' if note else ''}",
                   hint=ASSERT_HINT if code == ASSERT else None)


def has_device() -> bool:
    """Whether a CUDA driver with at least one device is there. Does not import torch."""
    try:
        return num_devices() > 0
    except DeviceError:
        return False


def num_devices() -> int:
    """Number of CUDA devices that this process sees. Raises: DeviceError without a driver."""
    count = ctypes.c_int()
    check(driver().cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    return count.value


@functools.cache
def describe_device(index: int) -> CudaDevice:
    """The driver's facts about device number `index`. Raises: DeviceError when there is none of that number."""
    library = driver()
    handle = ctypes.c_int()
    check(library.cuDeviceGet(ctypes.byref(handle), index), "cuDeviceGet", f"device {index}, of {num_devices()}")
    name = ctypes.create_string_buffer(256)
    check(library.cuDeviceGetName(name, 256, handle), "cuDeviceGetName")
    memory = ctypes.c_size_t()
    check(library.cuDeviceTotalMem_v2(ctypes.byref(memory), handle), "cuDeviceTotalMem")
    facts: dict[str, int] = {}
    for fact, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        check(library.cuDeviceGetAttribute(ctypes.byref(value), number, handle), "cuDeviceGetAttribute", fact)
        facts[fact] = value.value
    return CudaDevice(index, name.value.decode(), arch_of((facts["major"], facts["minor"])), memory.value, tuple(facts.items()))


_contexts: dict[int, ctypes.c_void_p] = {}
_modules: dict[tuple[str, int], ctypes.c_void_p] = {}
_guard = threading.Lock()


def use_device(index: int) -> None:
    """Makes the device's primary context (the one torch uses) current in this thread. Raises: DeviceError."""
    library = driver()
    with _guard:
        context = _contexts.get(index)
        if context is None:
            context = ctypes.c_void_p()
            check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), index), "cuDevicePrimaryCtxRetain")
            _contexts[index] = context
    check(library.cuCtxSetCurrent(context), "cuCtxSetCurrent")


def load_function(payload: bytes, symbol: str, launch: Launch, device_index: int) -> int:
    """Handle of kernel `symbol` of a cubin on a device, with the attributes that `launch` needs set.

    Machine code is loaded once per process and device.
    Raises: DeviceError when it does not fit the device or lacks the symbol, or the launch exceeds the device's limits.
    """
    library = driver()
    use_device(device_index)
    key = (hashlib.sha256(payload).hexdigest(), device_index)
    with _guard:
        module = _modules.get(key)
        if module is None:
            module = ctypes.c_void_p()
            check(library.cuModuleLoadData(ctypes.byref(module), payload), "cuModuleLoadData",
                  f"kernel {symbol} on {describe_device(device_index).name}")
            _modules[key] = module
    function = ctypes.c_void_p()
    check(library.cuModuleGetFunction(ctypes.byref(function), module, symbol.encode()), "cuModuleGetFunction", symbol)
    if launch.shared_bytes:
        check(library.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_BYTES, launch.shared_bytes), "cuFuncSetAttribute",
              f"kernel {symbol} wants {launch.shared_bytes} bytes of shared memory a block")
    if launch.cluster > _PORTABLE_CLUSTER_BLOCKS and not launch.scattered:
        check(library.cuFuncSetAttribute(function, _NON_PORTABLE_CLUSTER, 1), "cuFuncSetAttribute",
              f"kernel {symbol} wants clusters of {launch.cluster} blocks")
    assert function.value is not None
    return function.value


def read_symbol(payload: bytes, symbol: str, num_bytes: int, device_index: int) -> bytes:
    """Contents of a variable of loaded machine code, once the device has done all its work. Raises: DeviceError where there is none."""
    library = driver()
    use_device(device_index)
    module = _modules.get((hashlib.sha256(payload).hexdigest(), device_index))
    if module is None:
        raise DeviceError(f"the code with {symbol} is not loaded", hint="call the program first")
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    check(library.cuModuleGetGlobal_v2(ctypes.byref(address), ctypes.byref(size), module, symbol.encode()), "cuModuleGetGlobal", symbol)
    contents = ctypes.create_string_buffer(num_bytes)
    check(library.cuCtxSynchronize(), "cuCtxSynchronize")
    check(library.cuMemcpyDtoH_v2(contents, address, ctypes.c_size_t(num_bytes)), "cuMemcpyDtoH", symbol)
    return contents.raw


@functools.cache
def _launch_call() -> Any:
    call = driver().cuLaunchKernelEx
    call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    call.restype = ctypes.c_int
    return call


def launch_config(launch: Launch, stream: int) -> tuple[LaunchConfig, ctypes.Array[LaunchAttribute] | None]:
    """The driver's launch structures, with attributes in an array; both must stay alive while the configuration is used."""
    config = LaunchConfig(grid_x=launch.num_blocks, grid_y=1, grid_z=1, block_x=launch.num_threads, block_y=1, block_z=1,
                          shared_bytes=launch.shared_bytes, stream=stream)
    chosen = [(_CLUSTER_DIMENSION, (launch.cluster, 1, 1))] if launch.cluster > 1 and not launch.scattered else []
    if launch.scattered:
        chosen.append((COOPERATIVE, (1, 0, 0)))
    if launch.early:
        chosen.append((_PROGRAMMATIC_STREAM_SERIALIZATION, (1, 0, 0)))
    if not chosen:
        return config, None
    attributes = (LaunchAttribute * len(chosen))()
    for attribute, (number, value) in zip(attributes, chosen):
        attribute.id = number
        attribute.value[0], attribute.value[1], attribute.value[2] = value
    config.attributes = ctypes.addressof(attributes)
    config.num_attributes = len(chosen)
    return config, attributes


def prepare_launch(function: int, launch: Launch, stream: int, parameters_address: int) -> tuple[Callable[[], int], object]:
    """A call without arguments that starts the kernel and returns the driver's code; and the objects that it needs kept alive.

    parameters_address: of an array with the address of each argument; the call reads the arguments.
    """
    config, attributes = launch_config(launch, stream)
    call = functools.partial(_launch_call(), ctypes.addressof(config), function, parameters_address, None)
    return call, (config, attributes)


# Numbers of the driver's enumerations. Elements are copied as unsigned integers of their size. Source: cuda.h.
_MAP_TYPES = {1: 0, 2: 1, 4: 2, 8: 4}
_MAP_INTERLEAVE_NONE, _MAP_PROMOTE_L2_128_BYTES, _MAP_FILL_ZEROS = 0, 2, 0


@functools.cache
def _encode_call() -> Any:
    call = driver().cuTensorMapEncodeTiled
    pointer, number = ctypes.c_void_p, ctypes.c_int
    call.argtypes = (pointer, number, ctypes.c_uint32, pointer, pointer, pointer, pointer, pointer, number, number, number, number)
    call.restype = number
    return call


def map_encoder(m: MapParameter, map_address: int) -> Callable[[int], int]:
    """A call that encodes a tensor map at `map_address` for the memory at its argument, and returns the driver's code.

    Requires: 128 bytes at `map_address`, a multiple of 64. Source: CUDA driver API, cuTensorMapEncodeTiled.
    """
    rank = len(m.extents)
    extents = (ctypes.c_uint64 * rank)(*m.extents[::-1])
    strides = (ctypes.c_uint64 * rank)(*(s * m.itemsize for s in m.strides[::-1]))
    box = (ctypes.c_uint32 * rank)(*m.box[::-1])
    steps = (ctypes.c_uint32 * rank)(*[1] * rank)
    start, kind, swizzle = m.first * m.itemsize, _MAP_TYPES[m.itemsize], SWIZZLES.index(m.swizzle)
    encode = _encode_call()

    def encoded(address: int) -> int:
        return int(encode(map_address, kind, rank, address + start, extents, strides, box, steps, _MAP_INTERLEAVE_NONE, swizzle,
                          _MAP_PROMOTE_L2_128_BYTES, _MAP_FILL_ZEROS))

    return encoded


def create_stream(device_index: int) -> int:
    """Handle of a new stream of the device, independent of all others. It is never destroyed. Raises: DeviceError."""
    use_device(device_index)
    stream = ctypes.c_void_p()
    check(driver().cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING), "cuStreamCreate")
    assert stream.value is not None
    return stream.value


def function_resources(function: int) -> dict[str, int]:
    """Registers, and bytes of shared, local and constant memory of a loaded kernel. Raises: DeviceError."""
    numbers = {"shared_bytes": 1, "constant_bytes": 2, "local_bytes": 3, "num_registers": 4}
    resources: dict[str, int] = {}
    for name, number in numbers.items():
        value = ctypes.c_int()
        check(driver().cuFuncGetAttribute(ctypes.byref(value), number, ctypes.c_void_p(function)), "cuFuncGetAttribute", name)
        resources[name] = value.value
    return resources
