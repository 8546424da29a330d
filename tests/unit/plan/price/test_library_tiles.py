"""Predicted times of the library's products: against recorded measurements, and the terms behind them."""
from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from tilefuse.domain.roofline import price_work
from tilefuse.domain.work import Operations
from tilefuse.ir.dtype import DTYPES
from tilefuse.plan.price.library_tiles import ProductSizes, product_work
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200, DeviceSpec

# (unit, batch, rows, columns, inner) -> us on one H200. Source: benchmarks/results/planner-h200-20261122-080215.json and
# planner-h200-20261123-042624.json for f32, findings.md for products with padded rows.
MEASURED = {
    ("f32", 1, 65536, 4, 128): 22.6, ("f32", 1, 1024, 1024, 32): 7.9, ("f32", 1024, 4, 128, 64): 25.8, ("f32", 1, 65536, 32, 128): 23.5,
    ("f32", 1, 65536, 32, 32): 10.1, ("f32", 1, 100, 256, 784): 12.5, ("f32", 1, 256, 784, 100): 7.9, ("f32", 1, 64, 512, 784): 10.8,
    ("f32", 1, 768, 768, 128): 12.4, ("f32", 1, 768, 384, 768): 20.5, ("f32", 1, 640, 512, 2048): 41.0, ("f32", 1, 3000, 512, 640): 53.2,
    ("f16", 1, 8192, 4096, 1024): 96.7, ("f16", 1, 256, 512, 2048): 7.5, ("f16", 1, 8, 32000, 512): 12.8, ("f16", 1, 4096, 200, 200): 4.0,
    ("f16", 1, 1024, 4096, 1008): 14.3, ("f16", 1, 8, 512, 512): 4.1, ("tf32", 1, 8192, 256, 200): 9.6, ("tf32", 1, 4096, 1008, 4096): 89.0,
}


def sizes(unit: str, batch: int, rows: int, columns: int, inner: int) -> ProductSizes:
    itemsize = 4 if unit == "tf32" else DTYPES[unit].itemsize
    return ProductSizes(batch, rows, columns, inner, unit, itemsize, batch * (rows + columns) * inner * itemsize,
                        batch * rows * columns * itemsize)


def with_halves(**figures: tuple[object, ...]) -> DeviceSpec:
    """An H200 with other figures of products of 16-bit operands."""
    calls = replace(H200.fitted.calls, halves=replace(H200.fitted.calls.halves, **figures))  # type: ignore[arg-type]
    return replace(H200, fitted=replace(H200.fitted, calls=calls))


def predicted_us(unit: str, batch: int, rows: int, columns: int, inner: int) -> float:
    return price_work(product_work(sizes(unit, batch, rows, columns, inner), H200), H200).us


def test_predictions_are_near_the_measured_times() -> None:
    """Predicted over measured within 0.8 to 1.25 at the quartiles; bytes and rates alone predict half of these products at 0.6."""
    ratios = [predicted_us(*product) / us for product, us in MEASURED.items()]
    low, median, high = statistics.quantiles(ratios, n=4)
    assert 0.9 < low < median < high < 1.2


@pytest.mark.parametrize("rows", [1, 17, 63])
def test_a_narrow_result_takes_the_time_of_its_whole_tile(rows: int) -> None:
    """Tiles have at least 64 rows and columns: a product of 4 columns takes as long as one of 64, beside its bytes."""
    assert predicted_us("f32", 1024, rows, 128, 256) == pytest.approx(predicted_us("f32", 1024, 64, 128, 256), rel=0.05)


def test_one_tile_more_than_the_multiprocessors_takes_another_wave() -> None:
    """Tiles of 128 x 128: 11 x 12 of them are one for each of 132 multiprocessors."""
    device = with_halves(tiles=((128, 128),), splits=(1,))
    one, less, more = (price_work(product_work(sizes("f16", 1, 11 * 128, columns, 4096), device), device).us
                       for columns in (12 * 128, 11 * 128, 12 * 128 + 1))
    assert less == pytest.approx(one) and more > 1.7 * one


def test_a_long_inner_axis_of_few_tiles_is_split() -> None:
    """64 x 64 results over 65536 elements: one block alone would take a hundred times as long as the whole device."""
    unsplit = with_halves(splits=(1,))
    product = sizes("f16", 1, 64, 64, 65536)
    assert price_work(product_work(product, H200), H200).us < 0.2 * price_work(product_work(product, unsplit), unsplit).us


def test_a_short_inner_axis_reaches_little_of_the_rate() -> None:
    """1500 products of 300 x 16 by 16 x 300 take 345 us."""
    assert predicted_us("f32", 1500, 300, 300, 16) == pytest.approx(345, rel=0.25)


def test_a_host_has_no_waves() -> None:
    host = host_device()
    product = sizes("f32", 1, 4, 128, 64)
    work = product_work(product, host)
    assert work.operations == (Operations(2 * 4 * 128 * 64, "f32", dict(host.fitted.calls.host_shares)["f32"]),)
    assert work.serial_us == host.fitted.calls.host_latency_us
