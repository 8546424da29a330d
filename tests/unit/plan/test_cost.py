"""The analytic cost: units, the curve, the cap of few blocks, and what decides."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.plan.graphs import softmax
from tests.unit.plan.stand_in import schedule_by_rows
from tilefuse.plan.cost import AnalyticCost, bandwidth_at
from tilefuse.schedule.tile import TileProgram
from tilefuse.target.device import H200
from tilefuse.target.launch import Launch


def program(num_bytes: int, flops: int = 0, blocks: int = 10_000) -> TileProgram:
    graph = softmax()
    made = schedule_by_rows(graph, [n.name for n in graph.nodes], {}, H200)
    assert isinstance(made, TileProgram)
    return replace(made, bytes_read=num_bytes // 2, bytes_written=num_bytes - num_bytes // 2, flops=flops, launch=Launch(blocks, 128))


def test_a_large_copy_takes_its_bytes_over_the_bandwidth() -> None:
    """2 GiB moved at 4.24 TB/s is 506 us; the launch of about 1 us adds little."""
    found = AnalyticCost(H200).cost(program(2 << 30))
    assert found.source == "bandwidth"
    assert found.us == pytest.approx((2 << 30) / 4.24e12 * 1e6, rel=0.01)


def test_a_tiny_kernel_costs_its_launch() -> None:
    found = AnalyticCost(H200).cost(program(1024))
    assert found.source == "launch" and found.us == pytest.approx(H200.graph_launch_us, rel=0.01)


def test_arithmetic_decides_where_it_is_longer() -> None:
    found = AnalyticCost(H200).cost(program(1 << 20, flops=10**10))
    assert found.source == "flops" and found.us == pytest.approx(10**10 / H200.flops_per_s * 1e6 + H200.graph_launch_us, rel=0.01)


def test_few_blocks_reach_only_their_share_of_the_bandwidth() -> None:
    model = AnalyticCost(H200)
    full, one = model.cost(program(1 << 28)).us, model.cost(program(1 << 28, blocks=1)).us
    assert 50 < one / full < 60
    assert model.cost(program(1 << 28, blocks=57)).us == pytest.approx(full, rel=0.02)


def test_moving_everything_together_is_never_dearer_than_in_two_kernels() -> None:
    model = AnalyticCost(H200)
    for size in (1 << 12, 1 << 18, 3 << 20, 1 << 24, 1 << 27, 1 << 31):
        assert model.cost(program(2 * size)).us <= 2 * model.cost(program(size)).us


def test_the_curve_is_interpolated_and_ends_flat() -> None:
    (low, slow), (high, fast) = H200.bandwidth_curve[:2]
    assert bandwidth_at(1, H200) == slow
    assert bandwidth_at((low + high) // 2, H200) == pytest.approx((slow + fast) / 2)
    assert bandwidth_at(1 << 50, H200) == H200.bandwidth_curve[-1][1]
    assert bandwidth_at(5, replace(H200, bandwidth_curve=())) == H200.global_bytes_per_s


def test_the_limit_is_below_the_cost() -> None:
    model = AnalyticCost(H200)
    for size in (1 << 12, 1 << 22, 1 << 30):
        assert model.limit_us(program(size)) < model.cost(program(size)).us
