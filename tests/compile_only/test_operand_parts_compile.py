"""Plans of f32 products for an H200: three products of tf32 a step, compiled by NVRTC, its machine code read."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.compile_only.machine_code import products_in
from tests.unit.templates.staged.pipelined.product_graphs import activated, plain
from tilefuse.driver.compile import generate_sources
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph
from tilefuse.target.device import H200


@pytest.mark.parametrize("graph", [lambda: plain(4096, 4096, 4096, F32), lambda: activated(8192, 4096, 1024, F32)],
                         ids=["alone", "with maps"])
def test_f32_products_are_three_of_tf32_without_spills(graph: Callable[[], Graph]) -> None:
    """A filling of 32 elements is four instructions of 8 for each product of parts; three arrays of sums stay in registers."""
    made = generate_sources(graph(), device=H200)
    (kernel,) = made.spec.kernels
    assert len(made.spec.steps) == 1
    code, report = assembled(kernel.source, "sm_90a")
    assert without_spills(report) and "serializ" not in report.lower(), report[-600:]
    assert products_in(code, kernel.name) == {"HGMMA": 12}
    (explained,) = made.explain(json=True)["kernels"]
    assert explained["template"] == "pipelined"
