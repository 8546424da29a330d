"""Attention with few queries on a device: walks in parts, heads as rows, ends in memory; repeated, recorded, and on several streams."""
from __future__ import annotations

import pytest
import torch

from benchmarks.attention.cases import Attention, attention_of
from benchmarks.attention.timed import BOUND, arguments, error_of
from tests.gpu.test_pipelined_walks import has_warpgroup_products
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.templates.pattern import pattern_graph
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import schedule_walk

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


def program_of(case: Attention, choice: PipelinedWalk | None) -> object:
    """The walk of a case, ready to be called."""
    device, place = present_device()
    graph = case.graph()
    made = schedule_walk(pattern_graph(graph, tuple(n.name for n in graph.nodes)), {}, device, choice)
    assert isinstance(made, TileProgram), made
    return lone_program(made, device, place, Options.from_environment())


def called(program: object, case: Attention, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The rows that a call gives."""
    (y,) = program(*arguments(program, case, inputs))  # type: ignore[operator]
    return y


@pytest.mark.parametrize(("name", "choice"), [
    ("f16/plain/1x32g8x1k4096x128", None), ("bf16/plain/1x32g8x1k131072x64", None), ("f16/plain/1x32x1k777x64", None),
    ("f16/plain/12x32g8x1k4096x128", None), ("bf16/plain/64x32g8x1k512x64", None),
    ("f16/plain/12x32g8x1k4096x128", PipelinedWalk(128, 1, 2, 3, 1, 132, parts=4, heads=4)),
    ("f16/plain/2x8g2x16k3000x128", PipelinedWalk(128, 1, 1, 2, 1, 32, parts=8, heads=4)),
    ("bf16/plain/1x8x4k9000x256", PipelinedWalk(64, 1, 1, 2, 1, 128, parts=16)),
    ("f16/plain/1x1x1k40000x64", PipelinedWalk(128, 1, 1, 4, 1, 132, parts=105)),
    ("f16/plain/8x32g8x1k4096x128", PipelinedWalk(48, 1, 1, 4, 1, 128, parts=2, heads=4)),
    ("f16/lengths/8x32g8x1k4096x128", PipelinedWalk(96, 1, 1, 3, 1, 132, parts=4, heads=4)),
    ("bf16/lengths/5x8x1k2000x64", PipelinedWalk(128, 1, 1, 4, 1, 132, parts=3)),
    ("f16/alibi/2x8g2x3k500x64", PipelinedWalk(64, 1, 1, 3, 1, 16, parts=4, heads=4)),
    ("f16/cap20/1x8g2x1k5000x64", PipelinedWalk(64, 1, 1, 3, 1, 32, parts=16, heads=4)),
    ("f16/bias/1x8g2x1k1000x64", PipelinedWalk(64, 1, 1, 3, 1, 32, parts=8, heads=4)),
])
def test_few_queries(name: str, choice: PipelinedWalk | None) -> None:
    """Against f64, and equal from call to call: counters are zero again, and parts are added in their order."""
    case = attention_of(name)
    program, inputs = program_of(case, choice), case.inputs("cuda")
    results = [called(program, case, inputs).clone() for _ in range(20)]
    assert all(torch.equal(results[0], r) for r in results[1:])
    assert error_of(case, inputs, results[0]) <= BOUND[case.dtype]


def test_lengths_are_read_at_each_call() -> None:
    """The same program with other ends, one of them beyond the cache, one of a single key."""
    case = attention_of("f16/lengths/4x8g2x1k1500x64")
    program, inputs = program_of(case, PipelinedWalk(64, 1, 1, 3, 1, 64, parts=8, heads=4)), case.inputs("cuda")
    for ends in ((1500, 1, 64, 65), (7, 4000, 1499, 700), (1, 1, 1, 1)):
        inputs[3] = torch.tensor(ends, device="cuda").reshape(4, 1, 1, 1)
        assert error_of(case, inputs, called(program, case, inputs)) <= BOUND[case.dtype]


def test_recorded_and_replayed() -> None:
    """In a CUDA graph with other work around, many times over, its keys changed in place."""
    case = attention_of("f16/plain/1x32g8x1k4096x64")
    program, inputs = program_of(case, None), case.inputs("cuda")
    called(program, case, inputs)
    torch.cuda.synchronize()
    recorded, graph = torch.empty(0), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            recorded = called(program, case, inputs)
    for seed in range(1, 4):
        for x, new in zip(inputs, case.inputs("cuda", seed), strict=True):
            x.copy_(new)
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        assert error_of(case, inputs, recorded) <= BOUND[case.dtype]


def test_streams_beside_each_other() -> None:
    """Two streams at once have workspaces and counters of their own."""
    case = attention_of("f16/plain/1x8g2x1k20000x64")
    program, streams = program_of(case, None), [torch.cuda.Stream() for _ in range(2)]
    inputs = [case.inputs("cuda", seed) for seed in range(2)]
    torch.cuda.synchronize()
    for _ in range(10):
        results = []
        for stream, given in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                results.append(called(program, case, given))
        torch.cuda.synchronize()
        assert all(error_of(case, given, r) <= BOUND[case.dtype] for given, r in zip(inputs, results, strict=True))


def test_nan_and_infinities() -> None:
    """A part with a NaN, a row of nothing but -inf: as eager torch has them."""
    case = attention_of("f16/plain/1x8g2x1k2000x64")
    program, inputs = program_of(case, PipelinedWalk(64, 1, 1, 3, 1, 32, parts=16, heads=4)), case.inputs("cuda")
    inputs[2][0, 0, 1700, 5] = float("inf")
    inputs[1][0, 1, 3] = float("nan")
    got, expected = called(program, case, inputs).double(), case.definition()(*inputs).double()  # type: ignore[union-attr]
    assert torch.equal(got.isnan(), expected.isnan()) and torch.equal(got.isinf(), expected.isinf())
    finite = expected.isfinite()
    assert (got[finite] - expected[finite]).abs().max() < 0.01
