"""The explanation of a program as plain data: contents and traffic of each kernel, and the merges that were rejected with reasons.

`explain --json` prints it, `tools` renders it, and a saved program carries it. Names end in their units.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from tilefuse.domain.tile import TileProgram
from tilefuse.driver.explain.graph import graph_facts, machine_facts, memory_facts, step_order
from tilefuse.driver.explain.tiles import tile_facts
from tilefuse.ir.graph import Graph
from tilefuse.plan.assemble import library_call
from tilefuse.plan.pattern import LibraryCall, Pattern, Plan, PlannedKernel, is_library, outside_reads
from tilefuse.plan.price.category import category_of
from tilefuse.plan.price.cost import AnalyticCost, Figure
from tilefuse.plan.price.library_price import CallPrice, price_call
from tilefuse.plan.price.products import NO_PRODUCTS, Products, matrix_products
from tilefuse.runtime.calls.call_plan import ITEMSIZE
from tilefuse.runtime.spec import CopyStep, KernelCode, KernelStep, LibraryStep, ProgramSpec
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import kernel_template

# Of the explanation's form: raised where a field changes its meaning or goes.
FORMAT = 2


def explanation_of(plan: Plan, spec: ProgramSpec, fallbacks: Iterable[tuple[str, str]], options: Mapping[str, object],
                   device: DeviceSpec | None = None, given: Graph | None = None) -> dict[str, Any]:
    """The explanation. `options`: those that differ from their defaults; fallbacks: (operator, reason).

    device: adds to each kernel the figures behind its cost; their units and origins are listed once, under `figures`. given: the graph
    before passes, for the source places of the planned nodes.
    """
    model = AnalyticCost(device) if device is not None else None
    products = NO_PRODUCTS if device is None else matrix_products(plan.graph, device, plan.layouts)
    calls = [_library(c, plan, device, products) for c in plan.library_calls if c.runs]
    apart = None if device is None else _apart(plan, device)
    figures = {} if model is None else {id(p): model.figures(p) for p in plan.programs}
    codes = [spec.kernels[s.kernel] for s in spec.steps if isinstance(s, KernelStep)]
    kernels = [_kernel(k, code, figures.get(id(k.program), ()), plan) for k, code in zip(plan.kernels, codes, strict=True)]
    return {
        "format": FORMAT,
        "name": spec.name,
        "device": plan.device,
        "options": dict(options),
        "objective_us": round(plan.objective_us, 3),
        "unfused_us": round(plan.unfused_us, 3),
        "num_kernels": len(kernels),
        "num_distinct_kernels": len(spec.kernels),
        "unfused_kernels": plan.unfused_kernels,
        "bytes": sum(k["bytes_read"] + k["bytes_written"] for k in kernels),
        "unfused_bytes": plan.unfused_bytes,
        "plan": _search(plan),
        "kernels": kernels,
        "figures": {f.name: {"unit": f.unit, "origin": f.origin} for rows in list(figures.values())[:1] for f in rows},
        "library": calls,
        "totals": _totals(plan, spec, calls, apart),
        "views": [{"value": v.value, "base": v.base, "offset": v.offset, "strides": list(v.strides)} for v in plan.windows],
        "copies": [{"source": s.source, "target": s.target} for s in spec.steps if not isinstance(s, KernelStep | LibraryStep)],
        "layouts": {value: list(strides) for value, strides in sorted(plan.layouts.items())},
        "fallbacks": [{"operator": operator, "reason": reason} for operator, reason in fallbacks],
        "rejected": [{"first": r.first, "second": r.second, "reason": r.rejected.reason.value, "detail": r.rejected.detail}
                     for r in plan.rejected],
        "num_rejected": plan.num_rejected,
        "notes": list(plan.notes),
        "graph": graph_facts(plan.graph, given, {} if apart is None else {**plan.alone_us, **{n: p.us for n, p in apart.items()}}),
        "steps": step_order(spec),
        "memory": memory_facts(spec),
        "machine": {} if device is None else machine_facts(device),
    }


def _search(plan: Plan) -> dict[str, Any]:
    """How the plan was found; `runtime.explanation` adds the seconds that it took, which differ from run to run.

    `objective_us`: time saved against one kernel a node (greedy) or a unit (ilp); `bound_us`: no choice of candidates saves more.
    """
    search = plan.search
    if search is None:
        return {"planner": "greedy", "objective_us": round(plan.unfused_us - plan.objective_us, 3), "bound_us": None, "proven": False,
                "rounds": 0, "cuts": 0, "greedy_us": None, "peak_bytes": None, "candidates": {}, "rejected": {}, "start": None}
    return {"planner": search.planner, "objective_us": round(search.objective_us, 3), "bound_us": round(search.bound_us, 3),
            "proven": search.proven, "rounds": search.rounds, "cuts": search.cuts,
            "greedy_us": round(search.greedy_us, 3), "peak_bytes": search.peak_bytes, "candidates": dict(search.candidates),
            "rejected": dict(search.rejected), "start": _start(plan)}


def _start(plan: Plan) -> dict[str, Any] | None:
    """The earlier plan that a plan started from; None for a plan from nothing. `sizes`: inputs with [extents there, extents here]."""
    if plan.start is None:
        return None
    types = plan.graph.type_by_name
    sizes = {name: [list(there), list(types[name].shape)] for name, there in plan.start.sizes if name in types}
    return {"sizes": {name: pair for name, pair in sizes.items() if pair[0] != pair[1]}, "kept": plan.start.kept,
            "given_up": list(plan.start.given_up), "merged": plan.start.merged}


def _kernel(kernel: PlannedKernel, code: KernelCode, figures: Sequence[Figure], plan: Plan) -> dict[str, Any]:
    program = kernel.program
    names = dict(zip((n.name for n in program.graph.nodes), kernel.pattern.nodes)) | dict(kernel.binding)
    return {
        "name": code.name,
        "step": kernel.name,
        "nodes": list(kernel.pattern.nodes),
        "reads": list(outside_reads(plan.graph, kernel.pattern.nodes)),
        "writes": list(kernel.pattern.written),
        "edges": [{"producer": e.producer, "user": e.user, "level": e.level.value} for e in kernel.levels],
        "template": program.template,
        "notation": program.notation,
        "generator": kernel.generator,
        "category": category_of(program.graph.nodes),
        "bytes_read": program.bytes_read,
        "bytes_written": program.bytes_written,
        "flops": program.flops,
        "limit_us": round(kernel.limit_us, 4),
        "predicted_us": round(kernel.cost.us, 4),
        "bound_by": kernel.cost.source,
        "figures": {f.name: round(f.value, 4) for f in figures},
        # The source of equal kernels is written once, in the names of the first.
        "source_names": {source_name: own for source_name, own in names.items() if source_name != own},
        "parameters": {name: list(value) if isinstance(value, tuple) else value for name, value in program.parameters},
        **tile_facts(program, code.launch, names),
        # The code's launch, not the schedule's: composing the kernel settles how much shared memory it needs.
        "launch": {"num_blocks": code.launch.num_blocks, "num_threads": code.launch.num_threads, "cluster": code.launch.cluster,
                   "shared_bytes": code.launch.shared_bytes,
                   "shared_requested_bytes": _requested_bytes(program, code.launch.shared_bytes), "early": code.launch.early},
    }


def _requested_bytes(program: TileProgram, allocated: int) -> int:
    """Shared memory of a kernel if each of its arrays had a place of its own. Units: bytes.

    allocated: bytes a block that its launch asks for; those of a packed kernel are of the group that needs most.
    """
    staging = kernel_template(program.choice).staging(program)
    return allocated + staging.requested_bytes - staging.allocated_bytes if allocated else allocated


def _library(call: LibraryCall, plan: Plan, device: DeviceSpec | None, products: Products) -> dict[str, Any]:
    """products: those that kernels may hold instead of a call."""
    facts = {"operator": call.operator, "operands": list(call.operands), "results": [[number, value] for number, value in call.results]}
    if device is None:
        return facts
    price = price_call(call, plan.graph, device, plan.timed_calls, plan.layouts)
    return facts | {"bytes": price.num_bytes, "predicted_us": round(price.us, 4), "time_source": price.source, "at_least": price.is_bound,
                    "fusible": all(products.fusible(plan.graph.node_by_name[value]) for _, value in call.results)}


def _apart(plan: Plan, device: DeviceSpec) -> dict[str, CallPrice]:
    """Prices of calls for the products that kernels hold, as the planner compared them."""
    products = dict.fromkeys(n for k in plan.kernels for n in k.pattern.nodes if is_library(plan.graph.node_by_name[n]))
    return {n: price_call(library_call(plan.graph, Pattern((n,), (n,))), plan.graph, device, plan.timed_calls, plan.layouts)
            for n in products}


def _totals(plan: Plan, spec: ProgramSpec, calls: Sequence[Mapping[str, Any]], apart: Mapping[str, CallPrice] | None) -> dict[str, Any]:
    """Bytes and times of everything that the program runs: kernels, library calls, copies; and of one kernel a node.

    `num_at_least`: calls without a prediction, of which `library_us` counts the launch and the bytes. Without a device the totals are
    empty.
    """
    if apart is None:
        return {}
    bytes_of = {v.name: ITEMSIZE[v.dtype] * prod(v.shape) for v in spec.values}
    copied = sum(2 * bytes_of[s.target] for s in spec.steps if isinstance(s, CopyStep))
    kernels_us = sum(k.cost.us for k in plan.kernels)
    library_us = sum(c["predicted_us"] for c in calls)
    alone = apart.values()
    return {
        "kernels_us": round(kernels_us, 3), "library_us": round(library_us, 3), "num_at_least": sum(c["at_least"] for c in calls),
        "us": round(kernels_us + library_us, 3),
        "unfused_us": round(plan.unfused_kernels_us + library_us + sum(p.us for p in alone), 3),
        "kernel_bytes": sum(k.program.bytes_moved for k in plan.kernels), "library_bytes": sum(c["bytes"] for c in calls),
        "copy_bytes": copied,
        "bytes": sum(k.program.bytes_moved for k in plan.kernels) + sum(c["bytes"] for c in calls) + copied,
        "unfused_bytes": plan.unfused_bytes + sum(c["bytes"] for c in calls) + sum(p.num_bytes for p in alone) + copied,
    }


def joined_explanations(name: str, device: str, parts: Sequence[Mapping[str, Any]], fallbacks: Iterable[tuple[str, str]],
                        notes: Sequence[str]) -> dict[str, Any]:
    """Explanations of the programs of one model as one: lists one after the other, numbers added up; each whole under `parts`."""
    lists = ("kernels", "library", "views", "copies", "fallbacks", "rejected", "notes")
    sums = ("objective_us", "unfused_us", "num_kernels", "num_distinct_kernels", "unfused_kernels", "bytes", "unfused_bytes",
            "num_rejected")
    joined: dict[str, Any] = {"name": name, "device": device, "options": dict(parts[0]["options"]) if parts else {}}
    joined |= {key: round(sum(part[key] for part in parts), 3) for key in sums}
    joined |= {key: [item for part in parts for item in part[key]] for key in lists}
    joined |= {"format": FORMAT, "parts": [dict(part) for part in parts]}
    joined |= {"plan": {}, "figures": dict(parts[0]["figures"]) if parts else {}, "layouts": {}, "totals": {}}
    joined["fallbacks"] += [{"operator": operator, "reason": reason} for operator, reason in fallbacks]
    joined["notes"] += list(notes)
    return joined
