"""Flat walks: one vector a thread, or several rows a thread where what all rows share is most of what a vector needs."""
from __future__ import annotations

import pytest

from tests.unit.templates.pattern_graphs import bias_gelu, channels_last, groups_of_lanes, scaled_columns, turned_channels
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.pattern import schedule_graph
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.transpose.record import Transpose


def normalised(rows: int, channels: int, dtype: str, added: bool = True) -> Graph:
    """A batch norm's last step over channels last: four vectors that all rows share. `added`: and a residual."""
    wide, more = ("%x[i, j]", "%r[i, j]") if dtype == "f32" else ("f32(%x[i, j])", "f32(%r[i, j])")
    body = f"add(mul(mul(sub({wide}, %m[j]), %s[j]), %w[j]), %b[j])"
    body = f"add({body}, {more})" if added else body
    return parse_graph(f"""graph @normalised(%x: {dtype}[{rows}, {channels}], {f"%r: {dtype}[{rows}, {channels}], " if added else ""}
                                             %m: f32[{channels}], %v: f32[{channels}], %w: f32[{channels}], %b: f32[{channels}])
                                             -> ({dtype}[{rows}, {channels}]) {{
      %s: f32[{channels}] = map [j] {{ rsqrt(add(%v[j], 0.00001:f32)) }}
      %y: {dtype}[{rows}, {channels}] = map [i, j] {{ {body if dtype == "f32" else f"{dtype}({body})"} }}
      return %y
    }}""")


