"""Work of the library's call for a matrix product: tiles, waves over the multiprocessors, a split inner axis.

    tiles of the result x pieces of the inner axis = blocks -> blocks on the busiest multiprocessor -> its operations at its rate

The library's choice of tile and split is not known before the call. It is taken to be the fastest of those that it has.
Source: wave and tile quantisation, NVIDIA, Matrix Multiplication Background User's Guide; the figures are fitted, `TilingFigures`.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tilefuse.base.construction import quickly_built
from tilefuse.domain.roofline import operations_per_s, price_work
from tilefuse.domain.work import Operations, Work
from tilefuse.ir.dtype import DTYPES
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.calls import TilingFigures


@quickly_built
@dataclass(frozen=True, slots=True)
class ProductSizes:
    """Sizes of a product. unit: "tf32", or the operands' data type.

    share: of the unit's rate that the call reaches at most. Units: elements; `itemsize` bytes an element of an operand; bytes of the
    operands and of the result, each once.
    """

    batch: int
    rows: int
    columns: int
    inner: int
    unit: str
    itemsize: int
    operand_bytes: int
    result_bytes: int
    share: float = 1.0

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * prod((self.batch, self.rows, self.columns, self.inner))


@lru_cache
def product_work(sizes: ProductSizes, device: DeviceSpec) -> Work:
    """Work of the library's call. Source: the cheapest of `_candidates`, priced by `roofline.price_work`; on a host, its rate."""
    fitted = device.fitted.calls
    if device.kind != "cuda":
        return Work(global_bytes=sizes.operand_bytes + sizes.result_bytes, read_bytes=sizes.operand_bytes,
                    operations=(Operations(sizes.operations, sizes.unit, dict(fitted.host_shares).get(sizes.unit, 1.0)),),
                    serial_us=fitted.host_latency_us)
    on_threads = sizes.unit in ("f32", "f64")
    tiling = fitted.threads if on_threads else fitted.tf32 if sizes.unit == "tf32" else fitted.halves
    most = fitted.short_efficiency if on_threads and sizes.inner < fitted.short_inner else sizes.share
    return min(_candidates(sizes, tiling, most, device), key=lambda work: price_work(work, device).us)


def _candidates(sizes: ProductSizes, tiling: TilingFigures, most_efficiency: float, device: DeviceSpec) -> Iterator[Work]:
    """Work of every tile and split that the library could choose."""
    most_blocks = device.fitted.calls.most_blocks * device.num_multiprocessors
    for rows, columns in tiling.tiles:
        tiles = sizes.batch * -(-sizes.rows // rows) * -(-sizes.columns // columns)
        for pieces in tiling.splits:
            if pieces == 1 or tiles * pieces <= most_blocks and sizes.inner >= pieces * tiling.least_piece:
                yield _tiled_work(sizes, (rows, columns), tiles, pieces, tiling, most_efficiency, device)


def _tiled_work(sizes: ProductSizes, tile: tuple[int, int], tiles: int, pieces: int, tiling: TilingFigures, most_efficiency: float,
                device: DeviceSpec) -> Work:
    """Work of one tile and split. tiles: those of the result."""
    blocks = -(-tiles * pieces // device.num_multiprocessors)  # on the busiest multiprocessor
    area, piece = prod(tile), -(-sizes.inner // pieces)
    rate = operations_per_s(sizes.unit, device)
    share = min(1.0, blocks * area / tiling.full_tile) ** tiling.exponent * most_efficiency
    operations = 2 * blocks * area * (piece + tiling.result_inner) * device.num_multiprocessors
    busy_us = operations / (rate * share) * 1e6 + tiling.inner_us * piece
    sums_bytes = 2 * pieces * sizes.batch * sizes.rows * sizes.columns * DTYPES["f32"].itemsize if pieces > 1 else 0
    operands = tiling.operand_share * tiles * sum(tile) * sizes.inner * sizes.itemsize
    sums_us = price_work(Work(launches=0, l2_bytes=sums_bytes), device).l2_us
    return Work(global_bytes=sizes.operand_bytes + sizes.result_bytes, read_bytes=sizes.operand_bytes, l2_bytes=round(operands),
                operations=(Operations(sizes.operations, sizes.unit, sizes.operations / rate * 1e6 / busy_us),),
                serial_us=tiling.latency_us + (tiling.split_us + sums_us if pieces > 1 else 0.0))
