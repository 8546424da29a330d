"""Chains of products compile for an H200: left operands in registers, nothing spilled."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.compile_only.machine_code import products_in
from tests.unit.templates.staged.chain.chain_graphs import layers
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16
from tilefuse.ir.graph import Graph
from tilefuse.kernel.pipeline import WarpgroupProduct
from tilefuse.kernel.visit import statements
from tilefuse.kernel.widths import with_index_bits
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.staged.chain.compose import compose_chain
from tilefuse.templates.staged.chain.template import schedule_chain

# Instructions along 64 inner elements.
STEPS = 4


@pytest.mark.parametrize(("graph", "num_products"), [
    (lambda: layers(65536, (256, 256, 256), activation="relu", turned=False), 2 * 4 * STEPS),
    (lambda: layers(65536, (256, 256, 256), BF16, biased=True), 2 * 4 * STEPS),
    (lambda: layers(1 << 21, (64,) * 6, activation="relu"), 5 * STEPS),
], ids=["256 wide", "256 wide, bias and tanh", "64 wide"])
def test_no_register_spills(graph: Callable[[], Graph], num_products: int) -> None:
    """128 sums and 64 registers of left operands fit a consumer; one product an instruction, none serialised."""
    program = schedule_chain(graph(), {}, H200)
    assert isinstance(program, TileProgram), program
    kernel = with_index_bits(compose_chain(program, H200))
    assert any(isinstance(s, WarpgroupProduct) and s.left_registers for s in statements(kernel.body))
    code, report = assembled(print_cuda(kernel, H200), "sm_90a")
    assert without_spills(report), report
    assert "serialized" not in report
    assert products_in(code, kernel.name)["HGMMA"] == num_products
