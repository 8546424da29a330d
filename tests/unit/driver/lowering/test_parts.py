"""Parts that kernels write where they lie in a value: no step of its own, one memory."""
from __future__ import annotations

import pytest
import torch

from tests.unit.templates.host_build import compiler
from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph, generate
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.runtime.spec import KernelStep, LibraryStep
from tilefuse.target.device import H200

READ = "[(i // 4), 32*(i % 4) + j]"


def graph(kernel_reads: bool) -> Graph:
    """Two computed parts side by side, which a product reads, and a kernel where `kernel_reads`."""
    sums = "  %c: f32[128] = reduce.sum [j] over [i < 8] { %s[i, j] }" if kernel_reads else ""
    types, names = ("f32[32, 32], f32[128]", "%p, %c") if kernel_reads else ("f32[32, 32]", "%p")
    return parse_graph(f"""graph @g(%x: f32[8, 4, 16], %y: f32[8, 4, 16], %w: f32[32, 32]) -> ({types}) {{
  %a: f32[8, 4, 16] = map [i, j, k] {{ exp(%x[i, j, k]) }}
  %b: f32[8, 4, 16] = map [i, j, k] {{ mul(%y[i, j, k], 2.0:f32) }}
  %s: f32[8, 128] = library.side_by_side (%a, %b) {{windows = ((0, (128, 16, 1)), (64, (128, 16, 1)))}}
  %t: f32[32, 32] = map [i, j] {{ %s{READ} }}
  %p: f32[32, 32] = library.matmul (%t, %w) {{precision = "default", transpose_a = false, transpose_b = false}}
{sums}
  return {names}
}}""")


@pytest.mark.parametrize("kernel_reads", [True, False])
def test_parts_are_views_that_kernels_write(kernel_reads: bool) -> None:
    """The value has memory, its parts lie in it, and the program has no step that puts them there."""
    made = generate(graph(kernel_reads), constants={}, input_layouts={}, device=H200, options=Options(stitch=False))
    value = {v.name: v for v in made.spec.values}
    assert value["s"].role == "intermediate" and [(value[n].role, value[n].base, value[n].offset) for n in "ab"] == [
        ("view", "s", 0), ("view", "s", 64)]
    assert [s.operator for s in made.spec.steps if isinstance(s, LibraryStep)] == ["matmul"]
    assert {"a", "b"} <= {v for s in made.spec.steps if isinstance(s, KernelStep) for v in s.arguments}


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("kernel_reads", [True, False])
def test_programs_read_the_parts(kernel_reads: bool) -> None:
    """A product and column sums of parts that two kernels have written, called twice."""
    program = compile_graph(graph(kernel_reads), constants={}, device="host", options=Options())
    for seed in range(2):
        torch.manual_seed(seed)
        x, y, w = torch.randn(8, 4, 16), torch.randn(8, 4, 16), torch.randn(32, 32)
        got = program(x, y, w)
        side = torch.cat([x.exp().reshape(8, 64), 2 * y.reshape(8, 64)], 1)
        torch.testing.assert_close(list(got), [side.view(32, 32) @ w, side.sum(0)][:len(got)])
