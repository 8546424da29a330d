"""Host C++ text to a shared object through the system's compiler, and the loading of it.

Kernels of a program that are not cached are compiled in a few parallel jobs; the kernels of one job share a translation unit (each in a
namespace of its own), because reading the headers costs more than a small kernel.
"""
from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tilefuse.base.errors import ToolchainError
from tilefuse.base.user_text import refused_texts
from tilefuse.runtime.compilers.failed_source import keep_failed_source
from tilefuse.runtime.compilers.running import run_compiler
from tilefuse.runtime.spec import KernelCode
from tilefuse.runtime.stores.cache import CacheEntry
from tilefuse.runtime.stores.cache_key import CacheKey
from tilefuse.runtime.stores.kernel_identity import entry_field, kernel_identity
from tilefuse.runtime.stores.private_folder import work_folder

# -ffp-contract=off: a product and a sum round separately, as in the interpreter that defines the operators; the source says fma where it is
# meant. errno and traps are never read.
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
         "-w")
UNIT = "unit.cpp"
# For some processors with AVX-512, compilers choose 32-byte vectors for loops; memory is then moved by 64 bytes explicitly (`tf_copy`).
WIDE_FLAGS = ("-mprefer-vector-width=512",)
INSTALL_HINT = "install g++ or clang++, or set CXX"
CLEAR_HINT = "clear the kernel cache: tilefuse cache clear"


@functools.cache
def find_compiler(cxx: str | None = None) -> tuple[str, ...]:
    """The C++ compiler's command: `cxx` (the variable CXX), else g++, clang++ or c++ on the path.

    Raises: ToolchainError when there is none.
    """
    if cxx:
        command = tuple(shlex.split(cxx))
        if command and shutil.which(command[0]):
            return command
        raise ToolchainError(f"the C++ compiler {cxx!r} is not on the path", hint="set CXX to an installed g++ or clang++")
    for name in ("g++", "clang++", "c++"):
        if shutil.which(name):
            return (name,)
    raise ToolchainError("running on the CPU needs a C++ compiler, and none was found", hint=INSTALL_HINT)


def compiler_command(cxx: str = "") -> tuple[str, ...]:
    """The C++ compiler's command: `cxx`, or the one of this process's environment (see `find_compiler`)."""
    return find_compiler(cxx or os.environ.get("CXX") or None)


@functools.cache
def compiler_version(command: tuple[str, ...]) -> str:
    """First line that the compiler prints about itself. Raises: ToolchainError when it does not run."""
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(f"the C++ compiler {shlex.join(command)} does not run: {error}", hint=INSTALL_HINT) from error
    return done.stdout.splitlines()[0] if done.stdout else "unknown"


@functools.cache
def host_identity() -> str:
    """Names the processor that -march=native compiles for: machine, and a short hash of its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = [platform.processor()]
    prefixes = ("flags", "Features", "model name", "cpu family", "model\t")
    facts = sorted({line for line in lines if line.startswith(prefixes)})
    return f"{platform.machine()}-{hashlib.sha256(chr(10).join(facts).encode()).hexdigest()[:12]}"


@functools.cache
def processor_flags() -> tuple[str, ...]:
    """Flags for this processor, beside those for all; () where its instruction sets are unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    return WIDE_FLAGS if any(line.startswith("flags") and "avx512f" in line.split() for line in lines) else ()


def host_key(kernel: KernelCode, command: tuple[str, ...]) -> CacheKey:
    """The cache key of a host kernel: its source, the processor, and the compiler's name, version and flags."""
    return CacheKey(kernel.name, kernel.source, (
        ("target", "host"), ("entry", entry_field(kernel)), ("arch", host_identity()), ("compiler", shlex.join(command)),
        ("version", compiler_version(command)), ("flags", " ".join((*FLAGS, *processor_flags(), *kernel.flags)))), kernel_identity(kernel))


