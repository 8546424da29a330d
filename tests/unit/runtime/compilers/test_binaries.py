"""Kernels compiled once: within a program, between threads and between processes."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.runtime.handmade import cuda_kernel, host_kernel
from tilefuse.base.errors import ToolchainError
from tilefuse.base.options import Options
from tilefuse.base.trace import Trace, tracing
from tilefuse.runtime.compilers import binaries
from tilefuse.runtime.compilers.binaries import build_kernels, kernel_key
from tilefuse.runtime.compilers.host import load_host
from tilefuse.runtime.spec import KernelCode
from tilefuse.runtime.stores.cache import CacheEntry, KernelCache


def test_equal_kernels_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve layers of one kernel and one other kernel: two are compiled; a second build compiles none."""
    seen: list[str] = []
    real = binaries.compile_host

    def counting(kernels: list[KernelCode], command: tuple[str, ...]) -> list[CacheEntry]:
        seen.extend(k.name for k in kernels)
        return real(kernels, command)

    monkeypatch.setattr(binaries, "compile_host", counting)
    kernels = [host_kernel("layer", "a[i] + 1")] * 12 + [host_kernel("head", "a[i] * 2")]
    done: list[tuple[int, int]] = []
    entries = build_kernels(kernels, KernelCache(tmp_path), progress=lambda n, total: done.append((n, total)))
    assert sorted(seen) == ["head", "layer"] and len(entries) == 13 and done[-1] == (2, 2)
    assert [e.symbol for e in entries] == [k.entry for k in kernels]
    build_kernels(kernels, KernelCache(tmp_path))
    assert len(seen) == 2


def test_one_object_holds_several_kernels(tmp_path: Path) -> None:
    """With one job, kernels share a shared object although their support functions have the same names."""
    kernels = [host_kernel(f"k{i}", f"tf_twice(a[i]) + {i}") for i in range(3)]
    entries = build_kernels(kernels, KernelCache(tmp_path), jobs=1)
    assert len({e.payload for e in entries}) == 1
    assert all(callable(load_host(e)) for e in entries)


def test_same_entry_name_with_different_sources(tmp_path: Path) -> None:
    """Two kernels of one name cannot share an object; both are compiled."""
    kernels = [host_kernel("k", "a[i] + 1"), host_kernel("k", "a[i] + 2")]
    entries = build_kernels(kernels, KernelCache(tmp_path), jobs=1)
    assert entries[0].payload != entries[1].payload


def test_bad_kernel_among_good_ones_is_named(tmp_path: Path) -> None:
    """The shared object fails, so the kernels are tried alone: the error names the bad one, its source and the command."""
    kernels = [host_kernel("good", "a[i]"), host_kernel("bad", "a[i] +* nonsense")]
    with pytest.raises(ToolchainError, match="kernel bad") as caught:
        build_kernels(kernels, KernelCache(tmp_path), jobs=1)
    assert Path(str(caught.value.where)).read_text() == kernels[1].source
    assert "-O3" in str(caught.value) and any("nonsense" in note for note in caught.value.__notes__)


def test_finished_kernels_survive_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user interrupts after the first job: its kernel is in the cache, no part file is left, the locks are free."""
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(binaries, "KERNELS_PER_HOST_JOB", 1)
    kernels = [host_kernel(f"k{i}", f"a[i] + {i}") for i in range(4)]
    cache = KernelCache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        build_kernels(kernels, cache, jobs=1, progress=stop)
    assert 1 <= len(cache.entries()) <= 4
    assert not list(tmp_path.rglob(".part-*"))
    assert len(build_kernels(kernels, KernelCache(tmp_path))) == 4


# A shell starts background jobs with interrupts ignored, and children inherit that: the process asks for Python's own handler again.
PROCESS = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.unit.runtime.handmade import host_kernel
from tilefuse.runtime.compilers import binaries
from tilefuse.runtime.stores.cache import KernelCache
real = binaries.compile_host
def counting(kernels, command):
    sys.stdout.write("".join(k.name + " " for k in kernels))  # in one call: several threads compile
    return real(kernels, command)
binaries.compile_host = counting
binaries.build_kernels([host_kernel(f"k{i}", f"a[i] + {i}") for i in range(3)], KernelCache(sys.argv[1]))
"""


