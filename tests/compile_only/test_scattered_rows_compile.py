"""Rows over the sums of products in scattered clusters for an H200, compiled by NVRTC, its machine code read."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.compile_only.machine_code import products_in
from tests.unit.templates.staged.pipelined.row_graphs import activated_norm, soft
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product


@pytest.mark.parametrize(("graph", "choice"), [
    (lambda: activated_norm(16384, 768, 3072), Pipelined(128, 128, 64, 4, 2, 1, 132, True, 6, scattered=True)),
    (lambda: soft(8192, 1000, 2048), Pipelined(128, 128, 64, 5, 2, 1, 128, True, 8, scattered=True)),
], ids=["RMS norm", "softmax"])
def test_rows_in_scattered_clusters_do_not_spill(graph: Callable[[], Graph], choice: Pipelined) -> None:
    """Eight instructions of 64 x 128 sums a slot; the 128 accumulators of a thread and the values of its rows stay in registers."""
    program = schedule_product(graph(), {}, H200, choice)
    assert isinstance(program, TileProgram), program
    kernel = compose_product(program, H200)
    code, report = assembled(print_cuda(kernel, H200), "sm_90a")
    assert without_spills(report) and "serializ" not in report.lower(), report[-600:]
    assert products_in(code, kernel.name) == {"HGMMA": 8}
