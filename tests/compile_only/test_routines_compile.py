"""Fused kernels of routines compile for the device by themselves, and their elements stay in registers."""
from __future__ import annotations

import pytest

from tests.unit.scripts.routine_scripts import SEQUENCES, sequence
from tests.unit.scripts.sized_runs import made
from tilefuse.printers.cuda import print_cuda, print_cuda_together
from tilefuse.runtime.compilers.nvrtc import compile_text, parse_resources
from tilefuse.scripts.compose.compose import compose_routines
from tilefuse.scripts.plan.fusions import find_fusions
from tilefuse.scripts.plan.implementations import implementations
from tilefuse.scripts.schedule.routines import FusedRoutines
from tilefuse.target.device import H200


@pytest.mark.parametrize("double", [False, True], ids=["f32", "f64"])
@pytest.mark.parametrize("name", sorted(SEQUENCES))
def test_fusions_compile_without_spills(name: str, double: bool) -> None:
    """The best predicted implementation of every fusion, over whole tiles and over the edge of the data."""
    pytest.importorskip("cuda.bindings.nvrtc")
    for m, n in ((4096, 4096), (4001, 4099)):
        graph = sequence(name, m, n, double)
        fusion = find_fusions(graph).legal[-1]
        best = next(implementations(graph, fusion, H200, most=1)).content
        assert isinstance(best, FusedRoutines)
        for kernel in compose_routines(best):
            source = print_cuda(kernel, H200)
            resources = parse_resources(compile_text(source, kernel.name, "sm_90a", kernel.name).log)
            assert resources is not None and resources.spill_bytes == 0, kernel.name


@pytest.mark.parametrize("name", ["axpydot", "bicgk", "gesummv"])
def test_kernels_of_given_sizes_compile_without_spills(name: str) -> None:
    """All cases of a program whose sizes are arguments, as they stand in one emitted text."""
    pytest.importorskip("cuda.bindings.nvrtc")
    text, shapes = SEQUENCES[name]
    program, _ = made(text, {v: tuple({"m": 4096, "n": 4096}[e] for e in s) for v, s in shapes.items()})
    kernels = [k for step in program.steps for k in step.kernels]
    log = compile_text(print_cuda_together(kernels, H200), "all", "sm_90a", kernels[0].name).log
    for part in log.split("Compiling entry function")[1:]:
        resources = parse_resources(part)
        assert resources is not None and resources.spill_bytes == 0, part
    assert log.count("Compiling entry function") == len(kernels)
