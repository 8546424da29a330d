"""The CUDA form of exported programs compiles, every warning an error. No GPU is needed; what calls cuBLASLt and cuDNN is compiled where
their headers are: in the toolkit, in a Python package, or in the folders that CUDA_LIBRARY_HEADERS names."""
from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.unit.runtime.handmade import cuda_kernel, value
from tests.unit.templates.tensor_samples import BoxCopy
from tilefuse.ir.dtype import F32
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec
from tilefuse.standalone.export import Exported, export_program
from tilefuse.target.device import H200
from tilefuse.tools.emit.program import emit_program

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


def _folders(header: str) -> list[Path]:
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    given = [Path(p) for p in os.environ.get("CUDA_LIBRARY_HEADERS", "").split(":") if p]
    places = (*given, *packages.glob("*/include"), Path("/usr/local/cuda/include"), Path("/usr/include"))
    return [p for p in places if (p / header).exists()]


def _compiles(made: Exported, sources: Sequence[str], include: Sequence[Path] = ()) -> None:
    """All sources as one unit: reading the toolkit's headers takes most of the time."""
    unit = made.folder / "unit.cu"
    unit.write_text("".join(f'#include "{made.folder / s}"\n' for s in sources))
    command = ["nvcc", "-std=c++20", "-arch=sm_90a", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra", "-c", str(unit), "-o",
               str(unit.with_suffix(".o")), *(f"-I{p}" for p in (made.folder / "include", made.folder / "src", *include))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A kernel, a copy, and one call of every kind."""
    values = (value("a", "input", (4, 32)), value("k", "intermediate", (4, 32)), value("w", "constant", (32, 8)),
              value("p", "result", (4, 8)), value("x", "input", (1, 3, 8, 8)), value("f", "constant", (4, 3, 3, 3)),
              value("c", "result", (1, 4, 6, 6)),
              value("q", "input", (1, 2, 16, 8)), value("y", "result", (1, 2, 16, 8)))
    steps = (KernelStep(0, ("a", "k")), LibraryStep("matmul", ("k", "w"), ("p",)), LibraryStep("convolution", ("x", "f"), ("c",)),
             LibraryStep("attention", ("q", "q", "q"), ("y",), (("causal", True),)), CopyStep("k", "a"))
    kernels = (cuda_kernel("twice", "a[i] + a[i]"),)
    spec = ProgramSpec("every", "h200", ("a", "x", "q"), ("p", "c", "y"), values, kernels, steps, updates=("a",))
    return export_program(spec, {"w": torch.zeros(32, 8), "f": torch.zeros(4, 3, 3, 3)}, tmp_path_factory.mktemp("every"))


def test_the_program_compiles(made: Exported) -> None:
    """The plan, the kernel, launches and copies: with the toolkit alone."""
    _compiles(made, ["src/program.cu", "src/kernels/twice.cu", "src/cuda_library.cu"])


def test_programs_with_tensor_maps_compile(tmp_path: Path) -> None:
    """As a folder, and as one file with its driver."""
    spec = BoxCopy(F32, (3, 9, 24), (2, 4, 8), (-1, 1, -4)).program(H200)
    _compiles(export_program(spec, {}, tmp_path / "folder"), ["src/program.cu", "src/kernels/box_copy.cu", "src/cuda_library.cu"])
    emit_program(spec, "boxes", "boxes", "sm_90a").write(tmp_path / "boxes.cu")
    command = ["nvcc", "-arch=sm_90a", "-Xcompiler", "-Wall,-Wextra", "-o", str(tmp_path / "boxes"), str(tmp_path / "boxes.cu"),
               str(tmp_path / "boxes_main.cu")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_libraries_calls_compile(made: Exported) -> None:
    """Products, convolutions, attention."""
    folders = [*_folders("cublasLt.h"), *_folders("cudnn.h")]
    if not _folders("cublasLt.h") or not _folders("cudnn.h"):
        pytest.skip("no headers of cuBLASLt and cuDNN")
    for name in ("products", "convolutions", "attentions", "handles"):
        _compiles(made, [f"src/cuda_{name}.cu"], folders)
