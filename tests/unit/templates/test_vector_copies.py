"""Vectors of the host stay in registers: moves of memory are as wide as the loops that compute with them."""
from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.composed_cases import Case
from tests.unit.templates.pattern_graphs import Pattern
from tilefuse.ir.text import parse_graph
from tilefuse.printers.host import print_host
from tilefuse.runtime.compilers.host import FLAGS, compiler_command, processor_flags
from tilefuse.target.catalog import host_device

STORE_TO_STACK = re.compile(r"\tv?mov\w+\s+%[xyz]mm\d+, -?\d*\(%r[sb]p")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the assembler text of x86-64")
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_vectors_do_not_pass_through_the_stack(dtype: str, tmp_path: Path) -> None:
    """A load wider than the store that filled its place waits until the processor's store buffer is empty."""
    graph = parse_graph(f"""graph @biased(%x: {dtype}[8, 256], %b: {dtype}[256]) -> ({dtype}[8, 256]) {{
      %y: {dtype}[8, 256] = map [i, j] {{ add(%x[i, j], %b[j]) }}
      return %y
    }}""")
    kernel = Case("biased", Pattern(graph, lambda rng, name, shape: np.zeros(shape)), {}, host_device()).kernel()
    source = tmp_path / "biased.cpp"
    source.write_text(print_host(kernel))
    assert "tf_copy<" in source.read_text()
    done = subprocess.run([*compiler_command(), *FLAGS, *processor_flags(), "-S", "-o", "-", str(source)], capture_output=True, text=True,
                          check=True)
    assert "addp" in done.stdout
    assert not STORE_TO_STACK.findall(done.stdout)
