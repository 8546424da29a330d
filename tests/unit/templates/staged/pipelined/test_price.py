"""Prices of pipelined products against times measured on an H200: the record has every tile of every case."""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import quantiles

import pytest

from tests.unit.templates.staged.pipelined.product_graphs import plain
from tests.unit.templates.stitched_graphs import normal
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F32
from tilefuse.ir.graph import Graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.program import schedule_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of

RECORD = Path(__file__).parents[5] / "benchmarks" / "results" / "pipelined-h200-20261123.txt"
ROW = re.compile(r"(?P<case>.{32}) *(\d+)x(\d+) s(\d+) w(\d+) b(\d+) g(\d+) staged\d +\*? +(?P<us>[\d.]+) us ")


def precise(size: int) -> Graph:
    """A cube in tf32."""
    b = TensorBuilder("precise")
    x, w = b.input("x", F32, (size, size)), b.input("w", F32, (size, size))
    return normal(b, [b.matmul(x, w, transpose_b=True, precision="tf32")])


# Cases of the record whose kernels are still those that were timed: residuals and maps on the sums have other ends since then.
GRAPHS: dict[str, Callable[[], Graph]] = {
    "4096^3 bf16 NT": lambda: plain(4096, 4096, 4096, BF16),
    "4096^3 tf32": lambda: precise(4096),
    "8192x4096x1024 f16": lambda: plain(8192, 4096, 1024),
    "2048^3 bf16": lambda: plain(2048, 2048, 2048, BF16),
    "1024^3 bf16": lambda: plain(1024, 1024, 1024, BF16),
    "16384x768x3072 bf16": lambda: plain(16384, 768, 3072, BF16),
    "16384x3072x768 bf16": lambda: plain(16384, 3072, 768, BF16),
    "8192x768x768 f16": lambda: plain(8192, 768, 768),
    "512x4096x4096 bf16": lambda: plain(512, 4096, 4096, BF16),
    "256x4096x4096 bf16": lambda: plain(256, 4096, 4096, BF16),
    "128x4096x4096 bf16": lambda: plain(128, 4096, 4096, BF16),
    "128x768x768 f16": lambda: plain(128, 768, 768),
    "64x512x512x64 f16": lambda: plain(512, 512, 64, lead=(64,)),
    "256x256x65536 bf16": lambda: plain(256, 256, 65536, BF16),
}


@dataclass(frozen=True)
class Timed:
    """One tile of a case: measured and predicted. Units: microseconds."""

    measured_us: float
    predicted_us: float


@cache
def timed(case: str) -> tuple[Timed, ...]:
    """Every timed tile of a case that is legal today."""
    graph = GRAPHS[case]()
    depth = 128 // graph.inputs[0].type.dtype.itemsize
    rows: list[Timed] = []
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        row = ROW.match(line)
        if row is None or row["case"].strip() != case:
            continue
        tall, wide, slots, warpgroups, band, blocks = map(int, row.groups()[1:7])
        program = schedule_product(graph, {}, H200, Pipelined(tall, wide, depth, slots, warpgroups, band, blocks))
        if isinstance(program, TileProgram):
            rows.append(Timed(float(row["us"]), price_work(plan_of(program).work, H200).us))
    assert len(rows) > 5, f"{case} is not in {RECORD.name}"
    return tuple(rows)


@pytest.mark.parametrize("case", GRAPHS)
def test_the_cheapest_tile_is_among_the_fastest(case: str) -> None:
    """Its measured time is near that of the fastest tile, and near its price."""
    tiles = timed(case)
    chosen = min(tiles, key=lambda t: t.predicted_us)
    assert chosen.measured_us <= 1.1 * min(t.measured_us for t in tiles)
    assert 0.85 <= chosen.predicted_us / chosen.measured_us <= 1.2


def test_prices_of_all_tiles_are_near_their_times() -> None:
    """Tiles of one warpgroup too: half of all prices lie within a tenth of the measured time, and none is half of it or twice as long."""
    ratios = [t.predicted_us / t.measured_us for case in GRAPHS for t in timed(case)]
    low, _, high = quantiles(ratios, n=4)
    assert low >= 0.9 and high <= 1.1
    assert min(ratios) > 0.5 and max(ratios) < 2.0
