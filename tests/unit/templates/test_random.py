"""Random functions of a position: composed kernels draw the interpreter's bits, and the lanes of a vector share a Philox block."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import compiler, run
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_graph

POSITIONS = {"flat": "50*i + j", "offset": "50*i + j + 3", "beyond 32 bits": "50*i + j + 17179869182", "negative": "50*i + j + -6",
             "strided": "3*j + 7*i", "transposed": "40*j + i"}


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("device", [H200, device_by_name("host")], ids=["h200", "host"])
@pytest.mark.parametrize("position", POSITIONS)
def test_kernels_draw_the_interpreters_bits(position: str, device: DeviceSpec, tmp_path: Path) -> None:
    graph = parse_graph(f"""graph @g(%s: i64[1]) -> (u32[40, 50], f32[40, 50]) {{
  %y: u32[40, 50] = map [i, j] {{ random_bits(%s[0], index({POSITIONS[position]})) }}
  %z: f32[40, 50] = map [i, j] {{ random_uniform(%s[0], index({POSITIONS[position]})) }}
  return %y, %z
}}""")
    tile = schedule_graph(graph, {}, device)
    assert isinstance(tile, TileProgram)
    kernel = compose(tile, device)
    inputs = {"s": np.array([2**40 + 77], dtype=np.int64)}
    memory, status, report = run(kernel, inputs, tmp_path)
    assert status == 0, report
    names = {b.origin: b.name for b in kernel.parameters}
    for name, wanted in zip(graph.results, interpret(graph, inputs), strict=True):
        assert np.array_equal(memory[names[name]].reshape(wanted.shape), wanted), name


def test_lanes_of_a_vector_share_a_block() -> None:
    """The block's number changes every four lanes and is unsigned 32-bit where that is enough."""
    graph = parse_graph("""graph @g(%s: i64[1], %x: f16[4096]) -> (f16[4096]) {
  %y: f16[4096] = map [i] { f16(add(f32(%x[i]), random_uniform(%s[0], index(i)))) }
  return %y
}""")
    tile = schedule_graph(graph, {}, H200)
    assert isinstance(tile, TileProgram)
    source = print_cuda(compose(tile, H200), H200)
    assert "(unsigned int)(2 * vector_1 + (v >> 2)), (v & 3))" in source or "(unsigned int)((v >> 2) + 2 * vector" in source, source[-1500:]
