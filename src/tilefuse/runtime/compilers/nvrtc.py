"""CUDA C++ text to machine code for one architecture, through NVRTC. Needs no GPU and no driver."""
from __future__ import annotations

import functools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilefuse.base.errors import ToolchainError
from tilefuse.base.user_text import refused_texts
from tilefuse.runtime.compilers.failed_source import keep_failed_source
from tilefuse.runtime.compilers.nvrtc_processes import Compiled, command_of, num_processes, nvrtc_processes
from tilefuse.runtime.spec import KernelCode
from tilefuse.runtime.stores.cache import CacheEntry
from tilefuse.runtime.stores.cache_key import CacheKey
from tilefuse.runtime.stores.kernel_identity import entry_field, kernel_identity

FLAGS = ("--std=c++17", "-default-device", "--ptxas-options=-v")


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources that a kernel needs on a multiprocessor. Units: registers per thread; bytes per thread (spills, stack) or per block
    (shared)."""

    num_registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@functools.cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise ToolchainError(f"NVRTC cannot be loaded: {error}", hint="pip install cuda-bindings nvidia-cuda-nvrtc") from error
    return nvrtc


@functools.cache
def nvrtc_version() -> str:
    """NVRTC's version, as in "13.0". Raises: ToolchainError when NVRTC is not installed."""
    status, major, minor = _nvrtc().nvrtcVersion()
    if int(status):
        raise ToolchainError(f"NVRTC does not tell its version: {status}")
    return f"{major}.{minor}"


@functools.lru_cache(256)
def cuda_key(kernel: KernelCode) -> CacheKey:
    """The cache key of a CUDA kernel: its source, architecture, and NVRTC's version and flags."""
    return CacheKey(kernel.name, kernel.source, (("target", "cuda"), ("entry", entry_field(kernel)), ("arch", kernel.arch),
                                                 ("compiler", "nvrtc"), ("version", nvrtc_version()),
                                                 ("flags", " ".join((*FLAGS, *kernel.flags)))), kernel_identity(kernel))


def compile_cuda(kernel: KernelCode) -> CacheEntry:
    """The kernel as a cubin for its `arch`; the log carries the assembler's report.

    Raises: ToolchainError with NVRTC's log, the path of the kept source, and the user's text that is refused.
    """
    return compile_text(kernel.source, kernel.entry, kernel.arch, kernel.name, kernel.flags)


def compile_text(source: str, entry: str, arch: str, name: str, flags: tuple[str, ...] = ()) -> CacheEntry:
    """CUDA text as a cubin. NVRTC runs without the interpreter's lock, or in another process.

    Raises: ToolchainError (see `compile_cuda`).
    """
    nvrtc = _nvrtc()
    started = time.perf_counter()
    arguments = (f"--gpu-architecture={arch}", *FLAGS, *flags)
    options = [argument.encode() for argument in arguments]
    status, report, cubin = nvrtc_processes().compiled(f"{name}.cu".encode(), source.encode(), options, _compiled_here)
    log = report.decode(errors="replace").strip("\0\n ")
    if status:
        message = nvrtc.nvrtcGetErrorString(nvrtc.nvrtcResult(status))[1].decode()
        path = keep_failed_source(name, ".cu", source, log)
        users = "".join(f"{text}, does not compile: " for text in refused_texts(source, log, f"{name}.cu"))
        raise ToolchainError(f"{users}NVRTC cannot compile kernel {name} for {arch}: {message}", where=str(path),
                             hint=f"flags: {' '.join(arguments)}", notes=[log])
    return CacheEntry(cubin, entry, log, time.perf_counter() - started)


def start_processes(arch: str, jobs: int) -> None:
    """Requests that NVRTC also runs in other processes soon. jobs: the option's."""
    nvrtc_processes().start(num_processes(jobs), lambda: command_of(nvrtc_version(), arch))


def _compiled_here(name: bytes, source: bytes, flags: Sequence[bytes]) -> Compiled:
    """A kernel compiled in this process. Raises: ToolchainError where NVRTC fails for another reason than the source."""
    nvrtc = _nvrtc()
    status, handle = nvrtc.nvrtcCreateProgram(source, name, 0, [], [])
    if int(status):
        return int(status), b"", b""
    try:
        status, = nvrtc.nvrtcCompileProgram(handle, len(flags), list(flags))
        log = _text(nvrtc, handle, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
        return int(status), log, b"" if int(status) else _text(nvrtc, handle, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(handle)


def _text(nvrtc: Any, handle: Any, size_call: str, data_call: str) -> bytes:
    status, size = getattr(nvrtc, size_call)(handle)
    if int(status):
        raise ToolchainError(f"{size_call} failed: {status}")
    data: bytes = b"\0" * int(size)
    status, = getattr(nvrtc, data_call)(handle, data)
    if int(status):
        raise ToolchainError(f"{data_call} failed: {status}")
    return data


def parse_resources(log: str) -> Resources | None:
    """The assembler's report in a log, or None where it has none."""
    registers = re.search(r"Used (\d+) registers", log)
    if registers is None:
        return None
    spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", log)
    shared = re.search(r"(\d+) bytes smem", log)
    return Resources(int(registers.group(1)), int(spills.group(2)) if spills else 0, int(spills.group(1)) if spills else 0,
                     int(shared.group(1)) if shared else 0)
