"""Chains of products on a device: every case of the host's tests, and sizes that fill the device."""
from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from tests.unit.templates.staged.chain.chain_graphs import layers
from tests.unit.templates.staged.chain.test_product_chain import CASES, ROUNDOFF, Case, drawn
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.ir.dtype import BF16, F16, DType
from tilefuse.ir.interpret import interpret
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.templates.staged.chain.record import ProductChain
from tilefuse.templates.staged.chain.template import schedule_chain


def has_warpgroup_products() -> bool:
    """Whether the device at hand multiplies by warpgroups."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


def on_device(case: Case) -> tuple[TileProgram, dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    """The program, its inputs and its results, equal from call to call."""
    device, place = present_device()
    program = schedule_chain(case.graph(), case.layouts, device, case.wanted)
    assert isinstance(program, TileProgram), program
    kinds = {v.name: TORCH_DTYPES[v.type.dtype.name] for v in program.graph.inputs}
    values = {name: torch.from_numpy(v.astype(np.float32)).to("cuda", kinds[name]) for name, v in drawn(program.graph).items()}
    lone = lone_program(program, device, place, Options.from_environment())
    results = [tuple(r.clone() for r in lone(*(values[n] for n in lone.spec.inputs))) for _ in range(3)]
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again, strict=True))
    return program, values, results[0]


@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_the_chain(name: str) -> None:
    """Every element of every result, against f64."""
    program, values, results = on_device(CASES[name])
    graph = program.graph
    wanted = interpret(in_double(graph), {n: v.double().cpu().numpy() for n, v in values.items()})
    for result, got, value in zip(graph.results, results, wanted, strict=True):
        error = np.abs(got.double().cpu().numpy() - np.asarray(value).reshape(tuple(got.shape))).max()
        assert error <= ROUNDOFF[graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0)


@pytest.mark.parametrize(("rows", "widths", "dtype", "wanted"), [
    (65536, (256,) * 5, F16, None), (65537, (256, 256, 256), BF16, ProductChain(128, (256, 256), 2, 3, 2, 132)),
    (200001, (64,) * 6, F16, None), (100000, (64, 256, 104, 8), BF16, None),
    (70000, (64,) * 4, F16, ProductChain(192, (64,) * 3, 2, 0, 3, 132)),
    (70000, (128,) * 4, F16, ProductChain(192, (128,) * 3, 2, 4, 3, 132)),
])
@pytest.mark.parametrize("biased", [True, False])
def test_more_tiles_than_blocks(rows: int, widths: tuple[int, ...], dtype: DType, wanted: ProductChain | None, biased: bool) -> None:
    """Blocks take several tiles, whose slots and phases count on; against products in f32 with the same roundings. Layers without a bias
    differ in their weights alone and are one loop."""
    _, values, (got,) = on_device(Case(partial(layers, rows, widths, dtype, biased=biased, activation="relu"), wanted))
    kind, x = got.dtype, values["x"]
    for n in range(len(widths) - 1):
        x = (x.float() @ values[f"w{n}"].float().T).to(kind)
        x = (x.float() + values[f"b{n}"].float()).to(kind) if biased else x
        x = torch.relu(x) if n + 2 < len(widths) else x
    wide, expected = got.float(), x.float()
    assert float((wide - expected).norm() / expected.norm()) < ROUNDOFF[dtype.name] / 2
