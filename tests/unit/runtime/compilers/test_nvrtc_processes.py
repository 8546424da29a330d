"""Processes that compile beside this one: the same machine code, nothing left behind, and this process where they cannot be."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.runtime.handmade import cuda_kernel
from tilefuse.base.errors import ToolchainError
from tilefuse.base.options import Options
from tilefuse.driver.request import compiled_early
from tilefuse.runtime.compilers import nvrtc, nvrtc_processes
from tilefuse.runtime.compilers.binaries import Begun, build_kernels, kernel_key
from tilefuse.runtime.compilers.nvrtc import compile_cuda, nvrtc_version
from tilefuse.runtime.compilers.nvrtc_processes import Compiled, NvrtcProcesses, command_of, loaded_libraries, num_processes
from tilefuse.runtime.stores.cache import KernelCache
from tilefuse.target.catalog import device_by_name

ROOT = Path(__file__).resolve().parents[4]
SOURCE = b'extern "C" __global__ void k(float* a) { a[threadIdx.x] *= 2.0f; }'
FLAGS = [b"--gpu-architecture=sm_90a"]


def real_command() -> tuple[str, ...]:
    return command_of(nvrtc_version(), "sm_90a")


def never(*given: object) -> Compiled:
    raise AssertionError("a process is idle")


@pytest.fixture
def processes() -> Iterator[NvrtcProcesses]:
    made = NvrtcProcesses()
    yield made
    made.close()


def test_machine_code_is_the_same(processes: NvrtcProcesses) -> None:
    """Also what is refused, and in two processes at a time; a process serves many kernels."""
    processes.start(2, real_command)
    assert processes.wait_ready(2, 60)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: processes.compiled(b"k.cu", SOURCE, FLAGS, never), range(4)))
    assert set(made) == {nvrtc._compiled_here(b"k.cu", SOURCE, FLAGS)[:1] + (b"",) + (made[0][2],)}
    assert made[0][2] == nvrtc._compiled_here(b"k.cu", SOURCE, FLAGS)[2]
    status, log, cubin = processes.compiled(b"k.cu", b"nonsense", FLAGS, never)
    assert status and b"nonsense" in log and not cubin
    assert len(processes.numbers()) == 2


def test_errors_name_the_kernel_as_here(monkeypatch: pytest.MonkeyPatch, processes: NvrtcProcesses) -> None:
    processes.start(1, real_command)
    assert processes.wait_ready(1, 60)
    monkeypatch.setattr(nvrtc_processes, "_PROCESSES", [processes])
    monkeypatch.setattr(nvrtc, "_compiled_here", never)
    with pytest.raises(ToolchainError, match="kernel broken for sm_90a") as caught:
        compile_cuda(cuda_kernel("broken", "undefined_name[i]"))
    assert any("undefined_name" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("command", [(), ("/no/such/python",), (sys.executable, "-c", "pass"),
                                     (sys.executable, str(nvrtc_processes.FILE), "0.0", "sm_90a", *loaded_libraries())],
                         ids=["none", "missing", "ends", "other version"])
def test_where_none_can_be_this_process_compiles(command: tuple[str, ...], processes: NvrtcProcesses) -> None:
    """A process that cannot be started, ends at once or has another compiler: no second one is tried."""
    processes.start(1, lambda: command)
    here = (0, b"", b"code")
    assert processes.compiled(b"k.cu", SOURCE, FLAGS, lambda *given: here) == here
    _wait(lambda: processes._num_threads == 0)
    processes.start(1, never)
    assert processes._num_threads == 0 and not processes.numbers()


def test_one_that_is_killed_is_replaced_by_this_process(processes: NvrtcProcesses) -> None:
    processes.start(1, real_command)
    assert processes.wait_ready(1, 60)
    killed, = processes.numbers()
    os.kill(killed, signal.SIGKILL)
    here = (0, b"", b"code")
    assert processes.compiled(b"k.cu", SOURCE, FLAGS, lambda *given: here) == here
    _wait(lambda: processes._num_threads == 0)
    assert _is_gone(killed)
    processes.start(1, real_command)
    assert processes.wait_ready(1, 60) and processes.compiled(b"k.cu", SOURCE, FLAGS, never)[0] == 0


def test_idle_ones_end_and_leave_no_zombie() -> None:
    processes = NvrtcProcesses(idle_s=1.0)
    processes.start(1, real_command)
    assert processes.wait_ready(1, 60)
    number, = processes.numbers()
    _wait(lambda: not processes.numbers() and processes._num_threads == 0)
    assert _is_gone(number)
    processes.close()
    processes.start(1, never)
    assert processes._num_threads == 0, "after the end none is started"


def test_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has a processor of its own; `jobs` counts it."""
    for processors, jobs, count in ((1, 0, 0), (2, 0, 1), (16, 0, 4), (16, 1, 0), (16, 3, 2), (3, 16, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, n=processors: set(range(n)))
        assert num_processes(jobs) == count


def test_early_kernels_are_those_of_the_build(tmp_path: Path) -> None:
    """Each is compiled once, lies in the cache, and what is refused is told by the build."""
    kernels = [cuda_kernel(f"k{n}", f"a[i] + {n}") for n in range(3)]
    begun = Begun(KernelCache(tmp_path))
    for kernel in (*kernels, kernels[0]):
        begun.begin(kernel)
    assert len(begun.futures) == 3
    cache = KernelCache(tmp_path)
    entries = build_kernels(kernels, cache, begun=begun.futures)
    assert [e.payload for e in entries] == [compile_cuda(k).payload for k in kernels]
    assert all(begun.futures[kernel_key(k).digest].result() == e for k, e in zip(kernels, entries, strict=True))
    later = Begun(KernelCache(tmp_path))
    later.begin(kernels[0])
    assert not later.futures, "the cache has it"
    broken = cuda_kernel("broken", "undefined_name[i]")
    later.begin(broken)
    with pytest.raises(ToolchainError, match="kernel broken"):
        build_kernels([*kernels, broken], cache, begun=later.futures)
    begun.end()
    later.end()


def test_options_turn_them_off(tmp_path: Path) -> None:
    """And so do options that tell of each kernel, and devices without NVRTC."""
    device = device_by_name("h200")
    for options in (Options(compile_processes=False), Options(jobs=1), Options(progress=True)):
        with compiled_early(device, options) as early:
            assert early is None
    with compiled_early(device_by_name("host"), Options()) as early:
        assert early is None


LEAVES = """
import os, sys, time
from tilefuse.runtime.compilers.nvrtc import compile_text, start_processes
from tilefuse.runtime.compilers.nvrtc_processes import nvrtc_processes
os.sched_getaffinity = lambda pid: {0, 1}
start_processes("sm_90a", 0)
assert nvrtc_processes().wait_ready(1, 60)
print(*nvrtc_processes().numbers(), flush=True)
KERNEL = 'extern "C" __global__ void k(float* a) { a[0] = 1.0f; }'
if sys.argv[1] == "forks":
    child = os.fork()
    if not child:
        # The child has no processes; it compiles by itself, and outlives its parent.
        assert nvrtc_processes().numbers() == [] and compile_text(KERNEL, "k", "sm_90a", "k").payload
        start_processes("sm_90a", 0)
        assert nvrtc_processes().wait_ready(1, 60) and compile_text(KERNEL, "k", "sm_90a", "k").payload
        print(*nvrtc_processes().numbers(), flush=True)
        os.close(1), os.close(2)
        time.sleep(60)
    assert compile_text(KERNEL, "k", "sm_90a", "k").payload
    print(child, flush=True)
    time.sleep(60)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["ends", "killed"])
def test_they_end_with_their_parent(end: str) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES, end], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == (0 if end == "ends" else -9) and not done.stderr
    _wait(lambda: _is_gone(int(done.stdout)))


def test_a_forked_child_has_its_own_and_does_not_keep_the_parents() -> None:
    """As with data loaders: both compile on, and the parent's processes end with the parent although the child lives on."""
    parent = subprocess.Popen([sys.executable, "-c", LEAVES, "forks"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    first = int(parent.stdout.readline())
    others = [int(parent.stdout.readline()) for _ in range(2)]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    try:
        _wait(lambda: _is_gone(first))
        assert not all(map(_is_gone, others)), "the child and its process live"
    finally:
        for number in others:
            os.kill(number, signal.SIGKILL)


def _wait(condition: object, most_s: float = 30.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_gone(number: int) -> bool:
    """Whether no process has the number, or one that has ended and whose parent is not ours to wait for it."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{number}/stat")
    is_ours = state.exists() and int(state.read_text().rpartition(")")[2].split()[1]) == os.getpid()
    return not is_ours and state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"