def chosen(graph: Graph) -> tuple[TileProgram, Pointwise]:
    """The program on an H200 and its choice."""
    made = schedule_graph(graph, {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Pointwise)
    return made, made.choice


def l2_bytes(program: TileProgram) -> int:
    """Bytes between L2 and the multiprocessors. Units: bytes."""
    return kernel_template(program.choice).work(program, H200).l2_bytes


@pytest.mark.parametrize(("rows", "channels", "dtype", "added", "threads", "steps"), [
    (1 << 18, 256, "bf16", True, 128, 8), (1 << 14, 1024, "bf16", True, 128, 8), (1 << 12, 1024, "bf16", True, 128, 8),
    (1 << 14, 2048, "bf16", True, 256, 8), (1 << 18, 64, "f32", False, 128, 2), (1 << 16, 192, "bf16", True, 96, 8),
    (1 << 16, 320, "f32", False, 160, 2), (1 << 20, 8, "bf16", True, 128, 8), (1 << 10, 1024, "bf16", True, 128, 2),
])
def test_threads_take_rows_at_one_place_of_each(rows: int, channels: int, dtype: str, added: bool, threads: int, steps: int) -> None:
    program, choice = chosen(normalised(rows, channels, dtype, added))
    assert (choice.threads, choice.steps, choice.unrolled) == (threads, steps, True)
    # A thread's steps are whole rows apart, and what they share is read once for all.
    assert choice.threads * choice.vector % channels == 0
    one = schedule_graph(program.graph, {}, H200, Pointwise(choice.order, choice.vector, choice.threads, 1, True))
    assert isinstance(one, TileProgram)
    shared = l2_bytes(one) - (3 if added else 2) * rows * channels * (4 if dtype == "f32" else 2)
    assert l2_bytes(one) - l2_bytes(program) >= shared * (steps - 1) // steps - channels * 16


@pytest.mark.parametrize("graph", [
    normalised(1 << 8, 256, "bf16"),            # too few blocks would be left
    normalised(1 << 12, 1 << 13, "bf16"),       # no block is a row long
    normalised(1 << 16, 100, "bf16"),           # rows begin inside of vectors
    normalised(1 << 18, 64, "f32"),             # the four vectors are not twice what streams
    bias_gelu(1 << 14, 1024).graph,             # the shared vector is less than what streams
], ids=["small", "long-rows", "odd-rows", "residual", "bias"])
def test_one_vector_a_thread_otherwise(graph: Graph) -> None:
    assert chosen(graph)[1].steps == 1


def test_as_much_as_streams_is_enough_where_one_tensor_is_read() -> None:
    assert chosen(scaled_columns(1 << 14, 1024).graph)[1].steps == 2


def test_the_host_walks_as_before() -> None:
    made = schedule_graph(normalised(1 << 10, 256, "f32"), {}, host_device())
    assert isinstance(made, TileProgram) and isinstance(made.choice, Pointwise) and not made.choice.unrolled


@pytest.mark.parametrize(("rows", "columns", "vector"), [(3136, 771, 8), (1 << 16, 3, 8), (3137, 771, 8), (1, 5, 1)])
def test_vectors_run_on_from_one_row_to_the_next(rows: int, columns: int, vector: int) -> None:
    """Rows of odd lengths that lie one behind the other: 24 us by one element a thread, where the bytes take 4."""
    _, choice = chosen(bias_gelu(rows, columns).graph)
    assert choice.vector == vector


def test_rows_with_gaps_do_not_run_on() -> None:
    graph = bias_gelu(3136, 771).graph
    made = schedule_graph(graph, {"x": (776, 1)}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Pointwise) and made.choice.vector == 1


@pytest.mark.parametrize(("columns", "most_us"), [(768, 8), (771, 20)])
def test_results_in_two_orders_are_written_by_warps_across_both(columns: int, most_us: float) -> None:
    """Stores across the lanes fill no sector: 36 us instead of 6."""
    graph = parse_graph(f"""graph @g(%x: f16[16, 196, {columns}]) -> (f16[16, 196, {columns}], f16[16, {columns}, 196]) {{
      %y: f16[16, 196, {columns}] = map [b, i, j] {{ f16(neg(f32(%x[b, i, j]))) }}
      %t: f16[16, {columns}, 196] = map [b, i, j] {{ %y[b, j, i] }}
      return %y, %t
    }}""")
    program, choice = chosen(graph)
    assert choice.side == 16 and choice.across
    flat = schedule_graph(graph, {}, H200, Pointwise(choice.order, choice.vector, 128, 1, True))
    assert isinstance(flat, TileProgram) and AnalyticCost(H200).cost(flat).us > 30
    assert AnalyticCost(H200).cost(program).us < most_us


@pytest.mark.parametrize(("rows", "length", "steps"), [(8192, 65537, 4), (12288, 65524, 4), (64, 65537, 4), (4, 65537, 1), (8192, 8, 1)])
def test_narrow_results_are_several_a_thread_where_blocks_would_be_too_many(rows: int, length: int, steps: int) -> None:
    """Windows along one axis: 4.2 million blocks of 128 results each take 2.5 ms to start, and their bytes 1.0 ms."""
    graph = parse_graph(f"""graph @windows(%x: f32[{rows}, {length + 7}]) -> (f32[{rows}, {length}]) {{
      %y: f32[{rows}, {length}] = reduce.max [i, j] over [k < 8] {{ %x[i, j + k] }}
      return %y
    }}""")
    program, choice = chosen(graph)
    assert choice.steps == steps
    parts = AnalyticCost(H200).parts(program)
    assert parts.started_us <= parts.global_us * 1.02
    one = schedule_graph(graph, {}, H200, Pointwise(choice.order, choice.vector, choice.threads, 1, True))
    assert isinstance(one, TileProgram) and (AnalyticCost(H200).parts(one).started_us > parts.global_us) is (steps > 1)


@pytest.mark.parametrize(("channels", "vector"), [(128, 4), (12, 4), (6, 1)])
def test_a_sum_that_a_vector_shares_leaves_the_vector(channels: int, vector: int) -> None:
    """Groups of four channels: 112 us by one element a thread where the bytes take 62 (H200, 4 x 255 x 255 x 128 places of f32)."""
    if channels % 4:
        graph = parse_graph(f"""graph @groups(%x: f32[64, 512, {channels}], %q: f32[64, {channels}]) -> (f32[64, 512, {channels}]) {{
          %s: f32[64, {channels // 3}] = reduce.sum [n, g] over [k < 3] {{ %q[n, 3 * g + k] }}
          %y: f32[64, 512, {channels}] = map [n, p, c] {{ add(%x[n, p, c], %s[n, (c // 3)]) }}
          return %y
        }}""")
    else:
        graph = groups_of_lanes(64, 512, channels).graph
    assert chosen(graph)[1].vector == vector


def turned(graph: Graph) -> Transpose:
    """The choice of tiles on an H200."""
    made = schedule_graph(graph, {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Transpose)
    return made.choice


@pytest.mark.parametrize(("graph", "rows", "columns", "threads"), [
    (channels_last(193, 8, 93, 93).graph, 8, 512, 512), (channels_last(140, 64, 61, 61).graph, 64, 64, 512),
    (turned_channels(193, 8649, 32).graph, 128, 32, 512), (turned_channels(140, 3721, 64).graph, 64, 64, 512),
    (channels_last(8, 64, 256, 256).graph, 64, 64, 512), (channels_last(64, 256, 64, 64, "f16").graph, 128, 128, 1024),
], ids=["eight-channels", "odd-planes", "back", "back-from-64", "even", "f16"])
def test_a_tile_moves_as_many_bytes_whatever_its_sides(graph: Graph, rows: int, columns: int, threads: int) -> None:
    """A short side leaves its part to the other, and threads are as many as the bytes want, not as the vectors: 60 us and 33 for eight
    channels of 93 x 93 places (H200, f32, 193 images; the bytes take 26)."""
    choice = turned(graph)
    assert (choice.rows, choice.columns, choice.threads) == (rows, columns, threads)
