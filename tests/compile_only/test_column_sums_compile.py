"""Column sums of products' results, compiled by NVRTC: sums of a stage beside the accumulators, without spills."""
from __future__ import annotations

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.unit.templates.staged.pipelined.product_graphs import column_summed, gelu_gradient, plain
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16
from tilefuse.ir.graph import Graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.program import schedule_product


@pytest.mark.parametrize("graph", [gelu_gradient(8192, 3072, 768, BF16), plain(8192, 3072, 768, F16)], ids=["gradient of GELU", "plain"])
def test_column_sums_stay_in_registers(graph: Graph) -> None:
    """The tiles that the price takes."""
    program = schedule_product(column_summed(graph), {}, H200)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(compose_product(program, H200), H200), "sm_90a")
    assert without_spills(report) and "serializ" not in report.lower(), report[-600:]
