"""Plans of products of 8-bit floats and integers for an H200: one kernel with its maps, compiled by NVRTC, its machine code read."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.compile_only.machine_code import copies_in, products_in
from tests.unit.templates.staged.pipelined.byte_graphs import scaled
from tilefuse.driver.compile import generate_sources
from tilefuse.ir.dtype import BF16, F8E4M3, F8E5M2, I8
from tilefuse.ir.graph import Graph
from tilefuse.target.device import H200

GRAPHS: dict[str, tuple[Callable[[], Graph], str]] = {
    "scales of a tensor": (lambda: scaled(8192, 4096, 1024), "QGMMA"),
    "fast sums": (lambda: scaled(8192, 4096, 1024, precision="fast"), "QGMMA"),
    "scales of rows and columns, a bias, e4m3 as the result": (
        lambda: scaled(8192, 4096, 1024, (F8E4M3, F8E5M2), F8E4M3, True, True), "QGMMA"),
    "int8 with scales": (lambda: scaled(8192, 4096, 1024, (I8, I8), BF16, True, True), "IGMMA"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_products_of_bytes_are_one_kernel_without_spills(name: str) -> None:
    """A filling of 128 bytes is four instructions of 32; results leave by tensor stores."""
    graph, instruction = GRAPHS[name]
    made = generate_sources(graph(), device=H200)
    (kernel,) = made.spec.kernels
    assert len(made.spec.steps) == 1
    code, report = assembled(kernel.source, "sm_90a")
    assert without_spills(report) and "serializ" not in report.lower(), report[-600:]
    counted = products_in(code, kernel.name)
    assert set(counted) == {instruction} and counted[instruction] % 4 == 0
    assert copies_in(code, kernel.name)["UTMASTG"]
    (explained,) = made.explain(json=True)["kernels"]
    assert explained["template"] == "pipelined"
