"""Column sums of products' results, and rows reduced beside stored ones, compiled by NVRTC: beside the accumulators, without spills."""
from __future__ import annotations

import re

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.unit.templates.staged.pipelined.product_graphs import column_summed, gelu_gradient, plain
from tests.unit.templates.staged.pipelined.row_graphs import norm_gradient, stored_groups
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16
from tilefuse.ir.graph import Graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.template import schedule_product


@pytest.mark.parametrize("graph", [
    column_summed(gelu_gradient(8192, 3072, 768, BF16)), column_summed(plain(8192, 3072, 768, F16)),
    stored_groups(8192, 32000, 2048, 256, BF16),
], ids=["gradient of GELU", "plain", "scores"])
def test_column_sums_stay_in_registers(graph: Graph) -> None:
    """The tiles that the price takes."""
    program = schedule_product(graph, {}, H200)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(compose_product(program, H200), H200), "sm_90a")
    assert without_spills(report) and "serializ" not in report.lower(), report[-600:]


def test_padded_scores_leave_few_registers_in_memory() -> None:
    """In the last tile of the columns, whose elements are asked whether they exist. Units: bytes of a thread."""
    program = schedule_product(stored_groups(8192, 50257, 768, 256, BF16, 50264), {}, H200)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(compose_product(program, H200), H200), "sm_90a")
    spilled = max(int(n) for n in re.findall(r"(\d+) bytes spill stores", report))
    assert spilled <= 16 and "serializ" not in report.lower(), report[-600:]


@pytest.mark.parametrize("size", [(8192, 768, 3072), (8192, 2048, 2048)])
def test_three_column_sums_behind_rows_leave_few_registers_in_memory(size: tuple[int, int, int]) -> None:
    """Behind the main loop: 48 sums beside 128 accumulators, the values of rows and the elements at hand. Units: bytes of a thread."""
    program = schedule_product(norm_gradient(*size, BF16), {}, H200)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(compose_product(program, H200), H200), "sm_90a")
    spilled = max(int(n) for n in re.findall(r"(\d+) bytes spill stores", report))
    assert spilled <= 200 and "serializ" not in report.lower(), report[-600:]