def compile_host(kernels: Sequence[KernelCode], command: tuple[str, ...]) -> list[CacheEntry]:
    """One shared object with all the kernels (distinct entries, equal flags); one cache entry a kernel, all with the same payload.

    Raises: ToolchainError with the compiler's log, its command, the path of the kept source of the first bad kernel, and the user's
        text that is refused.
    """
    assert len({k.entry for k in kernels}) == len(kernels)
    started = time.perf_counter()
    arguments = (*command, *FLAGS, *processor_flags(), *kernels[0].flags)
    outcome = _run_compiler(_unit(kernels) if len(kernels) > 1 else kernels[0].source, arguments)
    if isinstance(outcome, bytes):
        seconds = (time.perf_counter() - started) / len(kernels)
        return [CacheEntry(outcome, k.entry, "", seconds) for k in kernels]
    if len(kernels) > 1:
        # Compiled alone, each kernel either succeeds (the sharing was at fault) or is the one to report.
        return [entry for kernel in kernels for entry in compile_host([kernel], command)]
    kernel, log = kernels[0], outcome
    path = keep_failed_source(kernel.name, ".cpp", kernel.source, log)
    users = "".join(f"{text}, does not compile: " for text in refused_texts(kernel.source, log, UNIT))
    raise ToolchainError(f"{users}the C++ compiler refuses kernel {kernel.name}", where=str(path),
                         hint=f"command: {shlex.join(arguments)}", notes=[log[-4000:]])


# Headers, and the macro that selects parts of one of them.
INCLUDE_LINE = re.compile(r"^[ \t]*#[ \t]*(?:include\b|undef _GLIBCXX_).*$", re.MULTILINE)


def _unit(kernels: Sequence[KernelCode]) -> str:
    """One translation unit: all include lines first, then each kernel's text in its own namespace."""
    includes = dict.fromkeys(line.strip() for k in kernels for line in INCLUDE_LINE.findall(k.source))
    parts = [f"namespace unit{i} {{\n{INCLUDE_LINE.sub('', k.source)}\n}}" for i, k in enumerate(kernels)]
    return "\n".join([*includes, *parts, ""])


def _run_compiler(source: str, arguments: tuple[str, ...]) -> bytes | str:
    """The shared object's bytes, or the compiler's log where it failed."""
    with work_folder() as folder:
        text, output = Path(folder, UNIT), Path(folder, "unit.so")
        text.write_text(source, encoding="utf-8")
        try:
            done = run_compiler([*arguments, "-o", str(output), str(text), "-lm"])
        except OSError as error:
            raise ToolchainError(f"the C++ compiler {arguments[0]} does not run: {error}", hint=INSTALL_HINT) from error
        if done.returncode < 0:
            # Killed, by an interrupt or for lack of memory: the source is not at fault, and another try would not help.
            raise ToolchainError(f"the C++ compiler {arguments[0]} was ended by signal {-done.returncode}",
                                 hint="if it ran out of memory, set TILEFUSE_JOBS to a smaller number")
        if done.returncode:
            return f"{done.stdout}{done.stderr}" or f"{arguments[0]} ended with status {done.returncode}"
        try:
            return output.read_bytes()
        except FileNotFoundError as error:
            raise ToolchainError(f"the C++ compiler {shlex.join(arguments[:1])} reports success and writes no file",
                                 hint=INSTALL_HINT) from error


_loaded: dict[str, ctypes.CDLL] = {}


def host_symbol(entry: CacheEntry, symbol: str) -> int:
    """Address of a variable of a kernel that is loaded. Raises: ToolchainError where its code has none of that name."""
    library = _loaded.get(hashlib.sha256(entry.payload).hexdigest())
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, symbol)) if library is not None else 0
    except ValueError as error:
        raise ToolchainError(f"the compiled code of kernel {entry.symbol} lacks {symbol}", hint=CLEAR_HINT) from error
_loading = threading.Lock()


def load_host(entry: CacheEntry) -> ctypes._FuncPointer:
    """The kernel as a callable `int (void* const* arguments, char* report, long report_size)`.

    A shared object is loaded once per process, from a file that is deleted afterwards.
    Raises: ToolchainError when the bytes are no shared object of this machine, or lack the symbol.
    """
    sha = hashlib.sha256(entry.payload).hexdigest()
    with _loading:
        library = _loaded.get(sha)
        if library is None:
            with work_folder() as folder:
                path = Path(folder, f"{entry.symbol[:60]}-{sha[:12]}.so")
                path.write_bytes(entry.payload)
                try:
                    library = ctypes.CDLL(str(path))
                except OSError as error:
                    raise ToolchainError(f"kernel {entry.symbol} cannot be loaded: {error}", hint=CLEAR_HINT) from error
            _loaded[sha] = library
    try:
        function = library[entry.symbol]
    except AttributeError as error:
        raise ToolchainError(f"the compiled code of kernel {entry.symbol} lacks its entry", hint=CLEAR_HINT) from error
    function.restype = ctypes.c_int
    function.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_long)
    return function
