"""Printed CUDA sources compile on their own, without a GPU: through NVRTC with no include path, and through nvcc as single files.

The resource report shows that register arrays are registers: a stack frame would mean local memory.
"""
from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.unit.templates.sample_kernels import samples
from tests.unit.templates.test_scalar_texts import conversions_kernel, ops_kernel
from tilefuse.driver.compile import generate_sources
from tilefuse.ir.dtype import DTYPES, DType
from tilefuse.ir.text import parse_graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200

SAMPLES = samples()
# Kernels that use clusters, asynchronous bulk copies or tensor copies need compute capability 9.0.
HOPPER = {"cluster_sum", "cluster_exchange", "bulk_reverse", "box_copy", "tensor_ring", "tensor_exchange"}


def _architectures() -> list[tuple[str, str]]:
    return [(name, arch) for name in sorted(SAMPLES) for arch in ("sm_80", "sm_90a", "sm_100a") if arch != "sm_80" or name not in HOPPER]


@functools.cache
def _supported(arch: str) -> bool:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    _, known = nvrtc.nvrtcGetSupportedArchs()
    return int(re.sub(r"\D", "", arch)) in known


@pytest.mark.parametrize(("name", "arch"), _architectures())
def test_nvrtc_compiles_without_include_path(name: str, arch: str) -> None:
    """The source includes nothing and needs no option but the architecture."""
    if not _supported(arch):
        pytest.skip(f"this NVRTC does not know {arch}")
    source = print_cuda(SAMPLES[name].kernel, H200)
    assembled(source, arch)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_nvcc_compiles_alone_and_keeps_arrays_in_registers(name: str, tmp_path: Path) -> None:
    """No stack frame and no spills, on sm_90a."""
    source = tmp_path / f"{name}.cu"
    source.write_text(print_cuda(SAMPLES[name].kernel, H200))
    done = subprocess.run(["nvcc", "-arch=sm_90a", "-Xptxas", "-v", "-c", str(source), "-o", str(tmp_path / "out.o")],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert without_spills(done.stderr)


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if t.is_arithmetic], ids=str)
def test_every_scalar_function_compiles(dtype: DType) -> None:
    """Every CUDA text of the operator table, with the support functions it names, on sm_90a."""
    kernel, found = ops_kernel(dtype)
    assert found
    assembled(print_cuda(kernel, H200), "sm_90a")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=str)
def test_every_conversion_compiles(dtype: DType, arch: str) -> None:
    """From every data type to every other."""
    assembled(print_cuda(conversions_kernel(dtype), H200), arch)


def test_values_may_be_called_like_functions() -> None:
    """A torch node for atan2 is called atan2; as an argument of the kernel it must not hide the function."""
    nodes = "\n".join(f"%{fn}: f64[16] = map [i] {{ {fn}(%x[i], %b[i]) }}" for fn in ("atan2", "copysign", "nextafter", "hypot"))
    results = "return %atan2, %copysign, %nextafter, %hypot"
    graph = f"graph @g(%x: f64[16], %b: f64[16]) -> (f64[16], f64[16], f64[16], f64[16]) {{\n{nodes}\n{results}\n}}"
    for kernel in generate_sources(parse_graph(graph), device="h200").spec.kernels:
        assembled(kernel.source, "sm_90a")
