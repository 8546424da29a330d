"""One tile program as a runnable program of its own, with inputs of its own: what tuning and measuring run."""
from __future__ import annotations

from typing import Any

from tilefuse.base.options import Options
from tilefuse.driver.lower import lower
from tilefuse.plan.pattern import Cost, Pattern, Plan, PlannedKernel
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.schedule.tile import TileProgram
from tilefuse.target.device import DeviceSpec


def lone_spec(program: TileProgram, device: DeviceSpec, options: Options) -> ProgramSpec:
    """A program of that kernel alone: its boundary values are the inputs and the results. Raises: InternalError as composing does."""
    graph = program.graph
    names = (*(i.name for i in graph.inputs), *graph.results)
    pattern = Pattern(tuple(n.name for n in graph.nodes), graph.results)
    kernel = PlannedKernel("k0", pattern, program, tuple((n, n) for n in names), "single", Cost(0.0, "measurement"), 0.0)
    return lower(Plan(graph, device.name, (kernel,), (), dict(program.layouts), 0.0, 0.0, 1, 0), device, options)


def lone_program(program: TileProgram, device: DeviceSpec, place: str, options: Options) -> Any:
    """The kernel, compiled and loaded. Raises: ToolchainError, DeviceError."""
    from tilefuse.runtime.program import Program

    return Program(lone_spec(program, device, options), {}, place, options)


def drawn_inputs(program: Any, seed: int) -> list[Any]:
    """Inputs of a program: floats in [0.25, 1.25), so that logarithms and quotients are finite, small integers; in the wanted strides."""
    import torch

    from tilefuse.runtime.library import TORCH_DTYPES

    draw = torch.Generator().manual_seed(seed)
    value_by_name = {v.name: v for v in program.spec.values}
    found = []
    for name in program.spec.inputs:
        value = value_by_name[name]
        dtype = TORCH_DTYPES[value.dtype]
        if dtype.is_floating_point:
            data = (torch.rand(value.shape, generator=draw) + 0.25).to(dtype)
        else:
            data = torch.randint(0, 2 if dtype == torch.bool else 100, value.shape, generator=draw).to(dtype)
        placed = torch.empty_strided(value.shape, value.strides, dtype=dtype, device=program.device)
        found.append(placed.copy_(data))
    return found
