"""Results whose strides leave gaps: the checker asks for their elements and not for the gaps."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import compiler, run
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_pattern

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
GRAPHS = {
    "map": "graph @g(%x: f32[3, 5]) -> (f32[3, 5]) { %y: f32[3, 5] = map [i, j] { exp(%x[i, j]) } return %y }",
    "stages": """graph @g(%x: f32[3, 16], %w: f32[16, 5]) -> (f32[3, 5]) {
      %p: f32[3, 5] = library.matmul (%x, %w) {precision = "default", transpose_a = false, transpose_b = false}
      %y: f32[3, 5] = map [i, j] { exp(%p[i, j]) }
      return %y
    }""",
}
STRIDES = (40, 2)


def kernel_of(name: str) -> Kernel:
    """The kernel of a graph whose result has gaps."""
    graph = parse_graph(GRAPHS[name])
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {"y": STRIDES}, H200)
    assert isinstance(program, TileProgram), program
    return compose(program, H200)


@pytest.mark.parametrize("name", GRAPHS)
def test_gaps_are_no_missing_elements(name: str, tmp_path: Path) -> None:
    kernel = kernel_of(name)
    out, = (b for b in kernel.parameters if b.role == "out")
    assert (out.num_elements, out.num_held) == (2 * 40 + 4 * 2 + 1, 15)
    inputs = {b.name: np.linspace(-1, 1, b.num_elements, dtype=np.float32) for b in kernel.parameters if b.role == "in"}
    memory, status, report = run(kernel, inputs, tmp_path, check=True)
    assert status == 0, report
    assert np.isfinite(np.lib.stride_tricks.as_strided(memory[out.name], (3, 5), (160, 8))).all()


def test_a_missing_element_is_found(tmp_path: Path) -> None:
    """A result that would have one element more."""
    kernel = kernel_of("map")
    more = tuple(replace(b, num_held=16) if b.role == "out" else b for b in kernel.buffers)
    inputs = {b.name: np.ones(b.num_elements, np.float32) for b in kernel.parameters if b.role == "in"}
    _, status, report = run(replace(kernel, buffers=more), inputs, tmp_path, check=True)
    assert status and "never written" in report
