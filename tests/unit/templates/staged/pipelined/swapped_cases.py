"""Products of few rows whose operands are swapped: the right operand's columns are the rows of instructions."""
from __future__ import annotations

from tests.unit.templates.staged.pipelined.product_graphs import (
    dequantised,
    gated,
    halves,
    heads,
    of_bytes,
    of_bytes_and_floats,
    of_halves,
    padded,
    pair,
    plain,
    queries_keys_values,
    stacked,
    widened,
)
from tests.unit.templates.staged.pipelined.test_pipelined import Case
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.templates.staged.pipelined.record import Pipelined


def swapped(columns: int, depth: int = 64, slots: int = 3, warpgroups: int = 1, blocks: int = 2, split: int = 1,
            cluster: int = 1, by_warps: bool = False, resident: int = 1) -> Pipelined:
    """Tiles of 64 columns of the product for each warpgroup by `columns` of its rows."""
    return Pipelined(64 * warpgroups, columns, depth, slots, warpgroups, 1, blocks, cluster=cluster, swapped=True, split=split,
                     by_warps=by_warps, resident=resident)


SWAPPED_CASES = {
    "one row": Case(lambda: plain(1, 264, 520), swapped(8)),
    "two warpgroups, two panels": Case(lambda: plain(13, 200, 136, BF16), swapped(16, 128, 2, 2)),
    "bias, activation, residual": Case(lambda: gated(9, 136, 200), swapped(16)),
    "columns contiguous": Case(lambda: plain(16, 136, 136, F16, (False, False)), swapped(16)),
    "left turned": Case(lambda: plain(24, 136, 136, F16, (True, True)), swapped(64)),
    "batch": Case(lambda: plain(6, 72, 40, F16, lead=(2, 3)), swapped(8)),
    "a gated pair": Case(lambda: pair(7, 72, 136), swapped(8)),
    "halves of one product": Case(lambda: halves(10, 72, 136), swapped(16)),
    "heads before rows": Case(lambda: heads(10, 3, 24, 64), swapped(16)),
    "queries, keys and values of one weight": Case(lambda: queries_keys_values(6, 3, 24, 72, joined=True), swapped(8)),
    "odd rows in memory": Case(lambda: plain(7, 33, 71), swapped(8), by_threads=2),
    "a window of odd columns": Case(lambda: padded(7, 67, 72), swapped(8)),
    "a batch of gated pairs in tf32": Case(lambda: pair(6, 72, 40, F32, lead=(2,), precision="tf32"), swapped(8, 32)),
    "one element": Case(lambda: plain(1, 1, 1), swapped(8)),
    "more rows than a tile": Case(lambda: plain(70, 72, 72), swapped(40)),
    "weights of 8 bits, scales behind the product": Case(lambda: of_bytes(11, 40, 272), swapped(16, 128, 2), by_threads=1),
    "weights of 8 bits, two warpgroups": Case(lambda: of_bytes(11, 136, 304, "f16"), swapped(16, 128, 3, 2), by_threads=1),
    "weights of 8 bits, columns contiguous": Case(lambda: of_bytes(9, 144, 72, "f16", False), swapped(16), by_threads=1),
    "weights of 8 bits with scales": Case(lambda: dequantised(7, 72, 144), swapped(8, 128), by_threads=1),
    "weights of 8 bits, left operand of f32": Case(lambda: of_bytes_and_floats(9, 72, 144), swapped(16, 128), by_threads=1),
    "weights of 8 bits, many rows": Case(lambda: of_bytes(150, 136, 272), swapped(128, 128, 2, 2)),
    "rows of bytes at odd places": Case(lambda: dequantised(7, 71, 135), swapped(8, 128), by_threads=2),
    "weights of 8 bits in parts": Case(lambda: of_bytes(11, 72, 528), swapped(16, 128, 2, 1, 4, 2), by_threads=1),
    "weights of 8 bits in parts of a cluster": Case(lambda: dequantised(13, 136, 528), swapped(16, 128, 2, 2, 4, 2, 2), by_threads=1),
    "weights of 4 bits": Case(lambda: of_halves(2, 24, 256, 64), swapped(8, 256, 2), by_threads=1),
    "weights of 4 bits in groups, an odd end": Case(lambda: of_halves(9, 72, 544, 32, "bf16"), swapped(16, 256, 2, 1, 1), by_threads=1),
    "single warps, one row, bytes": Case(lambda: of_bytes(1, 72, 272), swapped(8, 128, 2, by_warps=True)),
    "single warps, bytes": Case(lambda: of_bytes(11, 136, 304, "f16"), swapped(16, 128, 3, 2, by_warps=True)),
    "single warps, three eights of rows": Case(lambda: of_bytes(19, 136, 304), swapped(24, 256, 2, 2, by_warps=True)),
    "single warps, rows in their own order": Case(lambda: of_bytes(150, 136, 272), swapped(128, 128, 2, 2, by_warps=True)),
    "single warps, scales": Case(lambda: dequantised(7, 72, 144), swapped(8, 128, by_warps=True)),
    "single warps, parts of a cluster": Case(lambda: dequantised(13, 136, 528), swapped(16, 128, 2, 2, 4, 2, 2, True)),
    "single warps, parts in memory": Case(lambda: of_bytes(11, 72, 528), swapped(16, 128, 2, 1, 4, 2, by_warps=True)),
    "single warps, weights of 4 bits": Case(lambda: of_halves(9, 72, 544, 32, "bf16"), swapped(16, 256, 2, 1, 1, by_warps=True)),
    "two blocks at once": Case(lambda: plain(13, 200, 264, BF16), swapped(16, 128, 3, blocks=4, split=2, cluster=2, resident=2)),
    "single warps, two tiles of 16 columns": Case(lambda: of_bytes(11, 200, 304, "f16"), Pipelined(256, 16, 128, 3, 2, 1, 2, swapped=True,
                                                                                                  by_warps=True)),
    "two blocks at once, single warps": Case(lambda: of_bytes(11, 136, 304), swapped(16, 128, 3, by_warps=True, resident=2)),
    "rows of many tensors, one computed": Case(lambda: stacked(11, 72, 136), swapped(16, 128), by_threads=1),
    "weights of 32 bits, padded": Case(lambda: widened(64, 72, 72), swapped(64), by_threads=2),
    "chosen": Case(lambda: plain(16, 4096, 64, BF16)),
}
