"""Trees of stages: what they say of shared memory is what the composed kernel has, and the levels of edges follow from them."""
from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.templates.online_graphs import masked, with_logarithm
from tests.unit.templates.staged.chain.chain_graphs import layers
from tests.unit.templates.staged.pipelined.product_graphs import dequantised, gated, halves, heads, of_bytes, pair, plain
from tests.unit.templates.staged.pipelined.row_graphs import residual_norm, scores, soft
from tests.unit.templates.stitched_graphs import attention, clamped_layers, lstm_cell, norm_before_product, product_softmax
from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.driver.explain.tiles import tree_data
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.kernel.ir import Kernel
from tilefuse.runtime.stage_tree import tree_lines
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.stage_tree import StageTree, edge_levels
from tilefuse.templates.staged.chain.template import schedule_chain
from tilefuse.templates.staged.online.template import schedule_online
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product
from tilefuse.templates.staged.stitched.template import schedule_stitched

IN_CLUSTERS = Pipelined(128, 256, 64, 2, 2, 8, 128, cluster=4)
PROGRAMS: dict[str, TileProgram | Rejected] = {
    "plain": schedule_product(plain(300, 520, 200), {}, H200),
    "gated": schedule_product(gated(8192, 4096, 1024, BF16), {}, H200),
    "pair": schedule_product(pair(4096, 2048, 512), {}, H200),
    "halves": schedule_product(halves(512, 256, 128), {}, H200),
    "heads": schedule_product(heads(512, 4, 64, 256), {}, H200),
    "dequantised": schedule_product(dequantised(256, 512, 256), {}, H200),
    "soft": schedule_product(soft(1024, 256, 256), {}, H200, Pipelined(128, 256, 64, 3, 2, 8, 8)),
    "residual-norm": schedule_product(residual_norm(4096, 1024, 512, BF16), {}, H200, IN_CLUSTERS),
    "scores": schedule_product(scores(4096, 1024, 128), {}, H200, IN_CLUSTERS),
    "chain": schedule_chain(layers(4096, (64, 256, 64)), {}, H200),
    "biased-chain": schedule_chain(layers(300, (64, 128, 32), biased=True), {}, H200),
    "few-rows": schedule_product(plain(8, 4096, 2048, BF16), {}, H200),
    "few-rows-of-bytes": schedule_product(of_bytes(16, 4096, 2048), {}, H200),
    "attention": schedule_online(attention(8, 512, 64, F16, causal=True), {}, H200),
    "logarithm": schedule_online(with_logarithm(2, 70, 90, 24, 40, F32), {}, H200),
    "masked": schedule_online(masked(70, 90, 24, 40, F32), {}, H200),
    "gates": schedule_stitched(lstm_cell(32, 256), {}, H200),
    "layers": schedule_stitched(clamped_layers(2048, (64, 64, 64, 64), F16), {}, H200),
    "product-softmax": schedule_stitched(product_softmax(98304, 64, 128), {}, H200),
    "norm-before": schedule_stitched(norm_before_product(512, 64, 96), {}, H200),
}


def program_of(name: str) -> TileProgram:
    program = PROGRAMS[name]
    assert isinstance(program, TileProgram), program
    return program


def composed(program: TileProgram) -> tuple[StageTree, Kernel]:
    """The tree of a program, and its kernel."""
    tree = kernel_template(program.choice).stage_tree(program)
    assert tree is not None
    return tree, compose(program, H200)


