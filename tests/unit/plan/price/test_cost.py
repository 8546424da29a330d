"""The analytic cost: units, the curve, the cap of few blocks, and what decides."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.plan.graphs import softmax
from tests.unit.plan.stand_in import schedule_by_rows
from tests.unit.templates.stitched_graphs import clamped_layers
from tilefuse.base.options import Options
from tilefuse.domain.access import accesses
from tilefuse.domain.roofline import resident_blocks, transfer_us
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import F16
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import Cost
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.cost import AnalyticCost, gain_us
from tilefuse.target.device import H200
from tilefuse.target.launch import Launch
from tilefuse.templates.levels import repeated_bytes, scattered_adds
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.rows.modes import Rows
from tilefuse.templates.staged.stitched.template import schedule_stitched
from tilefuse.templates.transpose.record import Transpose


def program(num_bytes: int, flops: int = 0, blocks: int = 10_000) -> TileProgram:
    graph = softmax()
    made = schedule_by_rows(graph, [n.name for n in graph.nodes], {}, H200)
    assert isinstance(made, TileProgram)
    return replace(made, bytes_read=num_bytes // 2, bytes_written=num_bytes - num_bytes // 2, flops=flops, launch=Launch(blocks, 128))


def test_a_large_copy_takes_its_bytes_over_the_bandwidth() -> None:
    """2 GiB moved at 4.26 TB/s is 504 us; the launch of half a microsecond adds little."""
    found = AnalyticCost(H200).cost(program(2 << 30))
    assert found.source == "bandwidth"
    assert found.us == pytest.approx((2 << 30) / 4.264e12 * 1e6, rel=0.01)


def test_a_tiny_kernel_costs_its_launch() -> None:
    found = AnalyticCost(H200).cost(program(1024, blocks=8))
    assert found.source == "launch" and found.us == pytest.approx(H200.graph_launch_us)


def test_arithmetic_decides_where_it_is_longer() -> None:
    found = AnalyticCost(H200).cost(program(1 << 20, flops=10**10))
    assert found.source == "flops" and found.us == pytest.approx(10**10 / H200.flops_per_s * 1e6 + H200.graph_launch_us, rel=0.01)


def test_stages_are_timed_by_their_cycles() -> None:
    """Products on the matrix unit take fewer cycles than their operations at the usual rate."""
    made = schedule_stitched(clamped_layers(65536, (64, 64, 64, 64), F16), {}, H200)
    assert isinstance(made, TileProgram)
    parts = AnalyticCost(H200).parts(made)
    assert 0 < parts.arithmetic_us < made.flops / H200.flops_per_s * 1e6
    figures = {f.name: f for f in AnalyticCost(H200).figures(made)}
    assert "stages" in figures["arithmetic time"].origin
    assert figures["busy tensor cores"].value > figures["busy threads"].value > 0 == figures["busy special functions"].value


def test_few_blocks_reach_only_their_share_of_the_bandwidth() -> None:
    """One block of 128 threads has 64 bytes a thread under way; the memory wants `saturating_bytes`. Stores wait for nothing."""
    model = AnalyticCost(H200)
    one = model.parts(program(1 << 28, blocks=1))
    assert one.share == pytest.approx(128 * 64 / H200.saturating_bytes)
    reads_us, whole_us = ((n / H200.global_bytes_per_s) * 1e6 for n in (1 << 27, 1 << 28))
    own_rate = H200.fitted.flight.multiprocessor_shares / H200.num_multiprocessors
    assert one.global_us == pytest.approx(reads_us / one.share + whole_us * (1 / own_rate - 1))
    assert model.parts(program(1 << 28)).share == 1.0


def test_what_does_not_fit_a_multiprocessor_waits() -> None:
    """Threads and shared memory bound the blocks that are resident at once."""
    assert resident_blocks(Launch(1000, 1024), H200) == 2
    assert resident_blocks(Launch(1000, 128, shared_bytes=100_000), H200) == 2
    assert resident_blocks(Launch(1000, 32), H200) == H200.max_blocks_per_multiprocessor
    assert AnalyticCost(H200).parts(replace(program(1 << 28), launch=Launch(10_000, 1024, shared_bytes=200_000))).occupancy == 0.5


def test_moving_everything_together_is_never_dearer_than_in_two_kernels() -> None:
    model = AnalyticCost(H200)
    for size in (1 << 12, 1 << 18, 3 << 20, 1 << 24, 1 << 27, 1 << 31):
        assert model.cost(program(2 * size)).us <= 2 * model.cost(program(size)).us


def test_the_curve_is_interpolated_and_goes_on_at_its_last_rate() -> None:
    (low, short_us), (high, long_us) = H200.transfer_curve[2:4]
    assert transfer_us((low + high) // 2, H200) == pytest.approx((short_us + long_us) / 2)
    assert transfer_us(1, H200) == H200.transfer_curve[0][1] and transfer_us(0, H200) == 0.0
    size, us = H200.transfer_curve[-1]
    assert transfer_us(8 * size, H200) == pytest.approx(8 * us)
    assert transfer_us(5, replace(H200, transfer_curve=())) == 5 / H200.global_bytes_per_s * 1e6


def test_every_figure_has_a_unit_and_an_origin() -> None:
    figures = AnalyticCost(H200).figures(program(1 << 20))
    assert len({f.name for f in figures}) == len(figures)
    assert all(f.unit in ("us", "bytes", "1") and f.origin and "not measured" not in f.origin for f in figures)


def test_a_gain_counts_one_launch_less_for_every_node_taken_in() -> None:
    """f(P) of FusionStitching 4.3 with kernels of 1 us and launches of 2 us: 3 (1 + 2) - (2 + 2)."""
    assert gain_us([Cost(3.0, "launch")] * 3, Cost(4.0, "bandwidth")) == 5.0


def test_weights_that_every_tile_of_rows_reads_count_in_l2() -> None:
    """y[i, j] = x[i, j] * w[j]: w once in global memory, and for every further tile what the first-level cache leaves to L2."""
    graph = parse_graph("""graph @g(%x: f32[4096, 1024], %w: f32[1024]) -> (f32[4096, 1024]) {
      %m: f32[4096] = reduce.max [i] over [k < 1024] { %x[i, k] }
      %y: f32[4096, 1024] = map [i, j] { mul(sub(%x[i, j], %m[i]), %w[j]) }
      return %y
    }""")
    made = schedule_pattern(graph, ["m", "y"], {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Rows)
    ideal = made.bytes_read + made.bytes_written
    tiles = -(-4096 // made.choice.rows)
    moved = kernel_template(made.choice).work(made, H200)
    assert moved.l2_bytes == ideal + int(4096 * (tiles - 1) * H200.fitted.traffic.again_share)


def test_the_limit_is_below_the_cost() -> None:
    model = AnalyticCost(H200)
    for size in (1 << 12, 1 << 22, 1 << 30):
        assert model.limit_us(program(size)) < model.cost(program(size)).us


@pytest.mark.parametrize(("kind", "adds"), [("sum", 65536 * 32), ("max", 65536 * 32), ("set", 0)])
def test_scattered_adds_take_time_of_their_own(kind: str, adds: int) -> None:
    """The gradient of an embedding: 65536 rows added to a table took 11.8 us on an H200, and their bytes alone 8.5 us."""
    graph = parse_graph(f"""graph @rows(%t: f32[100000, 32], %g: f32[65536, 32], %w: i64[65536]) -> (f32[100000, 32]) {{
      %y: f32[100000, 32] = scatter.{kind} over [i < 65536, j < 32] into %t at [%w[i], index(j)] {{ %g[i, j] }}
      return %y
    }}""")
    made = schedule_pattern(graph, ["y"], {}, H200)
    assert isinstance(made, TileProgram) and scattered_adds(made) == adds
    parts = AnalyticCost(H200).parts(made)
    assert parts.scattered_us == pytest.approx(adds / H200.scattered_adds_per_s * 1e6)
    assert parts.us == pytest.approx(11.8, rel=0.1) if adds else parts.us < 9.5
    without = replace(H200, scattered_adds_per_s=0.0, line_adds_per_s=0.0, line_requests_per_s=0.0)
    assert AnalyticCost(without).parts(made).scattered_us == 0


@pytest.mark.parametrize(("columns", "rows", "table", "us"), [("j < 768", 8192, 2, 76.0), ("j < 12", 512 * 512, 32, 793.0)])
def test_adds_that_meet_in_a_line_follow_each_other(columns: str, rows: int, table: int, us: float) -> None:
    """Rows of 768 elements come side by side. Of 12, whose rows lie 262144 apart, each element comes by itself."""
    width = int(columns.split()[-1])
    turned = width == 12
    shape, read = (f"{width}, {rows}", "%g[j, i]") if turned else (f"{rows}, {width}", "%g[i, j]")
    graph = parse_graph(f"""graph @rows(%t: f32[{table}, {width}], %g: f32[{shape}], %w: i64[{rows}]) -> (f32[{table}, {width}]) {{
      %y: f32[{table}, {width}] = scatter.sum over [i < {rows}, {columns}] into %t at [%w[i], index(j)] {{ {read} }}
      return %y
    }}""")
    program = schedule_pattern(graph, ["y"], {}, H200)
    assert isinstance(program, TileProgram)
    assert AnalyticCost(H200).parts(program).us == pytest.approx(us, rel=0.15)


@pytest.mark.parametrize(("places", "times"), [(1, 1), (8, 8)])
def test_rows_are_read_again_for_each_place_that_shares_them(places: int, times: int) -> None:
    """A sum of each row for each of some places: all read the row."""
    graph = parse_graph(f"""graph @sums(%x: f32[512, 16384], %w: i32[512, 16384]) -> (f32[{places}, 512]) {{
      %y: f32[{places}, 512] = reduce.sum [p, i] over [r < 16384] {{ select(eq(%w[i, r], i32(index(p))), %x[i, r], 0.0:f32) }}
      return %y
    }}""")
    program = schedule_pattern(graph, ["y"], {}, H200)
    assert isinstance(program, TileProgram)
    size, share = 2 * 4 * 512 * 16384, H200.fitted.traffic.again_share
    assert kernel_template(program.choice).work(program, H200).l2_bytes == pytest.approx(size * (1 + (times - 1) * share), rel=0.01)


def test_windows_that_are_read_again_are_read_without_what_they_share() -> None:
    """Sums of 4096 neighbours for each of 4 scales: the second scale reads the rows, not each window of them."""
    graph = parse_graph("""graph @sums(%x: f32[64, 8191], %s: f32[4]) -> (f32[4, 64, 64]) {
      %y: f32[4, 64, 64] = reduce.sum [p, i, j] over [k < 4096] { mul(%x[i, j + k], %s[p]) }
      return %y
    }""")
    program = schedule_pattern(graph, ["y"], {}, H200)
    assert isinstance(program, TileProgram)
    domain = program.domain
    (access,) = (a for a in accesses(domain) if a.value == "x")
    windows, row = 4 * 64 * 64 * 4096, 4 * (63 * 8191 + 63 + 4095 + 1)
    order = (*domain.kept, *domain.reduced)
    assert repeated_bytes(access, order, 1, 4 * 64 * 64, domain) == pytest.approx(windows + 3 * row, rel=1e-3)


def test_channels_last_walked_channel_by_channel_takes_its_sectors_again() -> None:
    """A group norm behind a convolution: 23.6 ms where its statistics and its results take 3.7 in two kernels (H200, f32)."""
    graph = parse_graph("""graph @norm(%x: f32[128, 64, 258, 258]) -> (f32[128, 64, 258, 258]) {
      %s: f32[128, 8] = reduce.sum [n, g] over [c < 8, h < 258, w < 258] { %x[n, 8*g + c, h, w] }
      %y: f32[128, 64, 258, 258] = map [n, c, h, w] { sub(%x[n, c, h, w], %s[n, (c // 8)]) }
      return %y
    }""")
    shape = (128, 64, 258, 258)
    last = schedule_pattern(graph, ["s", "y"], {"x": channels_last_strides(shape)}, H200)
    rows = schedule_pattern(graph, ["s", "y"], {}, H200)
    assert isinstance(last, TileProgram) and isinstance(rows, TileProgram)
    assert AnalyticCost(H200).cost(last).us > 2.5 * AnalyticCost(H200).cost(rows).us
    plan = plan_graph(graph, {}, H200, Options(), layouts={"x": channels_last_strides(shape)})
    assert [k.pattern.nodes for k in plan.kernels] == [("s",), ("y",)]
    turned = plan.kernels[1].program.choice
    assert isinstance(turned, Transpose) and turned.columns == 64, "the whole channel axis is the side of a tile"


def test_instances_behind_a_division_are_dense() -> None:
    """Statistics of each channel of each image, as one axis: neighbouring channels are neighbours in memory."""
    graph = parse_graph("""graph @norm(%x: f32[128, 128, 126, 126]) -> (f32[16384]) {
      %s: f32[16384] = reduce.sum [j] over [h < 126, w < 126] { %x[(j // 128), (j % 128), h, w] }
      return %s
    }""")
    made = schedule_pattern(graph, ["s"], {"x": channels_last_strides((128, 128, 126, 126))}, H200)
    assert isinstance(made, TileProgram)
    parts = AnalyticCost(H200).parts(made)
    assert parts.l2_us < parts.global_us
