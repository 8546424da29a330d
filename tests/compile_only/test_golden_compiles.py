"""Kernels of common workloads compile for each architecture through NVRTC, and keep their arrays in registers. No GPU is needed."""
from __future__ import annotations

import re

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.golden.workloads import WORKLOADS, cuda_source, tile_program
from tilefuse.base.candidate import Rejected
from tilefuse.target.catalog import A100
from tilefuse.target.device import H200, DeviceSpec

DEVICES = {"sm_80": A100, "sm_90a": H200}


@pytest.mark.parametrize("arch", sorted(DEVICES))
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_workload_compiles_without_spills(name: str, arch: str) -> None:
    """No include path, no spills and no stack frame; as many blocks fit a multiprocessor as threads and registers allow."""
    device: DeviceSpec = DEVICES[arch]
    assert device.arch == arch
    program = tile_program(name, device)
    if isinstance(program, Rejected):
        pytest.skip(f"not one kernel on {arch}: {program.detail}")
    source = cuda_source(program, device)
    if arch == "sm_80":
        assert program.launch.cluster == 1
        assert "cluster" not in source.lower().split("extern", 1)[1]
    _, report = assembled(source, arch)
    assert without_spills(report), report[-600:]
    used = re.search(r"Used (\d+) registers", report)
    assert used
    assert int(used.group(1)) * program.launch.num_threads <= device.registers_per_multiprocessor
