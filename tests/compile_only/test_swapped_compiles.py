"""Products of few rows compile without spills: instructions as wide as the rows are many, narrow weights from registers."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.compile_only.machine_code import copies_in, products_in
from tests.unit.templates.staged.pipelined.product_graphs import dequantised, gated, of_bytes, of_halves, pair, plain, stacked
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16
from tilefuse.ir.graph import Graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of, schedule_product

CASES: dict[str, Callable[[], Graph]] = {
    "one row": lambda: plain(1, 4096, 4096, BF16), "sixteen rows": lambda: plain(16, 14336, 4096, BF16),
    "columns contiguous": lambda: plain(16, 4096, 4096, F16, (False, False)), "bias, activation, residual": lambda: gated(9, 14336, 4096),
    "gated pair": lambda: pair(16, 11008, 4096, BF16), "weights of 8 bits": lambda: of_bytes(16, 11008, 4096),
    "weights of 8 bits with scales": lambda: dequantised(16, 11008, 4096), "weights of 4 bits": lambda: of_halves(16, 14336, 4096, 64)}


@pytest.mark.parametrize("name", CASES)
def test_kernel_compiles_without_spills(name: str) -> None:
    """No register of the chosen kernel goes to local memory, and no product waits for the one before."""
    program = schedule_product(CASES[name](), {}, H200)
    assert isinstance(program, TileProgram), program
    assert plan_of(program).choice.swapped
    source = print_cuda(compose_product(program, H200), H200)
    code, report = assembled(source, "sm_90a")
    assert without_spills(report) and "serializ" not in report.lower(), report[-600:]
    by_warps = plan_of(program).choice.by_warps
    assert bool(products_in(code, program.name)["HGMMA"]) is not by_warps and copies_in(code, program.name)["UTMALDG"]
    assert ("tf_warp_pieces<" if by_warps else f"tf_wgmma_n{plan_of(program).choice.columns}_") in source
    body = source.split("__global__")[1]
    assert ("tf_widen_pair(" in body) == name.startswith("weights of 8 bits")
    assert ("tf_widen_halves<8>(" in body) == (name == "weights of 4 bits")
    assert ("tf_scale_pair(" in body) == (name in ("weights of 8 bits with scales", "weights of 4 bits"))


@pytest.mark.parametrize("warpgroups", [1, 2, 4])
def test_threads_that_compute_rows_compile_without_spills(warpgroups: int) -> None:
    """Rows of many tensors share the registers of their loads; producers have no more registers than the block starts with."""
    choice = Pipelined(64 * warpgroups, 16, 128, 3, warpgroups, 1, 40, swapped=True)
    program = schedule_product(stacked(16, 10000, 512), {}, H200, choice)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(compose_product(program, H200), H200), "sm_90a")
    assert without_spills(report), report[-600:]


@pytest.mark.parametrize(("graph", "choice"), [
    (lambda: of_bytes(16, 11008, 4096), Pipelined(128, 16, 256, 5, 2, 1, 86, swapped=True, by_warps=True)),
    (lambda: of_bytes(1, 11008, 4096, "f16"), Pipelined(64, 8, 256, 4, 1, 1, 172, swapped=True, by_warps=True, resident=2)),
    (lambda: dequantised(24, 11008, 4096), Pipelined(128, 24, 256, 4, 2, 1, 86, swapped=True, by_warps=True)),
    (lambda: of_halves(16, 14336, 4096, 64), Pipelined(128, 16, 256, 8, 2, 1, 112, swapped=True, by_warps=True)),
], ids=["bytes", "bytes, one row, two blocks at once", "scales, 24 rows", "weights of 4 bits"])
def test_products_of_single_warps_compile_without_spills(graph: Callable[[], Graph], choice: Pipelined) -> None:
    """No instruction of a warpgroup; a block of two at once has half the registers."""
    program = schedule_product(graph(), {}, H200, choice)
    assert isinstance(program, TileProgram), program
    source = print_cuda(compose_product(program, H200), H200)
    code, report = assembled(source, "sm_90a")
    assert without_spills(report), report[-600:]
    assert "tf_warp_pieces<" in source and not products_in(code, program.name)
