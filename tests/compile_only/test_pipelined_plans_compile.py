"""Programs whose plans hold pipelined products: generated for an H200 without one, compiled by NVRTC, explained."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.compile_only.machine_code import products_in
from tests.unit.plan.model_products import MODEL_SIZED
from tests.unit.templates.staged.pipelined.product_graphs import gated, pair, plain, queries_keys_values
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import generate_sources
from tilefuse.ir.dtype import BF16
from tilefuse.ir.graph import Graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.catalog import H100
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product


@pytest.mark.parametrize("name", MODEL_SIZED)
def test_a_model_sized_product_compiles_and_is_explained(name: str) -> None:
    """One kernel on warpgroup instructions, without spills; the explanation has its tiles and its slots."""
    made = generate_sources(MODEL_SIZED[name][0](), device=H200)
    (kernel,) = made.spec.kernels
    assert len(made.spec.steps) == 1 and "wgmma" in kernel.source
    _, report = assembled(kernel.source, "sm_90a")
    assert without_spills(report), report[-600:]
    (explained,) = made.explain(json=True)["kernels"]
    assert explained["template"] == "pipelined"
    assert [tile["level"] for tile in explained["tiles"]] == ["grid", "block", "warpgroup"]
    assert [place["value"] for place in explained["shared"]][:2] == ["x", "w"]
    assert "pipelined" in made.explain()


@pytest.mark.parametrize("choice", [
    Pipelined(128, 128, 64, 4, 1, 2, 96, cluster=8, split=24), Pipelined(64, 64, 64, 8, 1, 4, 128, split=8),
    Pipelined(128, 128, 64, 5, 2, 2, 128, cluster=4, split=32), Pipelined(128, 64, 64, 4, 2, 2, 128, cluster=8, split=16),
], ids=["both", "a workspace", "both, two warpgroups", "eight columns a block"])
@pytest.mark.parametrize("graph", [lambda: plain(256, 256, 65536, BF16), lambda: gated(256, 256, 65536, BF16)], ids=["plain", "gated"])
def test_parts_of_the_inner_axis_meet_without_spills(choice: Pipelined, graph: Callable[[], Graph]) -> None:
    """Sums of parts stay in registers before they are sent and behind their addition."""
    program = schedule_product(graph(), {}, H200, choice)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(compose_product(program, H200), H200), "sm_90a")
    assert without_spills(report) and "serializ" not in report.lower(), report[-600:]


@pytest.mark.parametrize(("graph", "operands"), [
    (lambda: pair(8192, 4096, 1024, BF16, biased=True), ["x", "gate", "up"]),
    (lambda: queries_keys_values(4096, 16, 128, 2048, joined=False), ["x", "w0", "w1", "w2"]),
], ids=["a gated pair", "queries, keys and values"])
def test_products_of_one_left_operand_multiply_in_one_main_loop(graph: Callable[[], Graph], operands: list[str]) -> None:
    """Products of operands side by side share the instructions of a filling of 128 bytes; sums of all stay in registers."""
    made = generate_sources(graph(), device=H100)
    (kernel,) = made.spec.kernels
    code, report = assembled(kernel.source, "sm_90a")
    assert without_spills(report) and "serializ" not in report.lower(), report[-600:]
    assert products_in(code, kernel.name).total() % 4 == 0
    (explained,) = made.explain(json=True)["kernels"]
    assert [place["value"] for place in explained["shared"]][:len(operands)] == operands
