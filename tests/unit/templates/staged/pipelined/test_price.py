"""Prices of pipelined products against times measured on an H200 at its power limit: the record has near tiles of every case."""
from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import quantiles

import pytest

from tests.unit.templates.staged.pipelined.product_graphs import product
from tests.unit.templates.stitched_graphs import normal
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.program import schedule_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of

RECORD = Path(__file__).parents[5] / "benchmarks" / "results" / "tiles-h200-20261124.txt"
ROW = re.compile(
    r" +(\d+)x(\d+) d(\d+) s(\d+) w(\d+)(p?) b(\d+) g(\d+)( c\d+)?( split\d+)? +pred +[\d.]+ meas +(?P<us>[\d.]+) ")
TYPES = {"bf16": BF16, "f16": F16, "tf32": F32}
# Cases of the record of each type and layout, large and small, with few rows, in batches.
CASES = ("bf16/nt/4096x4096x4096", "bf16/nn/4096x4096x4096", "f16/nn/4096x4096x4096", "bf16/tt/4096x4096x4096", "bf16/nt/8192x8192x8192",
         "bf16/nt/16384x768x3072", "f16/nt/16384x3072x768", "bf16/nt/2048x2048x2048", "f16/nt/8192x4096x1024", "bf16/nt/512x4096x14336",
         "bf16/nt/1024x1024x1024", "bf16/nt/128x14336x4096", "bf16/nn/8.8x2048x2048x2048", "bf16/tn/24.24x512x512x2048",
         "f16/nt/12608x768x768", "f16/nt/8192x2304x768", "bf16/nt/4096x50304x768", "bf16/nt/64x14336x4096", "bf16/nt/3072x3072x3072",
         "tf32/nt/4096x4096x4096")


def graph_of(case: str) -> Graph:
    """The product of a case: type, layout, [batch.]rows x columns x inner."""
    kind, layout, sizes = case.split("/")
    *lead, rows, columns, inner = (int(n.split(".")[0]) for n in sizes.split("x"))
    b = TensorBuilder("timed")
    turned = layout[0] == "t", layout[1] == "t"
    precision = "tf32" if kind == "tf32" else "default"
    return normal(b, [product(b, tuple(lead), rows, columns, inner, TYPES[kind], turned, precision=precision)])


@dataclass(frozen=True)
class Timed:
    """One tile of a case: measured and predicted. Units: microseconds."""

    measured_us: float
    predicted_us: float


@cache
def timed(case: str) -> tuple[Timed, ...]:
    """Every timed tile of a case whose inner axis is whole."""
    graph = graph_of(case)
    rows: list[Timed] = []
    for line in RECORD.read_text(encoding="utf-8").split(f"== {case}: ")[1].split("==")[0].splitlines():
        row = ROW.match(line)
        if row is None or row[9] or row[10]:
            continue
        tall, wide, depth, slots, warpgroups = map(int, row.groups()[:5])
        choice = Pipelined(tall, wide, depth, slots, warpgroups, int(row[7]), int(row[8]), bool(row[6]))
        program = schedule_product(graph, {}, H200, choice)
        assert isinstance(program, TileProgram), program
        rows.append(Timed(float(row["us"]), price_work(plan_of(program).work, H200).us))
    assert len(rows) > 5, f"{case} is not in {RECORD.name}"
    return tuple(rows)


@pytest.mark.parametrize("case", CASES)
def test_the_cheapest_tile_is_among_the_fastest(case: str) -> None:
    """Its measured time is near that of the fastest tile, and near its price."""
    tiles = timed(case)
    chosen = min(tiles, key=lambda t: t.predicted_us)
    assert chosen.measured_us <= 1.07 * min(t.measured_us for t in tiles)
    assert 0.85 <= chosen.predicted_us / chosen.measured_us <= 1.16


def test_prices_of_all_tiles_are_near_their_times() -> None:
    """Half of all prices lie within four hundredths of the measured time, and none is a quarter beside it."""
    ratios = [t.predicted_us / t.measured_us for case in CASES for t in timed(case)]
    low, _, high = quantiles(ratios, n=4)
    assert low >= 0.95 and high <= 1.04
    assert min(ratios) > 0.75 and max(ratios) < 1.25
