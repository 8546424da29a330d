"""Large products in plans: one kernel with the maps behind them where that is predicted faster, a call of the library elsewhere."""
from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.architectures import VisionTransformer
from tests.unit.plan.model_products import MODEL_SIZED, linear_gelu
from tests.unit.templates.host_build import compiler, run
from tests.unit.templates.staged.pipelined.product_graphs import plain
from tests.unit.templates.staged.pipelined.test_pipelined import ROUNDOFF, drawn
from tests.unit.templates.stitched_cases import in_double
from tests.unit.templates.stitched_graphs import clamped_layers, product_softmax
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import generate, generate_sources, import_model
from tilefuse.ir.dtype import BF16, F16
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.plan.pattern import Plan, PlannedKernel
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.products import library_product_us
from tilefuse.plan.text.edit import plan_of_outline, setting_of_plan
from tilefuse.plan.text.text import parse_plan, print_plan
from tilefuse.target.catalog import A100, H100
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.energy import energy_pj
from tilefuse.templates.staged.pipelined.form import product_form
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product
from tilefuse.templates.staged.walked.record import PipelinedWalk


def planned(graph: Graph, device: DeviceSpec = H200, **options: object) -> Plan:
    return plan_graph(graph, {}, device, Options().with_overrides(**options))


@cache
def kernel_of(name: str) -> PlannedKernel:
    """The one kernel of a model-sized pattern's plan."""
    plan = planned(MODEL_SIZED[name][0]())
    assert not plan.library_calls
    (kernel,) = plan.kernels
    return kernel


@pytest.mark.parametrize("name", MODEL_SIZED)
def test_a_product_of_a_models_size_is_one_kernel_with_its_maps(name: str) -> None:
    """Its price is below that of the call and the cheapest kernels of the maps."""
    graph, kernel = MODEL_SIZED[name][0](), kernel_of(name)
    assert isinstance(kernel.program.choice, Pipelined)
    (node,) = (n for n in graph.nodes if n.category == "library")
    apart = planned(graph, stitch=False)
    assert len(apart.library_calls) == 1
    assert kernel.cost.us < library_product_us(node, graph, H200) + sum(k.cost.us for k in apart.kernels)


@pytest.mark.parametrize("name", MODEL_SIZED)
def test_the_plan_as_text_gives_the_plan_back(name: str) -> None:
    """Notation, tiles and price."""
    plan = planned(MODEL_SIZED[name][0]())
    again = plan_of_outline(parse_plan(print_plan(plan)), setting_of_plan(plan, H200, Options()))
    assert [(k.program.notation, k.cost) for k in again.kernels] == [(k.program.notation, k.cost) for k in plan.kernels]


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", ["linear, bias, gelu", "projection to heads"])
def test_its_kernel_computes_the_pattern_at_small_sizes(name: str, tmp_path: Path) -> None:
    """The same tiles on sizes that they do not divide, every access checked, against f64."""
    choice, graph = kernel_of(name).program.choice, MODEL_SIZED[name][1]()
    assert isinstance(choice, Pipelined)
    program = schedule_product(graph, {}, H200, replace(choice, band=1, blocks=2))
    assert isinstance(program, TileProgram), program
    kernel, values = compose_product(program, H200), drawn(program.graph)
    given = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = run(kernel, given, tmp_path, check=True)
    assert status == 0, report
    (expected,) = interpret(in_double(program.graph), {n: v.astype(np.float64) for n, v in values.items()})
    (result,) = (b.name for b in kernel.parameters if b.role == "out")
    error = np.abs(memory[result].astype(np.float64) - np.asarray(expected).ravel()).max()
    assert error <= 4 * ROUNDOFF[program.graph.type_of(program.graph.results[0]).dtype.name] * max(np.abs(expected).max(), 1.0)


@pytest.mark.parametrize("name", MODEL_SIZED)
def test_other_devices_do_not_multiply_by_warpgroups(name: str) -> None:
    """An A100 has no such instruction."""
    assert not any(isinstance(k.program.choice, Pipelined) for k in planned(MODEL_SIZED[name][0](), A100).kernels)


def test_a_large_product_alone_is_a_call() -> None:
    """Both prices are estimates, and a call needs no compiler."""
    plan = planned(plain(4096, 4096, 4096, BF16))
    assert len(plan.library_calls) == 1 and not plan.kernels


