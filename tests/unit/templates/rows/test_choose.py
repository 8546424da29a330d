"""Choices of the scheduler for rows: how many bytes of them the blocks of a multiprocessor hold together."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.templates.pattern_graphs import Pattern, group_norm, layer_norm, running_sum, running_sum_behind_zero, softmax
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.target.device import H200
from tilefuse.templates.pattern import schedule_graph
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.rows.modes import Held, RowQueue, Rows


@pytest.mark.parametrize(("rows", "length", "dtype", "itemsize"), [
    (8192, 8192, "f16", 2), (8192, 8192, "bf16", 2), (8192, 4096, "f32", 4)])
def test_norms_hold_enough_of_their_rows_in_registers(rows: int, length: int, dtype: str, itemsize: int) -> None:
    """Three blocks of 512 threads with two vectors each are too few: memory waits while they reduce."""
    made = schedule_graph(layer_norm(rows, length, dtype).graph, {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Rows)
    c = made.choice
    blocks = c.resident or H200.max_threads_per_multiprocessor // c.threads
    held_bytes = blocks * c.threads * c.rows * c.chunks * c.vector * itemsize
    assert held_bytes >= H200.fitted.rows.norms.held_bytes, (c, held_bytes)
    assert blocks * c.threads <= H200.max_threads_per_multiprocessor


def test_few_long_rows_take_more_blocks_than_many() -> None:
    """A block a row of 64 KiB where there are rows for all multiprocessors; else a cluster."""
    clusters = []
    for count in (2048, 8):
        made = schedule_graph(layer_norm(count, 32768, "f16").graph, {}, H200)
        assert isinstance(made, TileProgram) and isinstance(made.choice, Rows)
        clusters.append(made.choice.cluster)
    assert clusters[0] == 1 < clusters[1]


def test_values_of_a_channel_take_no_room_beside_the_row() -> None:
    """An operand equal at all places of a channel stays in the first-level cache: counted with the row, four such operands left one vector
    a thread and clusters of sixteen blocks (H200, group norm of 8 groups over 167 x 64 x 56 x 56 f32: 169 us where a copy takes 64)."""
    made = schedule_graph(group_norm(167, 8, 8, 3136).graph, {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Rows)
    c = made.choice
    assert isinstance(c.mode, Held) and c.cluster <= 4 and c.chunks * c.vector * 4 >= H200.fitted.kept.thread_bytes // 2, c


def test_the_longest_rows_pass_through_shared_memory_once() -> None:
    """Registers of a multiprocessor hold the shares of two blocks of a cluster of 16, its shared memory those of three."""
    made = schedule_graph(softmax(128, 262144).graph, {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Rows)
    c = made.choice
    assert (c.mode, c.resident) == (RowQueue(groups=128, slots=1), 3) and c.cluster == H200.max_cluster_blocks
    # Half as long a share: four blocks hold theirs in registers.
    shorter = schedule_graph(softmax(256, 262144, "f16").graph, {}, H200)
    assert isinstance(shorter, TileProgram) and isinstance(shorter.choice, Rows) and isinstance(shorter.choice.mode, Held)


def test_the_longest_scans_take_few_warps() -> None:
    """Partial sums that warps add up one by one: 512 threads a block took 77.6 us where 256 with twice as many elements take 73.7."""
    b = TensorBuilder("sums")
    made = schedule_graph(b.finish([b.scan(b.input("x", F32, (128, 262144)), "sum", 1)]), {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Rows)
    choice = made.choice
    assert (choice.threads, choice.chunks, choice.cluster, choice.resident) == (256, 16, 16, 2)


@pytest.mark.parametrize("length", [8193, 32769])
def test_scans_of_single_elements_leave_registers_for_totals_and_for_what_comes_before(length: int) -> None:
    """Every second element: with 26 elements a thread few blocks are resident, 8947 us where 9 elements a thread take 5694."""
    def scheduled(rows: int, length: int) -> Rows:
        b = TensorBuilder("sums")
        y = b.scan(b.input("x", F32, (rows, length)), "sum", 1)
        made = schedule_graph(b.finish([y]), dict.fromkeys(("x", y), (2 * length, 2)), H200)
        assert isinstance(made, TileProgram) and isinstance(made.choice, Rows), "what held rows at all holds them still"
        return made.choice

    choice = scheduled(32768, length)
    assert choice.vector == 1 and choice.chunks * choice.threads * choice.cluster >= length
    assert 3 * 4 * (choice.chunks - 1) <= H200.fitted.kept.thread_bytes
    scheduled(128, 262145)


@pytest.mark.parametrize(("pattern", "vector"), [
    (running_sum(8192, 4097), 4), (running_sum(8192, 4097, "f16"), 8), (running_sum_behind_zero(8192, 4096), 4),
    (running_sum(1024, 32769), 4), (running_sum(4096, 15, "f16"), 8), (running_sum(4096, 13, "f16"), 4), (running_sum(4096, 2), 2)])
def test_scans_of_odd_rows_follow_vectors_of_memory(pattern: Pattern, vector: int) -> None:
    """Rows of 4097 f32 behind a zero: 135.0 us by single elements, where the bytes take 64.2; whole vectors in the shortest rows too."""
    made = schedule_graph(pattern.graph, {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Rows) and isinstance(made.internal, Domain)
    c, length = made.choice, made.internal.num_reduced
    assert c.vector == vector
    assert c.threads * c.chunks * c.cluster * vector >= length + (vector - 1 if length % vector else 0), "a row may begin anywhere"


NO_COPIES = replace(H200, capabilities=replace(H200.capabilities, bulk_copies=False))


def product(rows: int, length: int, dtype: str = "f32") -> Graph:
    """A matrix times a vector."""
    return parse_graph(f"""graph @product(%A: {dtype}[{rows}, {length}], %x: {dtype}[{length}]) -> (f32[{rows}]) {{
      %y: f32[{rows}] = reduce.sum [i] over [k < {length}] {{ mul(f32(%A[i, k]), f32(%x[k])) }}
      return %y
    }}""")


@pytest.mark.parametrize(("length", "threads"), [(16384, 512), (8192, 256)])
def test_long_shared_vectors_are_read_by_large_blocks(length: int, threads: int) -> None:
    """A matrix times a vector of 64 KiB: 237.0 us by 512 threads a row, 237.7 by 256; every block reads the vector again."""
    made = schedule_graph(product(length, length), {}, NO_COPIES)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Rows)
    assert made.choice.threads == threads and made.choice.split == 1


@pytest.mark.parametrize(("rows", "length"), [(2048, 8192), (2048, 2048), (4096, 1024)])
def test_rows_of_a_product_with_a_vector_set_out_early(rows: int, length: int) -> None:
    """One H200, a row of 8192 bf16 by 2048 rows in a decode step: 7.4 us by persistent blocks whose first rows are on their way when the
    kernel ahead ends, 10.7 by a block a row."""
    made = schedule_graph(product(rows, length, "bf16"), {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Rows) and isinstance(made.choice.mode, RowQueue)
    assert made.choice.rows > 1 and made.choice.groups <= H200.num_multiprocessors
    assert kernel_template(made.choice).overlaps(made.choice).fetches_settled
    plain = schedule_graph(product(rows, length, "bf16"), {}, NO_COPIES)
    assert isinstance(plain, TileProgram) and AnalyticCost(H200).cost(made).us < AnalyticCost(H200).cost(plain).us


@pytest.mark.parametrize(("inner", "vector"), [(123039, 4), (123040, 4), (123037, 4), (333, 4)])
def test_vectors_run_on_from_one_channel_of_a_group_to_the_next(inner: int, vector: int) -> None:
    """Groups of images of odd sizes, with a weight a channel: 1558 us by single elements, where the bytes take 473."""
    graph = parse_graph(f"""graph @norm(%x: f32[512, 4, {inner}], %w: f32[4]) -> (f32[512, 4, {inner}]) {{
      %s: f32[512] = reduce.sum [n] over [c < 4, i < {inner}] {{ %x[n, c, i] }}
      %y: f32[512, 4, {inner}] = map [n, c, i] {{ mul(sub(%x[n, c, i], %s[n]), %w[c]) }}
      return %y
    }}""")
    made = schedule_graph(graph, {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Rows) and made.choice.vector == vector


def test_rows_that_begin_inside_a_vector_are_walked_by_elements() -> None:
    graph = parse_graph("""graph @norm(%x: f32[512, 3, 333], %w: f32[3]) -> (f32[512, 3, 333]) {
      %s: f32[512] = reduce.sum [n] over [c < 3, i < 333] { %x[n, c, i] }
      %y: f32[512, 3, 333] = map [n, c, i] { mul(sub(%x[n, c, i], %s[n]), %w[c]) }
      return %y
    }""")
    made = schedule_graph(graph, {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Rows) and made.choice.vector == 1
