"""Several measuring processes share a device: one holds it, others compile meanwhile."""
from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from benchmarks import turns


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The lock file of one device."""
    found = tmp_path / "device.lock"
    monkeypatch.setenv(turns.VARIABLE, str(found))
    turns._turns.cache_clear()
    yield found
    turns._turns.cache_clear()


def is_free(path: Path) -> bool:
    """Whether somebody else could have the device now."""
    try:
        with FileLock(path, timeout=0):
            return True
    except Timeout:
        return False


def test_a_device_is_held_while_a_request_is_answered(path: Path) -> None:
    with turns.held():
        assert not is_free(path)
        with turns.held():
            assert not is_free(path)
        assert not is_free(path)
    assert is_free(path)


def test_others_may_measure_while_one_compiles_but_not_while_its_compiler_times(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_teach_inductor", lambda: None)
    seen: list[bool] = []
    timer = turns._holding(lambda: seen.append(is_free(path)))
    with turns.held(), turns.held():
        with turns.let_go():
            assert is_free(path)
            timer()
            assert is_free(path)
        assert not is_free(path)
    assert is_free(path) and seen == [False]


def test_a_failed_compile_has_the_device_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_teach_inductor", lambda: None)
    with turns.held():
        with pytest.raises(ValueError, match="compile"), turns.let_go():
            raise ValueError("compile")
        assert not is_free(path)
    assert is_free(path)


def test_waiting_for_a_turn_is_no_compile_time(path: Path) -> None:
    command = "import sys, time, filelock\nwith filelock.FileLock(sys.argv[1]):\n    print('held', flush=True); time.sleep(0.4)"
    other = subprocess.Popen([sys.executable, "-c", command, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    wall, clock = turns.time.perf_counter(), turns.clock()
    with turns.held():
        passed, counted = turns.time.perf_counter() - wall, turns.clock() - clock
    other.wait()
    assert passed > 0.1
    assert counted < 0.5 * passed


def test_who_waits_goes_before_who_has_just_had_the_device(path: Path) -> None:
    command = ("import sys, filelock\nwith filelock.FileLock(sys.argv[1] + '.next'):\n    print('next', flush=True)\n"
               "    with filelock.FileLock(sys.argv[1], timeout=20): print('had it', flush=True)")
    with turns.held():
        other = subprocess.Popen([sys.executable, "-c", command, str(path)], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None and other.stdout.readline() == "next\n"
    with turns.held():
        # It has had the device although this process asked again at once.
        assert other.stdout.readline() == "had it\n"
    assert other.wait() == 0


def test_a_process_alone_takes_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(turns.VARIABLE, raising=False)
    turns._turns.cache_clear()
    with turns.held(), turns.let_go():
        assert not turns.is_shared()


def test_torch_times_kernels_where_it_is_told_to_hold_the_device() -> None:
    import importlib

    for module, name, timer in turns.TIMERS:
        assert callable(getattr(getattr(importlib.import_module(module), name), timer))


def test_a_process_that_waits_for_one_that_waits_for_it_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that holds the same file would wait for ever; somebody else's turn is told after a while."""
    command = "from benchmarks import turns\nwith turns.held():\n    print('held')"
    with FileLock(path):
        found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=60)
    assert found.returncode and f"{path} is held by process" in found.stderr and "which started this one" in found.stderr
    monkeypatch.setattr(turns, "TOLD_AFTER_S", 0.1)
    command = "import sys, time, filelock\nwith filelock.FileLock(sys.argv[1]):\n    print('held', flush=True); time.sleep(0.5)"
    other = subprocess.Popen([sys.executable, "-c", command, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    said: list[str] = []
    monkeypatch.setattr("builtins.print", lambda text, **_: said.append(text))
    with turns.held():
        pass
    other.wait()
    assert said and f"held by process {other.pid}" in said[0]
