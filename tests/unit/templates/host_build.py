"""Builds printed host sources with the system's compiler and calls them on numpy arrays; nothing of the runtime is needed."""
from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.kernel.ir import Kernel
from tilefuse.printers.host import print_host, print_host_together

FLAGS = ("-O2", "-march=native", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas",
         "-Wno-unused-variable", "-Wno-unused-parameter", "-Wno-unused-but-set-variable", "-Wno-sign-compare", "-Wno-maybe-uninitialized",
         "-Wno-uninitialized", "-Wno-class-memaccess")

# The checking mode. Eight pipelined products of about 100 x 100 by 100 in one source: 2.2 and 8.8 CPU seconds to build and run them with
# -O0, 4.4 and 2.3 with -O1, 2.4 and 2.5 with -Og.
CHECKED_FLAGS = tuple("-Og" if f == "-O2" else f for f in FLAGS)
# Many short runs of as many kernels: faults planted in small ones, say.
SHORT_CHECKED_FLAGS = tuple("-O0" if f == "-O2" else f for f in FLAGS)


def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    return shutil.which("g++") or shutil.which("clang++")


def build(source: str, folder: Path, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """The shared object of a source, compiled into `folder`."""
    stem = folder / hashlib.sha256(source.encode()).hexdigest()[:16]
    text, library = stem.with_suffix(".cpp"), stem.with_suffix(".so")
    if not library.exists():
        text.write_text(source)
        found = compiler()
        assert found is not None
        # The child gets a copy of the environment: it starts in a thread, while tests in another one may change the process's own.
        done = subprocess.run([found, *flags, str(text), "-o", str(library)], capture_output=True, text=True, check=False,
                              env=dict(os.environ))
        assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def build_together(kernels: Sequence[tuple[Kernel, bool]], folder: Path, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """One shared object of many kernels (each with whether it is checked), number n under the name `<kernel>_<n>`."""
    return build(print_host_together(kernels), folder, flags)


@dataclass(frozen=True)
class Library:
    """Kernels by name, all of them in one shared object. Each in a source of its own takes three times as long: most of that source is the
    support text of the checking mode."""

    kernels: Mapping[str, Kernel]
    built: ctypes.CDLL

    def run(self, name: str, arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int, str]:
        """As the function `run`, of the kernel `name`."""
        kernel = self.kernels[name]
        return call(getattr(self.built, f"{kernel.name}_{[*self.kernels].index(name)}"), kernel, arrays)


def library_of(kernels: Mapping[str, Kernel], folder: Path) -> Library:
    """The kernels in checking mode."""
    return Library(kernels, build_together([(k, True) for k in kernels.values()], folder, CHECKED_FLAGS))


def run(kernel: Kernel, arrays: dict[str, np.ndarray], folder: Path, check: bool = False) -> tuple[dict[str, np.ndarray], int, str]:
    """Every buffer's contents after one run, the status, and the report. Buffers not given start as 0xee bytes, counters as 0."""
    return call(getattr(build(print_host(kernel, check), folder, CHECKED_FLAGS if check else FLAGS), kernel.name), kernel, arrays)


def call(function: Callable[..., int], kernel: Kernel, arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int, str]:
    """As `run`, for the entry of a kernel that is built already."""
    memory: dict[str, np.ndarray] = {}
    for b in kernel.parameters:
        dtype = NUMPY_DTYPES[b.dtype.name]
        if b.name in arrays:
            memory[b.name] = np.array(arrays[b.name], dtype=dtype)
            assert memory[b.name].size == b.num_elements, b.name
        else:
            fill = 0 if b.role == "counter" else 0xEE
            memory[b.name] = np.full(b.num_elements * dtype.itemsize, fill, np.uint8).view(dtype)
    pointers = (ctypes.c_void_p * len(memory))(*[a.ctypes.data for a in memory.values()])
    report = ctypes.create_string_buffer(1 << 16)
    status = function(pointers, report, ctypes.c_long(len(report)))
    return memory, status, report.value.decode(errors="replace")
