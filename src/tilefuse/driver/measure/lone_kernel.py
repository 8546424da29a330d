"""One tile program as a runnable program with its own inputs, for tuning and measuring.

The timed kernel must be the kernel as a plan runs it: a scatter overwrites its table without a copy, and indices are spread over the
indexed extent.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.lowering.in_place_scatter import scatter_updates
from tilefuse.driver.lowering.lower import lower
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Expr, Lookup, Read, children, walk
from tilefuse.plan.assemble import library_call
from tilefuse.plan.pattern import Cost, Pattern, Plan, PlannedKernel
from tilefuse.plan.price.lone_call import LoneCall
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.target.device import DeviceSpec

# Integer inputs that index nothing are drawn below this.
SMALL_INTEGERS = 100


def lone_spec(program: TileProgram, device: DeviceSpec, options: Options, over_inputs: bool = False) -> ProgramSpec:
    """A program of that kernel alone: its boundary values are the inputs and the results. Raises: InternalError as composing does.

    over_inputs: scatters update the inputs that they start from, where possible, and are no results; else those are copied first.
    Subscripts are not checked: a computed one may leave its range on generated inputs.
    """
    options = options.with_overrides(index_checks=False)
    graph = program.graph
    names = (*(i.name for i in graph.inputs), *graph.results)
    pattern = Pattern(tuple(n.name for n in graph.nodes), graph.results)
    kernel = PlannedKernel("k0", pattern, program, tuple((n, n) for n in names), "single", Cost(0.0, "measurement"), 0.0)
    plan = Plan(graph, device.name, (kernel,), (), dict(program.layouts), 0.0, 0.0, 1, 0)
    return lower(_over_inputs(plan) if over_inputs else plan, device, options)


def _over_inputs(plan: Plan) -> Plan:
    """The plan with every input that a scatter can write over updated by it."""
    graph = plan.graph
    inputs = {i.name for i in graph.inputs}
    scatter_of = {n.operands[0]: n.name for n in graph.nodes if n.category == "scatter" and n.operands[0] in inputs}

    def updating(updates: Mapping[str, str]) -> Plan:
        results = tuple(r for r in graph.results if r not in updates.values())
        return replace(plan, graph=replace(graph, results=results, updates=tuple(updates.items())))

    possible = scatter_updates(updating(scatter_of))
    return updating({target: value for target, value in scatter_of.items() if value in possible})


def lone_program(program: TileProgram, device: DeviceSpec, place: str, options: Options, over_inputs: bool = False) -> Any:
    """The kernel, compiled and loaded; over_inputs: as `lone_spec`. Raises: ToolchainError, DeviceError."""
    from tilefuse.runtime.program import Program

    return Program(lone_spec(program, device, options, over_inputs), {}, place, options)


def lone_call(call: LoneCall, device: DeviceSpec, place: str, options: Options) -> Any:
    """A program of one call of the library. Raises: DeviceError."""
    from tilefuse.runtime.program import Program

    graph = call.graph
    step = library_call(graph, Pattern(tuple(n.name for n in graph.nodes), graph.results))
    plan = Plan(graph, device.name, (step,), (), dict(call.layouts), 0.0, 0.0, 0, 0)
    return Program(lower(plan, device, options), {}, place, options)


def index_extents(graph: Graph) -> dict[str, int]:
    """For every integer value whose elements are subscripts, directly or after arithmetic, the smallest extent that they index.

    Wrapped, masked and ignored indices are arithmetic of an input here, so that the input itself gets the extent.
    """
    extents: dict[str, int] = {}

    def index(e: Expr, extent: int) -> None:
        """The value of `e` is a subscript of an axis of this extent."""
        if isinstance(e, Read | Lookup) and graph.type_of(e.value).dtype.is_integer:
            extents[e.value] = min(extent, extents.get(e.value, extent))
        if not isinstance(e, Lookup):  # whose own subscripts index something else
            for inner in children(e):
                index(inner, extent)

    for node in reversed(graph.nodes):  # users stand behind what they use
        bodies = () if node.body is None else (node.body,)
        for e in (*node.target, *bodies):
            for lookup in (x for x in walk(e) if isinstance(x, Lookup)):
                for subscript, extent in zip(lookup.subscripts, graph.type_of(lookup.value).shape, strict=True):
                    index(subscript, extent)
        for e, extent in zip(node.target, node.type.shape):
            index(e, extent)
        for e in bodies:
            if node.name in extents:
                index(e, extents[node.name])
    return extents


def drawn_inputs(program: Any, seed: int, extents: Mapping[str, int] | None = None) -> list[Any]:
    """Inputs of a program: floats in [0.25, 1.25), so that logarithms and quotients are finite; small integers; in the required strides.

    extents: the indexed extents of inputs that are indices (`index_extents`). Indices are drawn from the whole extent: many threads adding
    to few rows would wait for each other, and repeated reads would hit the cache.
    """
    import torch

    from tilefuse.runtime.calls.library import TORCH_DTYPES

    draw = torch.Generator().manual_seed(seed)
    value_by_name = {v.name: v for v in program.spec.values}
    inputs = []
    for name in program.spec.inputs:
        value = value_by_name[name]
        dtype = TORCH_DTYPES[value.dtype]
        if dtype.is_floating_point:
            data = (torch.rand(value.shape, generator=draw) + 0.25).to(dtype)
        else:
            below = 2 if dtype == torch.bool else min((extents or {}).get(name, SMALL_INTEGERS), torch.iinfo(dtype).max)
            data = torch.randint(0, max(below, 1), value.shape, generator=draw).to(dtype)
        placed = torch.empty_strided(value.shape, value.strides, dtype=dtype, device=program.device)
        inputs.append(placed.copy_(data))
    return inputs
