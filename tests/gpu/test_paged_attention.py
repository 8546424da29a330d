"""Attention over caches in pages on a device: pages that tensor copies bring one by one, lengths and tables read at each call."""
from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from benchmarks.attention.paged import Paged, compiled, paged_of
from benchmarks.attention.timed import BOUND
from tests.gpu.test_pipelined_walks import has_warpgroup_products
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.templates.pattern import pattern_graph
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import schedule_walk

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


def program_of(case: Paged, inputs: list[torch.Tensor], choice: PipelinedWalk | None) -> object:
    """The walk of a case, ready to be called."""
    device, place = present_device()
    graph = compiled(case.definition, inputs, device).plan.graph
    made = schedule_walk(pattern_graph(graph, tuple(n.name for n in graph.nodes)), {}, device, choice)
    assert isinstance(made, TileProgram), made
    return lone_program(made, device, place, Options.from_environment())


def called(program: object, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The rows that a call gives."""
    by_name = {f"arg{n}_1": x for n, x in enumerate(inputs)}
    (y,) = program(*(by_name[name] for name in program.spec.inputs))  # type: ignore[operator, attr-defined]
    return y


@pytest.mark.parametrize(("name", "choice"), [
    ("f16/full/8x32g8x1k4096p16x128", None), ("bf16/full/1x32g8x1k65536p64x64", None), ("f16/ragged/5x8g2x1k1024p8x64", None),
    ("f16/full/2x8g8x300k512p16x64", None), ("f16/ragged/3x8g2x16k960p24x128", None),
    ("f16/full/8x32g8x1k4096p16x128", PipelinedWalk(128, 1, 1, 3, 1, 128, parts=2, heads=4)),
    ("f16/ragged/8x32g8x1k4096p16x128", PipelinedWalk(80, 1, 1, 4, 1, 132, parts=4, heads=4)),
    ("f16/ragged/8x32g8x1k4096p128x128", PipelinedWalk(64, 1, 1, 4, 1, 132, parts=4, heads=4)),
    ("bf16/ragged/5x8g8x1k2000p40x64", PipelinedWalk(80, 1, 1, 4, 1, 132, parts=3)),
    ("f16/ragged/2x8g2x3k512p256x64", PipelinedWalk(48, 1, 1, 3, 1, 16, parts=4, heads=4)),
    ("f16/full/1x8g2x200k1024p8x128", PipelinedWalk(128, 2, 1, 2, 1, 16)),
    ("bf16/full/1x4g4x4k512p16x256", PipelinedWalk(64, 1, 1, 2, 1, 8, parts=2)),
])
def test_pages(name: str, choice: PipelinedWalk | None) -> None:
    """Against f64, and equal from call to call."""
    case = paged_of(name)
    inputs = case.inputs("cuda")
    program = program_of(case, inputs, choice)
    results = [called(program, inputs).clone() for _ in range(10)]
    assert all(torch.equal(results[0], r) for r in results[1:])
    assert case.error_of(inputs, results[0]) <= BOUND[case.dtype]


def test_lengths_and_tables_are_read_at_each_call() -> None:
    """Other lengths, tables and pages by one program; numbers from the end; any numbers behind the lengths."""
    case = paged_of("f16/ragged/4x8g2x1k1536p16x64")
    inputs = case.inputs("cuda")
    program = program_of(case, inputs, PipelinedWalk(64, 1, 1, 3, 1, 64, parts=8, heads=4))
    for seed, ends in enumerate(((1536, 1, 64, 65), (7, 1536, 1499, 700), (1, 1, 1, 1))):
        inputs = case.inputs("cuda", seed)
        inputs[4] = torch.tensor(ends, device="cuda")
        legal, pages = inputs[3], torch.arange(96, device="cuda")
        inputs[3] = torch.where(pages * 16 < inputs[4][:, None] + 64, torch.where(legal % 2 == 0, legal, legal - case.num_pages), 1 << 40)
        got = called(program, inputs)
        inputs[3] = legal
        assert case.error_of(inputs, got) <= BOUND[case.dtype]


def test_no_keys() -> None:
    """A batch without keys is NaN, as softmax has it."""
    case = paged_of("f16/ragged/4x8g2x1k512p16x64")
    inputs = case.inputs("cuda")
    inputs[4][2] = 0
    got = called(program_of(case, inputs, None), inputs)
    assert got.isnan().flatten(1).all(1).tolist() == [False, False, True, False]
    assert case.error_of(inputs, got) <= BOUND[case.dtype]


def test_recorded_and_replayed() -> None:
    """In a CUDA graph, many times over, whose table and lengths change in place."""
    case = paged_of("f16/ragged/8x32g8x1k4096p16x128")
    inputs = case.inputs("cuda")
    program = program_of(case, inputs, None)
    called(program, inputs)
    torch.cuda.synchronize()
    recorded, graph = torch.empty(0), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = called(program, inputs)
    for seed in range(1, 4):
        for x, new in zip(inputs, case.inputs("cuda", seed), strict=True):
            x.copy_(new)
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
        assert case.error_of(inputs, recorded) <= BOUND[case.dtype]


def test_compiled_by_torch() -> None:
    """torch.compile's program: one kernel, no gathered copy."""
    from tilefuse.driver.torch_backend import backend

    case = paged_of("bf16/ragged/8x32g8x1k4096p16x128")
    inputs = case.inputs("cuda")
    attend = torch.compile(case.definition, backend=backend, options={"strict": True}, dynamic=False)
    attend(*inputs)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    got = attend(*inputs)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < inputs[1].numel() * inputs[1].element_size() // 4
    assert case.error_of(inputs, got) <= BOUND[case.dtype]


PROGRAM = """
import torch
from tilefuse.driver.torch_backend import backend
from benchmarks.attention.paged import paged_of
case = paged_of("f16/full/8x32g8x1k4096p16x128")
inputs = case.inputs("cuda")
attend = torch.compile(case.definition, backend=backend, dynamic=False)
attend(*inputs)
torch.cuda.synchronize()
print("legal", flush=True)
inputs[3][1, 3] = case.num_pages
attend(*inputs)
torch.cuda.synchronize()
print("not stopped", flush=True)
"""


def test_a_number_out_of_range_stops_the_kernel() -> None:
    """In a process of its own: the context is lost."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0 and done.stdout.split() == ["legal"], done.stdout + done.stderr[-2000:]
