"""Kernels over tensors of more than 2^31 elements compile for the device: one of each template, at sizes that need 64-bit indices."""
from __future__ import annotations

import pytest

from tests.compile_only.assembler import assembled
from tests.unit.scripts.routine_scripts import sequence
from tests.unit.templates import pattern_graphs as patterns
from tests.unit.templates.packed_graphs import side_by_side, update
from tests.unit.templates.stitched_graphs import attention, product_softmax
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import F16
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.scripts.compose.compose import compose_routines
from tilefuse.scripts.plan.fusions import find_fusions
from tilefuse.scripts.plan.implementations import implementations
from tilefuse.scripts.schedule.routines import FusedRoutines
from tilefuse.target.device import H200
from tilefuse.templates import schedule_pattern
from tilefuse.templates.compose import compose
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.online.template import schedule_online
from tilefuse.templates.staged.walked.record import PipelinedWalk

POOL = """graph @pool(%x: f32[1024, 2048, 2048]) -> (f32[1024, 186, 186]) {
  %s: f32[1024, 186, 186] = reduce.sum [n, h, w] over [p < 11, q < 11] { %x[n, 11*h + p, 11*w + q] }
  return %s
}"""
CUT = """graph @cut(%x: i8[6442450944, 3]) -> (i8[19327352832]) {
  %z: i8[19327352832] = map [i] { i8(add(i32(%x[(i % 6442450944), (i // 6442450944)]), 1:i32)) }
  return %z
}"""

GRAPHS: dict[str, Graph] = {
    "pool": parse_graph(POOL), "cut-beyond-32-bits": parse_graph(CUT),
    "maps": patterns.bias_gelu(1 << 20, 3072).graph, "transpose": patterns.transpose(1 << 16, (1 << 16) + 8, "f16").graph,
    "windows": patterns.max_pool(600, 64, 450, 450).graph, "softmax": patterns.softmax(1 << 21, 1032, "bf16").graph,
    "short-rows": patterns.softmax((1 << 27) + 1, 24, "f16").graph, "cluster": patterns.softmax(1 << 15, 131072, "f16").graph,
    "split": patterns.full_sum(1 << 20, 4099).graph, "positions": patterns.row_extremes(3, (1 << 32) + 7, "f16").graph,
    "columns": patterns.column_sum(1 << 21, 2056).graph, "carried": patterns.norm_backward(1 << 21, 1032, 132, "f16").graph,
    "scan": patterns.running_sum(1 << 20, 8192).graph, "gather": patterns.embedding_sum(1 << 20, 4096, 8192).graph,
    "scatter": patterns.scatter_add(1 << 20, 4096, 8192).graph, "concatenation": patterns.concatenation(1 << 21, 1024, 500, "f16").graph,
    "stitched": product_softmax(1 << 25, 64, 128, F16), "attention": attention(1 << 19, 128, 64, F16),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_compile(name: str) -> None:
    """With 64-bit indices, on sm_90a; 32 bits hold the coordinates of tensor copies, which are all that a pipelined walk computes."""
    graph = GRAPHS[name]
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200)
    assert isinstance(program, TileProgram), program
    kernel = compose(program, H200)
    assert kernel.index_bits == (32 if isinstance(program.choice, PipelinedWalk) else 64)
    assembled(print_cuda(kernel, H200), "sm_90a")


def test_a_walk_by_threads_compiles() -> None:
    """A walk whose threads load its operands has 64-bit indices."""
    program = schedule_online(GRAPHS["attention"], {}, H200, Online(64, 64, 128, 2))
    assert isinstance(program, TileProgram), program
    kernel = compose(program, H200)
    assert kernel.index_bits == 64
    assembled(print_cuda(kernel, H200), "sm_90a")


def test_packed_kernels_compile() -> None:
    graph = side_by_side([update((1 << 31) + 8), update(7), update(3, (1 << 30) + 1)], shared=("rate",)).graph
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200, packing=True)
    assert isinstance(program, TileProgram), program
    kernel = compose(program, H200)
    assert kernel.index_bits == 64
    assembled(print_cuda(kernel, H200), "sm_90a")


@pytest.mark.parametrize("name", ["axpydot", "gemver"])
def test_fused_routines_compile(name: str) -> None:
    graph = sequence(name, 60000, (1 << 31) + 8 if name == "axpydot" else 40000)
    best = next(implementations(graph, find_fusions(graph).legal[-1], H200, most=1)).content
    assert isinstance(best, FusedRoutines)
    # The second kernel joins what the blocks left, one value each.
    whole, *rest = compose_routines(best)
    assert whole.index_bits == 64 and [k.index_bits for k in rest] == [32]
    for kernel in (whole, *rest):
        assembled(print_cuda(kernel, H200), "sm_90a")
