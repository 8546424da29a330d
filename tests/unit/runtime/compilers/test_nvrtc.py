"""CUDA text through NVRTC: needs no GPU."""
from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.unit.runtime.handmade import cuda_kernel
from tilefuse.base.errors import ToolchainError
from tilefuse.runtime.compilers.nvrtc import compile_cuda, cuda_key, parse_resources

CLUSTER = """extern "C" __global__ void __launch_bounds__(64) exchange(const float* __restrict__ a, float* __restrict__ y) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = a[blockIdx.x * 64 + threadIdx.x];
  asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");
  y[blockIdx.x * 64 + threadIdx.x] = tile[threadIdx.x ^ 1];
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_compiles_for_architectures_that_are_not_here(arch: str) -> None:
    entry = compile_cuda(cuda_kernel("twice", "a[i] + a[i]", arch=arch))
    assert entry.payload[:4] == b"\x7fELF" and entry.symbol == "twice" and b"twice" in entry.payload
    resources = parse_resources(entry.log)
    assert resources is not None and 0 < resources.num_registers <= 255 and resources.spill_bytes == 0


def test_cluster_instructions_need_no_header() -> None:
    kernel = dataclasses.replace(cuda_kernel("exchange", "0"), source=CLUSTER)
    assert compile_cuda(kernel).payload[:4] == b"\x7fELF"


def test_failure_keeps_log_and_source() -> None:
    kernel = cuda_kernel("broken", "undefined_name[i]")
    with pytest.raises(ToolchainError, match="kernel broken for sm_90a") as caught:
        compile_cuda(kernel)
    path = Path(str(caught.value.where))
    assert path.read_text() == kernel.source and "undefined_name" in path.with_suffix(".log").read_text()
    assert any("undefined_name" in note for note in caught.value.__notes__)


def test_unknown_architecture_is_a_toolchain_error() -> None:
    with pytest.raises(ToolchainError, match="sm_7"):
        compile_cuda(cuda_kernel("k", "a[i]", arch="sm_7"))


def test_architecture_and_flags_are_in_the_key() -> None:
    kernel = cuda_kernel("k", "a[i]")
    others = [dataclasses.replace(kernel, arch="sm_80"), dataclasses.replace(kernel, flags=("--use_fast_math",))]
    assert len({cuda_key(k).digest for k in (kernel, *others)}) == 3


def test_report_of_spills_and_shared_memory() -> None:
    log = ("ptxas . 16 bytes stack frame, 24 bytes spill stores, 24 bytes spill loads\n"
           "ptxas info : Used 255 registers, used 1 barriers, 4096 bytes smem, 368 bytes cmem[0]")
    found = parse_resources(log)
    assert found is not None
    assert (found.num_registers, found.spill_bytes, found.stack_bytes, found.shared_bytes) == (255, 24, 16, 4096)
    assert parse_resources("") is None