def test_processes_compile_each_kernel_once(tmp_path: Path) -> None:
    """Three processes start with one empty cache; between them each kernel is compiled once."""
    root = Path(__file__).resolve().parents[4]
    command = [sys.executable, "-c", PROCESS, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env=_environment(root)) for _ in range(3)]
    compiled = [line for process in started for line in process.communicate(timeout=120)[0].split()]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert sorted(compiled) == ["k0", "k1", "k2"]


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}


def test_threads_compile_each_kernel_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads with caches of their own on one folder."""
    seen: list[str] = []
    real = binaries.compile_host

    def counting(kernels: list[KernelCode], command: tuple[str, ...]) -> list[CacheEntry]:
        seen.extend(k.name for k in kernels)
        return real(kernels, command)

    monkeypatch.setattr(binaries, "compile_host", counting)
    kernels = [host_kernel(f"k{i}", f"a[i] + {i}") for i in range(3)]
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: build_kernels(kernels, KernelCache(tmp_path)), range(2)))
    assert sorted(seen) == ["k0", "k1", "k2"] and both[0] == both[1]


@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["group", "python alone"])
@pytest.mark.parametrize("num_kernels", [1, 3])
def test_interrupt_while_the_compiler_runs(tmp_path: Path, num_kernels: int, send: Callable[[int, int], None]) -> None:
    """An interrupt of Python ends its compilers, also those that are just starting: no temporary file, no entry and no lock is left."""
    root = Path(__file__).resolve().parents[4]
    compiler, scratch = tmp_path / "slow-compiler", tmp_path / "scratch"
    compiler.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo slow 1; exit; fi\ntouch {tmp_path}/started\nsleep 300\n')
    compiler.chmod(0o755)
    scratch.mkdir()
    text = PROCESS.replace("range(3)", f"range({num_kernels})")
    environment = {**_environment(root), "CXX": str(compiler), "TMPDIR": str(scratch)}
    process = subprocess.Popen([sys.executable, "-c", text, str(tmp_path / "cache")], cwd=root, stderr=subprocess.PIPE,
                               start_new_session=True, env=environment)
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    send(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0 and b"KeyboardInterrupt" in errors
    # The user's own folder stays; what lay in it is gone.
    assert [p for own in scratch.iterdir() for p in own.iterdir()] == []
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".lock"] == []
    with KernelCache(tmp_path / "cache").locked([kernel_key(host_kernel("k0", "a[i] + 0"), str(compiler))]):
        pass


# The signal comes to another thread than the one that runs Python's handlers, which sleeps: as where it comes just before that one sleeps.
UNNOTICED = """
import pathlib, threading, time
def late():
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)
    time.sleep(0.5)  # everyone waits
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(100)
threading.Thread(target=late, daemon=True).start()
"""


@pytest.mark.parametrize("num_kernels", [1, 3])
def test_an_interrupt_that_wakes_nobody_is_noticed(tmp_path: Path, num_kernels: int) -> None:
    root, compiler, started = Path(__file__).resolve().parents[4], tmp_path / "slow-compiler", tmp_path / "started"
    compiler.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo slow 1; exit; fi\ntouch {started}\nexec sleep 300\n')
    compiler.chmod(0o755)
    before, call = PROCESS.replace("range(3)", f"range({num_kernels})").split("binaries.build_kernels")
    text = f"{before}{UNNOTICED}binaries.build_kernels{call}"
    done = subprocess.run([sys.executable, "-c", text, str(tmp_path / "cache"), str(started)], cwd=root, capture_output=True, timeout=60,
                          env={**_environment(root), "CXX": str(compiler), "TMPDIR": str(tmp_path)})
    assert done.returncode != 0 and b"KeyboardInterrupt" in done.stderr


def test_misses_are_told_with_their_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tracing(Trace(Options(debug=2))) as told:
        build_kernels([host_kernel("k", "a[i]")], KernelCache(tmp_path))
        build_kernels([host_kernel("k", "a[i] + 1")], KernelCache(tmp_path))
    text = capsys.readouterr().err
    assert "k: the cache is empty" in text and "differs in source, line" in text
    assert "compile kernels" in told.seconds_by_name()


def test_cuda_and_host_kernels_together(tmp_path: Path) -> None:
    kernels = [cuda_kernel("c0", "a[i] * 2"), host_kernel("h0", "a[i]"), cuda_kernel("c1", "a[i] * 3")]
    entries = build_kernels(kernels, KernelCache(tmp_path))
    assert entries[0].payload[:4] == entries[1].payload[:4] == b"\x7fELF"