def shared_sizes(kernel: Kernel) -> Counter[tuple[str, int]]:
    """(value, bytes) of the kernel's buffers in shared memory."""
    return Counter((b.origin, b.num_elements * b.dtype.itemsize) for b in kernel.buffers if b.space == "shared")


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_place_in_shared_memory_is_a_buffer_of_the_kernel(name: str) -> None:
    """Values, slots and bytes of the tree are those that the kernel allocates, and no buffer of a value is missing in the tree."""
    tree, kernel = composed(program_of(name))
    told = Counter((v.value, v.shared_bytes) for v in tree.values() if v.shared_bytes and v.level is not Level.CLUSTER)
    named = Counter({k: n for k, n in shared_sizes(kernel).items() if k[0]})
    assert named <= told
    exchanged = sum(v.shared_bytes for v in tree.values() if v.level is Level.CLUSTER)
    # Right operands that lie side by side in a slot share a buffer, which has no one value.
    side_by_side = sum(size * n for (_, size), n in (told - named).items())
    unnamed = sum(size * n for (origin, size), n in shared_sizes(kernel).items() if not origin)
    assert exchanged + side_by_side == unnamed


@pytest.mark.parametrize("name", PROGRAMS)
def test_levels_of_edges_follow_from_the_tree(name: str) -> None:
    """Every edge inside has one level; a value in shared memory has a place there, unless it is a boundary value."""
    program = program_of(name)
    tree, _ = composed(program)
    assert program.levels == edge_levels(program.graph, tree)
    inside = {n.name for n in program.graph.nodes}
    assert len(program.levels) == sum(v in inside for n in program.graph.nodes for v in n.reads())
    stored = {v.value for v in tree.values() if v.shared_bytes or v.place}
    assert {e.producer for e in program.levels if e.level is Level.SHARED} <= stored
    assert set(program.graph.results) <= {v.value for v in tree.values() if v.written}


def test_reductions_of_rows_are_handed_on_by_warps_and_clusters() -> None:
    assert {(e.producer, e.level) for e in program_of("soft").levels if e.producer.endswith(("_max", "_sum"))} == {
        ("softmax_max", Level.WARP), ("softmax_sum", Level.WARP)}
    assert {e.level for e in program_of("residual-norm").levels} == {Level.REGISTER, Level.CLUSTER}


def test_operands_that_threads_compute_lie_in_shared_memory() -> None:
    program = program_of("dequantised")
    graph: Graph = program.graph
    product = next(n for n in graph.nodes if n.category == "library")
    assert any(e.user == product.name and e.level is Level.SHARED for e in program.levels)


RESIDUAL_NORM = """
block tile (row 128, column 256), 128 blocks in clusters of 4; moves 29.0 MiB global, 96.0 MiB shared
  copy by tensor copies: %residual [128, 256] shared in the place of %add_1
  loop inner in steps of 64, 8 times
    copy by tensor copies: %x [128, 64] shared, 2 slots of 16.0 KiB
    copy by tensor copies: %w [256, 64] shared, 2 slots of 32.0 KiB
    product by tensor cores: %matmul [128, 256] register
  reduce: %layer_norm_sum [128] cluster, 2 slots of 4.0 KiB, %layer_norm_m2 [128] cluster
  map: %layer_norm_mean [128] register, %layer_norm_rstd [128] register
  map: %add_1 [128, 256] register, written through 8 slots of 8.0 KiB of shared memory, %layer_norm [128, 256] register, \
written through 4 slots of 8.0 KiB of shared memory
""".replace("\\\n", "")
ATTENTION = """
block tile (row 64), 64 blocks; moves 2.0 MiB global, 9.0 MiB L2, 40.0 MiB shared
  loop walked in steps of 128, 4 times
    copy by asynchronous copies: %k [128, 64] shared, 2 slots of 18.0 KiB
    copy by asynchronous copies: %v [128, 64] shared, 2 slots of 18.0 KiB
    product by matrix instructions: %matmul [64, 128] register
    reduce: %softmax_max [64] warp
    reduce: %softmax_sum [64] warp
    map: %softmax [64, 128] register
    product by matrix instructions: %matmul_1 [64, 64] register, written
"""


@pytest.mark.parametrize(("name", "lines"), [("residual-norm", RESIDUAL_NORM), ("attention", ATTENTION)])
def test_trees_as_text(name: str, lines: str) -> None:
    tree, _ = composed(program_of(name))
    data = tree_data(tree, {})
    assert data is not None
    assert "\n".join(tree_lines(data)) == lines.strip()
