"""Bytes that kernels of stages move through L2 and shared memory: counted by hand, and never below what must move."""
from __future__ import annotations

from itertools import product

import pytest

from tests.golden.workloads import PACKED, STITCHED, tile_program
from tests.unit.templates.stitched_graphs import attention, product_softmax
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.ir.dtype import F16
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.target.device import H200
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.online.template import schedule_online
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.template import schedule_stitched
from tilefuse.templates.staged.stitched.traffic import elements_within
from tilefuse.templates.staged.walked.record import PipelinedWalk


def traffic(program: TileProgram) -> Work:
    """The work of a program, whose bytes these tests count."""
    return kernel_template(program.choice).work(program, H200)


def stitched(graph: Graph, *tiles: int, threads: int = 128) -> TileProgram:
    made = schedule_stitched(graph, {}, H200, Stitched(tiles, threads))
    assert isinstance(made, TileProgram), made
    return made


def test_one_block_reads_everything_once() -> None:
    """A batch in a block: no operand is read by two."""
    program = stitched(attention(6, 64, 64), 1, 64, 64)
    assert traffic(program).l2_bytes == program.bytes_moved


def test_strips_of_few_columns_write_parts_of_sectors() -> None:
    """Strips of five columns of f32 fill no sector of eight; blocks of 64 rows have strips of their own. Results of matrix instructions
    are neighbours of what the same warp stores next."""
    graph = parse_graph("""graph @g(%x: f32[1500, 300, 16], %w: f32[1500, 300, 16]) -> (f32[1500, 300, 300]) {
      %y: f32[1500, 300, 300] = library.matmul (%x, %w) {precision = "default", transpose_a = false, transpose_b = true}
      return %y
    }""")
    strips, warps = stitched(graph, 1, 150, 300), stitched(graph, 1, 64, 300)
    assert ("THREAD" in strips.notation, "WARP" in warps.notation) == (True, True)
    assert traffic(strips).partial_sectors > 2 * 1500 * 300 * 300 / 8 and not traffic(warps).partial_sectors
    assert AnalyticCost(H200).cost(strips).us > 3 * AnalyticCost(H200).cost(warps).us


@pytest.mark.parametrize("rows", [16, 32])
def test_blocks_of_some_rows_read_the_right_operands_again(rows: int) -> None:
    """Attention of 6 x 64 x 64 in f16 by tiles of rows: queries and results once, keys and values once a tile of rows."""
    program = stitched(attention(6, 64, 64), 1, rows, 64)
    itemsize = program.graph.inputs[0].type.dtype.itemsize
    one = 6 * 64 * 64 * itemsize
    others = program.bytes_moved - 3 * one
    assert traffic(program).l2_bytes == one + 2 * one * (64 // rows) + others


def test_rows_beyond_the_end_are_not_read() -> None:
    whole, cut = stitched(product_softmax(96, 64, 64), 32, 64), stitched(product_softmax(95, 64, 64), 32, 64)
    row_bytes = 64 * whole.graph.inputs[0].type.dtype.itemsize
    assert traffic(whole).l2_bytes - whole.bytes_moved == traffic(cut).l2_bytes - cut.bytes_moved
    assert whole.bytes_moved - cut.bytes_moved >= row_bytes


def test_elements_of_spans_that_reach_beyond_an_end_are_counted_as_one_by_one() -> None:
    """All spans of a few extents and steps, from before the dimension's begin to behind its end."""
    checked = 0
    for begin, step, steps, extent, full in product(range(-5, 6), range(5), range(1, 6), range(1, 5), range(1, 9)):
        one_by_one = sum(0 <= begin + step * n + e < full for n in range(steps) for e in range(extent))
        assert elements_within(begin, step, steps, extent, full) == one_by_one, (begin, step, steps, extent, full)
        checked += one_by_one > 0
    assert checked > 1000


def test_what_is_copied_is_written_to_shared_memory_and_read_from_it() -> None:
    """Three operands of 64 x 64 a batch are copied once and read at least once."""
    program = stitched(attention(6, 64, 64), 1, 64, 64)
    copied = 3 * 6 * 64 * 64 * program.graph.inputs[0].type.dtype.itemsize
    assert traffic(program).shared_bytes >= 2 * copied


def test_a_walk_reads_its_columns_once_a_block() -> None:
    """Twice the rows a block, half the reads of keys and values."""
    graph = attention(2, 256, 64, F16)
    found = []
    for rows in (64, 128):
        made = schedule_online(graph, {}, H200, Online(rows, 32, 128, 1))
        assert isinstance(made, TileProgram), made
        found.append(traffic(made).l2_bytes - made.bytes_moved)
    kept = graph.inputs[1].type.num_bytes + graph.inputs[2].type.num_bytes
    assert found == [kept * 3, kept]


@pytest.mark.parametrize("name", STITCHED)
def test_figures_show_the_work_that_is_priced(name: str) -> None:
    """The figures of kernels of stages are neither the ideal nor 0, and the price is of the same record. Tensor copies that blocks repeat
    are cycles of a pipelined walk's stages, and no bytes of L2."""
    program, model = tile_program(name, H200), AnalyticCost(H200)
    assert isinstance(program, TileProgram)
    figures = {f.name: f.value for f in model.figures(program)}
    is_ideal = figures["L2 bytes"] == program.bytes_moved
    assert figures["L2 bytes"] >= program.bytes_moved and is_ideal == isinstance(program.choice, PipelinedWalk)
    assert figures["shared bytes"] > program.bytes_moved
    assert figures["L2 time"] > 0 and figures["shared time"] > 0
    assert figures["L2 bytes"] == model.parts(program).l2_bytes == traffic(program).l2_bytes


@pytest.mark.parametrize("name", PACKED)
def test_parts_of_a_packed_kernel_add_up(name: str) -> None:
    program = tile_program(name, H200)
    assert isinstance(program, TileProgram)
    assert traffic(program).l2_bytes >= 0.95 * program.bytes_moved
