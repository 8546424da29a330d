"""Scattered clusters on a device: kernels whose blocks wait for each other, beside other kernels of their kind and in recorded graphs."""
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.gpu.test_pipelined_products import has_warpgroup_products
from tests.unit.templates.staged.pipelined.row_graphs import soft
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]

ROWS, COLUMNS, INNER, CLUSTER = 4096, 1000, 256, 8
CALLS = 20


def _programs(count: int) -> list[Any]:
    """Programs of their own, each with a block for most multiprocessors."""
    device, place = present_device()
    blocks = device.num_multiprocessors // CLUSTER * CLUSTER
    made = schedule_product(soft(ROWS, COLUMNS, INNER), {}, device, Pipelined(128, 128, 64, 4, 2, 1, blocks, True, CLUSTER, scattered=True))
    assert isinstance(made, TileProgram), made
    return [lone_program(made, device, place, Options.from_environment()) for _ in range(count)]


def _inputs() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Operands, and the softmax of their product in f32."""
    generator = torch.Generator("cuda").manual_seed(3)
    x = torch.randn((ROWS, INNER), generator=generator, device="cuda").half()
    w = (torch.randn((COLUMNS, INNER), generator=generator, device="cuda") * INNER**-0.5).half()
    return {"x": x, "w": w}, torch.softmax((x.float() @ w.float().T).half().float(), 1)


def test_two_streams_do_not_wait_for_each_other() -> None:
    """Two such kernels want all multiprocessors: each starts whole or not at all."""
    programs, (values, expected) = _programs(2), _inputs()
    streams = [torch.cuda.Stream() for _ in programs]
    results = []
    torch.cuda.synchronize()
    for _ in range(CALLS):
        for program, stream in zip(programs, streams, strict=True):
            with torch.cuda.stream(stream):
                results.append(program(*(values[n] for n in program.spec.inputs))[0])
    torch.cuda.synchronize()
    assert all(torch.equal(r, results[0]) for r in results)
    assert float((results[0].float() - expected).norm() / expected.norm()) < 1e-3


def test_recorded_launches_leave_their_counters_at_zero() -> None:
    """A graph of several launches, replayed."""
    (program,), (values, expected) = _programs(1), _inputs()
    arguments = [values[n] for n in program.spec.inputs]
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        program(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [program(*arguments)[0] for _ in range(3)]
    for _ in range(CALLS):
        graph.replay()
    torch.cuda.synchronize()
    assert all(float((r.float() - expected).norm() / expected.norm()) < 1e-3 for r in results)
