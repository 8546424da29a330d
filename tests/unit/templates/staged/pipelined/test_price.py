"""Prices of pipelined products against times measured on an H200 at its power limit: the record has near tiles of every case."""
from __future__ import annotations

from functools import cache
from statistics import quantiles

import pytest

from benchmarks.products.tiles import RECORD, TimedTile, fitted, timed_tiles, with_figures
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.energy import repeated_bytes
from tilefuse.templates.staged.pipelined.template import plan_of, schedule_product

# Cases of the record of each type and layout, large and small, with few rows, in batches.
CASES = ("bf16/nt/4096x4096x4096", "bf16/nn/4096x4096x4096", "f16/nn/4096x4096x4096", "bf16/tt/4096x4096x4096", "bf16/nt/8192x8192x8192",
         "bf16/nt/16384x768x3072", "f16/nt/16384x3072x768", "bf16/nt/2048x2048x2048", "f16/nt/8192x4096x1024", "bf16/nt/512x4096x14336",
         "bf16/nt/1024x1024x1024", "bf16/nt/128x14336x4096", "bf16/nn/8.8x2048x2048x2048", "bf16/tn/24.24x512x512x2048",
         "f16/nt/12608x768x768", "f16/nt/8192x2304x768", "bf16/nt/4096x50304x768", "bf16/nt/64x14336x4096", "bf16/nt/3072x3072x3072",
         "tf32/nt/4096x4096x4096")


@cache
def tiles_by_case() -> dict[str, list[TimedTile]]:
    """Every timed tile of these cases."""
    tiles = list(timed_tiles(RECORD, H200))
    return {case: [t for t in tiles if t.case == case] for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_the_cheapest_tile_is_among_the_fastest(case: str) -> None:
    """Its measured time is near that of the fastest tile, and near its price."""
    tiles = tiles_by_case()[case]
    assert len(tiles) > 5, f"{case} is not in {RECORD.name}"
    chosen = min(tiles, key=lambda t: t.price_us(H200))
    assert chosen.measured_us <= 1.07 * min(t.measured_us for t in tiles)
    assert 0.85 <= chosen.price_us(H200) / chosen.measured_us <= 1.16


def test_prices_of_all_tiles_are_near_their_times() -> None:
    """Half of all prices lie within four hundredths of the measured time, and none is a quarter beside it."""
    ratios = [t.price_us(H200) / t.measured_us for tiles in tiles_by_case().values() for t in tiles]
    low, _, high = quantiles(ratios, n=4)
    assert low >= 0.95 and high <= 1.04
    assert min(ratios) > 0.75 and max(ratios) < 1.25


def test_least_squares_find_figures_again() -> None:
    """From other energies they come back to prices that are as near."""
    tiles = [t for case in CASES[:6] for t in tiles_by_case()[case]]
    away = with_figures(H200, {"bf16": 3.0, "f16": 3.0})

    def squares(value_by_name: dict[str, float]) -> float:
        device = with_figures(away, value_by_name)
        return sum((t.price_us(device) / t.measured_us - 1) ** 2 for t in tiles)

    assert squares(fitted(tiles, away, ("bf16", "f16"), 5)) < 1.1 * squares({}) / 5


def test_operands_of_vectors_read_nothing_again() -> None:
    """Operands that are computed from a row's and a column's value have no bytes with both axes; the price used to divide by them."""
    graph = parse_graph("""graph @outer(%u: f16[300], %v: f16[128], %w: f16[200]) -> (f16[300, 200]) {
      %a: f16[300, 128] = map [i, k] { f16(mul(f32(%u[i]), f32(%v[k]))) }
      %b: f16[200, 128] = map [j, k] { f16(add(f32(%w[j]), f32(%v[k]))) }
      %p: f16[300, 200] = library.matmul (%a, %b) {transpose_a = false, transpose_b = true}
      return %p
    }""")
    program = schedule_product(graph, {}, H200)
    assert isinstance(program, TileProgram), program
    plan = plan_of(program)
    assert repeated_bytes(plan.form, plan.choice, H200) == 0
