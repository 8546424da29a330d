"""Grouped products and scales of blocks at full size: compiled for sm_90a, sums and scales stay in registers."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.unit.templates.staged.pipelined.block_scale_graphs import blocks, gated_blocks
from tests.unit.templates.staged.pipelined.grouped_cases import experts, gated_experts, weighted_experts
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16
from tilefuse.ir.graph import Graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product


@pytest.mark.parametrize(("graph", "choice"), [
    (lambda: experts(16, 8192, 4096, 2048, BF16), Pipelined(128, 256, 64, 4, 2, 16, 132)),
    (lambda: experts(64, 8192, 1408, 2048, BF16, False), Pipelined(64, 256, 64, 4, 2, 32, 132, pingpong=True)),
    (lambda: gated_experts(16, 8192, 1408, 2048), None),
    (lambda: weighted_experts(16, 8192, 4096, 2048), None),
    (lambda: blocks(4096, 4096, 7168), None),
    (lambda: gated_blocks(4096, 4096, 2048), None),
    (lambda: blocks(64, 7168, 2048), None),
], ids=["experts", "experts in turn", "gated experts", "weighted experts", "blocks", "gated blocks", "few rows of blocks"])
def test_kernels_compile_without_spills(graph: Callable[[], Graph], choice: Pipelined | None) -> None:
    """No product waits alone."""
    program = schedule_product(graph(), {}, H200, choice)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(compose_product(program, H200), H200), "sm_90a")
    assert without_spills(report) and "serializ" not in report.lower(), report[-600:]
