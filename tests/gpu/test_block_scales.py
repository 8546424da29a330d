"""Scales of blocks of the inner axis on a device: every case of the host's tests, and errors beside the dequantised product in bf16."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu.test_pipelined_products import has_warpgroup_products, run_thrice
from tests.unit.templates.staged.pipelined.block_scale_graphs import blocks
from tests.unit.templates.staged.pipelined.test_block_scales import ROUNDOFF, SCALED_CASES, drawn
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.templates.staged.pipelined.template import schedule_product

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


@pytest.mark.parametrize("name", SCALED_CASES)
def test_kernel_scales_its_blocks(name: str) -> None:
    """Every element of every result, equal from call to call."""
    case = SCALED_CASES[name]
    program = schedule_product(case.graph(), case.layouts, present_device()[0], case.wanted)
    assert isinstance(program, TileProgram), program
    graph = program.graph
    inputs = drawn(graph)
    _, (got,) = run_thrice(program, inputs, case.layouts)
    wide = in_double(graph)
    wanted, = interpret(wide, {n: v.astype(NUMPY_DTYPES[wide.type_of(n).dtype.name]) for n, v in inputs.items()})
    # An instruction aligns its products and the accumulator to the largest of them and cuts off what lies about 13 places below.
    # Partial sums are at most the sum of the magnitudes.
    magnitudes, = interpret(wide, {n: np.abs(v.astype(NUMPY_DTYPES[wide.type_of(n).dtype.name])) for n, v in inputs.items()})
    bound = 4 * ROUNDOFF[graph.type_of(graph.results[0]).dtype.name] * np.abs(wanted).max() + 2.0**-12 * np.asarray(magnitudes)
    assert (np.abs(got.double().cpu().numpy() - np.asarray(wanted)) <= bound).all()


def test_errors_are_below_those_of_the_dequantised_product_in_bf16() -> None:
    """Blocks of unlike magnitude, as quantisers see them, against f64."""
    rows, columns, inner = 512, 1024, 4096
    device, place = present_device()
    program = schedule_product(blocks(rows, columns, inner, result="f32"), {}, device)
    assert isinstance(program, TileProgram)
    lone = lone_program(program, device, place, Options.from_environment())
    x = torch.randn(rows, inner, device="cuda") * torch.randn(rows, inner // 128, device="cuda").exp().repeat_interleave(128, 1)
    w = torch.randn(columns, inner, device="cuda")
    s, t = x.view(rows, -1, 128).abs().amax(-1) / 448, w.view(columns // 128, 128, -1, 128).abs().amax((1, 3)) / 448
    per_element = s.repeat_interleave(128, 1), t.repeat_interleave(128, 0).repeat_interleave(128, 1)
    x, w = (x / per_element[0]).to(torch.float8_e4m3fn), (w / per_element[1]).to(torch.float8_e4m3fn)
    values = {"x": x, "s": s, "w": w, "t": t, "bias": torch.zeros(columns, device="cuda")}
    got, = lone(*(values[n] for n in lone.spec.inputs))
    wide = x.double() * per_element[0].double(), w.double() * per_element[1].double()
    wanted = wide[0] @ wide[1].t()
    dequantised = (wide[0].bfloat16().float() @ wide[1].bfloat16().float().t()).double()
    assert float((got.double() - wanted).norm()) <= float((dequantised - wanted).norm())
