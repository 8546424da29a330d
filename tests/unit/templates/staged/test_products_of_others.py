"""Which products stages take while they compete with calls."""
from __future__ import annotations

import pytest

from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import F16, F32, DType
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.pattern import schedule_pattern


@pytest.mark.parametrize(("dtype", "is_stitched"), [(F32, True), (F16, False)])
def test_stages_leave_products_that_another_template_holds(dtype: DType, is_stitched: bool) -> None:
    """A recurrence of 156 inputs and 512 gates: its weights are larger than what stages hold alone, and in f32 no template holds them.

    Refused in f32 as well, the steps of a bidirectional RNN became 110 calls between small kernels: 878 us instead of 546 on an H200.
    """
    rows = 128 if dtype == F32 else 4096
    graph = parse_graph(f"""graph @step(%x: {dtype}[{rows}, 156], %w: {dtype}[156, 1024]) -> ({dtype}[{rows}, 1024]) {{
      %p: {dtype}[{rows}, 1024] = library.matmul (%x, %w) {{precision = "default", transpose_a = false, transpose_b = false}}
      %y: {dtype}[{rows}, 1024] = map [i, j] {{ {"tanh(%p[i, j])" if dtype == F32 else "f16(tanh(f32(%p[i, j])))"} }}
      return %y
    }}""")
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200, replaces_calls=True)
    assert isinstance(program, TileProgram) and (program.template == "stitched") is is_stitched
