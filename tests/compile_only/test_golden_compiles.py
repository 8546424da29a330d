"""Kernels of common workloads compile for each architecture through NVRTC, and keep their arrays in registers. No GPU is needed."""
from __future__ import annotations

import re

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.golden.workloads import WORKLOADS, cuda_source, tile_program
from tilefuse.base.candidate import Rejected
from tilefuse.target.catalog import device_by_name

DEVICES = ("a100", "b200", "h200", "l40s", "rtx-5090")
# Instructions that a kernel may hold only where the device's record says so, by the functions that hold them.
NEEDS = {"tf_async_copy<": "async_copies", "tf_bulk_copy": "bulk_copies", "tf_cluster_": "clusters", "tf_matrix_product<": "matrix_16bit"}


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_workload_compiles_without_spills(name: str, target: str) -> None:
    """Planned for each record, compiled for its own architecture.

    No include path, no spills and no stack frame; as many blocks fit a multiprocessor as threads and registers allow.
    """
    device = device_by_name(target)
    program = tile_program(name, device)
    if isinstance(program, Rejected):
        pytest.skip(f"not one kernel on {target}: {program.detail}")
    source = cuda_source(program, device)
    body = source.split("extern", 1)[1]
    for text, capability in NEEDS.items():
        assert text not in body or getattr(device.capabilities, capability), f"{text} on {target}"
    launch = program.launch
    assert launch.cluster <= device.max_cluster_blocks and launch.shared_bytes <= device.shared_bytes_per_block
    _, report = assembled(source, device.arch)
    assert without_spills(report), report[-600:]
    used = re.search(r"Used (\d+) registers", report)
    assert used
    assert int(used.group(1)) * program.launch.num_threads <= device.registers_per_multiprocessor


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_an_h100_runs_what_compiles_for_an_h200(name: str) -> None:
    """One architecture: a kernel that differs is compiled, all others are compiled above."""
    h100, h200 = device_by_name("h100"), device_by_name("h200")
    program, other = tile_program(name, h100), tile_program(name, h200)
    assert not isinstance(program, Rejected) and not isinstance(other, Rejected) and h100.arch == h200.arch
    source = cuda_source(program, h100)
    if source != cuda_source(other, h200):
        assert without_spills(assembled(source, h100.arch)[1])
