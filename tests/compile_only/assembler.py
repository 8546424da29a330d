"""CUDA text through the compiler that the runtime uses, NVRTC without an include path: machine code, and the assembler's report."""
from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tilefuse.runtime.compilers.nvrtc import compile_text

pytest.importorskip("cuda.bindings.nvrtc")


def assembled(source: str, arch: str) -> tuple[bytes, str]:
    """The cubin of a source and what the assembler says of its kernel. Raises: ToolchainError with NVRTC's log."""
    entry = re.search(r'extern "C" __global__ void (?:__\w+\([^)]*\)+ )*(\w+)\(', source)
    assert entry, "no kernel in the source"
    made = compile_text(source, entry.group(1), arch, entry.group(1))
    assert made.payload
    return made.payload, made.log


def without_spills(report: str, stack: bool = False) -> bool:
    """Whether the assembler kept everything in registers; `stack`: arrays in local memory are allowed."""
    return ("" if stack else "0 bytes stack frame, ") + "0 bytes spill stores, 0 bytes spill loads" in report


def disassembled(code: bytes, path: Path) -> str:
    """The machine code's instructions; skips the test where no disassembler is installed."""
    tool = shutil.which("nvdisasm") or shutil.which("cuobjdump")
    if tool is None:
        folders = Path(sysconfig.get_path("purelib")).glob("*/**/bin/nvdisasm")
        tool = next((str(p) for p in sorted(folders)), None)
    if tool is None:
        pytest.skip("no nvdisasm and no cuobjdump")
    path.write_bytes(code)
    options = ["-sass"] if tool.endswith("cuobjdump") else ["-c"]
    return subprocess.run([tool, *options, str(path)], capture_output=True, text=True, check=True).stdout
