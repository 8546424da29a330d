"""Grouped products on a device: every case of the host's tests, any offsets, and sizes that fill the device."""
from __future__ import annotations

import numpy as np
import pytest
import torch

import tilefuse
from tests.gpu.test_pipelined_products import has_warpgroup_products, run_thrice
from tests.unit.templates.staged.pipelined.grouped_cases import GROUPED_CASES, experts, gated_experts, grouped_inputs
from tests.unit.templates.staged.pipelined.test_pipelined import ROUNDOFF
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.ir.dtype import BF16
from tilefuse.ir.interpret import interpret
from tilefuse.runtime.calls.grouped_products import grouped_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


@pytest.mark.parametrize("name", GROUPED_CASES)
def test_kernel_multiplies_each_group(name: str) -> None:
    """Every element of every result, equal from call to call."""
    case = GROUPED_CASES[name]
    program = schedule_product(case.graph(), case.layouts, present_device()[0], case.wanted)
    assert isinstance(program, TileProgram), program
    graph = program.graph
    values, results = run_thrice(program, grouped_inputs(case, graph), case.layouts)
    wanted = interpret(in_double(graph), {n: (v.double() if v.is_floating_point() else v).cpu().numpy() for n, v in values.items()})
    for result, got, value in zip(graph.results, results, wanted, strict=True):
        error = np.abs(got.double().cpu().numpy() - np.asarray(value).reshape(tuple(got.shape))).max()
        assert error <= 4 * ROUNDOFF[graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0)


@pytest.mark.parametrize("wanted", [None, Pipelined(128, 256, 64, 4, 2, 16, 132), Pipelined(128, 128, 64, 5, 2, 8, 132, pingpong=True)],
                         ids=["chosen", "shared tiles", "tiles in turn"])
def test_one_kernel_takes_any_offsets(wanted: Pipelined | None) -> None:
    """Offsets that differ from call to call: equal groups, one group, no rows, falling ones; bf16 against products in f32."""
    rows, columns, inner, groups = 4000, 1416, 520, 24
    device, place = present_device()
    program = schedule_product(experts(groups, rows, columns, inner, BF16), {}, device, wanted)
    assert isinstance(program, TileProgram), program
    lone = lone_program(program, device, place, Options.from_environment())
    generator = torch.Generator("cuda").manual_seed(3)
    x = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16, generator=generator)
    w = torch.randn(groups, columns, inner, device="cuda", dtype=torch.bfloat16, generator=generator)
    random = np.random.default_rng(5)
    drawn = [np.arange(1, groups + 1) * rows // groups, np.full(groups, rows), np.zeros(groups), random.integers(-100, 2 * rows, groups)]
    drawn += [np.sort(random.integers(0, rows + 1, groups)) for _ in range(8)]
    for offsets in drawn:
        ends = torch.tensor(offsets, dtype=torch.int32, device="cuda")
        got, = lone(*({"x": x, "w": w, "offsets": ends}[n] for n in lone.spec.inputs))
        expected = grouped_product(x.float().cpu(), w.float().cpu().mT, ends.cpu()).cuda()
        assert float((got.float() - expected).norm()) <= 2.0**-8 * float(expected.norm()), offsets


def test_a_gated_pair_of_experts_is_one_kernel() -> None:
    """silu(x gate) * (x up) for 16 experts, of which two have no rows, against torch in f32."""
    rows, columns, inner, groups = 4096, 1408, 2048, 16
    device, place = present_device()
    program = schedule_product(gated_experts(groups, rows, columns, inner), {}, device)
    assert isinstance(program, TileProgram), program
    lone = lone_program(program, device, place, Options.from_environment())
    x = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
    gate, up = (torch.randn(groups, columns, inner, device="cuda", dtype=torch.bfloat16) * inner**-0.5 for _ in range(2))
    ends = torch.tensor([0, 300, 700, 700, *range(900, 900 + 12 * 250, 250)], dtype=torch.int32, device="cuda")
    ends[-1] = rows
    got, = lone(*({"x": x, "gate": gate, "up": up, "offsets": ends}[n] for n in lone.spec.inputs))
    first, second = (grouped_product(x.float().cpu(), m.float().cpu().mT, ends.cpu()).cuda() for m in (gate, up))
    expected = torch.nn.functional.silu(first) * second
    assert float((got.float() - expected).norm()) <= 2.0**-7 * float(expected.norm())


def test_torch_experts_are_two_kernels() -> None:
    """A mixture's layer in torch: gate and up share a kernel, down and the router's weights another; captured and replayed."""
    rows, columns, inner, groups = 2048, 704, 1024, 8
    x = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
    gate, up = (torch.randn(groups, columns, inner, device="cuda", dtype=torch.bfloat16) * inner**-0.5 for _ in range(2))
    down = torch.randn(groups, inner, columns, device="cuda", dtype=torch.bfloat16) * columns**-0.5
    weight = torch.rand(rows, 1, device="cuda", dtype=torch.bfloat16)
    ends = torch.tensor([10, 400, 400, 900, 901, 1500, 1800, rows], dtype=torch.int32, device="cuda")

    def layer(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, ends: torch.Tensor,
              weight: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.silu(torch._grouped_mm(x, gate.transpose(-2, -1), ends)) * torch._grouped_mm(x, up.transpose(-2, -1), ends)
        return torch._grouped_mm(h, down.transpose(-2, -1), ends) * weight

    compiled = tilefuse.compile(layer, (x, gate, up, down, ends, weight))
    assert len(compiled.kernels) == 2
    for _ in range(3):
        got, expected = compiled(x, gate, up, down, ends, weight), layer(x, gate, up, down, ends, weight)
        got = got[0] if isinstance(got, tuple) else got
        assert float((got.float() - expected.float()).norm()) <= 2.0**-6 * float(expected.float().norm())