def test_layers_whose_weights_are_transposed_views_are_kernels() -> None:
    """torch's linear layers in f32, and products of bytes: the inner axis is the last in memory, though not that of the operand."""
    def scaled(x: torch.Tensor, w: torch.Tensor, scale_x: torch.Tensor, scale_w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch._scaled_mm(x, w.t(), scale_x, scale_w, out_dtype=torch.bfloat16))

    def batched(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y.transpose(1, 2)

    bytes_ = (torch.empty(2048, 1024, dtype=torch.float8_e4m3fn), torch.empty(1024, 1024, dtype=torch.float8_e4m3fn))
    for function, inputs in ((torch.nn.functional.linear, (torch.empty(2048, 1024), torch.empty(1024, 1024))),
                             (batched, (torch.empty(8, 512, 256), torch.empty(8, 512, 256))),
                             (lambda x, w: torch._int_mm(x, w.t()), tuple(t.view(torch.int8) for t in bytes_)),
                             (scaled, (*bytes_, torch.empty(2048, 1), torch.empty(1, 1024)))):
        plan = generate_sources(function, inputs, device=H200).plan
        assert [type(k.program.choice) for k in plan.kernels] == [Pipelined] and not plan.library_calls


def test_only_the_operand_that_lies_across_is_turned() -> None:
    """f32: warpgroup instructions want the inner axis contiguous; the right operand's view of its memory is so, the left one's is not."""
    plan = generate_sources(lambda x, w: x.t() @ w.t(), (torch.empty(2048, 2048), torch.empty(2048, 2048)), device=H200).plan
    turned, product = (k.program for k in plan.kernels)
    assert turned.template in ("pointwise", "transpose") and product.template == "pipelined" and not plan.library_calls


def test_few_rows_alone_are_a_kernel_that_reads_its_weights_once() -> None:
    """The price of pipelined products counts every read, so that it is compared with the call's as it is."""
    for inner in (4096, 14336):
        (kernel,) = planned(plain(16, 4096, inner, BF16)).kernels
        assert isinstance(kernel.program.choice, Pipelined) and kernel.program.choice.swapped


@pytest.mark.parametrize("size", [(4096, 4096, 4096), (8192, 8192, 8192), (16384, 768, 3072)])
def test_large_tiles_multiply_with_less_power(size: tuple[int, int, int]) -> None:
    """Tiles of 128 x 256 are copied once for 128 rows; two of 64 x 256 in turn copy their columns twice, which takes more energy."""
    large = schedule_product(plain(*size, BF16), {}, H100)
    assert isinstance(large, TileProgram) and isinstance(large.choice, Pipelined)
    assert (large.choice.rows, large.choice.columns, large.choice.pingpong) == (128, 256, False)
    tiles = ((128, 256), (256, 128), (64, 256), (128, 128))
    energies = [_energy_pj(plain(*size, BF16), Pipelined(*tile, 64, 3, 2, 16, 132)) for tile in tiles]
    assert all(1.0 <= e / energies[0] < 1.2 for e in energies) and energies[2] > 1.02 * energies[0]


def _energy_pj(graph: Graph, choice: Pipelined) -> float:
    form = product_form(graph, {})
    assert not isinstance(form, Rejected)
    return energy_pj(form, choice, 0, 0, H200)


def test_small_products_are_stitched() -> None:
    """Several products and reductions stay in one kernel of stages."""
    for graph in (product_softmax(64, 64, 128, F16), clamped_layers(32, (64, 64, 64), F16), linear_gelu(64, 128, 64)):
        plan = planned(graph)
        assert not plan.library_calls and {k.program.template for k in plan.kernels} == {"stitched"}


def test_stages_leave_large_products_to_pipelines_and_calls() -> None:
    """A product whose operands do not stay on chip is not tried in stages where a call would do; a plan by hand may hold it so."""
    graph = product_softmax(4096, 1024, 8192, F16)
    nodes = [n.name for n in graph.nodes]
    refused = schedule_pattern(graph, nodes, {}, H200, replaces_calls=True)
    assert isinstance(refused, Rejected) and refused.reason is Reason.LIBRARY_CALL
    assert isinstance(schedule_pattern(graph, nodes, {}, H200), TileProgram)


def test_stages_hold_products_of_f32_that_pipelines_hold_too() -> None:
    """The library multiplies f32 on threads, so that a step of a recurrence in one kernel of stages is faster than product and gates."""
    def step(x: torch.Tensor, cell: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        i, f, g, o = (torch.nn.functional.linear(x, w, bias)).chunk(4, 1)
        return torch.sigmoid(o) * torch.tanh(torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g))

    inputs = (torch.empty(128, 156), torch.empty(128, 128), torch.empty(512, 156), torch.empty(512))
    plan = generate_sources(step, inputs, device=H200).plan
    assert [k.program.template for k in plan.kernels] == ["stitched"] and not plan.library_calls


def test_norms_behind_a_residual_read_their_rows_once() -> None:
    """Two layers of ViT: products keep the residual, each norm is one kernel; the program offers unions of what it leaves of others."""
    images = torch.empty(64, 3, 224, 224, dtype=torch.float16)
    imported = import_model(VisionTransformer(2).half().eval(), (images,))
    plan = generate(imported.graph, constants=imported.constants, device=H200, options=replace(Options(), plan_cache=False)).plan
    others = [k for k in plan.kernels if not isinstance(k.program.choice, PipelinedWalk)]
    reducing = [k for k in others if any(plan.graph.node_by_name[n].category == "reduce" for n in k.pattern.nodes)]
    assert len(reducing) == 5
