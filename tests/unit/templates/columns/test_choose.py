"""Tiles of column sums: how many blocks split a column, and how wide their tiles are."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.templates.pattern_graphs import Pattern, column_sum, softmax_down, written_and_summed
from tilefuse.domain.resolved import Domain
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.columns.between_work import between_work
from tilefuse.templates.columns.choose import LINE_BYTES
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import between_columns, column_start, num_tiles
from tilefuse.templates.pattern import schedule_graph


@pytest.mark.parametrize(("dtype", "itemsize"), [("f16", 2), ("bf16", 2), ("f32", 4)])
@pytest.mark.parametrize("columns", [256, 512, 4096])
def test_few_columns_are_split_into_parts_that_one_block_reads_back(dtype: str, itemsize: int, columns: int) -> None:
    """The last block of a tile adds what all blocks left: not too many of them, and no tile is narrower than a line for that."""
    program = schedule_graph(column_sum((1 << 27) // columns, columns, dtype).graph, {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Columns)
    choice = program.choice
    assert choice.split <= H200.fitted.columns.most_parts and choice.threads_x * choice.vector * itemsize >= LINE_BYTES
    assert program.launch.num_blocks * program.launch.num_threads >= 3 * 256 * H200.num_multiprocessors


@pytest.mark.parametrize(("columns", "threads"), [(32768, 256), (65536, 128), (131072, 64), (1 << 18, 256)])
def test_a_few_more_tiles_than_fit_are_given_to_smaller_blocks(columns: int, threads: int) -> None:
    """All of them run at a time; many waves keep their large blocks."""
    program = schedule_graph(column_sum(1024, columns, "f32").graph, {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Columns) and program.choice.split == 1
    assert program.launch.num_threads == threads
    blocks, at_a_time = program.launch.num_blocks, H200.num_multiprocessors * H200.max_threads_per_multiprocessor // threads
    assert (blocks <= at_a_time) is (columns <= 131072)


def middle(outer: int, length: int, inner: int, dtype: str = "f32") -> Columns:
    """The schedule of sums over a middle axis."""
    x = "%x[i, k, j]" if dtype == "f32" else "f32(%x[i, k, j])"
    graph = parse_graph(f"""graph @middle(%x: {dtype}[{outer}, {length}, {inner}]) -> (f32[{outer}, {inner}]) {{
      %s: f32[{outer}, {inner}] = reduce.sum [i, j] over [k < {length}] {{ {x} }}
      return %s
    }}""")
    program = schedule_graph(graph, {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Columns)
    assert isinstance(program.internal, Domain)
    between = between_columns(program.internal, program.choice)
    assert (between is None) is (inner % program.choice.vector == 0)
    assert program.launch.num_blocks == num_tiles(program.internal, program.choice) * program.choice.split
    return program.choice


@pytest.mark.parametrize(("shape", "vector"), [
    ((128, 4096, 4095), 4), ((512, 1024, 333), 4), ((64, 129, 4097), 4), ((1, 65536, 1023), 4), ((64, 512, 7), 4), ((64, 512, 5), 2),
    ((64, 512, 3), 2), ((128, 4096, 4096), 4)])
def test_columns_of_odd_rows_follow_vectors_of_memory(shape: tuple[int, int, int], vector: int) -> None:
    """Means over a middle axis of 4095 f32: 81.3 us by single elements in tiles of a line, where the bytes take 64.2."""
    choice = middle(*shape)
    assert choice.vector == vector
    assert choice.threads_y * choice.chunks * choice.split >= shape[1]


def test_columns_of_odd_rows_of_narrow_elements_take_whole_vectors() -> None:
    assert middle(64, 512, 4097, "f16").vector == 8


def test_short_columns_of_odd_rows_fill_the_device() -> None:
    """131 rows of 8193: 67 tiles of 32 vectors, and too few rows to split, would keep half of the multiprocessors busy."""
    assert middle(1, 131, 8193).threads_x < 32 <= middle(1, 13100, 8193).threads_x


@pytest.mark.parametrize("shape", [(196, 1024, 333), (4, 4096, 4095)])
def test_blocks_of_odd_rows_run_in_one_wave(shape: tuple[int, int, int]) -> None:
    """In four waves, split by four: 70.6 us, unsplit in one 63.4; a wave and a little more takes longer than either."""
    choice = middle(*shape)
    tiles = shape[0] * -(-shape[2] // (4 * (choice.threads_x - 1)))
    assert tiles * choice.split <= H200.num_multiprocessors * choice.resident


def test_few_tiles_of_long_columns_are_not_read_back_for_longer_than_the_blocks_take() -> None:
    """65536 rows of 1023 have nine tiles: with four waves of blocks the last one of a tile would read 235 parts, eight at a time."""
    choice = middle(1, 65536, 1023)
    assert choice.split * 9 >= H200.num_multiprocessors and choice.split <= 64


@pytest.mark.parametrize("pattern", [softmax_down(300, 33), written_and_summed(4096, 333, "columns")])
def test_kernels_that_walk_columns_otherwise_take_no_vectors_of_odd_rows(pattern: Pattern) -> None:
    """Columns walked twice, and elements written on the way keep their columns in one place."""
    program = schedule_graph(pattern.graph, {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Columns) and isinstance(program.internal, Domain)
    assert program.choice.vector == 1 and between_columns(program.internal, program.choice) is None


def test_a_walk_between_vectors_takes_the_split_of_the_least_price() -> None:
    """Means of 4 x [4096, 4095] f32 in tiles of 64 vectors: seven blocks a column were measured, 67.5 us, and are predicted."""
    pattern = parse_graph("""graph @g(%x: f32[4, 4096, 4095]) -> (f32[4, 4095]) {
      %s: f32[4, 4095] = reduce.sum [i, j] over [k < 4096] { %x[i, k, j] }
      return %s
    }""")
    program = schedule_graph(pattern, {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Columns)
    choice, start = program.choice, column_start(program.domain, program.choice.kept_order, program.choice.vector)
    assert start is not None

    def us(split: int) -> float:
        one = replace(choice, split=split, chunks=-(-4096 // (choice.threads_y * split)))
        return price_work(between_work(program.domain, H200, one, start, 4, 4), H200).us

    assert us(choice.split) == min(us(n) for n in range(1, 32))
    assert us(choice.split) < us(16) and us(choice.split) == pytest.approx(67.5, rel=0.05)
