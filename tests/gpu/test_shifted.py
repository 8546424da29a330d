"""Left operands whose rows begin anywhere in memory on a device: every case of the host's tests, large ones, rows that are no numbers."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu.test_pipelined_products import has_warpgroup_products, on_device, run_thrice
from tests.unit.templates.staged.pipelined.product_graphs import plain
from tests.unit.templates.staged.pipelined.test_pipelined import ROUNDOFF, Case, drawn
from tests.unit.templates.staged.pipelined.test_shifted import ALONG, SHIFTED_CASES
from tests.unit.templates.stitched_cases import in_double
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.ir.dtype import BF16
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.templates.staged.pipelined.template import schedule_product

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


@pytest.mark.parametrize("name", SHIFTED_CASES)
def test_kernel_computes_every_element(name: str) -> None:
    """Every element of every result, equal from call to call."""
    case = SHIFTED_CASES[name]
    program = schedule_product(case.graph(), case.layouts, present_device()[0], case.wanted)
    assert isinstance(program, TileProgram), program
    values, double = drawn(program.graph), in_double(program.graph)
    _, results = run_thrice(program, values, case.layouts)
    wanted = interpret(double, {i.name: values[i.name].astype(NUMPY_DTYPES[i.type.dtype.name]) for i in double.inputs})
    for result, got, value in zip(program.graph.results, results, wanted, strict=True):
        error = np.abs(got.double().cpu().numpy() - np.asarray(value, np.float64).reshape(tuple(got.shape))).max()
        assert error <= 4 * ROUNDOFF[program.graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0)


@pytest.mark.parametrize("size", [(4095, 4097, 1023), (8191, 1024, 517), (1001, 3000, 4099)])
def test_large_products(size: tuple[int, int, int]) -> None:
    """More tiles than the device has blocks, tiles that hang over both ends; bf16 against products in f32."""
    _, values, (got,) = on_device(Case(lambda: plain(*size, BF16, ALONG)))
    wanted = values["x"].float() @ values["w"].float()
    assert float((got.float() - wanted).norm() / wanted.norm()) < 2.0**-8


def test_rows_that_are_no_numbers_reach_no_other_row() -> None:
    """Neighbours of rows of NaN, through whole programs."""
    import tilefuse

    x, w = torch.randn(2047, 1023, device="cuda", dtype=torch.bfloat16), torch.randn(1023, 512, device="cuda", dtype=torch.bfloat16)
    x[5::16] = float("nan")
    got = tilefuse.compile(torch.matmul, (x, w))(x, w)
    is_wrong = got.isnan().any(dim=1)
    assert bool(is_wrong[5::16].all()) and int(is_wrong.sum()) == len(is_wrong[5::16])
