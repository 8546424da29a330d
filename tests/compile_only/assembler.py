"""CUDA text through the compiler that the runtime uses, NVRTC without an include path: machine code, and the assembler's report."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.disassembly import disassembler, disassembly
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
    command = disassembler()
    if command is None:
        pytest.skip("no nvdisasm and no cuobjdump")
    return disassembly(command, code, path)
