"""Prices of products in parts against times measured on an H200: the second run of the record."""
from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from statistics import quantiles

import pytest

from tests.unit.templates.staged.pipelined.product_graphs import plain
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of, schedule_product

RECORD = Path(__file__).parents[5] / "benchmarks" / "results" / "split-products-h200-20261124.txt"
ROW = re.compile(r" +(\d+)x(\d+) s(\d+) w(\d+)(T?) d(\d+) g(\d+) c(\d+) split(\d+)( \*)?: (?P<us>[\d.]+) us ")
SIZES = ((256, 256, 65536), (512, 512, 16384), (128, 768, 3072), (197, 768, 3072), (128, 3072, 768), (128, 768, 768), (64, 1024, 8192))


@cache
def timed(size: tuple[int, int, int]) -> tuple[tuple[float, float], ...]:
    """(predicted, measured) of every timed tile whose rings have a slot that is filled ahead. Units: microseconds."""
    rows, columns, inner = size
    text = RECORD.read_text(encoding="utf-8").split("Second run")[1].split(f"== {rows}x{columns}x{inner} bf16: ")[1].split("==")[0]
    pairs: list[tuple[float, float]] = []
    for row in filter(None, map(ROW.match, text.splitlines())):
        tall, wide, slots, warpgroups = map(int, row.groups()[:4])
        depth, blocks, cluster, split = map(int, row.groups()[5:9])
        row_tiles = -(-(columns if row[5] else rows) // tall)
        band = max(b for b in range(1, min(row_tiles, 16) + 1) if row_tiles % b == 0)
        choice = Pipelined(tall, wide, depth, slots, warpgroups, band, blocks, cluster=cluster, swapped=bool(row[5]), split=split)
        program = schedule_product(plain(rows, columns, inner, BF16), {}, H200, choice)
        if isinstance(program, TileProgram) and slots > 2:
            pairs.append((price_work(plan_of(program).work, H200).us, float(row["us"])))
    assert len(pairs) > 2, f"{size} is not in {RECORD.name}"
    return tuple(pairs)


@pytest.mark.parametrize("size", SIZES)
def test_the_cheapest_tile_is_among_the_fastest(size: tuple[int, int, int]) -> None:
    """Its measured time is near that of the fastest tile, and near its price."""
    predicted, measured = min(timed(size))
    assert measured <= 1.12 * min(us for _, us in timed(size)) and 0.8 <= predicted / measured <= 1.2


def test_prices_are_near_times() -> None:
    """Half of all prices lie within a sixth of the measured time."""
    low, _, high = quantiles([predicted / measured for size in SIZES for predicted, measured in timed(size)], n=4)
    assert low >= 0.86 and high <= 1.17
