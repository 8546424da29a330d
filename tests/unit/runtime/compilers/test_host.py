"""The host compiler: finding it, its absence, loading, and kernels that report."""
from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tests.unit.runtime.handmade import host_kernel
from tilefuse.base.errors import ToolchainError
from tilefuse.runtime.compilers import host
from tilefuse.runtime.compilers.host import compile_host, compiler_command, find_compiler, host_key, load_host
from tilefuse.runtime.stores.cache import CacheEntry


def test_kernel_runs_through_its_pointer_table() -> None:
    kernel = host_kernel("run_me", "tf_twice(a[i]) + b[i]", count=8, num_inputs=2)
    function = load_host(compile_host([kernel], compiler_command())[0])
    a, b, y = (ctypes.c_float * 8)(*range(8)), (ctypes.c_float * 8)(*([0.5] * 8)), (ctypes.c_float * 8)()
    table = (ctypes.c_void_p * 3)(ctypes.addressof(a), ctypes.addressof(b), ctypes.addressof(y))
    assert function(ctypes.addressof(table), ctypes.create_string_buffer(64), 64) == 0
    assert list(y) == [2 * i + 0.5 for i in range(8)]


def test_product_and_sum_round_separately() -> None:
    """(1 + e)(1 - e) - 1 is 0 when the product is rounded first, and -e*e when contracted to one operation."""
    kernel = host_kernel("contract", "a[i] * b[i] - 1.0f", count=1, num_inputs=2)
    function = load_host(compile_host([kernel], compiler_command())[0])
    e = 2.0 ** -13
    a, b, y = (ctypes.c_float * 1)(1 + e), (ctypes.c_float * 1)(1 - e), (ctypes.c_float * 1)(9)
    table = (ctypes.c_void_p * 3)(ctypes.addressof(a), ctypes.addressof(b), ctypes.addressof(y))
    function(ctypes.addressof(table), ctypes.create_string_buffer(64), 64)
    assert y[0] == 0.0


def test_fast_math_leaves_the_process_its_subnormal_numbers() -> None:
    """gcc's -ffast-math links start-up code into a shared object that flushes them to zero, the caller's too."""
    program = (
        "import numpy as np, torch, tilefuse\n"
        "made = tilefuse.compile(lambda x: torch.exp(x) + 1, [torch.ones(8)], device='host', fast_math=True)\n"
        "made(torch.ones(8))\n"
        "print(np.float32(3e-44) * np.float32(1) != 0, np.float64(1e-320) * 1 != 0)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["True", "True"], done.stdout + done.stderr


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    find_compiler.cache_clear()
    with pytest.raises(ToolchainError, match=r"install g\+\+ or clang\+\+, or set CXX"):
        find_compiler(None)
    with pytest.raises(ToolchainError, match="my-compiler"):
        find_compiler("my-compiler --fast")
    find_compiler.cache_clear()


def test_a_compiler_that_writes_nothing_is_named() -> None:
    with pytest.raises(ToolchainError, match="the C\\+\\+ compiler true reports success and writes no file"):
        compile_host([host_kernel("k", "a[i]")], ("true",))


def test_variable_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ -pipe")
    assert compiler_command() == ("g++", "-pipe")
    assert compiler_command("c++") == ("c++",)


def test_key_tells_compilers_and_flags_apart() -> None:
    import dataclasses

    kernel = host_kernel("k", "a[i]")
    assert host_key(kernel, ("g++",)).digest != host_key(kernel, ("g++", "-pipe")).digest
    assert host_key(dataclasses.replace(kernel, flags=("-ffast-math",)), ("g++",)).digest != host_key(kernel, ("g++",)).digest


def test_bytes_that_are_no_shared_object() -> None:
    with pytest.raises(ToolchainError, match="cannot be loaded"):
        load_host(CacheEntry(b"not machine code", "k"))


def test_missing_entry() -> None:
    entry = compile_host([host_kernel("present", "a[i]")], compiler_command())[0]
    with pytest.raises(ToolchainError, match="lacks its entry"):
        load_host(CacheEntry(entry.payload, "absent"))


def test_includes_are_hoisted_before_the_namespaces() -> None:
    text = host._unit([host_kernel("k0", "a[i]"), host_kernel("k1", "a[i]")])
    head = text.index("namespace unit0")
    assert text.count("#include <cmath>") == 1 and text.index("#include <cmath>") < head and "#include" not in text[head:]
