"""Kernels of tasks through NVRTC: in registers, with the watch and the records as well; waits and publications as instructions."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.tasks import chain_kernel
from tests.compile_only.assembler import assembled, disassembled, without_spills
from tests.unit.templates.tasks.chain_cases import CASES
from tests.unit.templates.tasks.task_runs import MODELS, task_case
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Bodies of all kinds in one kernel."""
    for kernel in task_case(name).kernels:
        _, report = assembled(print_cuda(kernel, H200), H200.arch)
        assert without_spills(report), report


@pytest.mark.parametrize("limit_ms", [0, 100])
@pytest.mark.parametrize("recorded", [False, True])
def test_watched_and_recorded(limit_ms: int, recorded: bool, tmp_path: Path) -> None:
    """The wait acquires at the device's scope, the publication releases, and values of other tasks are read past the first-level cache."""
    kernel = chain_kernel(5, 40, 132)
    assert kernel.tasks is not None
    kernel = replace(kernel, tasks=replace(kernel.tasks, limit_ms=limit_ms, recorded=recorded))
    code, report = assembled(print_cuda(kernel, H200), H200.arch)
    assert without_spills(report, stack=bool(limit_ms))
    assert (b"_task_records" in code) == recorded and (b"has waited" in code) == bool(limit_ms)
    text = disassembled(code, tmp_path / "code.cubin")
    assert "LDG.E.STRONG.GPU" in text and "RED" in text and "MEMBAR" in text


@pytest.mark.parametrize("name", CASES)
def test_chains_in_groups(name: str) -> None:
    """Transforms and products as tasks of one kernel, in registers; values of other tasks are read past the first-level cache."""
    source = print_cuda(CASES[name]().kernel(), H200)
    _, report = assembled(source, H200.arch)
    assert without_spills(report), report
    assert "tf_copy_changed" in source or "tf_async_copy<16>" in source
