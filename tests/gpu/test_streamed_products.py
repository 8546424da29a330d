"""Streamed products on a device: every case of the host's tests, and sizes that fill the device, against f64 or f32."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.templates.staged.pipelined.product_graphs import plain
from tests.unit.templates.staged.streamed.stream_graphs import normed
from tests.unit.templates.staged.streamed.test_streamed import CASES, ROUNDOFF, Case, drawn
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.ir.dtype import BF16
from tilefuse.ir.interpret import interpret
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.templates.registry import registered
from tilefuse.templates.staged.streamed.program import schedule_stream
from tilefuse.templates.staged.streamed.template import StreamedTemplate


def has_clusters() -> bool:
    """Whether the device at hand has clusters of blocks."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_clusters(), reason="needs a CUDA device of compute capability 9.0")]


def on_device(case: Case) -> tuple[TileProgram, dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    """The program, its inputs and its results, equal from call to call."""
    device, place = present_device()
    program = schedule_stream(case.graph(), case.layouts, device, case.wanted)
    assert isinstance(program, TileProgram), program
    values: dict[str, torch.Tensor] = {}
    for name, value in drawn(program.graph).items():
        kind = TORCH_DTYPES[program.graph.type_of(name).dtype.name]
        strides = case.layouts.get(name) or torch.empty(value.shape, device="meta").stride()
        values[name] = torch.empty_strided(value.shape, strides, dtype=kind, device="cuda")
        values[name].copy_(torch.from_numpy(value if value.dtype.kind in "iu" else value.astype(np.float32)))
    with registered(StreamedTemplate()):
        lone = lone_program(program, device, place, Options.from_environment())
    results = [tuple(r.clone() for r in lone(*(values[n] for n in lone.spec.inputs))) for _ in range(3)]
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again, strict=True))
    return program, values, results[0]


@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_the_product(name: str) -> None:
    """Every element of every result."""
    program, values, results = on_device(CASES[name])
    graph = program.graph
    wide = {n: v.cpu().numpy() if not v.is_floating_point() else v.double().cpu().numpy() for n, v in values.items()}
    for result, got, value in zip(graph.results, results, interpret(in_double(graph), wide), strict=True):
        error = np.abs(got.double().cpu().numpy() - np.asarray(value).reshape(tuple(got.shape))).max()
        assert error <= 4 * ROUNDOFF[graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0)


@pytest.mark.parametrize(("rows", "columns", "inner"), [(1, 4096, 4096), (16, 11008, 4096), (64, 4096, 1024), (3, 50304, 768)])
def test_large_weights_are_read_once_and_right(rows: int, columns: int, inner: int) -> None:
    """The chosen kernel of a bare product."""
    _, values, (result,) = on_device(Case(lambda: plain(rows, columns, inner, BF16)))
    wanted = values["x"].float() @ values["w"].float().t()
    assert (result.float() - wanted).abs().max() <= 4 * ROUNDOFF["bf16"] * wanted.abs().max()


def test_a_step_of_a_decoder_is_right() -> None:
    """Norm, product and residual of one row."""
    _, v, (result,) = on_device(Case(lambda: normed(1, 4096, 4096)))
    x = v["x"].float()
    normal = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) * 1e-3 + 1e-5) * v["gain"].float()).bfloat16()
    wanted = (normal.float() @ v["w"].float().t()).bfloat16().float() + v["residual"].float()
    assert (result.float() - wanted).abs().max() <= 8 * ROUNDOFF["bf16"] * wanted.abs().max()
