"""Contents of plans: every distinct kernel of the plans of workloads and stitched cases, and the library's products beside them.

The tuning cases are few and of one kind each. What a planner compares are kernels like these: packed, stitched, of a few microseconds.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks import stitched, workloads
from benchmarks.timing import Timing, num_input_sets, time_calls
from tilefuse.base.options import Options
from tilefuse.domain.contraction import contraction_of
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import generate, import_model
from tilefuse.frontends.imported import Imported
from tilefuse.ir.graph import Graph, Node
from tilefuse.plan.pattern import Plan, PlannedKernel
from tilefuse.plan.price.products import library_work
from tilefuse.runtime.calls.library import LIBRARY, TORCH_DTYPES
from tilefuse.target.device import DeviceSpec

# Recurrences of many steps are planned for seconds and hold the same kernels again and again.
LONG = ("nmt", "speech", "dialog", "bi-rnn", "dyn-rnn")
SEED = 61


@dataclass(frozen=True)
class Call:
    """A product that a plan leaves to the library: its place in the graph, and its time by the model of calls. Units: microseconds."""

    label: str
    node: Node
    graph: Graph
    strides: Mapping[str, tuple[int, ...]]
    predicted_us: float


def sources(only: str, quick: bool, tiny: bool) -> Iterator[tuple[str, Callable[[], Imported]]]:
    """(name, how to get the graph) of the chosen workloads and stitched cases."""
    for workload in workloads.WORKLOADS:
        name = f"plan-{workload.name}"
        if re.search(only, name) and not (quick and workload.name in LONG):
            yield name, lambda w=workload: imported_step(w, tiny)  # type: ignore[misc]
    for case in stitched.cases(tiny):
        name = f"plan-{case.name.replace('/', '-')}"
        if re.search(only, name) and not quick:
            yield name, lambda c=case: import_model(  # type: ignore[misc]
                c.function, tuple(c.inputs(torch.device("cpu"), torch.Generator().manual_seed(SEED))))


def imported_step(workload: workloads.Workload, tiny: bool) -> Imported:
    """The graph of a workload's step, as the backend of torch.compile gets it."""
    from torch._dynamo.backends.common import aot_autograd

    from tilefuse.frontends.torch.decompositions import decompositions
    from tilefuse.frontends.torch.fx import import_fx

    found: list[Imported] = []

    def keep(gm: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        found.append(import_fx(gm, "step"))
        return gm.forward

    torch.manual_seed(SEED)
    task, dtype, host = workload.make(tiny), workloads.dtype_of(workload), torch.device("cpu")
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, inference_compiler=keep, decompositions=decompositions(),
                           keep_inference_input_mutations=True)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(task.step, backend=backend, dynamic=False, fullgraph=True)(
            workloads.state_on(task.state(), host, dtype),
            *workloads.batch_as(task.batch(host, torch.Generator().manual_seed(SEED)), dtype))
    return found[0]


def planned(name: str, imported: Imported, device: DeviceSpec, options: Options) -> tuple[list[tuple[str, TileProgram]], list[Call]]:
    """The distinct kernels of a graph's plan, and its products that are calls."""
    plan: Plan = generate(imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=device,
                          options=replace(options, plan_cache=False, tuned=False), result_layouts=imported.result_layouts).plan
    kernels: dict[int, tuple[str, TileProgram]] = {}
    calls: dict[str, Call] = {}
    views = {v.value: v.strides for v in plan.views}
    for step in plan.steps:
        if isinstance(step, PlannedKernel):
            kernels.setdefault(id(step.program), (f"{name} {step.name}", step.program))
            continue
        node = plan.graph.node_by_name[step.results[0][1]]
        if node.kind == "library.matmul" and contraction_of(node, plan.graph) is not None:
            told = " by ".join("x".join(map(str, plan.graph.type_of(v).shape)) for v in step.operands[:2])
            calls.setdefault(told, Call(f"{name} call {told}", node, plan.graph, {**plan.layouts, **views},
                                        price_work(library_work(node, plan.graph, device, plan.layouts), device).us))
    return list(kernels.values()), list(calls.values())


def time_call(call: Call, device: torch.device) -> Timing:
    """The library's time for the product, on operands that lie as the plan has them and come from memory."""
    def operands() -> list[torch.Tensor]:
        made = []
        for value in call.node.reads():
            of = call.graph.type_of(value)
            strides = call.strides.get(value)
            plain = torch.rand(of.shape, device=device).to(TORCH_DTYPES[of.dtype.name])
            made.append(plain if strides is None or 0 in strides else
                        torch.empty_strided(of.shape, strides, dtype=plain.dtype, device=device).copy_(plain))
        return made

    num_bytes = sum(call.graph.type_of(v).num_bytes for v in call.node.reads())
    sets = [operands() for _ in range(num_input_sets(num_bytes, device))]
    attributes = dict(call.node.attributes)
    timing, _ = time_calls([lambda s=s: LIBRARY["matmul"](s, attributes) for s in sets], device, budget_s=0.1)  # type: ignore[misc]
    return timing
