"""Results whose rows begin anywhere in memory on a device: every case of the host's tests, and sizes that fill the device."""
from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.test_pipelined_products import has_warpgroup_products, on_device, run_thrice
from tests.unit.templates.staged.pipelined.product_graphs import plain
from tests.unit.templates.staged.pipelined.test_pipelined import Case, drawn
from tests.unit.templates.staged.pipelined.test_row_stores import ROUNDINGS, ROW_STORE_CASES
from tests.unit.templates.stitched_cases import in_double
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.ir.dtype import BF16
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.templates.staged.pipelined.template import schedule_product

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


@pytest.mark.parametrize("name", ROW_STORE_CASES)
def test_kernel_stores_every_element(name: str) -> None:
    """Every element of every result, equal from call to call."""
    case = ROW_STORE_CASES[name]
    program = schedule_product(case.graph(), case.layouts, present_device()[0], case.wanted)
    assert isinstance(program, TileProgram), program
    values, double = drawn(program.graph), in_double(program.graph)
    _, results = run_thrice(program, values, case.layouts)
    wanted = interpret(double, {i.name: values[i.name].astype(NUMPY_DTYPES[i.type.dtype.name]) for i in double.inputs})
    for result, got, value in zip(program.graph.results, results, wanted, strict=True):
        error = np.abs(got.double().cpu().numpy() - np.asarray(value, np.float64).reshape(tuple(got.shape))).max()
        assert error <= 4 * ROUNDINGS[program.graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0)


@pytest.mark.parametrize("size", [(4095, 4097, 1024), (4000, 4999, 520), (8191, 515, 4096)])
def test_large_results(size: tuple[int, int, int]) -> None:
    """More tiles than the device has blocks, and tiles that hang over both ends; bf16 against products in f32."""
    _, values, (got,) = on_device(Case(lambda: plain(*size, BF16)))
    wanted = values["x"].float() @ values["w"].float().T
    assert float((got.float() - wanted).norm() / wanted.norm()) < 2.0**-8
