"""Tiles of column sums: how many blocks split a column, and how wide their tiles are."""
from __future__ import annotations

import pytest

from tests.unit.codegen.pattern_graphs import column_sum
from tilefuse.ir.text import parse_graph
from tilefuse.schedule.choose_columns import LINE_BYTES, MOST_PARTS
from tilefuse.schedule.pattern import schedule_graph
from tilefuse.schedule.template import Columns
from tilefuse.schedule.tile import TileProgram
from tilefuse.target.device import H200


@pytest.mark.parametrize(("dtype", "itemsize"), [("f16", 2), ("bf16", 2), ("f32", 4)])
@pytest.mark.parametrize("columns", [256, 512, 4096])
def test_few_columns_are_split_into_parts_that_one_block_reads_back(dtype: str, itemsize: int, columns: int) -> None:
    """The last block of a tile adds what all blocks left: not too many of them, and no tile is narrower than a line for that."""
    program = schedule_graph(column_sum((1 << 27) // columns, columns, dtype).graph, {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Columns)
    choice = program.choice
    assert choice.split <= MOST_PARTS and choice.threads_x * choice.vector * itemsize >= LINE_BYTES
    assert program.launch.num_blocks * program.launch.num_threads >= 3 * 256 * H200.num_multiprocessors


@pytest.mark.parametrize(("columns", "threads"), [(32768, 256), (65536, 128), (131072, 64), (1 << 18, 256)])
def test_a_few_more_tiles_than_fit_are_given_to_smaller_blocks(columns: int, threads: int) -> None:
    """All of them run at a time; many waves keep their large blocks."""
    program = schedule_graph(column_sum(1024, columns, "f32").graph, {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Columns) and program.choice.split == 1
    assert program.launch.num_threads == threads
    blocks, at_a_time = program.launch.num_blocks, H200.num_multiprocessors * H200.max_threads_per_multiprocessor // threads
    assert (blocks <= at_a_time) is (columns <= 131072)


@pytest.mark.parametrize(("shape", "line"), [((128, 4096, 4095), True), ((512, 1024, 333), True), ((128, 4096, 4096), False)])
def test_tiles_that_begin_inside_sectors_are_a_line_wide(shape: tuple[int, int, int], line: bool) -> None:
    """Means over a middle axis: rows of 4095 f32 begin inside a sector, and each narrow row of a tile reads one sector too many."""
    outer, length, inner = shape
    graph = parse_graph(f"""graph @middle(%x: f32[{outer}, {length}, {inner}]) -> (f32[{outer}, {inner}]) {{
      %s: f32[{outer}, {inner}] = reduce.sum [i, j] over [k < {length}] {{ %x[i, k, j] }}
      return %s
    }}""")
    program = schedule_graph(graph, {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Columns)
    assert program.choice.vector * program.choice.threads_x * 4 >= LINE_BYTES
    assert (program.choice.vector == 1) is line
