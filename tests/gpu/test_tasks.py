"""Kernels of tasks on a CUDA device: waits, tickets and counters; whole models; streams, replays, the watch and the timeline."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.tasks import chain_kernel, chain_program
from tests.unit.templates.tasks.task_models import decode_step, normed_chain, recurrence
from tilefuse.inspection.task_times import task_times, write_timeline
from tilefuse.target.device import H200

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
MODELS = {"decode": lambda: decode_step(2), "recurrence": lambda: recurrence(32), "chain": normed_chain}


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(("stages", "tasks", "workers"), [(2, 1, 1), (9, 300, 132), (64, 132, 132), (40, 7, 264), (33, 2000, 5)])
def test_chains(stages: int, tasks: int, workers: int, waits: bool) -> None:
    """More tasks than blocks, more blocks than tasks, one block for all: every call counts each element up once a stage."""
    program = chain_program(chain_kernel(stages, tasks, workers, waits), H200, "cuda")
    x = torch.arange(tasks, dtype=torch.float32, device="cuda")
    for _ in range(20):
        assert torch.equal(program(x)[0], x + stages if waits else (x + 1).repeat(stages))


def test_streams_side_by_side() -> None:
    """Calls on several streams at once have counters of their own."""
    program = chain_program(chain_kernel(48, 200, 66), H200, "cuda")
    streams = [torch.cuda.Stream() for _ in range(4)]
    inputs = [torch.full((200,), float(n), device="cuda") for n in range(4)]
    torch.cuda.synchronize()
    results: list[tuple[int, torch.Tensor]] = []
    for _ in range(10):
        for n, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results.append((n, program(inputs[n])[0]))
    torch.cuda.synchronize()
    assert all(torch.equal(y, inputs[n] + 48) for n, y in results)


def compiled(name: str, **options: Any) -> tuple[Any, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """A model as a program with tasks, its inputs, and its results in f64."""
    import tilefuse

    model, inputs = MODELS[name]()
    moved = tuple(x.cuda() for x in inputs)
    with torch.no_grad():
        out = model.cuda().double()(*(x.double() for x in moved))
        program = tilefuse.compile(model.float(), moved, device="cuda", grid_level="always", **options)
    return program, moved, out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Against f64; the same in a captured graph, replayed."""
    program, inputs, expected = compiled(name)

    def check(results: Any) -> None:
        for a, b in zip(results if isinstance(results, (list, tuple)) else (results,), expected, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)

    for _ in range(5):
        check(program(*inputs))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = program(*inputs)
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    check(results)


def test_timeline(tmp_path: Path) -> None:
    """Every task has a start, an end and a multiprocessor, and none begins before those that it waits for have ended."""
    program, inputs, _ = compiled("chain", task_times=True)
    program(*inputs)
    times = task_times(program.program if hasattr(program, "program") else program)
    assert times and all(0 < t.start_ns <= t.end_ns for t in times)
    assert write_timeline(program, tmp_path / "tasks.json").stat().st_size > 100


STUCK = """
from dataclasses import replace
import torch
from benchmarks.tasks import chain_kernel, chain_program
from tilefuse.kernel.tasks.statements import Publish
from tilefuse.target.device import H200
kernel = chain_kernel(3, 4, 2)
group = kernel.groups[0]
silent = replace(group, body=tuple(s for s in group.body if not isinstance(s, Publish)))
kernel = replace(kernel, body=(silent,), tasks=replace(kernel.tasks, limit_ms=50))
chain_program(kernel, H200, "cuda")(torch.zeros(4, device="cuda"))
torch.cuda.synchronize()
"""


def test_a_wait_beyond_the_limit_names_task_and_counter() -> None:
    """A kernel whose publications are missing stops, instead of hanging; in a process of its own, since the context is lost."""
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "tilefuse: task 4 (one element) has waited 50 ms for counter 0: 0 of 4" in done.stdout + done.stderr
