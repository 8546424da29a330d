"""Tiles inside the columns of a product's results, beside those that hang over their end; functions of their elements."""
from __future__ import annotations

import re

from tests.unit.templates.staged.pipelined.product_graphs import plain
from tests.unit.templates.staged.pipelined.row_graphs import in_groups, stored_groups
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F32
from tilefuse.ir.graph import Graph
from tilefuse.kernel.ir import Kernel
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product

IN_TURN = Pipelined(128, 128, 64, 2, 2, 1, 3, True)


def _kernel(graph: Graph, choice: Pipelined = IN_TURN) -> Kernel:
    program = schedule_product(graph, {}, H200, choice)
    assert isinstance(program, TileProgram), program
    return compose_product(program, H200)


def _branches(text: str) -> list[tuple[str, str, str]]:
    """Statements for tiles inside the columns, and for others."""
    return re.findall(r"\n( +)if \(column_tile < \d+\) \{\n(.*?)\n\1\} else \{\n(.*?)\n\1\}\n", text, re.DOTALL)


def test_tiles_inside_the_columns_ask_no_element() -> None:
    """Scores of which reductions read 299 of 304 columns: the first two tiles have neither bound, the third has both."""
    text = print_cuda(_kernel(stored_groups(140, 299, 40, 128, BF16, 304)), H200)
    branches = _branches(text)
    assert len(branches) >= 3 and "column_tile < 2)" in text
    assert not any(re.search(r"< (299|304)\b", inside) for _, inside, _ in branches)
    assert all(re.search(r"< (299|304)\b", cut) for _, _, cut in branches[:2])


def test_whole_columns_and_single_tiles_are_written_once() -> None:
    """Columns that tiles divide have no last tile; fewer columns than a tile's have no other one."""
    assert not _branches(print_cuda(_kernel(plain(140, 256, 40, BF16)), H200))
    assert not _branches(print_cuda(_kernel(plain(140, 72, 40, BF16)), H200))


def test_sums_of_narrow_elements_take_short_functions() -> None:
    """Exponentials of scores of 16 bits, summed in f32: rounding hides their short form. Those of f32 operands are exact."""
    assert _kernel(stored_groups(140, 256, 40, 128, BF16)).narrow
    assert _kernel(in_groups(140, 256, 40, 128, BF16)).narrow
    assert not _kernel(in_groups(140, 256, 40, 128, F32), Pipelined(64, 128, 32, 3, 1, 1, 3)).narrow
