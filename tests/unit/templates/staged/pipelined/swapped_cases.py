"""Products of few rows whose operands are swapped: the right operand's columns are the rows of instructions."""
from __future__ import annotations

from tests.unit.templates.staged.pipelined.product_graphs import gated, halves, heads, padded, pair, plain, queries_keys_values
from tests.unit.templates.staged.pipelined.test_pipelined import Case
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.templates.staged.pipelined.record import Pipelined


def swapped(columns: int, depth: int = 64, slots: int = 3, warpgroups: int = 1, blocks: int = 2) -> Pipelined:
    """Tiles of 64 columns of the product for each warpgroup by `columns` of its rows."""
    return Pipelined(64 * warpgroups, columns, depth, slots, warpgroups, 1, blocks, swapped=True)


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
    "chosen": Case(lambda: plain(16, 4096, 64, BF16)),
}
